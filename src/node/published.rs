//! What is published where: a small record for each target path, in a folder beside the socket.
//!
//! The mount table says what is mounted, but not for which volume: that is here. A record without its mount says
//! nothing; it is written before the mount is made, so that no mount is without one.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::record;
use super::scratch::Scratch;
use crate::volume::record_key::RecordKey;

/// One publication.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Published {
    /// The volume id.
    pub(super) volume: String,
    /// The target path as the orchestrator named it.
    pub(super) target: String,
    /// The same as the mount table names it, once it is mounted.
    pub(super) mount_point: String,
    /// The server's host name or address.
    pub(super) server: String,
    /// `server:/share/subdir`.
    pub(super) source: String,
    /// The same as the mount table has it, where that is known: another path, if the share is a link on the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) mounted: Option<String>,
    /// The mount options, without secrets.
    pub(super) options: String,
    /// Whether it refuses writes.
    pub(super) read_only: bool,
    /// Whether the volume may be published nowhere else on this node.
    pub(super) single_target: bool,
    /// The directory that was made for it, and goes with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) scratch: Option<Scratch>,
}

impl Published {
    /// Whether two publications of a target are of the same volume, for the same use. What the mount table says of it
    /// does not count, nor do the options, which may have been edited since.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let asked = |published: &Self| Self {
            mount_point: String::new(),
            mounted: None,
            options: String::new(),
            ..published.clone()
        };
        asked(self) == asked(other)
    }
}

/// All publications of this node.
#[derive(Debug)]
pub(super) struct PublishedVolumes {
    folder: PathBuf,
    by_target: Mutex<HashMap<String, Published>>,
}

impl PublishedVolumes {
    /// Reads the records of an earlier run. One that cannot be read is left out: its mount, if there is one, is then
    /// known from the mount table only.
    pub(super) fn open(state: &Path) -> io::Result<Self> {
        let folder = state.join("published");
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let mut by_target = HashMap::new();
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            match std::fs::read(&path).and_then(|text| Ok(serde_json::from_slice::<Published>(&text)?)) {
                Ok(published) => {
                    by_target.insert(published.target.clone(), published);
                }
                Err(error) => tracing::warn!(path = %path.display(), %error, "cannot read what was published"),
            }
        }
        Ok(Self { folder, by_target: Mutex::new(by_target) })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn at(&self, target: &str) -> Option<Published> {
        self.lock().get(target).cloned()
    }

    /// The other targets of a volume.
    pub(super) fn elsewhere(&self, volume: &str, target: &str) -> Vec<Published> {
        let is_other = |published: &&Published| published.volume == volume && published.target != target;
        self.lock().values().filter(is_other).cloned().collect()
    }

    /// The scratch directories in use.
    pub(super) fn scratches(&self) -> Vec<Scratch> {
        self.lock().values().filter_map(|published| published.scratch.clone()).collect()
    }

    /// The server of each publication.
    pub(super) fn servers(&self) -> Vec<String> {
        self.lock().values().map(|published| published.server.clone()).collect()
    }

    /// The server of each publication as its volume names it, and where that is mounted.
    pub(super) fn mount_points(&self) -> Vec<(String, PathBuf)> {
        let all = self.lock();
        all.values().map(|published| (published.server.clone(), published.mount_point.clone().into())).collect()
    }

    pub(super) async fn write(&self, published: Published) -> io::Result<()> {
        let text = serde_json::to_vec(&published)?;
        let (target, path, is_scratch) =
            (published.target.clone(), self.path(&published.target), published.scratch.is_some());
        // Before anything is waited for: who asks meanwhile finds it.
        let before = self.lock().insert(target.clone(), published);
        // What the record of a scratch directory names is made next.
        let written =
            if is_scratch { record::write_durably(path, text).await } else { record::write(&path, &text).map(drop) };
        if written.is_err() {
            let mut all = self.lock();
            match before {
                Some(before) => all.insert(target, before),
                None => all.remove(&target),
            };
        }
        written
    }

    pub(super) fn remove(&self, target: &str) -> io::Result<()> {
        self.lock().remove(target);
        match std::fs::remove_file(self.path(target)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn path(&self, target: &str) -> PathBuf {
        self.folder.join(format!("{}.json", RecordKey::of(target)))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Published>> {
        self.by_target.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(volume: &str, target: &str) -> Published {
        Published {
            volume: volume.into(),
            target: target.into(),
            mount_point: target.into(),
            server: "server".into(),
            source: "server:/share/v".into(),
            mounted: None,
            options: String::new(),
            read_only: false,
            single_target: false,
            scratch: None,
        }
    }

    #[tokio::test]
    async fn what_was_published_is_known_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let before = PublishedVolumes::open(folder.path()).unwrap();
        before.write(published("v", "/a")).await.unwrap();
        before.write(published("v", "/b")).await.unwrap();
        before.remove("/b").unwrap();
        let after = PublishedVolumes::open(folder.path()).unwrap();
        assert_eq!(after.at("/a"), Some(published("v", "/a")));
        assert_eq!(after.at("/b"), None);
        assert_eq!(after.elsewhere("v", "/c"), [published("v", "/a")]);
        assert!(after.elsewhere("v", "/a").is_empty());
    }

    #[tokio::test]
    async fn a_torn_record_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        PublishedVolumes::open(folder.path()).unwrap().write(published("v", "/a")).await.unwrap();
        std::fs::write(folder.path().join("published/torn.json"), "{\"volume\":").unwrap();
        let after = PublishedVolumes::open(folder.path()).unwrap();
        assert!(after.at("/a").is_some());
    }
}
