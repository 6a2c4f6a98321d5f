//! ListSnapshots and GetSnapshot: what the manifests say.

use super::Controller;
use super::list::Token;
use super::snapshot::{Snapshot, SnapshotError};
use crate::export::listing::Entry;
use crate::export::snapshots::{Data, Manifest};
use crate::export::{Export, ExportError, Folder};
use crate::mount::options::Options;
use crate::volume::id::VolumeId;
use crate::volume::name::VolumeName;
use crate::volume::share::Share;
use crate::volume::snapshot::SnapshotId;
use crate::volume::subdir::SubDir;

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
        self.look(id.share(), options, work).await
    }

    /// The snapshots on all shares known that pass the filter, behind `token`: at most `most` of them (0: as many as one
    /// page has). What cannot be read, and a share that does not answer, is logged and left out.
    ///
    /// # Errors
    /// See [`SnapshotError`]; where no share answers.
    pub async fn list_snapshots(
        &self,
        filter: SnapshotFilter,
        options: &Options,
        token: Option<&str>,
        most: usize,
    ) -> Result<SnapshotPage, SnapshotError> {
        // Asked for by its id, another cluster's is found too: so it can be restored here.
        if let Some(id) = &filter.id {
            let found = self.get_snapshot(id, options).await?;
            let is_wanted =
                |snapshot: &Snapshot| filter.volume.as_ref().is_none_or(|volume| *volume == snapshot.source_volume);
            return Ok(SnapshotPage { snapshots: found.into_iter().filter(is_wanted).collect(), next: None });
        }
        let token = match token {
            Some(text) => {
                Some(Token::parse(Folder::Snapshots, text).ok_or_else(|| SnapshotError::Token { token: text.into() })?)
            }
            None => None,
        };
        let is_listed = self.is_listed();
        let entry = move |export: &Export, manifest: Manifest| {
            let is_wanted = filter.volume.as_ref().is_none_or(|volume| *volume == manifest.source_volume);
            let is_listed = is_wanted && is_listed(manifest.owner.as_deref());
            Ok(if is_listed { entry(export.share(), &manifest) } else { Entry::Filtered })
        };
        let (snapshots, next) = self.gather(token, most, options, entry).await?;
        Ok(SnapshotPage { snapshots, next })
    }
}

fn entry(share: &Share, manifest: &Manifest) -> Entry<Snapshot> {
    match VolumeId::parse(&manifest.source_volume) {
        Ok(_) => Entry::Listed(describe(share, manifest)),
        Err(error) => Entry::LeftOut(ExportError::Record {
            path: format!("of snapshot {}", manifest.name),
            share: share.to_string(),
            reason: error.to_string(),
        }),
    }
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
            let data = export.snapshot_data(&key, manifest.kept_as)?;
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
