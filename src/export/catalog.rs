//! The records: one small JSON file a volume, which makes the volume exist.
//!
//! A record is written whole to a name that only this writer uses, brought to the server's disk by fsync, and then put
//! in place by link(2): a rival that was faster is told by EEXIST and nothing of his is touched. A record that exists
//! is replaced by rename(2). Whatever happens before is repeated by a retry without a trace: the temporary name follows
//! from the volume, so the retry finds and removes it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, renameat};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Export, ExportError};
use crate::beneath;
use crate::volume::access::{Mode as Permissions, OnDelete};
use crate::volume::content::RecordedSource;
use crate::volume::name::RecordKey;
use crate::volume::subdir::SubDir;

/// The format that this driver writes; it reads this and all before.
const FORMAT: u32 = 1;
/// No record is longer: a name and a path have their bounds.
const LONGEST: u64 = 64 * 1024;
/// How often a rival's temporary file may be in the way before that is an error.
const TRIES: u32 = 5;

/// What is known of a volume besides its directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The version of this format.
    pub format: u32,
    /// The CSI name.
    pub name: String,
    /// The volume id, where it is not the one that follows from the rest (a volume that another driver made).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The directory below the share.
    pub subdir: SubDir,
    /// Whether the StorageClass named the directory.
    pub subdir_given: bool,
    /// The size that was asked for, in bytes; 0: unknown.
    pub capacity_bytes: u64,
    /// What a delete does with the directory.
    pub on_delete: OnDelete,
    /// The permission bits that were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<Permissions>,
    /// The owner that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The group that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// What the volume began with; empty without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<RecordedSource>,
    /// The number of the directory that is to be put in place before this record is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inode: Option<u64>,
    /// How long the volume is kept in the trash, in seconds; the operator's decision without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trash_retention: Option<u64>,
    /// When the record was first written, in seconds since 1970.
    pub created_at: u64,
    /// The cluster whose driver made the volume (`--cluster-id`); none where it has no name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

impl Record {
    /// The record of a volume that is made now, with nothing asked for.
    #[must_use]
    pub fn new(name: String, subdir: SubDir) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self {
            format: FORMAT,
            name,
            id: None,
            subdir,
            subdir_given: false,
            capacity_bytes: 0,
            on_delete: OnDelete::Delete,
            permissions: None,
            uid: None,
            gid: None,
            source: None,
            inode: None,
            trash_retention: None,
            created_at: now,
            owner: None,
        }
    }
}

/// What became of a record that was to be created.
#[derive(Debug)]
pub enum Created {
    /// It is in place.
    Now,
    /// Another was faster; this is its record.
    Before(Box<Record>),
}

impl Export {
    /// Reads a volume's record; none if it has none.
    ///
    /// # Errors
    /// Where the server fails, and where the file is no record.
    pub fn record(&self, key: &RecordKey) -> Result<Option<Record>, ExportError> {
        let volumes = &self.layout()?.volumes;
        let name = file_name(key);
        let Some(file) = self.open_record(volumes, &name)? else { return Ok(None) };
        // Two names: its writer died between putting it in place and removing the temporary name.
        if fstat(&file).is_ok_and(|stat| stat.st_nlink > 1) {
            remove(volumes, &temporary_name(key)).map_err(|errno| self.failed("tidy up the record", &name, errno))?;
        }
        self.parse(&name, file).map(Some)
    }

    /// Reads the record that was written for a volume and not yet put in place; none if there is none.
    ///
    /// # Errors
    /// Where the server fails. A torn one is none.
    pub fn prepared_record(&self, key: &RecordKey) -> Result<Option<Record>, ExportError> {
        let name = temporary_name(key);
        match self.read_record_in(&self.layout()?.volumes, &name) {
            Err(ExportError::Record { .. }) => Ok(None),
            read => read,
        }
    }

    /// Reads a record of any name; none if there is no such file.
    pub(super) fn read_record_in(&self, folder: &OwnedFd, name: &str) -> Result<Option<Record>, ExportError> {
        self.open_record(folder, name)?.map(|file| self.parse(name, file)).transpose()
    }

    fn open_record(&self, folder: &OwnedFd, name: &str) -> Result<Option<OwnedFd>, ExportError> {
        match beneath::open(folder, name, OFlag::O_RDONLY, Mode::empty()) {
            Ok(file) => Ok(Some(file)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.failed("open the record", name, errno)),
        }
    }

