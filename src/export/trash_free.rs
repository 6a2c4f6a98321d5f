//! What of the trash is freed, and what is put back since somebody needs it.

use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{Mode, fstatat};
use serde::{Deserialize, Serialize};

use super::catalog::{self, Record};
use super::claims::Claims;
use super::clock::system_time;
use super::trash::Trash;
use super::trash_name::{Kind, TrashName};
use super::{Export, ExportError};
use crate::beneath;
use crate::reason::errno_of;
use crate::tree::{Progress, remove};
use crate::volume::record_key::RecordKey;
use crate::volume::subdir::SubDir;

/// How long what is left of something that was freed is left alone.
const RESTS: Duration = Duration::from_mins(10);

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

    /// Frees something in the trash with the directories that were below it, and with `all` its record and what notes
    /// there are. First it gets a name by which it cannot be brought back: what is half freed must not come back.
    ///
    /// # Errors
    /// The entry that could not be removed; all that could be is gone.
    pub fn free(&self, name: &TrashName, rests: &[String], all: bool, progress: &Progress) -> Result<(), ExportError> {
        let trash = &self.layout()?.trash;
        let due = name.let_go();
        let failed = |name: &str, errno| self.failed("rename in the trash", name, errno);
        if due != *name {
            let rename = |from: &str, to: &str| match beneath::rename(trash, from, trash, to) {
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
        if name.kind == Kind::Snapshot {
            self.hide_from_readers(&due)?;
            self.expect_snapshot(&due, progress);
        }
        let freed = self.free_rest(&due.to_string(), progress);
        for rest in rests {
            self.free_rest(rest, progress)?;
        }
        freed?;
        for beside in [due.record(), due.failed()].iter().filter(|_| all) {
            self.free_rest(beside, progress)?;
        }
        Ok(())
    }

    /// Frees what has this name in the trash, whatever it is.
    ///
    /// # Errors
    /// The entry that could not be removed; all that could be is gone.
    pub fn free_rest(&self, name: &str, progress: &Progress) -> Result<(), ExportError> {
        let place = &self.tree_layout()?.trash;
        remove::tree_unless(place, name, self.effort(), progress, &|| self.is_lost()).map_err(|(entry, errno)| {
            self.failed("remove", format!("trash/{name}: {}", entry.to_string_lossy()), errno)
        })
    }

    /// Removes records and notes of what is gone. The record of something that could be brought back is left alone for
    /// a while: that may be under way.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn sweep_trash(&self, trash: &Trash) -> Result<(), ExportError> {
        let folder = &self.layout()?.trash;
        let stat = |name: &str| fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW);
        for (entry, name) in &trash.left {
            // The list was not of one moment.
            let is_alone = matches!(stat(&entry.to_string()), Err(Errno::ENOENT));
            let is_old = || stat(name).is_ok_and(|stat| self.age(&stat) > RESTS);
            if is_alone && (entry.keep_until == 0 || is_old()) {
                self.free_rest(name, &Progress::default())?;
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
        std::io::Write::write_all(&mut file, &text).map_err(|error| failed(errno_of(error)))
    }

    /// Why something in the trash could not be freed; none if there is no note.
    #[must_use]
    pub fn failure(&self, name: &TrashName) -> Option<Failure> {
        let note = name.let_go().failed();
        let file = beneath::open(&self.layout().ok()?.trash, note.as_str(), OFlag::O_RDONLY, Mode::empty()).ok()?;
        serde_json::from_reader(std::fs::File::from(file)).ok()
    }
}
