//! A snapshot that exists: what its manifest says, and its data.

use crate::export::snapshots::{Data, Manifest};
use crate::export::{Export, ExportError};
use crate::volume::id::VolumeId;
use crate::volume::name::VolumeName;
use crate::volume::share::Share;
use crate::volume::snapshot_id::SnapshotId;
use crate::volume::subdir::SubDir;

/// A snapshot that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its id.
    pub id: String,
    /// The id of the volume that it was taken of; empty: unknown.
    pub source_volume: String,
    /// The least size of a volume that is made of it, in bytes; 0: unknown.
    pub size_bytes: u64,
    /// When it was taken, in nanoseconds since 1970.
    pub created_at: u64,
}

/// A snapshot and its data, open.
pub(super) struct FoundSnapshot {
    pub(super) snapshot: Snapshot,
    pub(super) data: Data,
    /// What is known of it, if it is this driver's.
    pub(super) manifest: Option<Manifest>,
    /// Where it is, if it is another driver's.
    pub(super) archive: Option<SubDir>,
}

/// The snapshot that an id names, this driver's or csi-driver-nfs's.
pub(super) fn find_snapshot(export: &Export, id: &SnapshotId) -> Result<Option<FoundSnapshot>, ExportError> {
    let key = id.key();
    let refusal = match export.snapshot(&key) {
        Ok(Some(manifest)) => {
            let snapshot = Snapshot { id: id.to_string(), ..describe(export.share(), &manifest) };
            let data = export.snapshot_data(&key, &manifest)?;
            return Ok(Some(FoundSnapshot { snapshot, data, manifest: Some(manifest), archive: None }));
        }
        Ok(None) => None,
        // The driver's folder may be another's than this host's root, and the archive open to all.
        Err(error) if error.is_refusal() => Some(error),
        Err(error) => return Err(error),
    };
    for path in id.archives().iter().flatten() {
        if let Some(archive) = export.foreign_archive(path)? {
            let snapshot = Snapshot {
                id: id.to_string(),
                source_volume: id.likely_source(),
                size_bytes: 0,
                created_at: archive.created_at,
            };
            let data = Data::Archive(archive.file);
            return Ok(Some(FoundSnapshot { snapshot, data, manifest: None, archive: Some(path.clone()) }));
        }
    }
    refusal.map_or(Ok(None), Err)
}

/// What a manifest tells.
pub(super) fn describe(share: &Share, manifest: &Manifest) -> Snapshot {
    let (share, name) = (share.named(manifest.server.as_deref()), VolumeName::recorded(&manifest.name));
    // Ids are checked before they are written; one that somebody spoiled by hand names nothing.
    let id = VolumeId::parse(&manifest.source_volume)
        .map_or_else(|_| String::new(), |volume| SnapshotId::for_snapshot(share, &name, &volume).to_string());
    Snapshot {
        id,
        source_volume: manifest.source_volume.clone(),
        size_bytes: manifest.size_bytes,
        created_at: manifest.created_at,
    }
}
