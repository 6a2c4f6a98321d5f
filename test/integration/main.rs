//! The driver against a real kernel NFS server. Runs in the guest, as root: `make integration`.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "tests")]

#[path = "../kit/mod.rs"]
mod kit;

mod bad_input;
mod crashes;
mod creating;
mod deleting;
mod listing;
mod process;
mod publishing;
mod reaching;
mod servers;
