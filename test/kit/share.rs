//! A share of its own for one test, below the guest's export: what goes wrong there is in no other test's way.

use std::path::PathBuf;

use nfs_csi::proto::volume_content_source::Type;
use nfs_csi::proto::{CreateSnapshotRequest, CreateVolumeRequest};

use super::client::SERVER;
use super::names_in;
use super::requests;
use super::server::SHARE;

/// The share; it goes with the value.
pub struct Share(tempfile::TempDir);

impl Share {
    pub fn new() -> Self {
        Self(tempfile::Builder::new().prefix("several-").tempdir_in(SHARE).expect("a folder on the export"))
    }

    /// A path on the server's own disk.
    pub fn on_disk(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    /// As `--export` has it.
    pub fn export(&self) -> String {
        format!("{SERVER}:{}", self.path())
    }

    /// The names in a folder on the server's disk, sorted; none if the folder is missing.
    pub fn names(&self, path: &str) -> Vec<String> {
        names_in(&self.on_disk(path))
    }

    /// The id of a volume whose StorageClass names no directory.
    pub fn id(&self, name: &str) -> String {
        format!("{SERVER}#{}#{name}##", self.path().trim_matches('/'))
    }

    /// The id of a snapshot of such a volume.
    pub fn snapshot_id(&self, name: &str, volume: &str) -> String {
        format!("{SERVER}#{}#{name}#{name}#{volume}", self.path().trim_matches('/'))
    }

    pub fn create(&self, name: &str, more: &[(&str, &str)]) -> CreateVolumeRequest {
        let share = self.path();
        requests::create(name, &[&[("server", SERVER), ("share", &share)], more].concat())
    }

    pub fn create_from(&self, name: &str, source: Type, more: &[(&str, &str)]) -> CreateVolumeRequest {
        let share = self.path();
        requests::create_from(name, source, &[&[("server", SERVER), ("share", &share)], more].concat())
    }

    /// A snapshot of a volume whose StorageClass names no directory.
    pub fn snapshot(&self, name: &str, volume: &str, format: &str) -> CreateSnapshotRequest {
        requests::snapshot(name, &self.id(volume), &[("snapshotFormat", format)])
    }

    fn path(&self) -> String {
        self.0.path().to_str().expect("a path of a test").to_owned()
    }
}
