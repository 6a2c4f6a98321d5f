//! ListSnapshots and GetSnapshot: what the manifests say.

use super::Controller;
use super::list::{Part, Token, rest};
use super::snapshot::{Snapshot, SnapshotError};
use crate::export::snapshots::{Data, Manifest};
use crate::export::{Export, ExportError};
use crate::mount::options::Options;
use crate::volume::id::VolumeId;
use crate::volume::name::{RecordKey, VolumeName};
use crate::volume::share::Share;
use crate::volume::snapshot::SnapshotId;

/// Which snapshots are listed.
#[derive(Clone, Debug, Default)]
pub struct SnapshotFilter {
    /// The one of this id.
    pub id: Option<SnapshotId>,
    /// Those of the volume of this id.
    pub volume: Option<String>,
}

/// A part of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotPage {
    /// The snapshots.
    pub snapshots: Vec<Snapshot>,
    /// Where the next part begins; none: this was the last.
    pub next: Option<String>,
}

impl Controller {
    /// A snapshot by its id; none if there is no such snapshot.
    ///
    /// # Errors
    /// Where the server fails.
    pub async fn get_snapshot(&self, id: &SnapshotId, options: &Options) -> Result<Option<Snapshot>, SnapshotError> {
        let wanted = id.clone();
        let work = move |export: &Export| Ok(find_snapshot(export, &wanted)?.map(|found| found.snapshot));
        self.on(id.share(), options, work).await.map(|(found, _)| found)
    }

    /// The snapshots on all shares known that pass the filter and stand behind `token`, at most `most` of them (0:
    /// all).
    ///
    /// # Errors
    /// See [`SnapshotError`]. A share that does not answer is an error: without it the list would be wrong.
    pub async fn list_snapshots(
        &self,
        filter: SnapshotFilter,
        options: &Options,
        token: Option<&str>,
        most: usize,
    ) -> Result<SnapshotPage, SnapshotError> {
        if let Some(id) = &filter.id {
            let found = self.get_snapshot(id, options).await?;
            let is_wanted =
                |snapshot: &Snapshot| filter.volume.as_ref().is_none_or(|volume| *volume == snapshot.source_volume);
            return Ok(SnapshotPage { snapshots: found.into_iter().filter(is_wanted).collect(), next: None });
        }
        let token = match token {
            Some(text) => Some(Token::parse(text).ok_or_else(|| SnapshotError::Token { token: text.into() })?),
            None => None,
        };
        let part =
            move |export: &Export, after: Option<&RecordKey>, room| list(export, after, filter.volume.as_deref(), room);
        let (snapshots, next) = self.gather(token.as_ref(), most, options, part).await?;
        Ok(SnapshotPage { snapshots, next })
    }
}

/// At most `room` snapshots behind a key.
fn list(
    export: &Export,
    after: Option<&RecordKey>,
    volume: Option<&str>,
    room: usize,
) -> Result<Part<Snapshot>, ExportError> {
    rest(export.snapshot_keys()?, after, room, |key| {
        let manifest = export.snapshot(key)?;
        let wanted = manifest.filter(|manifest| volume.is_none_or(|volume| volume == manifest.source_volume));
        Ok(wanted.map(|manifest| describe(export.share(), &manifest)))
    })
}

/// A snapshot and its data, open.
pub(super) struct FoundSnapshot {
    pub(super) snapshot: Snapshot,
    pub(super) data: Data,
}

/// The snapshot that an id names, this driver's or csi-driver-nfs's.
pub(super) fn find_snapshot(export: &Export, id: &SnapshotId) -> Result<Option<FoundSnapshot>, ExportError> {
    let key = id.key();
    if let Some(manifest) = export.snapshot(&key)? {
        let snapshot = Snapshot { id: id.to_string(), ..describe(export.share(), &manifest) };
        return Ok(Some(FoundSnapshot { snapshot, data: export.snapshot_data(&key, manifest.kept_as)? }));
    }
    for path in id.archives().iter().flatten() {
        if let Some(archive) = export.foreign_archive(path)? {
            let snapshot = Snapshot {
                id: id.to_string(),
                source_volume: id.likely_source(),
                size_bytes: 0,
                created_at: archive.created_at,
            };
            return Ok(Some(FoundSnapshot { snapshot, data: Data::Archive(archive.file) }));
        }
    }
    Ok(None)
}

/// What a manifest tells.
pub(super) fn describe(share: &Share, manifest: &Manifest) -> Snapshot {
    let name = VolumeName::recorded(&manifest.name);
    // Ids are checked before they are written; one that somebody spoiled by hand names nothing.
    let id = VolumeId::parse(&manifest.source_volume)
        .map_or_else(|_| String::new(), |volume| SnapshotId::for_snapshot(share.clone(), &name, &volume).to_string());
    Snapshot {
        id,
        source_volume: manifest.source_volume.clone(),
        size_bytes: manifest.size_bytes,
        created_at: manifest.created_at,
    }
}
