//! nfs-csi: a Container Storage Interface driver whose volumes are directories on an NFS export.
//!
//! Each room knows only those to its right: `rpc` → `controller` | `node` → `export` → `tree`, `mount`, with `volume`
//! for the values they share.

pub mod authority;
pub mod beneath;
pub mod cli;
pub mod commands;
pub mod controller;
pub mod doctor;
pub mod driver;
pub mod export;
pub mod health;
pub mod inventory;
pub mod jobs;

pub mod metrics;
pub mod mount;
pub mod node;
pub mod proto;
pub mod quota;
mod reason;
pub mod registration;
pub mod rpc;
pub mod running_work;
pub mod server;
pub mod server_map;
pub mod telemetry;
pub mod tree;
pub mod volume;
