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
//! A directory that is in the trash may still be needed: another controller may have made a volume of it in the moment in
//! which it was thrown away. So who threw it away looks again, and puts it back; until then its volume has its record, and
//! nobody frees a directory whose volume has one ([`Export::is_needed`]).

use std::collections::HashSet;
use std::fmt;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, renameat};
use nix::sys::stat::{Mode, fstatat};
use nix::unistd::linkat;
use serde::{Deserialize, Serialize};

use super::catalog::{self, Record};
use super::claims::Claims;
use super::clock::{since_1970, system_time};
use super::layout::TRASH;
use super::{Export, ExportError};
use crate::beneath;
use crate::tree::make::{DEFAULT_MODE, descend};
use crate::tree::remove;
use crate::volume::name::RecordKey;
use crate::volume::subdir::{RESERVED, SubDir};

/// What ends the name of a record, and of a note why something could not be freed.
const RECORD: &str = ".json";
const FAILED: &str = ".failed";
/// How long what is left of something that was freed is left alone.
const RESTS: Duration = Duration::from_mins(10);

/// Where a directory is moved to, and whether it was there to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// It was moved.
    Yes,
    /// There is none.
    Missing,
}

/// What a name in the trash stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A volume's directory.
    Volume,
    /// A snapshot.
    Snapshot,
    /// What was being made and nobody asked for again.
    Staged,
}

/// The name of something in the trash.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TrashName {
    /// What it was.
    pub kind: Kind,
    /// The key of its name.
    pub key: RecordKey,
    /// When it was deleted, in nanoseconds since 1970.
    pub deleted_at: u64,
    /// Before this second since 1970 it is not freed.
    pub keep_until: u64,
}

impl TrashName {
    /// A name that nothing has yet, for something that is deleted now and kept for so long.
    #[must_use]
    pub fn new(kind: Kind, key: RecordKey, now: Duration, kept: Duration) -> Self {
        let keep_until = if kept.is_zero() { 0 } else { (now + kept).as_secs().max(1) };
        Self { kind, key, deleted_at: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), keep_until }
    }

    /// Reads the name of a directory in the trash; none if it is not one.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let mut fields = name.split('.');
        let parsed = Self::of_fields(&mut fields)?;
        fields.next().is_none().then_some(parsed)
    }

    fn of_fields<'a>(fields: &mut impl Iterator<Item = &'a str>) -> Option<Self> {
        let kind = match fields.next()? {
            "v" => Kind::Volume,
            "s" => Kind::Snapshot,
            "t" => Kind::Staged,
            _ => return None,
        };
        let key = fields.next()?.parse().ok()?;
        let mut number = || u64::from_str_radix(fields.next()?, 16).ok();
        let (deleted_at, keep_until) = (number()?, number()?);
        Some(Self { kind, key, deleted_at, keep_until })
    }

    /// Whether it is kept for now, so that it can be brought back.
    #[must_use]
    pub fn is_kept(&self, now: Duration) -> bool {
        self.keep_until > now.as_secs()
    }

    fn record(&self) -> String {
        format!("{self}{RECORD}")
    }

    fn failed(&self) -> String {
        format!("{self}{FAILED}")
    }

    /// The name that it has from when it is freed on: it cannot be brought back then.
    fn let_go(&self) -> Self {
        Self { keep_until: 0, ..self.clone() }
    }
}

impl fmt::Display for TrashName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Volume => 'v',
            Kind::Snapshot => 's',
            Kind::Staged => 't',
        };
        write!(f, "{kind}.{}.{:x}.{:x}", self.key, self.deleted_at, self.keep_until)
    }
}

/// What a name in the trash is.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    /// Something that was deleted.
    Entry(TrashName),
    /// Its record.
    Record(TrashName),
    /// The note why it could not be freed.
    Failed(TrashName),
    /// A directory that was below it.
    Rest(TrashName),
    /// A later version's.
    Unknown,
}

impl Part {
    fn of(name: &str) -> Self {
        let mut fields = name.split('.');
        let Some(entry) = TrashName::of_fields(&mut fields) else { return Self::Unknown };
        let rest: Vec<&str> = fields.collect();
        match rest.as_slice() {
            [] => Self::Entry(entry),
            ["json"] => Self::Record(entry),
            ["failed"] => Self::Failed(entry),
            // One that was below such a one has two numbers, and so on.
            numbers if numbers.iter().all(|number| number.parse::<u64>().is_ok()) => Self::Rest(entry),
            _ => Self::Unknown,
        }
    }
}

/// What is in the trash.
#[derive(Debug, Default)]
pub struct Trash {
    /// What is kept for now.
    pub kept: Vec<TrashName>,
    /// What can be freed.
    pub due: Vec<TrashName>,
    /// What is left of something that was freed: directories, records and notes, by their names.
    pub rest: Vec<String>,
    /// What a later version put there.
    pub unknown: Vec<String>,
}

