//! CreateVolume with data from elsewhere: a clone of a volume, or a snapshot restored.
//!
//! The tree is made in staging and renamed to the volume's directory when it is complete; before that, a record with
//! the number of the new directory is written beside it. So a retry after a crash at any moment knows what is done:
//! what is complete is taken over, or the directory that is in place is recognised, and is only recorded.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::errno::Errno;

use super::Controller;
use super::create::{CreateError, Plan, Volume};
use super::found_snapshot::find_snapshot;
use super::long_work::Attempt;
use super::record_change::is_of;
use crate::beneath;
use crate::export::catalog::{Created, Record};
use crate::export::directories::SourceVolume;
use crate::export::snapshots::{Data, Manifest};
use crate::export::staging::{Attempts, Staged, StagingName};
use crate::export::{Export, ExportError, TreeWork};
use crate::mount::options::Options;
use crate::running_work::WorkKind;
use crate::tree::archive::{self, Limits};
use crate::tree::attributes::permissions;
use crate::tree::copy::{self, Earlier, FileSystems, Links, Place};
use crate::tree::{Progress, SourceKind, make};
use crate::volume::content::Source;
use crate::volume::id::VolumeId;
use crate::volume::record_key::RecordKey;
use crate::volume::subdir::SubDir;

/// More free space than any copy leaves to others, in bytes.
const ENOUGH: u64 = 128 * 1024 * 1024;

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
        let kind = if matches!(source, Source::Volume(_)) { WorkKind::Clone } else { WorkKind::Restore };
        let _running = self.running_work.begin(kind, plan.name.to_string(), share.to_string(), Arc::clone(progress));
        let attempt = self.attempt(name, progress);
        let own = Arc::clone(&attempt);
        let work = move |export: &Export, origin: &Export| plan.fill(export, origin, &source, &own);
        self.on_trees([&share, &origin], [options, options], (TreeWork::Copy, &attempt), work).await
    }
}

impl Plan {
    fn fill(
        &self,
        export: &Export,
        origin: &Export,
        source: &Source,
        attempt: &Attempt,
    ) -> Result<Volume, CreateError> {
        if let Some(record) = export.record(&self.key)?
            && let Some(volume) = self.take_filled(export, &record)?
        {
            // Whoever recorded it may have died before he took away what stood beside its tree.
            export.complete_placed(&attempt.earlier(export, true)?, &self.key)?;
            return Ok(volume);
        }
        let placed = match export.open_directory(&self.subdir) {
            Ok(placed) => Some(placed),
            Err(ExportError::Io { errno: Errno::ENOENT, .. }) => None,
            Err(error) => return Err(error.into()),
        };
        let earlier = attempt.earlier(export, placed.is_some())?;
        // Before the source is looked for, which may be gone by now.
        if let Some(placed) = placed {
            if let Some(record) = export.complete_placed(&earlier, &self.key)? {
                return self.accept(&record);
            }
            match self.look_at_place(export, placed)? {
                InPlace::Nothing => {}
                InPlace::Volume(record) => return self.accept(&record),
                InPlace::Something => return self.accept_place(export, attempt),
            }
        }
        let material = Material::find(origin, source)?;
        let (files, bytes) = material.expected;
        attempt.progress.expect(files, bytes);
        let capacity = self.capacity_for(material.size_bytes, source)?;
        let record = Record { capacity_bytes: capacity, ..self.record() };
        self.claim(export)?;
        let made = self.make_filled(export, origin, &material, &record, attempt, &earlier);
        made.inspect_err(|error| {
            if !error.is_passing() {
                self.take_back_claim(export);
            }
        })
    }

    fn make_filled(
        &self,
        export: &Export,
        origin: &Export,
        material: &Material,
        record: &Record,
        attempt: &Attempt,
        earlier: &Attempts,
    ) -> Result<Volume, CreateError> {
        let limited = self.limited_to_fill(export, record.capacity_bytes)?;
        let staged = attempt.begin(export, earlier, material.mode(), limited.as_ref()).inspect_err(|_| {
            if let Some(limited) = &limited {
                export.release_limited(limited.project);
            }
        })?;
        let failed = |errno| export.failed("set owner and permissions of", self.subdir.to_string(), errno);
        let filled = material.copy(export, origin, &staged, &attempt.progress).and_then(|()| {
            make::set(&staged, self.attributes).map_err(failed)?;
            staged.inode().map_err(failed)
        });
        let inode = filled.map_err(|error| {
            let error = if limited.is_some() { material.over_limit(export, record, error) } else { error };
            attempt.fail(export, &staged, error)
        })?;
        let mut record = Record { inode: Some(inode), ..record.clone() };
        if self.is_limited() {
            record = record.with_quota(self.recorded_quota(limited.map(|limited| limited.project)));
        }
        let has_beat = attempt.end();
        match export.alone(&self.subdir, || export.place_volume(&staged, &self.key, &record)) {
            Ok(Created::Now) => {
                if !self.is_as_made(export, inode)? {
                    // What came of it, the next try sees.
                    return Err(export.contended("make", self.subdir.to_string()).into());
                }
                export.finish_placed(&staged, has_beat)?;
                self.accept(&record)
            }
            Ok(Created::Before(record)) => {
                export.finish_attempt(staged.name(), true)?;
                self.accept(&record)
            }
            Err(ExportError::Io { errno: Errno::EEXIST, .. }) => {
                export.finish_attempt(staged.name(), false)?;
                self.accept_place(export, attempt)
            }
            Err(error) => Err(attempt.fail(export, &staged, error).into()),
        }
    }

