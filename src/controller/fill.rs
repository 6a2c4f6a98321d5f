//! CreateVolume with data from elsewhere: a clone of a volume, or a snapshot restored.
//!
//! The tree is made in staging and renamed to the volume's directory when it is complete; before that, a record with
//! the number of the new directory is written beside its place. So a retry after a crash at any moment knows what is
//! done: the tree goes on where it stood, or the directory that is in place is recognised, and is only recorded.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::errno::Errno;

use super::Controller;
use super::create::{CreateError, Plan, Volume};
use super::expand::is_of;
use super::snapshot_list::find_snapshot;
use crate::beneath;
use crate::export::catalog::Record;
use crate::export::snapshots::Data;
use crate::export::staging::{Staged, StagingName};
use crate::export::{Export, ExportError};
use crate::mount::options::Options;
use crate::tree::archive::{self, Limits};
use crate::tree::attributes::permissions;
use crate::tree::copy::{self, Links, Place};
use crate::tree::{Progress, make};
use crate::volume::content::Source;
use crate::volume::id::VolumeId;

impl Controller {
    /// Makes a volume with the data of `source`.
    pub(super) async fn fill(
        &self,
        plan: Plan,
        source: Source,
        options: &Options,
        progress: &Arc<Progress>,
    ) -> Result<Volume, CreateError> {
        let (share, origin) = (plan.share.clone(), source.share().clone());
        let name = StagingName::volume(&plan.key, &format!("{source} for {}", plan.name));
        let (progress, staged) = (Arc::clone(progress), name.clone());
        let work = move |export: &Export, origin: &Export| plan.fill(export, origin, &source, &staged, &progress);
        self.on_trees([&share, &origin], [options, options], &name, work).await
    }
}

impl Plan {
    fn fill(
        &self,
        export: &Export,
        origin: &Export,
        source: &Source,
        name: &StagingName,
        progress: &Progress,
    ) -> Result<Volume, CreateError> {
        if let Some(record) = export.record(&self.key)? {
            return self.accept(&record);
        }
        let material = Material::find(origin, source)?;
        let capacity = self.capacity.capacity_for(material.size_bytes).ok_or_else(|| CreateError::TooSmall {
            wanted: self.capacity.to_string(),
            source_name: source.to_string(),
            has: material.size_bytes,
        })?;
        let record = Record { capacity_bytes: capacity, ..self.record() };
        if self.subdir_given {
            export.claim(&self.subdir, &self.key)?;
        }
        let made = self.make_filled(export, material, &record, name, progress);
        made.inspect_err(|error| {
            if matches!(error, CreateError::Occupied { .. }) {
                self.take_back_claim(export);
            }
        })?;
        self.accept(&record)
    }

    fn make_filled(
        &self,
        export: &Export,
        material: Material,
        record: &Record,
        name: &StagingName,
        progress: &Progress,
    ) -> Result<(), CreateError> {
        if self.is_in_place(export, record)? {
            return Ok(export.commit_prepared_record(&self.key)?);
        }
        let staged = export.stage(name, material.mode())?;
        material.copy(export, &staged, name, progress)?;
        let failed = |errno| export.failed("set owner and permissions of", self.subdir.to_string(), errno);
        make::set(&staged, self.attributes).map_err(failed)?;
        let inode = staged.inode().map_err(failed)?;
        export.alone(&self.subdir, || {
            export.prepare_record(&self.key, &Record { inode: Some(inode), ..record.clone() })?;
            match export.place_volume(&staged, &self.subdir) {
                Err(ExportError::Io { errno: Errno::EEXIST, .. }) => {
                    export.drop_prepared_record(&self.key)?;
                    Err(self.occupied(export))
                }
                placed => {
                    placed?;
                    Ok(export.commit_prepared_record(&self.key)?)
                }
            }
        })
    }

    /// Whether an earlier try put the directory in place and was cut short before it was recorded.
    fn is_in_place(&self, export: &Export, record: &Record) -> Result<bool, CreateError> {
        let directory = match export.open_directory(&self.subdir) {
            Ok(directory) => directory,
            Err(ExportError::Io { errno: Errno::ENOENT, .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        if let Some(prepared) = export.prepared_record(&self.key)?
            && let Some(inode) = prepared.inode
            && export.is_directory(&self.subdir, inode)?
            && prepared.source == record.source
        {
            return Ok(true);
        }
        // rename(2) replaces a directory that is empty.
        let failed = |errno| export.failed("read", self.subdir.to_string(), errno);
        if beneath::is_empty(directory).map_err(failed)? { Ok(false) } else { Err(self.occupied(export)) }
    }

    fn occupied(&self, export: &Export) -> CreateError {
        CreateError::Occupied { subdir: self.subdir.to_string(), share: export.share().to_string() }
    }
}

/// What a volume is made of, open.
struct Material {
    data: Data,
    size_bytes: u64,
    name: String,
}

impl Material {
    fn find(origin: &Export, source: &Source) -> Result<Self, CreateError> {
        let missing = || CreateError::NoSource { source_name: source.to_string(), share: origin.share().to_string() };
        let (data, size_bytes) = match source {
            Source::Volume(id) => {
                let (directory, size_bytes) = open_volume(origin, id)?.ok_or_else(missing)?;
                (Data::Tree(directory), size_bytes)
            }
            Source::Snapshot(id) => {
                let found = find_snapshot(origin, id)?.ok_or_else(missing)?;
                (found.data, found.snapshot.size_bytes)
            }
        };
        Ok(Self { data, size_bytes, name: source.to_string() })
    }

    /// The permissions that the copy is made with: those of the source, where they are known already.
    fn mode(&self) -> u32 {
        match &self.data {
            Data::Tree(directory) => permissions(directory),
            Data::Archive(_) => 0,
        }
    }

    fn copy(
        self,
        export: &Export,
        staged: &Staged,
        name: &StagingName,
        progress: &Progress,
    ) -> Result<(), CreateError> {
        match self.data {
            Data::Tree(directory) => {
                let target = (staged.as_fd(), staged.is_new);
                copy_tree(export, &directory, target, name, progress, &self.name)?;
            }
            Data::Archive(file) => {
                archive::read(file, staged, Limits { devices: true }, progress)
                    .map_err(|error| export.archive_failed(&self.name, error))?;
            }
        }
        Ok(())
    }
}

/// Copies a tree of `what` into staging.
pub(super) fn copy_tree(
    export: &Export,
    source: &OwnedFd,
    (target, is_new): (BorrowedFd<'_>, bool),
    name: &StagingName,
    progress: &Progress,
    what: &str,
) -> Result<(), ExportError> {
    let folder = name.links();
    let target = Place { directory: target, is_new, links: Links::new(export.staging()?, &folder) };
    copy::tree(source, target, export.plain_lists(), export.effort(), progress)
        .map_err(|error| export.tree_failed(&what, &error))
}

/// A volume's directory and its size in bytes (0: unknown); none if there is no such volume.
pub(super) fn open_volume(origin: &Export, id: &VolumeId) -> Result<Option<(OwnedFd, u64)>, ExportError> {
    let record = origin.record(&id.key())?.filter(|record| is_of(record, id));
    let Some(subdir) = id.subdir().or_else(|| record.as_ref().map(|record| &record.subdir)) else { return Ok(None) };
    match origin.open_directory(subdir) {
        Ok(directory) => Ok(Some((directory, record.as_ref().map_or(0, |record| record.capacity_bytes)))),
        Err(ExportError::Io { errno: Errno::ENOENT, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
