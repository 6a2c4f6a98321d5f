//! Deleted volumes and snapshots on their way out: a rename takes a directory out of sight at once, whatever is in it.
//!
//! A name in the trash says all that the reaper must know:
//!
//! ```text
//! v.<key>.<deleted>.<until>         a volume's directory; deleted: nanoseconds since 1970, in hexadecimal; until: the
//!                                   second since 1970 before which it is not freed, in hexadecimal; 0: free it now
//! v.<key>.<deleted>.<until>.json    its record: by that it can be brought back
//! v.<key>.<deleted>.<until>.failed  why it could not be freed, for people
//! s.<key>.<deleted>.0               a snapshot's folder, or another driver's archive
//! t.<key>.<deleted>.0               what was being made
//! <any of these>.<number>           a directory that was below, while the rest is freed (tree/remove.rs)
//! ```
//!
//! The times are the server's. Any other name is a later version's: it is left alone.
//!
//! A directory that is in the trash may still be needed: another controller may have made a volume of it in the moment
//! in which it was thrown away. So who threw it away looks again, and puts it back; until then its volume has its
//! record, and nobody frees a directory whose volume has one ([`Export::is_needed`]).

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::Mode;
use nix::unistd::linkat;

use super::catalog::{self, Record};
use super::directories::reach;
use super::layout::TRASH;
use super::trash_name::Part;
pub use super::trash_name::{Kind, TrashName};
use super::{Export, ExportError};
use crate::beneath;
use crate::tree::make::{DEFAULT_MODE, descend};
use crate::volume::path::RESERVED;
use crate::volume::record_key::RecordKey;
use crate::volume::subdir::SubDir;

/// Where a directory is moved to, and whether it was there to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// It was moved.
    Yes,
    /// There is none.
    Missing,
}

/// What is in the trash.
#[derive(Debug, Default)]
pub struct Trash {
    /// What is kept for now.
    pub kept: Vec<TrashName>,
    /// What can be freed; also something of which only directories are left that were below it.
    pub due: Vec<TrashName>,
    /// The directories that were below something while it was freed, by their names.
    pub rests: HashMap<TrashName, Vec<String>>,
    /// Records and notes of what is gone: of what, and their names.
    pub left: Vec<(TrashName, String)>,
    /// What a later version put there.
    pub unknown: Vec<String>,
}

impl Trash {
    /// What these names stand for at a time since 1970.
    fn of(names: Vec<OsString>, now: Duration) -> Self {
        let mut trash = Self::default();
        let mut beside = Vec::new();
        for name in names.into_iter().filter_map(|name| name.into_string().ok()) {
            match Part::of(&name) {
                Part::Entry(entry) if entry.is_kept(now) => trash.kept.push(entry),
                Part::Entry(entry) => trash.due.push(entry),
                Part::Record(entry) | Part::Failed(entry) => beside.push((entry, name)),
                Part::Rest(entry) => trash.rests.entry(entry).or_default().push(name),
                Part::Unknown => trash.unknown.push(name),
            }
        }
        let whole: HashSet<&TrashName> = trash.kept.iter().chain(&trash.due).collect();
        let of_gone: Vec<TrashName> = trash.rests.keys().filter(|entry| !whole.contains(entry)).cloned().collect();
        trash.due.extend(of_gone);
        let all: HashSet<&TrashName> = trash.kept.iter().chain(&trash.due).collect();
        trash.left.extend(beside.into_iter().filter(|(entry, _)| !all.contains(entry)));
        trash.kept.sort_unstable_by_key(|name| name.deleted_at);
        trash.due.sort_unstable_by_key(|name| name.deleted_at);
        trash
    }
}

