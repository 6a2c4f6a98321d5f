//! The quota agent on the kernel's NFS server, with disks of XFS and ext4: driven by its files over NFS, as a driver does.

mod claiming;
mod crashes;
mod hostile;
mod systems;
