//! ListSnapshots and GetSnapshot: what the manifests say.

use super::Controller;
use super::found_snapshot::{Snapshot, describe, find_snapshot};
use super::list::Token;
use super::snapshot::SnapshotError;
use crate::export::pages::Entry;
use crate::export::snapshots::Manifest;
use crate::export::{Export, ExportError, Folder};
use crate::mount::options::Options;
use crate::volume::id::VolumeId;
use crate::volume::share::Share;
use crate::volume::snapshot_id::SnapshotId;

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

    /// The snapshots on all shares known that pass the filter, behind `token`: at most `most` of them (0: as many as
    /// one page has). What cannot be read, and a share that does not answer, is logged and left out.
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
