//! `nfs-csi doctor`: what of a node, a server and an export is as the driver needs it, check by check, each with what
//! was seen and what to do.
//!
//! The checks run in groups, each group in a process of its own (`worker`), which is killed at its deadline: a check
//! that waits for a dead server ends there, and is a failure. Groups that do not need each other run at the same time
//! (`run`). The export is mounted in such a process alone, by a mount that no path leads to, so nothing of it is left
//! whenever the process ends. What is made on the export is in one directory, which is removed at the end, or by
//! another process where that one was killed, or by a later doctor.
//!
//! Each of these knows only those above it:
//!
//! - [`check`]: a check and its outcome;
//! - `task`: what a group's process is asked for;
//! - `kernel`, `options`, `security`, `node`, `names`, `server`, `export`: the checks, by subject;
//! - [`worker`]: a group's process;
//! - [`run`]: all groups, within the deadline.

pub mod check;
mod copies;
mod export;
mod files;
mod kernel;
mod mounting;
mod moved;
mod names;
mod node;
mod options;
mod records;
mod reverse;
pub mod run;
mod scratch;
mod security;
mod server;
mod task;
pub mod worker;

pub use task::Subject;
