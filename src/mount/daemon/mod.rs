//! What the daemon does: it knows the servers, asks them whether they are there, and has worker processes do what may
//! block, each with a deadline.

mod breaker;
mod cgroup;
mod detached;
pub mod held;
pub mod mounter;
mod ping;
pub mod private_dir;
mod reach;
mod servers;
mod statistics;
mod table_watch;
pub mod tidy;
mod unmount;
mod worker_pool;
