//! The ways to make a copy of a tree, as tests ask for them, look at them and disturb them.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nfs_csi::volume::record_key::RecordKey;

use crate::kit::check::is_well;
use crate::kit::content::{Content, bytes, fill};
use crate::kit::replica::Replica;
use crate::kit::requests::{of_snapshot, of_volume};
use crate::kit::retried::{Call, Controller};
use crate::kit::share::Share;
use crate::kit::wait_until;

pub const FOLDERS: usize = 12;
pub const FILES: usize = 12;

/// The ways to make a copy of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Clone,
    RestoreTree,
    RestoreArchive,
    SnapshotTree,
    SnapshotArchive,
}

pub const ALL: [Work; 5] =
    [Work::Clone, Work::RestoreTree, Work::RestoreArchive, Work::SnapshotTree, Work::SnapshotArchive];

impl Work {
    /// Makes what there is to copy, with content that no other round has; gives that content.
    pub async fn prepare(self, share: &Share, calls: &Controller, files: usize) -> Content {
        Call::Create(share.create("pvc-source", &[])).retried(calls).await.unwrap();
        fill(&share.on_disk("pvc-source"), FOLDERS, files);
        let format = match self {
            Self::RestoreTree => "tree",
            Self::RestoreArchive => "tar.zst",
            _ => return Content::of(&share.on_disk("pvc-source")),
        };
        Call::Snapshot(share.snapshot("before", "pvc-source", format)).retried(calls).await.unwrap();
        Content::of(&share.on_disk("pvc-source"))
    }

    pub fn call(self, share: &Share) -> Call {
        match self {
            Self::Clone => Call::Create(share.create_from("pvc-copy", of_volume(&share.id("pvc-source")), &[])),
            Self::RestoreTree | Self::RestoreArchive => {
                let snapshot = of_snapshot(&share.snapshot_id("before", "pvc-source"));
                Call::Create(share.create_from("pvc-copy", snapshot, &[]))
            }
            Self::SnapshotTree => Call::Snapshot(share.snapshot("copy", "pvc-source", "tree")),
            Self::SnapshotArchive => Call::Snapshot(share.snapshot("copy", "pvc-source", "tar.zst")),
        }
    }

    pub fn is_snapshot(self) -> bool {
        matches!(self, Self::SnapshotTree | Self::SnapshotArchive)
    }

    /// Where the copy is on the server's disk.
    pub fn place(self, share: &Share) -> PathBuf {
        if self.is_snapshot() {
            share.on_disk(".nfs-csi/snapshots").join(RecordKey::of("copy").to_string())
        } else {
            share.on_disk("pvc-copy")
        }
    }

    /// Whether the copy that is ready holds just this.
    pub async fn holds(self, content: &Content, share: &Share, calls: &Controller) -> Result<(), String> {
        match self {
            Self::SnapshotTree => content.is_at(&self.place(share).join("data"), "the snapshot"),
            Self::SnapshotArchive => {
                let snapshot = of_snapshot(&share.snapshot_id("copy", "pvc-source"));
                let restore = Call::Create(share.create_from("pvc-restored", snapshot, &[]));
                let id = restore.retried(calls).await.map_err(|status| format!("restore: {status}"))?;
                content.is_at(&share.on_disk("pvc-restored"), "the snapshot, restored")?;
                Call::Delete(id).retried(calls).await.map(drop).map_err(|status| status.to_string())
            }
            _ => content.is_at(&self.place(share), "the volume"),
        }
    }

    /// A pod changes what it has: the new volume, or the volume that the snapshot is of. Gives what must stay as it is.
    pub fn pod_writes(self, share: &Share) -> Content {
        pod_writes(&share.on_disk(if self.is_snapshot() { "pvc-source" } else { "pvc-copy" }));
        Content::of(&self.place(share))
    }

    /// Waits until some of the copy that was just asked for is done, and freezes the controller there.
    pub async fn freeze_in_the_middle(self, share: &Share, replica: &Replica, of: usize) {
        let read_before = replica.sent("READ");
        // An archive's bytes are in the client's cache until the end: so what was read for it is counted.
        let done = || match self {
            Self::SnapshotArchive => usize::try_from(replica.sent("READ") - read_before).unwrap(),
            _ => files_below(&share.on_disk(".nfs-csi/staging")).len(),
        };
        wait_until("some of the copy", Duration::from_secs(30), || (done() > of / 4).then_some(())).await;
        replica.freeze();
        assert!(done() < of && !self.place(share).exists(), "{self:?} was over too soon");
    }

    /// Deletes all that there is; nothing is left then.
    pub async fn remove(self, share: &Share, calls: &Controller) -> Result<(), String> {
        let [source, copy] = ["pvc-source", "pvc-copy"].map(|name| Call::Delete(share.id(name)));
        let [before, snapshot] =
            ["before", "copy"].map(|name| Call::DeleteSnapshot(share.snapshot_id(name, "pvc-source")));
        for call in [source, copy, before, snapshot] {
            call.retried(calls).await.map_err(|status| format!("{call:?}: {status}"))?;
        }
        is_well(share).await?;
        match share.names("") {
            left if left == [".nfs-csi"] => Ok(()),
            left => Err(format!("left on the share: {left:?}")),
        }
    }
}

/// All files below a folder.
pub fn files_below(folder: &Path) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder { &mut folders } else { &mut files }.push(entry.path());
        }
    }
    files.sort();
    files
}

/// What a tenant does with files: they are written again, shorter or longer, replaced, made private, moved; and a
/// directory goes.
pub fn pod_writes(root: &Path) {
    for (number, file) in files_below(root).into_iter().enumerate() {
        match number % 6 {
            0 => std::fs::write(&file, &bytes(1000 + number)[..2048]).unwrap(),
            1 => std::fs::write(&file, [bytes(1000 + number), bytes(number)].concat()).unwrap(),
            2 => {
                std::fs::remove_file(&file).unwrap();
                std::fs::write(file.with_file_name(format!("new-{number}")), bytes(number)).unwrap();
            }
            3 => std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap(),
            4 => std::fs::rename(&file, file.with_file_name(format!("moved-{number}"))).unwrap(),
            _ => {}
        }
    }
    std::fs::remove_dir_all(root.join("folder-3")).unwrap();
    std::fs::write(root.join("folder-3"), "a file now").unwrap();
    std::fs::rename(root.join("folder-5"), root.join("folder-5-moved")).unwrap();
    std::fs::set_permissions(root, std::fs::Permissions::from_mode(0o2770)).unwrap();
}
