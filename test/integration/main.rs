//! The driver against a real kernel NFS server. Runs in the guest, as root: `make integration`.
#![allow(missing_docs, unreachable_pub, reason = "a program of its own")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]
#![allow(clippy::cast_precision_loss, clippy::must_use_candidate, reason = "figures for people, and no library")]

#[path = "../kit/mod.rs"]
mod kit;

mod access_lists;
mod bad_input;
mod check;
mod cloning;
mod crashes;
mod creating;
mod dead_controllers;
mod dead_servers;
mod deleting;
mod doctor;
mod doctor_faults;
mod inline;
mod inventory;
mod jobs;
mod large_files;
mod large_trees;
mod listing;
mod listing_faults;
mod observing;
mod old_clients;
mod process;
mod publishing;
mod quota_agent;
mod quota_volumes;
mod reaching;
mod readers;
mod registering;
mod server_map;
mod servers;
mod several;
mod snapshots;
mod starting;
mod trash;
mod tree_crashes;
mod tree_faults;
mod trees;
mod unwritable;