    /// Something is in the volume's place: the work of another attempt at the same volume, or a stranger's.
    fn accept_place(&self, export: &Export, attempt: &Attempt) -> Result<Volume, CreateError> {
        // In this order: an attempt that is in place has its record beside it until the record is in its own place.
        let placed = export.complete_placed(&attempt.earlier(export, true)?, &self.key)?;
        let record = if placed.is_some() { placed } else { export.record(&self.key)? };
        match record {
            Some(record) => self.accept(&record),
            None => Err(CreateError::Occupied { subdir: self.subdir.to_string(), share: export.share().to_string() }),
        }
    }

    /// Takes a volume that has its record, if it has its directory; none where that is gone with all that was in it,
    /// and the record too now.
    fn take_filled(&self, export: &Export, record: &Record) -> Result<Option<Volume>, CreateError> {
        if let Some(volume) = self.find_recorded(export, record)? {
            return Ok(Some(volume));
        }
        self.remove_record(export, record).map(|()| None)
    }

    /// What the directory is that is in the volume's place before anything is copied.
    fn look_at_place(&self, export: &Export, (directory, inode): (OwnedFd, u64)) -> Result<InPlace, CreateError> {
        if let Some(record) = export.complete_prepared(&self.key, inode)? {
            return Ok(InPlace::Volume(Box::new(record)));
        }
        let failed = |errno| export.failed("read", self.subdir.to_string(), errno);
        Ok(if beneath::is_empty(directory).map_err(failed)? { InPlace::Nothing } else { InPlace::Something })
    }
}

/// What is in the place of a volume that is to be made.
enum InPlace {
    /// An empty directory, which rename(2) replaces.
    Nothing,
    /// The volume: version 0.1.0 put it there and was cut short before it was recorded.
    Volume(Box<Record>),
    /// Something that no rename replaces.
    Something,
}

/// What a volume is made of, open.
struct Material {
    data: Data,
    kind: SourceKind,
    size_bytes: u64,
    /// How many entries and bytes it has, about; none: not known.
    expected: (Option<u64>, Option<u64>),
    name: String,
    place: SourcePlace,
}

/// Where it was found.
enum SourcePlace {
    /// A volume's directory, and its number.
    Volume(SubDir, u64),
    /// A snapshot's folder, and its manifest.
    Snapshot(RecordKey, Box<Manifest>),
    /// Another driver's archive.
    Archive(SubDir),
}

impl Material {
    fn find(origin: &Export, source: &Source) -> Result<Self, CreateError> {
        let missing = || CreateError::NoSource { source_name: source.to_string(), share: origin.share().to_string() };
        let (data, kind, size_bytes, expected, place) = match source {
            Source::Volume(id) => {
                let volume = open_volume(origin, id)?.ok_or_else(missing)?;
                let expected = (None, volume.used_bytes);
                let place = SourcePlace::Volume(volume.subdir, volume.inode);
                (Data::Tree(volume.directory), SourceKind::Live, volume.size_bytes, expected, place)
            }
            Source::Snapshot(id) => {
                let found = find_snapshot(origin, id)?.ok_or_else(missing)?;
                let place = match (found.manifest, found.archive) {
                    (Some(manifest), _) => SourcePlace::Snapshot(id.key(), Box::new(manifest)),
                    (None, Some(path)) => SourcePlace::Archive(path),
                    (None, None) => return Err(missing()),
                };
                let expected = match &place {
                    SourcePlace::Snapshot(_, manifest) => (Some(manifest.files), Some(manifest.bytes)),
                    _ => (None, None),
                };
                (found.data, SourceKind::Frozen, found.snapshot.size_bytes, expected, place)
            }
        };
        Ok(Self { data, kind, size_bytes, expected, name: source.to_string(), place })
    }

    /// The permissions that the copy is made with: those of the source, where they are known already.
    fn mode(&self) -> u32 {
        match &self.data {
            Data::Tree(directory) => permissions(directory),
            Data::Archive(_) => 0,
        }
    }