impl Export {
    /// Moves a volume's directory into the trash; says whether there was one.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn throw_away(&self, subdir: &SubDir, name: &TrashName) -> Result<Moved, ExportError> {
        let failed = |errno| self.failed("move to the trash", subdir.to_string(), errno);
        let (from, to) = (subdir.file_name(), name.to_string());
        let trash = &self.layout()?.trash;
        // At the share's top first in the mount that remembers names: it is the server that finds what has the name.
        // Where that mount remembers that there is none, the server is asked.
        if subdir.as_str() == from
            && beneath::rename(self.tree_root(), from, &self.tree_layout()?.trash, to.as_str()).is_ok()
        {
            return Ok(Moved::Yes);
        }
        let moved = beneath::settled(|| match self.parent(subdir)? {
            Some(parent) => beneath::rename(parent, from, trash, &to),
            None => Err(Errno::ENOENT),
        });
        match moved {
            Ok(()) => Ok(Moved::Yes),
            Err(Errno::ENOENT) => Ok(Moved::Missing),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Moves the record of a volume beside its directory in the trash, and ends any change of it.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn throw_away_record(&self, name: &TrashName) -> Result<(), ExportError> {
        let record = catalog::file_name(&name.key);
        match beneath::rename(&self.layout()?.volumes, record.as_str(), &self.layout()?.trash, name.record().as_str()) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(self.failed("move the record", record, errno)),
        }
        if self.end_change(&name.key)? { self.remove_record(&name.key) } else { Ok(()) }
    }

    /// The record beside something in the trash; none if it has none.
    ///
    /// # Errors
    /// Where the server fails; where its record cannot be read.
    pub fn kept_record(&self, name: &TrashName) -> Result<Option<Record>, ExportError> {
        self.read_record_in(&self.layout()?.trash, &name.record())
    }

