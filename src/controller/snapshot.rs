//! CreateSnapshot and DeleteSnapshot.
//!
//! A snapshot is made in staging, manifest and all, and appears by one rename. It is what the volume holds while it is
//! copied: a file that is written meanwhile is copied as it is then.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use thiserror::Error;

use super::fill::{OpenVolume, Target, copy_tree, log_narrowed, open_volume};
use super::found_snapshot::{Snapshot, describe};
use super::long_work::Attempt;
use super::{Controller, IsStale, job_key, snapshot_key};
use crate::export::snapshots::Manifest;
use crate::export::staging::{Staged, StagingName};
use crate::export::{Export, ExportError, TreeWork};
use crate::jobs::{Job, JobError};
use crate::mount::options::Options;
use crate::reason::errno_of;
use crate::running_work::WorkKind;
use crate::tree::SourceKind;
use crate::tree::archive;
use crate::tree::attributes::permissions;
use crate::volume::id::VolumeId;
use crate::volume::name::VolumeName;
use crate::volume::record_key::RecordKey;
use crate::volume::secret::Secret;
use crate::volume::share::Share;
use crate::volume::snapshot_id::{SnapshotFormat, SnapshotId};

/// A snapshot to take.
#[derive(Clone, Debug)]
pub struct CreateSnapshot {
    /// The CSI name.
    pub name: VolumeName,
    /// The volume.
    pub volume: VolumeId,
    /// Where the snapshot is kept.
    pub share: Share,
    /// How it is kept.
    pub format: SnapshotFormat,
    /// The mount options for where it is kept, and those for the volume.
    pub options: [Options; 2],
    /// How long the caller waits.
    pub patience: Option<Duration>,
}

/// A snapshot to delete.
#[derive(Clone, Debug)]
pub struct DeleteSnapshot {
    /// Its id.
    pub id: SnapshotId,
    /// The mount options of the secret.
    pub options: Options,
}