    /// Moves a volume's record to another folder of the driver's own; none is success.
    pub(super) fn move_record_to(&self, folder: &OwnedFd, key: &RecordKey, name: &str) -> Result<(), ExportError> {
        let record = file_name(key);
        match renameat(&self.layout()?.volumes, record.as_str(), folder, name) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(self.failed("move the record", record, errno)),
        }
    }

    /// Writes a record that nobody else writes.
    pub(super) fn write_record_to(&self, folder: &OwnedFd, name: &str, record: &Record) -> Result<(), ExportError> {
        self.write_temporary(folder, name, record).map(drop)
    }

    /// Writes a record beside its place: it tells, after a crash, whose directory that is which was just put in place.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn prepare_record(&self, key: &RecordKey, record: &Record) -> Result<(), ExportError> {
        self.write_temporary(&self.layout()?.volumes, &temporary_name(key), record).map(drop)
    }

    /// Puts the record in place that was prepared.
    ///
    /// # Errors
    /// Where the server fails; then the record is in place or prepared still.
    pub fn commit_prepared_record(&self, key: &RecordKey) -> Result<(), ExportError> {
        let volumes = &self.layout()?.volumes;
        let name = file_name(key);
        renameat(volumes, temporary_name(key).as_str(), volumes, name.as_str())
            .map_err(|errno| self.failed("create the record", name, errno))
    }

    /// Removes a record that was prepared.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn drop_prepared_record(&self, key: &RecordKey) -> Result<(), ExportError> {
        let name = temporary_name(key);
        remove(&self.layout()?.volumes, &name).map_err(|errno| self.failed("remove the record", name, errno))
    }

    fn parse(&self, name: &str, file: OwnedFd) -> Result<Record, ExportError> {
        let (path, share) = (format!("volumes/{name}"), self.share().to_string());
        let mut text = Vec::new();
        File::from(file).take(LONGEST).read_to_end(&mut text).map_err(|error| {
            self.failed("read the record", name, error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
        })?;
        parse(&text, FORMAT, path, share)
    }

    /// Puts a record in place if there is none.
    ///
    /// # Errors
    /// Where the server fails; then there is no record, or (an answer that was lost) it is in place.
    pub fn create_record(&self, key: &RecordKey, record: &Record) -> Result<Created, ExportError> {
        let volumes = &self.layout()?.volumes;
        let (name, temporary) = (file_name(key), temporary_name(key));
        let file = self.write_temporary(volumes, &temporary, record)?;
        // By descriptor, so that it is this writer's file whatever a rival does with the name.
        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
        let linked = linkat(AT_FDCWD, own.as_str(), volumes, name.as_str(), AtFlags::AT_SYMLINK_FOLLOW);
        // Closed before its name goes, or the client keeps it as `.nfs…` until then.
        drop(file);
        remove(volumes, &temporary).map_err(|errno| self.failed("remove the temporary record", temporary, errno))?;
        match linked {
            Ok(()) => Ok(Created::Now),
            Err(Errno::EEXIST) => match self.record(key)? {
                Some(record) => Ok(Created::Before(Box::new(record))),
                // Deleted again in this moment: the orchestrator's retry decides.
                None => Err(self.failed("create the record", name, Errno::EAGAIN)),
            },
            Err(errno) => Err(self.failed("create the record", name, errno)),
        }
    }

    /// Puts a record in the place of one that is there.
    ///
    /// # Errors
    /// Where the server fails; then the old record or the new one is in place, whole.
    pub fn replace_record(&self, key: &RecordKey, record: &Record) -> Result<(), ExportError> {
        self.prepare_record(key, record)?;
        self.commit_prepared_record(key)
    }

    /// Removes a record; none is success.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn remove_record(&self, key: &RecordKey) -> Result<(), ExportError> {
        let name = file_name(key);
        remove(&self.layout()?.volumes, &name).map_err(|errno| self.failed("remove the record", name, errno))
    }

    /// The keys of all records, in their order.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn record_keys(&self) -> Result<Vec<RecordKey>, ExportError> {
        let volumes = &self.layout()?.volumes;
        let names = beneath::names(volumes).map_err(|errno| self.failed("list", "volumes", errno))?;
        let key = |name: &OsString| name.to_str()?.strip_suffix(SUFFIX)?.parse().ok();
        let mut keys: Vec<RecordKey> = names.iter().filter_map(key).collect();
        keys.sort_unstable();
        Ok(keys)
    }

    fn write_temporary(&self, volumes: &OwnedFd, name: &str, record: &Record) -> Result<OwnedFd, ExportError> {
        let failed = |errno| self.failed("write the record", name, errno);
        let text = serde_json::to_vec(record).map_err(|_| failed(Errno::EINVAL))?;
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
        let mut tries = 0;
        let file = loop {
            tries += 1;
            match beneath::open(volumes, name, flags, Mode::S_IRUSR | Mode::S_IWUSR) {
                Err(Errno::EEXIST) if tries < TRIES => remove(volumes, name).map_err(failed)?,
                other => break other.map_err(failed)?,
            }
        };
        let mut file = File::from(file);
        let written = file.write_all(&text).and_then(|()| file.sync_data());
        written.map_err(|error| failed(error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)))?;
        Ok(file.into())
    }
}

/// What every format of a record has.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

/// Reads a record of whatever kind whose newest format known is `newest`.
pub(super) fn parse<R: DeserializeOwned>(
    text: &[u8],
    newest: u32,
    path: String,
    share: String,
) -> Result<R, ExportError> {
    let error = |error: serde_json::Error| ExportError::Record {
        path: path.clone(),
        share: share.clone(),
        reason: error.to_string(),
    };
    let Format { format } = serde_json::from_slice(text).map_err(error)?;
    if format > newest {
        return Err(ExportError::NewerRecord { path, share, format });
    }
    serde_json::from_slice(text).map_err(error)
}

const SUFFIX: &str = ".json";

/// Where a volume's record is.
pub(super) fn file_name(key: &RecordKey) -> String {
    format!("{key}{SUFFIX}")
}

/// Where a record is written before it is put in place.
fn temporary_name(key: &RecordKey) -> String {
    format!(".{key}.new")
}

fn remove(folder: &OwnedFd, name: &str) -> nix::Result<()> {
    match unlinkat(folder, name, UnlinkatFlags::NoRemoveDir) {
        Err(Errno::ENOENT) => Ok(()),
        other => other,
    }
}
