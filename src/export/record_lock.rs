//! One controller at a time changes a record that exists: whoever makes the folder `x2.<key>` in staging.
//!
//! A record is written in that folder and renamed, or linked, from there to its place; a record that is to go is
//! renamed into it. So whoever takes the folder away ends a change for good, however late its maker wakes: there is
//! nothing to rename any more, or no folder to rename it to.
//!
//! A delete takes no lock: it leaves a trace first (the directory is moved, or the claim is taken back), then the
//! record goes, and then it looks for a lock. Whoever changes a record looks for such a trace before the lock is given
//! up. So one of the two sees the other, and no change brings a deleted record back.

use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, renameat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use super::attempt_name::LOCKS;
use super::catalog::{Created, Record, file_name, remove};
use super::holder::nonce;
use super::{Export, ExportError};
use crate::beneath;
use crate::volume::record_key::RecordKey;

/// What is in the folder: the record that is about to be put in place, or the one that was taken away.
const NEW: &str = "new";
const TAKEN: &str = "taken";
/// How often a folder is emptied whose maker is awake and fills it again.
const TRIES: u32 = 8;

/// The right to change one record, until it is given up or taken away.
#[derive(Debug)]
pub struct RecordLock<'a> {
    export: &'a Export,
    key: &'a RecordKey,
    folder: OwnedFd,
}