/// Why a snapshot was not made, deleted or found.
#[derive(Clone, Debug, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum SnapshotError {
    #[error("there is no volume {id} on {share} to take a snapshot of: check whether it was deleted")]
    NoVolume { id: String, share: String },

    #[error("there is no snapshot {id} on {share}: check whether it was deleted")]
    NotFound { id: String, share: String },

    #[error(
        "snapshot {name} exists already on {share}, of volume {has}, not of {wanted}: delete it first, or use another \
         name"
    )]
    Exists { name: String, share: String, has: String, wanted: String },

    #[error("the starting token {token} is not one that ListSnapshots gave: begin again without a token")]
    Token { token: String },

    #[error(transparent)]
    Export(#[from] ExportError),

    #[error(transparent)]
    Job(#[from] JobError),
}

impl IsStale for SnapshotError {
    fn is_stale(&self) -> bool {
        matches!(self, Self::Export(error) if error.is_stale())
    }
}

impl Controller {
    /// Takes a snapshot of a volume, or finds that it was taken.
    ///
    /// # Errors
    /// See [`SnapshotError`]; nothing is visible under the snapshot's name then.
    pub async fn create_snapshot(self: &Arc<Self>, request: CreateSnapshot) -> Result<Snapshot, SnapshotError> {
        let key = RecordKey::of(request.name.as_str());
        let job = Job {
            reads: Some(job_key(request.volume.share(), &request.volume.key())),
            patience: request.patience,
            abandoned_after: Some(self.settings.abandoned_after),
            ..Job::short(
                snapshot_key(&request.share, &key),
                "CreateSnapshot",
                format!("{} {:?} {:?}", request.volume, request.format, request.options),
            )
        };
        let progress = Arc::clone(&job.progress);
        let controller = Arc::clone(self);
        let [options, volume_options] = request.options.clone();
        let on = [(request.share.clone(), options), (request.volume.share().clone(), volume_options)];
        let work = async move {
            let text = format!("{} as {:?}", request.volume, request.format);
            let name = StagingName::snapshot(&key, &text);
            let (share, origin) = (request.share.clone(), request.volume.share().clone());
            let (shown, on) = (request.name.to_string(), share.to_string());
            let _running = controller.running_work.begin(WorkKind::Snapshot, shown, on, Arc::clone(&progress));
            let options = request.options.clone();
            let owner = controller.settings.cluster.clone();
            let kind = match request.format {
                SnapshotFormat::Tree => TreeWork::Copy,
                SnapshotFormat::Archive => TreeWork::Archive,
            };
            let attempt = controller.attempt(name, &progress);
            let taking = Taking { request, key, owner, attempt: Arc::clone(&attempt) };
            let work = move |export: &Export, origin: &Export| taking.carry_out(export, origin);
            controller.on_trees([&share, &origin], [&options[0], &options[1]], (kind, &attempt), work).await
        };
        self.run(&on, job, work).await
    }

    /// Deletes a snapshot; one that is gone is success.
    ///
    /// # Errors
    /// See [`SnapshotError`]; the snapshot is then still there.
    pub async fn delete_snapshot(self: &Arc<Self>, request: DeleteSnapshot) -> Result<(), SnapshotError> {
        let key = snapshot_key(request.id.share(), &request.id.key());
        let fingerprint = format!("{} {:?}", request.id, request.options);
        let job = Job { removes: true, ..Job::short(key, "DeleteSnapshot", fingerprint) };
        let controller = Arc::clone(self);
        let on = [(request.id.share().clone(), request.options.clone())];
        let work = async move {
            let DeleteSnapshot { id, options } = request;
            let share = id.share().clone();
            let work = move |export: &Export| delete(export, &id);
            controller.on(&share, &options, work).await.map(drop)
        };
        self.run(&on, job, work).await
    }
}

/// A snapshot that is being taken.
#[derive(Clone)]
struct Taking {
    request: CreateSnapshot,
    key: RecordKey,
    owner: Option<String>,
    attempt: Arc<Attempt>,
}

impl Taking {
    fn carry_out(&self, export: &Export, origin: &Export) -> Result<Snapshot, SnapshotError> {
        if let Some(manifest) = export.snapshot(&self.key)? {
            return self.accept(export, &manifest);
        }
        let volume = &self.request.volume;
        let opened = open_volume(origin, volume)?
            .ok_or_else(|| SnapshotError::NoVolume { id: volume.to_string(), share: origin.share().to_string() })?;
        self.attempt.progress.expect(None, opened.used_bytes);
        let earlier = self.attempt.earlier(export, false)?;
        let staged = self.attempt.begin(export, &earlier, 0, None)?;
        let taken = self.take(export, origin, &opened, &staged);
        let manifest = taken.map_err(|error| self.attempt.fail(export, &staged, error))?;
        let has_beat = self.attempt.end();
        match export.place_snapshot(&staged, &self.key) {
            Ok(()) => {
                export.finish_placed(&staged, has_beat)?;
                Ok(describe(export.share(), &manifest))
            }
            // Another controller was faster.
            Err(error @ ExportError::Io { errno: Errno::EEXIST, .. }) => {
                export.finish_attempt(staged.name(), false)?;
                match export.snapshot(&self.key)? {
                    Some(manifest) => self.accept(export, &manifest),
                    None => Err(error.into()),
                }
            }
            Err(error) => Err(self.attempt.fail(export, &staged, error).into()),
        }
    }

    /// Copies the volume, makes sure that it is all there, and writes down what it is.
    fn take(
        &self,
        export: &Export,
        origin: &Export,
        volume: &OpenVolume,
        staged: &Staged,
    ) -> Result<Manifest, ExportError> {
        let Taking { request, attempt, .. } = self;
        let progress = &attempt.progress;
        let before = (progress.files(), progress.bytes(), progress.vanished(), progress.narrowed());
        let name = request.name.to_string();
        let secret = match request.format {
            SnapshotFormat::Tree => {
                let failed = |error| export.failed("name the tree of", "the snapshot", errno_of(error));
                Some(Secret::new().map_err(failed)?)
            }
            SnapshotFormat::Archive => None,
        };
        let manifest = Manifest {
            owner: self.owner.clone(),
            server: Some(request.share.server().to_string()),
            secret,
            ..Manifest::new(name, request.volume.to_string(), volume.size_bytes, request.format)
        };
        self.copy((export, origin), &volume.directory, staged)?;
        // A volume that is deleted is renamed before anything of it is freed.
        if !volume.is_in_place(origin)? {
            return Err(origin.contended("read", format!("volume {}", request.volume)));
        }
        let (files, inode) = self.count(export, staged, progress.files() - before.0)?;
        let manifest = Manifest {
            files,
            inode,
            counted: true,
            bytes: progress.bytes() - before.1,
            vanished: progress.vanished() - before.2,
            ..manifest
        };
        if manifest.vanished > 0 {
            tracing::warn!(
                snapshot = manifest.name,
                volume = manifest.source_volume,
                vanished = manifest.vanished,
                "some of the volume vanished while its snapshot was taken, and is not in it"
            );
        }
        log_narrowed(&manifest.source_volume, progress.narrowed() - before.3);
        origin.log_missing_attributes();
        export.log_missing_attributes();
        export.write_manifest(staged, &manifest)?;
        Ok(manifest)
    }

    /// How many entries the finished snapshot has, and its tree's inode number. Of a tree, the names are counted again:
    /// while it was copied, a name that the volume's directory gave twice counted twice.
    fn count(&self, export: &Export, staged: &Staged, files: u64) -> Result<(u64, Option<u64>), ExportError> {
        match self.request.format {
            SnapshotFormat::Archive => Ok((files, None)),
            SnapshotFormat::Tree => export.count_staged_snapshot(staged).map(|(files, inode)| (files, Some(inode))),
        }
    }

    fn copy(
        &self,
        (export, origin): (&Export, &Export),
        directory: &OwnedFd,
        staged: &Staged,
    ) -> Result<(), ExportError> {
        let what = format!("volume {}", self.request.volume);
        let progress = &self.attempt.progress;
        match self.request.format {
            SnapshotFormat::Tree => {
                let tree = export.snapshot_tree(staged, permissions(directory))?;
                let earlier = match staged.old() {
                    Some(old) => export.earlier_snapshot_tree(old)?,
                    None => None,
                };
                let earlier = earlier.as_ref().map(AsFd::as_fd);
                let target = Target { directory: tree.as_fd(), earlier, staged };
                copy_tree((export, origin), (directory, SourceKind::Live), target, progress, &what)
            }
            SnapshotFormat::Archive => {
                let file = export.snapshot_archive(staged)?;
                archive::write(directory, Some(export.own_inode()?), &file, progress)
                    .map_err(|error| export.archive_failed(&what, error))?;
                file.sync_data().map_err(|error| export.failed("write the archive of", what, errno_of(error)))
            }
        }
    }

    /// Takes the snapshot that exists under the name, if it is what is asked for.
    fn accept(&self, export: &Export, manifest: &Manifest) -> Result<Snapshot, SnapshotError> {
        if manifest.source_volume == self.request.volume.to_string() && manifest.name == self.request.name.as_str() {
            return Ok(describe(export.share(), manifest));
        }
        Err(SnapshotError::Exists {
            name: self.request.name.to_string(),
            share: export.share().to_string(),
            has: manifest.source_volume.clone(),
            wanted: self.request.volume.to_string(),
        })
    }
}

/// Takes a snapshot out of sight.
fn delete(export: &Export, id: &SnapshotId) -> Result<(), SnapshotError> {
    let key = id.key();
    let mut trash = export.throw_away_snapshot(&key)?;
    for path in id.archives().iter().flatten() {
        if trash.is_none() {
            trash = export.throw_away_archive(path, &key)?;
        }
    }
    let outcome = trash.as_ref().map_or_else(|| "was gone".into(), |name| format!("moved to the trash as {name}"));
    tracing::info!(
        snapshot = %id, share = %export.share(), method = "DeleteSnapshot", outcome, "snapshot deleted"
    );
    if let Some(name) = trash {
        export.leave_to_reaper(name);
    }
    Ok(())
}