    /// Writes the record of a volume that had none, to be kept with it in the trash.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn keep_record(&self, name: &TrashName, record: &Record) -> Result<(), ExportError> {
        self.write_file(&self.layout()?.trash, &name.record(), record, OFlag::empty()).map(drop)
    }

    /// Brings a volume back that is kept in the trash: its directory, then its record.
    ///
    /// # Errors
    /// EEXIST where another volume has its name or something is in its place; where the server fails. A second try
    /// goes on where the first stood.
    pub fn bring_back(&self, name: &TrashName, record: &Record) -> Result<(), ExportError> {
        let trash = &self.layout()?.trash;
        if self.record(&name.key)?.is_some() {
            return Err(self.failed("bring back", record.subdir.to_string(), Errno::EEXIST));
        }
        let owner = record.owner.as_deref();
        if record.subdir_given {
            self.claim(&record.subdir, &name.key, owner)?;
        }
        let directory = name.to_string();
        let moved = match self.move_to(trash, &directory, &record.subdir) {
            Ok(Moved::Yes) => Ok(()),
            // An earlier try had come as far.
            Ok(Moved::Missing) if self.has_directory(&record.subdir)? => Ok(()),
            Ok(Moved::Missing) => Err(self.failed("bring back", directory, Errno::ENOENT)),
            Err(error) => Err(error),
        };
        moved.inspect_err(|_| {
            if record.subdir_given {
                // What cannot be taken back now is swept later.
                let _ = self.take_back_claim(&record.subdir, &name.key, owner);
            }
        })?;
        let (kept, place) = (name.record(), catalog::file_name(&name.key));
        let volumes = &self.layout()?.volumes;
        let failed = |errno| self.failed("bring back the record", &kept, errno);
        linkat(trash, kept.as_str(), volumes, place.as_str(), AtFlags::empty()).map_err(failed)?;
        catalog::remove(trash, &kept).map_err(failed)
    }

    /// Moves a volume's directory to another name on the share, where nothing may be.
    ///
    /// # Errors
    /// EEXIST where something is there; where the server fails.
    pub fn move_directory(&self, from: &SubDir, to: &SubDir) -> Result<Moved, ExportError> {
        let failed = |errno| self.failed("rename", format!("{from} to {to}"), errno);
        let Some(source) = self.parent(from).map_err(failed)? else { return Ok(Moved::Missing) };
        self.move_to(&source, from.file_name(), to)
    }

    pub(super) fn move_to(&self, source: &OwnedFd, name: &str, to: &SubDir) -> Result<Moved, ExportError> {
        let failed = |errno| self.failed("rename", format!("{name} to {to}"), errno);
        let mode = Mode::from_bits_truncate(DEFAULT_MODE);
        let place =
            descend(self.root(), &to.parents().collect::<Vec<_>>(), Some(mode)).map_err(|(_, errno)| failed(errno))?;
        // rename(2) replaces an empty directory, and NFS has no RENAME_NOREPLACE.
        match beneath::open(&place, to.file_name(), OFlag::O_PATH, Mode::empty()) {
            Err(Errno::ENOENT) => {}
            Ok(_) | Err(Errno::ELOOP) => {
                // Where there is nothing to move, nothing is in the way.
                return match beneath::open(source, name, OFlag::O_PATH, Mode::empty()) {
                    Err(Errno::ENOENT) => Ok(Moved::Missing),
                    _ => Err(failed(Errno::EEXIST)),
                };
            }
            Err(errno) => return Err(failed(errno)),
        }
        match beneath::rename(source, name, &place, to.file_name()) {
            Ok(()) => Ok(Moved::Yes),
            Err(Errno::ENOENT) => Ok(Moved::Missing),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// What is in the trash; none where this driver has no folder yet.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn trash(&self) -> Result<Option<Trash>, ExportError> {
        self.names_in_trash()?.map(|names| Ok(Trash::of(names, self.now()))).transpose()
    }

    fn names_in_trash(&self) -> Result<Option<Vec<OsString>>, ExportError> {
        match self.folder_of_trash()? {
            Some(trash) => beneath::names(&trash).map(Some).map_err(|errno| self.failed("list", "the trash", errno)),
            None => Ok(None),
        }
    }

    /// The folder, to read in; none if it is not there.
    fn folder_of_trash(&self) -> Result<Option<OwnedFd>, ExportError> {
        match descend(self.root(), &[RESERVED, TRASH], None) {
            Ok(trash) => Ok(Some(trash)),
            Err((_, Errno::ENOENT)) => Ok(None),
            Err((_, errno)) => Err(self.failed("list", "the trash", errno)),
        }
    }

    /// What is in the trash at a time since 1970, the volumes with their records: nothing is asked of the server's
    /// clock, and nothing is written.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn read_trash(&self, now: Duration) -> Result<(Trash, HashMap<TrashName, Record>), ExportError> {
        let trash = self.names_in_trash()?.map(|names| Trash::of(names, now)).unwrap_or_default();
        let Some(folder) = self.folder_of_trash()? else { return Ok((trash, HashMap::new())) };
        let volumes: Vec<&TrashName> =
            trash.kept.iter().chain(&trash.due).filter(|name| name.kind == Kind::Volume).collect();
        let records = self.for_each(&volumes, |name| {
            match self.read_record_in(&folder, &name.record()) {
                Ok(record) => Ok(record.map(|record| ((*name).clone(), record))),
                // Its name says enough.
                Err(error) => self.of_entry_alone(&folder, error).map(|_| None),
            }
        })?;
        Ok((trash, records.into_iter().collect()))
    }

    /// What an earlier try to delete a volume left in the trash without its record.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn thrown_away_before(&self, key: &RecordKey) -> Result<Option<TrashName>, ExportError> {
        let trash = self.trash()?.unwrap_or_default();
        for entry in trash.kept.into_iter().chain(trash.due).rev() {
            if entry.kind == Kind::Volume && entry.key == *key && self.kept_record(&entry)?.is_none() {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// The directory that holds a volume's directory; none if it is not there.
    fn parent(&self, subdir: &SubDir) -> nix::Result<Option<OwnedFd>> {
        reach(self.root(), &subdir.parents().collect::<Vec<_>>())
    }
}
