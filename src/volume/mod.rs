//! The values that the driver works with: shares, paths, names, ids, parameters.
//!
//! Nothing here does I/O. Each type is made from text by one function that refuses what the type cannot stand for, so
//! that nobody checks again: a path in a [`subdir::SubDir`] stays below its share, a name is never empty.

pub mod access;
pub mod content;
pub mod duration;
pub mod export_id;
pub mod id;
pub mod inline_pattern;
pub mod name;
pub mod parameters;
pub mod path;
pub mod quota_files;
pub(crate) mod quote;
pub mod record_key;
pub mod secret;
pub mod share;
pub mod shared_tree;
pub mod size_limit;
pub mod snapshot_id;
pub mod subdir;
mod text;
pub mod topology;