/// Who needs what is in the trash.
#[derive(Debug, PartialEq, Eq)]
pub enum Needed {
    /// Nobody.
    No,
    /// A volume whose directory this is; its own place is free.
    By(SubDir),
    /// A volume whose directory this is, and something else is in its place.
    Displaced(SubDir),
    /// Its own volume, which still has its record: the delete was cut short, and its retry completes it.
    Unfinished,
}

/// Why something in the trash could not be freed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What is in the way.
    pub reason: String,
    /// How often it was tried.
    pub tries: u32,
    /// When it was tried first, in seconds since 1970.
    pub since: u64,
}

/// This host's time in seconds since 1970, for notes to people.
#[must_use]
pub fn seconds_now() -> u64 {
    system_time().as_secs()
}

impl Export {
    /// Moves a volume's directory into the trash; says whether there was one.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn throw_away(&self, subdir: &SubDir, name: &TrashName) -> Result<Moved, ExportError> {
        let failed = |errno| self.failed("move to the trash", subdir.to_string(), errno);
        let (from, to) = (subdir.file_name(), name.to_string());
        // At the share's top first in the mount that remembers names: it is the server that finds what has the name. Where
        // that mount remembers that there is none, the server is asked.
        if subdir.as_str() == from && renameat(self.tree_root(), from, &self.tree_layout()?.trash, to.as_str()).is_ok()
        {
            return Ok(Moved::Yes);
        }
        let Some(parent) = self.parent(subdir).map_err(failed)? else { return Ok(Moved::Missing) };
        match renameat(&parent, from, &self.layout()?.trash, to.as_str()) {
            Ok(()) => Ok(Moved::Yes),
            Err(Errno::ENOENT | Errno::ESTALE) => Ok(Moved::Missing),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Moves the record of a volume beside its directory in the trash.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn throw_away_record(&self, name: &TrashName) -> Result<(), ExportError> {
        let record = catalog::file_name(&name.key);
        match renameat(&self.layout()?.volumes, record.as_str(), &self.layout()?.trash, name.record().as_str()) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(self.failed("move the record", record, errno)),
        }
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
        self.write_file(&self.layout()?.trash, &name.record(), record).map(drop)
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

    fn move_to(&self, source: &OwnedFd, name: &str, to: &SubDir) -> Result<Moved, ExportError> {
        let failed = |errno| self.failed("rename", format!("{name} to {to}"), errno);
        let components: Vec<&str> = to.components().collect();
        let parents = components.split_last().map_or(&[][..], |(_, parents)| parents);
        let mode = Mode::from_bits_truncate(DEFAULT_MODE);
        let place = descend(self.root(), parents, Some(mode)).map_err(|(_, errno)| failed(errno))?;
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
        match renameat(source, name, &place, to.file_name()) {
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
        let failed = |errno| self.failed("list", "the trash", errno);
        let names = match descend(self.root(), &[RESERVED, TRASH], None) {
            Ok(trash) => beneath::names(&trash).map_err(failed)?,
            Err((_, Errno::ENOENT)) => return Ok(None),
            Err((_, errno)) => return Err(failed(errno)),
        };
        let now = self.now();
        let mut trash = Trash::default();
        let mut beside = Vec::new();
        for name in names.into_iter().filter_map(|name| name.into_string().ok()) {
            match Part::of(&name) {
                Part::Entry(entry) if entry.is_kept(now) => trash.kept.push(entry),
                Part::Entry(entry) => trash.due.push(entry),
                Part::Record(entry) | Part::Failed(entry) => beside.push((entry, name)),
                Part::Rest(_) => trash.rest.push(name),
                Part::Unknown => trash.unknown.push(name),
            }
        }
        let all: HashSet<&TrashName> = trash.kept.iter().chain(&trash.due).collect();
        trash.rest.extend(beside.into_iter().filter(|(entry, _)| !all.contains(entry)).map(|(_, name)| name));
        trash.kept.sort_unstable_by_key(|name| name.deleted_at);
        trash.due.sort_unstable_by_key(|name| name.deleted_at);
        Ok(Some(trash))
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

    /// Who needs a directory that is in the trash.
    ///
    /// # Errors
    /// Where the server fails, or a record cannot be read.
    pub fn is_needed(&self, name: &TrashName) -> Result<Needed, ExportError> {
        if name.kind != Kind::Volume {
            return Ok(Needed::No);
        }
        let failed = |errno| self.failed("look at", format!("trash/{name}"), errno);
        let inode = match fstatat(&self.layout()?.trash, name.to_string().as_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => stat.st_ino,
            Err(Errno::ENOENT) => return Ok(Needed::No),
            Err(errno) => return Err(failed(errno)),
        };
        // In this order: a record that is beside it is not the one that is in place afterwards.
        let Some(record) = self.kept_record(name)? else {
            // The delete was cut short before it moved the record here, or is about to, or there never was one.
            let is_unfinished = match self.record(&name.key)? {
                Some(current) => current.inode.is_none_or(|own| own == inode),
                None => self.kept_record(name)?.is_some(),
            };
            if is_unfinished {
                return Ok(Needed::Unfinished);
            }
            // A delete that slept may have moved away what is another volume's by now, and died.
            return Ok(self.claimed_by_number(inode)?.unwrap_or(Needed::No));
        };
        let others = [
            // Made again under the same name.
            self.record(&name.key)?,
            // The directory of another volume's own name, which claims none.
            self.record(&RecordKey::of(record.subdir.as_str()))?.filter(|own| !own.subdir_given),
        ];
        for other in others.into_iter().flatten().filter(|other| other.subdir == record.subdir) {
            if let Some(needed) = self.needed_by(&other, inode)? {
                return Ok(needed);
            }
        }
        match self.claims(&record.subdir, &name.key)? {
            Claims::None => Ok(Needed::No),
            Claims::Shared(others) => {
                let mut needed = others.iter().map(|other| self.needed_by(other, inode));
                Ok(needed.find_map(Result::transpose).transpose()?.unwrap_or(Needed::No))
            }
            // Where the outer directory was made again, the volume inside it was too.
            Claims::Inside(_) if self.has_directory(&record.subdir)? => Ok(Needed::No),
            Claims::Inside(_) => Ok(Needed::By(record.subdir)),
        }
    }

    /// Whether the directory with this number is that of any volume whose class names its directory.
    fn claimed_by_number(&self, inode: u64) -> Result<Option<Needed>, ExportError> {
        for claim in self.all_claims()? {
            let record = self.record(&claim.key)?.filter(|record| record.subdir == claim.subdir);
            if let Some(record) = record.filter(|record| record.inode.is_none_or(|own| own == inode))
                && let Some(needed) = self.needed_by(&record, inode)?
            {
                return Ok(Some(needed));
            }
        }
        Ok(None)
    }

    /// Whether the directory with this number is that of a volume.
    fn needed_by(&self, volume: &Record, inode: u64) -> Result<Option<Needed>, ExportError> {
        let subdir = volume.subdir.clone();
        Ok(match self.inode_of(&subdir)? {
            None => Some(Needed::By(subdir)),
            Some(_) if volume.inode == Some(inode) => Some(Needed::Displaced(subdir)),
            Some(_) => None,
        })
    }

    /// Puts a directory back that is needed. False if something is in its place.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn put_back(&self, name: &TrashName, subdir: &SubDir) -> Result<bool, ExportError> {
        match self.move_to(&self.layout()?.trash, &name.to_string(), subdir) {
            Ok(_) => {
                // The record beside it is that of the volume which was deleted.
                let record = name.record();
                catalog::remove(&self.layout()?.trash, &record)
                    .map_err(|errno| self.failed("remove", record, errno))?;
                tracing::warn!(
                    share = %self.share(), directory = %subdir, entry = %name,
                    "a deleted volume's directory is put back: another volume was made of it meanwhile"
                );
                Ok(true)
            }
            Err(ExportError::Io { errno: Errno::EEXIST, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Frees something in the trash, and with `all` its record and what notes there are. First it gets a name by which it cannot be
    /// brought back: what is half freed must not come back.
    ///
    /// # Errors
    /// The entry that could not be removed; all that could be is gone.
    pub fn free(&self, name: &TrashName, all: bool) -> Result<(), ExportError> {
        let trash = &self.layout()?.trash;
        let due = name.let_go();
        let failed = |name: &str, errno| self.failed("rename in the trash", name, errno);
        if due != *name {
            let rename = |from: &str, to: &str| match renameat(trash, from, trash, to) {
                Ok(()) => Ok(true),
                Err(Errno::ENOENT) => Ok(false),
                Err(errno) => Err(failed(from, errno)),
            };
            // Where it is gone somebody was faster, to free it too or to bring it back with its record.
            if !rename(&name.to_string(), &due.to_string())? {
                return Ok(());
            }
            rename(&name.record(), &due.record())?;
        }
        self.free_rest(&due.to_string())?;
        for beside in [due.record(), due.failed()].iter().filter(|_| all) {
            self.free_rest(beside)?;
        }
        Ok(())
    }

    /// Frees what has this name in the trash, whatever it is.
    ///
    /// # Errors
    /// The entry that could not be removed; all that could be is gone.
    pub fn free_rest(&self, name: &str) -> Result<(), ExportError> {
        remove::tree(&self.tree_layout()?.trash, name, self.effort()).map_err(|(entry, errno)| {
            self.failed("remove", format!("trash/{name}: {}", entry.to_string_lossy()), errno)
        })
    }

    /// Frees what is left of what was freed, but for what is being freed now. The record of something that could be brought back is left alone for a while:
    /// that may be under way.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn sweep_trash(&self, trash: &Trash, busy: &HashSet<TrashName>) -> Result<(), ExportError> {
        let folder = &self.layout()?.trash;
        let stat = |name: &str| fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW);
        for name in &trash.rest {
            let is_left = match Part::of(name) {
                // Where it is left of something that is there still, it goes after that: both at once would meet.
                Part::Rest(entry) => !busy.contains(&entry) && matches!(stat(&entry.to_string()), Err(Errno::ENOENT)),
                Part::Record(entry) | Part::Failed(entry) => {
                    // The list was not of one moment.
                    let is_alone = matches!(stat(&entry.to_string()), Err(Errno::ENOENT));
                    let is_old = |stat: nix::sys::stat::FileStat| {
                        self.now().saturating_sub(since_1970(stat.st_ctime, stat.st_ctime_nsec)) > RESTS
                    };
                    is_alone && (entry.keep_until == 0 || stat(name).is_ok_and(is_old))
                }
                Part::Entry(_) | Part::Unknown => false,
            };
            if is_left {
                self.free_rest(name)?;
            }
        }
        Ok(())
    }

    /// Notes why something in the trash could not be freed, for those who look at the trash.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn note_failure(&self, name: &TrashName, failure: &Failure) -> Result<(), ExportError> {
        let note = name.let_go().failed();
        let failed = |errno| self.failed("write", &note, errno);
        let text = serde_json::to_vec(failure).map_err(|_| failed(Errno::EINVAL))?;
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_TRUNC;
        let file = beneath::open(&self.layout()?.trash, note.as_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR);
        let mut file = std::fs::File::from(file.map_err(failed)?);
        std::io::Write::write_all(&mut file, &text)
            .map_err(|error| failed(error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)))
    }

    /// Why something in the trash could not be freed; none if there is no note.
    #[must_use]
    pub fn failure(&self, name: &TrashName) -> Option<Failure> {
        let note = name.let_go().failed();
        let file = beneath::open(&self.layout().ok()?.trash, note.as_str(), OFlag::O_RDONLY, Mode::empty()).ok()?;
        serde_json::from_reader(std::fs::File::from(file)).ok()
    }

    /// The directory that holds a volume's directory; none if it is not there.
    fn parent(&self, subdir: &SubDir) -> nix::Result<Option<OwnedFd>> {
        let components: Vec<&str> = subdir.components().collect();
        let parents = components.split_last().map_or(&[][..], |(_, parents)| parents);
        match descend(self.root(), parents, None) {
            Ok(parent) => Ok(Some(parent)),
            Err((_, Errno::ENOENT | Errno::ESTALE)) => Ok(None),
            Err((_, errno)) => Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Duration = Duration::from_secs(1_000_000);

    #[test]
    fn a_name_tells_what_it_was_when_it_went_and_how_long_it_stays() {
        let key = RecordKey::of("pvc-1");
        let kept = TrashName::new(Kind::Volume, key.clone(), NOW, Duration::from_hours(1));
        let free = TrashName::new(Kind::Snapshot, key, NOW, Duration::ZERO);
        assert!(kept.is_kept(NOW) && !kept.is_kept(NOW + Duration::from_hours(1)) && !free.is_kept(NOW));
        assert!(!kept.let_go().is_kept(NOW));
        for name in [kept, free] {
            assert_eq!(TrashName::parse(&name.to_string()), Some(name));
        }
    }

    #[test]
    fn what_is_beside_an_entry_is_known_and_what_another_version_put_there_is_not() {
        let name = TrashName::new(Kind::Volume, RecordKey::of("pvc-1"), NOW, Duration::ZERO);
        assert_eq!(Part::of(&name.record()), Part::Record(name.clone()));
        assert_eq!(Part::of(&name.failed()), Part::Failed(name.clone()));
        for rest in ["7", "7.0", "7.0.12"] {
            assert_eq!(Part::of(&format!("{name}.{rest}")), Part::Rest(name.clone()));
        }
        for other in [format!("{name}.held"), format!("{name}.0.json"), "x".into(), "v.short.1.0".into(), String::new()]
        {
            assert_eq!(Part::of(&other), Part::Unknown, "{other}");
            assert_eq!(TrashName::parse(&other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "[vst]?\\.?[a-z2-7.]{0,30}|\\PC{0,40}") {
            let _ = Part::of(&text);
        }
    }
}
