//! Mounting and unmounting NFS from a daemon that must never hang.
//!
//! What may block is done by worker processes. What is mounted is known from the mount table ([`table`]), never from a
//! look at the path. Each of these knows only those above it:
//!
//! - [`options`] and [`table`]: mount options as text, and the mounts that there are;
//! - [`fs_context`]: a mount that is made option by option, and is nowhere in the mount table;
//! - [`protocol`]: what the daemon and a worker process say to each other, and why something failed;
//! - [`worker`]: what a worker process does, one request at a time;
//! - [`daemon`]: what the daemon does: which server may be asked, by which process, and for how long;
//! - [`host`]: what this host must have.

pub mod daemon;
pub mod fs_context;
pub mod host;
pub(crate) mod onc;
pub mod options;
pub mod protocol;
pub mod table;
pub mod worker;