    /// Copies all of it, and makes sure that this was all.
    fn copy(&self, export: &Export, origin: &Export, staged: &Staged, progress: &Progress) -> Result<(), ExportError> {
        let (before, missed, narrowed) = (progress.files(), progress.vanished(), progress.narrowed());
        match &self.data {
            Data::Tree(directory) => {
                let target = Target { directory: staged.as_fd(), earlier: staged.old(), staged };
                let copied = copy_tree((export, origin), (directory, self.kind), target, progress, &self.name);
                if let Err(error @ ExportError::Lacks { .. }) = copied {
                    // Where it was deleted meanwhile, that is why.
                    return self.check(origin, progress.files() - before).and(Err(error));
                }
                copied?;
            }
            Data::Archive(file) => {
                // Another driver's archive may be where others write, who could make no device themselves.
                let devices = !matches!(self.place, SourcePlace::Archive(_));
                archive::read(file, staged, Limits { devices, space: Some(export.staging()?) }, progress)
                    .map_err(|error| export.archive_failed(&self.name, error))?;
            }
        }
        let vanished = progress.vanished() - missed;
        if vanished > 0 {
            tracing::warn!(
                source = self.name,
                vanished,
                "some of the source vanished while it was copied: it is left out"
            );
        }
        log_narrowed(&self.name, progress.narrowed() - narrowed);
        origin.log_missing_attributes();
        export.log_missing_attributes();
        self.check(origin, progress.files() - before)
    }

    /// Why a copy into a volume with a limit failed: where the export has space, it is the volume that is too small.
    fn over_limit(&self, export: &Export, record: &Record, error: ExportError) -> ExportError {
        let has_space = || export.available_bytes().is_ok_and(|free| free > ENOUGH);
        if !error.is_full() || !has_space() {
            return error;
        }
        let (what, share) = (self.name.clone(), export.share().to_string());
        ExportError::OverLimit { what, share, bytes: record.capacity_bytes }
    }

    /// A source that is deleted is renamed before anything of it is freed: where it is still in its place, all of it
    /// was there to be read.
    fn check(&self, origin: &Export, files: u64) -> Result<(), ExportError> {
        let is_there = match &self.place {
            SourcePlace::Volume(subdir, inode) => origin.is_in_place(subdir, *inode)?,
            SourcePlace::Snapshot(key, manifest) => {
                let is_there = origin.snapshot(key)?.is_some_and(|now| now == **manifest);
                if is_there && manifest.counted && files < manifest.files {
                    let (what, share) = (self.name.clone(), origin.share().to_string());
                    return Err(ExportError::Incomplete { what, share, has: files, wanted: manifest.files });
                }
                is_there
            }
            SourcePlace::Archive(path) => origin.foreign_archive(path)?.is_some(),
        };
        if is_there { Ok(()) } else { Err(origin.contended("read", self.name.clone())) }
    }
}

/// Logs how many entries of a copy of `source` lost their access control lists, if any did.
pub(super) fn log_narrowed(source: &str, narrowed: u64) {
    if narrowed > 0 {
        tracing::warn!(
            source,
            narrowed,
            "access control lists could not be kept: entries that had one have only the permissions that it gave to \
             all of their group and to all others"
        );
    }
}

/// Where a tree is copied to: a directory of an attempt's own.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) directory: BorrowedFd<'a>,
    /// The same of an earlier attempt.
    pub(super) earlier: Option<BorrowedFd<'a>>,
    pub(super) staged: &'a Staged,
}

/// Copies a tree of `what`, which is on `origin`, into staging.
pub(super) fn copy_tree(
    (export, origin): (&Export, &Export),
    (source, kind): (&OwnedFd, SourceKind),
    target: Target<'_>,
    progress: &Progress,
    what: &str,
) -> Result<(), ExportError> {
    let links = Links::new(export.staging()?, target.staged.links());
    let earlier = target.earlier.map(|directory| Earlier { directory });
    let (space, own) = (export.staging()?, Some(export.own_inode()?));
    let target = Place { directory: target.directory, space, links, earlier, own };
    let file_systems = FileSystems { source: origin.file_system(), target: export.file_system() };
    copy::tree(source, kind, target, file_systems, export.effort(), progress).map_err(|error| {
        if error.is_lack() {
            let (what, share) = (what.to_owned(), export.share().to_string());
            return ExportError::Lacks { what, share, path: error.path.display().to_string() };
        }
        if error.is_full() { export.full(what, error.errno) } else { export.tree_failed(&what, &error) }
    })
}

/// A volume's directory, open for reading.
pub(super) struct OpenVolume {
    pub(super) directory: OwnedFd,
    pub(super) subdir: SubDir,
    pub(super) inode: u64,
    /// Its size in bytes; 0: unknown.
    pub(super) size_bytes: u64,
    /// How many bytes are used of its limit; none: it has none, or what it uses is not known.
    pub(super) used_bytes: Option<u64>,
}

impl OpenVolume {
    /// Whether the directory is still in its place.
    pub(super) fn is_in_place(&self, origin: &Export) -> Result<bool, ExportError> {
        origin.is_in_place(&self.subdir, self.inode)
    }
}

/// A volume's directory; none if there is no such volume.
pub(super) fn open_volume(origin: &Export, id: &VolumeId) -> Result<Option<OpenVolume>, ExportError> {
    let source = origin.open_source(&id.key(), |record| is_of(record, id), id.subdir())?;
    Ok(source.map(|SourceVolume { record, subdir, directory, inode }| OpenVolume {
        used_bytes: record.as_ref().and_then(|record| origin.used_of_limit(record, &directory)),
        directory,
        subdir,
        inode,
        size_bytes: record.map_or(0, |record| record.capacity_bytes),
    }))
}