impl Export {
    /// The right to change a record that exists; none if another controller has it, and took it less than `silence`
    /// ago.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn lock_record<'a>(
        &'a self,
        key: &'a RecordKey,
        silence: Duration,
    ) -> Result<Option<RecordLock<'a>>, ExportError> {
        let (staging, name) = (&self.layout()?.staging, lock_name(key));
        let failed = |errno| self.failed("make in staging", &name, errno);
        let make = || match mkdirat(staging, name.as_str(), Mode::S_IRWXU) {
            Ok(()) => Ok(true),
            Err(Errno::EEXIST) => Ok(false),
            Err(errno) => Err(failed(errno)),
        };
        if !make()? {
            match self.look_in_staging(&name)? {
                Some(stat) if self.age(&stat) >= silence => self.break_lock(&name)?,
                _ => return Ok(None),
            };
            if !make()? {
                return Ok(None);
            }
        }
        match beneath::open_dir(staging, &name) {
            Ok(folder) => Ok(Some(RecordLock { export: self, key, folder })),
            Err(Errno::ENOENT | Errno::ESTALE) => Ok(None),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Changes a record that exists under its lock, which is given up whatever comes of it; none if another controller
    /// has it, and took it less than `silence` ago.
    ///
    /// # Errors
    /// That of `change`; where the server fails.
    pub fn with_record_locked<'a, T>(
        &'a self,
        key: &'a RecordKey,
        silence: Duration,
        change: impl FnOnce(&RecordLock<'a>) -> Result<T, ExportError>,
    ) -> Result<Option<T>, ExportError> {
        let Some(lock) = self.lock_record(key, silence)? else { return Ok(None) };
        let changed = change(&lock);
        let unlocked = lock.unlock();
        let changed = changed?;
        unlocked.map(|()| Some(changed))
    }

    /// Ends a change of a record that is under way. Whether there was one: it may have put the record in place.
    ///
    /// # Errors
    /// Where the server fails.
    pub(super) fn end_change(&self, key: &RecordKey) -> Result<bool, ExportError> {
        self.break_lock(&lock_name(key))
    }

    /// Takes a lock's folder away from whoever made it. Whether there was one.
    pub(super) fn break_lock(&self, name: &str) -> Result<bool, ExportError> {
        let staging = &self.layout()?.staging;
        // Every delete comes here, and there hardly ever is one: a look keeps nobody waiting, while the client has the
        // folder to itself until the answer to a rename is there.
        if self.look_in_staging(name)?.is_none() {
            return Ok(false);
        }
        // One takes it away, whoever else sees that it is old too.
        let aside = format!("{name}.{}", nonce());
        match beneath::rename(staging, name, staging, &aside) {
            Ok(()) => self.take_apart(&aside).map(|()| true),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(self.failed("take over", name, errno)),
        }
    }

    fn take_apart(&self, name: &str) -> Result<(), ExportError> {
        let staging = &self.layout()?.staging;
        let failed = |errno| self.failed("remove from staging", name, errno);
        for _ in 0..TRIES {
            let folder = match beneath::open_dir(staging, name) {
                Err(Errno::ENOENT) => return Ok(()),
                opened => opened.map_err(failed)?,
            };
            for left in beneath::names(&folder).map_err(failed)? {
                match unlinkat(&folder, left.as_os_str(), UnlinkatFlags::NoRemoveDir) {
                    Ok(()) | Err(Errno::ENOENT) => {}
                    Err(errno) => return Err(failed(errno)),
                }
            }
            match unlinkat(staging, name, UnlinkatFlags::RemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => return Ok(()),
                Err(Errno::ENOTEMPTY | Errno::EEXIST) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        Err(self.contended("take over", name))
    }
}

impl RecordLock<'_> {
    /// Whether the record is in place and as it was read before.
    ///
    /// # Errors
    /// Where the server fails, or the record cannot be read.
    pub fn is_still(&self, record: &Record) -> Result<bool, ExportError> {
        Ok(self.export.record(self.key)?.is_some_and(|now| now == *record))
    }

    /// Puts a record in place where there is none. None if the lock was taken away.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn create(&self, record: &Record) -> Result<Option<Created>, ExportError> {
        if !self.write(record)? {
            return Ok(None);
        }
        let (volumes, name) = (&self.export.layout()?.volumes, file_name(self.key));
        let linked = match linkat(&self.folder, NEW, volumes, name.as_str(), AtFlags::empty()) {
            // Its name went with the lock.
            Err(Errno::ENOENT | Errno::ESTALE) => None,
            linked => Some(self.export.linked(linked, self.key)?),
        };
        match remove(&self.folder, NEW) {
            Ok(()) | Err(Errno::ESTALE) => Ok(linked),
            Err(errno) => Err(self.export.failed("remove the temporary record", NEW, errno)),
        }
    }

    /// Writes a record into the lock's folder. False if the lock was taken away.
    fn write(&self, record: &Record) -> Result<bool, ExportError> {
        match self.export.write_file(&self.folder, NEW, record, OFlag::O_EXCL) {
            Ok(_) => Ok(true),
            Err(ExportError::Io { errno: Errno::ENOENT | Errno::ESTALE, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Puts a record in the place of the one that is there. False if the lock was taken away.
    ///
    /// # Errors
    /// Where the server fails; then the old record or the new one is in place, whole.
    pub fn replace(&self, record: &Record) -> Result<bool, ExportError> {
        let name = file_name(self.key);
        if !self.write(record)? {
            return Ok(false);
        }
        match renameat(&self.folder, NEW, &self.export.layout()?.volumes, name.as_str()) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT | Errno::ESTALE) => Ok(false),
            Err(errno) => Err(self.export.failed("replace the record", name, errno)),
        }
    }

    /// Removes the record. False if there is none, or the lock was taken away.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn remove(&self) -> Result<bool, ExportError> {
        let name = file_name(self.key);
        let failed = |errno| self.export.failed("remove the record", &name, errno);
        match renameat(&self.export.layout()?.volumes, name.as_str(), &self.folder, TAKEN) {
            Ok(()) => remove(&self.folder, TAKEN).map(|()| true).map_err(failed),
            Err(Errno::ENOENT | Errno::ESTALE) => Ok(false),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Removes the record, and keeps it with those of volumes that were deleted and whose directories stay. False if there
    /// is none, or the lock was taken away.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn retain(&self) -> Result<bool, ExportError> {
        let (name, volumes) = (file_name(self.key), &self.export.layout()?.volumes);
        let retained = self.export.retained_folder()?;
        let failed = |errno| self.export.failed("keep the record", &name, errno);
        // First: without it a repetition would not know.
        remove(&retained, &name).map_err(failed)?;
        match linkat(volumes, name.as_str(), &retained, name.as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::EEXIST) => self.remove(),
            Err(Errno::ENOENT | Errno::ESTALE) => Ok(false),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Lets others change the record. (Where the lock was taken away, another's may go instead: his change fails then,
    /// and is tried again.)
    ///
    /// # Errors
    /// Where the server fails.
    pub fn unlock(self) -> Result<(), ExportError> {
        let name = lock_name(self.key);
        match unlinkat(&self.export.layout()?.staging, name.as_str(), UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT | Errno::ENOTEMPTY | Errno::EEXIST) => Ok(()),
            Err(errno) => Err(self.export.failed("remove from staging", name, errno)),
        }
    }
}

fn lock_name(key: &RecordKey) -> String {
    format!("{LOCKS}{key}")
}
