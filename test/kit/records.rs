//! Volumes that are made on the server's disk, as the driver would: many of them, or such as it would not make.

use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use nfs_csi::export::catalog::Record;
use nfs_csi::volume::record_key::RecordKey;
use nfs_csi::volume::subdir::SubDir;

/// Makes the driver's own folders on a share's disk.
pub fn folders(disk: &Path) {
    for folder in ["volumes", "subdirs", "snapshots", "staging", "trash"] {
        let folder = disk.join(".nfs-csi").join(folder);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).expect("a folder on the server's disk");
    }
}

/// Where the record of the volume of this name is.
pub fn file(disk: &Path, name: &str) -> PathBuf {
    disk.join(format!(".nfs-csi/volumes/{}.json", RecordKey::of(name)))
}

/// Writes the record of a volume, and nothing else; the folders are there.
pub fn write(disk: &Path, name: &str, subdir: &str) {
    let record = Record::new(name.into(), SubDir::parse(subdir).expect("a path below the share"));
    let text = serde_json::to_vec(&record).expect("a record is plain values");
    std::fs::write(file(disk, name), text).expect("a record on the server's disk");
}

/// Makes a volume in the directory of its name.
pub fn volume(disk: &Path, name: &str) {
    std::fs::create_dir(disk.join(name)).expect("a directory on the server's disk");
    write(disk, name, name);
}

/// The same with the directory's number in its record, as the driver has it since version 0.2.
pub fn numbered_volume(disk: &Path, name: &str) {
    volume(disk, name);
    let inode = std::fs::metadata(disk.join(name)).expect("the directory").ino();
    let record = Record::new(name.into(), SubDir::parse(name).expect("a path below the share"));
    let text = serde_json::to_vec(&Record { inode: Some(inode), ..record }).expect("a record is plain values");
    std::fs::write(file(disk, name), text).expect("a record on the server's disk");
}
