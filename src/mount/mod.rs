//! Mounting and unmounting NFS from a daemon that must never hang.
//!
//! What may block runs in worker processes ([`workers`], [`worker`]); what is mounted is known from the mount table
//! ([`table`]), never from a look at the path.

mod attempt;
mod breaker;
pub mod error;
pub mod held;
pub mod host;
mod kernel;
mod onc;
pub mod options;
mod ping;
pub mod private_dir;
mod processes;
mod reach;
pub mod request;
pub mod scratch;
mod servers;
mod statd;
pub mod table;
mod words;
pub mod worker;
pub mod workers;
