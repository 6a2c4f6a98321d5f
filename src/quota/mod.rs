//! The quota agent: it runs on an NFS server, and sets the limits that drivers want.
//!
//! A driver and the agent speak by files on the export only (`volume::quota_files`). Limits are those of projects in XFS
//! and ext4: the agent makes empty directories that have a project each, the driver takes them for volumes, and the kernel
//! does the rest, whether the agent lives or not.
//!
//! ```text
//! serve ──> agent ──> folders, quotactl   overview: what `nfs-csi quota status` prints
//!                                     convert: `nfs-csi quota convert`
//! ```

pub mod agent;
pub mod convert;
pub mod error;
pub mod file_system;
pub mod folders;
pub mod ids;
pub mod overview;
pub mod quotactl;
pub mod serve;
pub mod watch;
pub mod wish;
