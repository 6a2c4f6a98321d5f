//! The records: one small JSON file a volume, which makes the volume exist.
//!
//! A record is written whole to a name in staging that only this writer uses, brought to the server's disk by fsync,
//! and then put in place by link(2): EEXIST says that a rival was faster, and nothing of the rival's is touched. A
//! record that exists is replaced by rename(2) (record_lock.rs). What a crash leaves in staging is swept from there.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::attempt_name::RECORDS;
use super::pages::Listed;
use super::{Export, ExportError, Folder, small_file};
use crate::beneath;
use crate::tree::make::descend;
use crate::volume::access::{Mode as Permissions, OnDelete};
use crate::volume::content::RecordedSource;
use crate::volume::path::RESERVED;
use crate::volume::quota_files::ProjectId;
use crate::volume::record_key::RecordKey;
use crate::volume::size_limit::RecordedQuota;
use crate::volume::subdir::SubDir;

/// The newest format that this driver writes; it reads this and all before.
pub(crate) const FORMAT: u32 = 2;
/// The format of records without limits: drivers that know nothing of limits read it.
const WITHOUT_LIMITS: u32 = 1;

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
    /// The server's name in the volume's id: the server may have several. None in the records of version 0.1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
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
    /// The inode number of the directory, by which it is known again whatever its name is; none in the records of
    /// version 0.1.0, but of volumes with data from elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inode: Option<u64>,
    /// Whether the directory held something before there was a volume: it was not the driver that made it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub found: bool,
    /// Whether the StorageClass said what a delete does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_delete_given: bool,
    /// How long the volume is kept in the trash, in seconds; the operator's decision without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trash_retention: Option<u64>,
    /// When the record was first written, in seconds since 1970.
    pub created_at: u64,
    /// The cluster whose driver made the volume (`--cluster-id`); none where it has no name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The claim that it was made for, `namespace/name`, for people; none where the provisioner does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    /// The limit of its size; none: the size is only recorded. From format 2 on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<RecordedQuota>,
}

impl Record {
    /// The record of a volume that is made now, with nothing asked for.
    #[must_use]
    pub fn new(name: String, subdir: SubDir) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self {
            format: WITHOUT_LIMITS,
            name,
            id: None,
            server: None,
            subdir,
            subdir_given: false,
            capacity_bytes: 0,
            on_delete: OnDelete::Delete,
            permissions: None,
            uid: None,
            gid: None,
            source: None,
            inode: None,
            found: false,
            on_delete_given: false,
            trash_retention: None,
            created_at: now,
            owner: None,
            claim: None,
            quota: None,
        }
    }

    /// The same with a limit, in the format that has such.
    #[must_use]
    pub fn with_quota(self, quota: RecordedQuota) -> Self {
        Self { format: FORMAT, quota: Some(quota), ..self }
    }

    /// The project of its directory; none without a limit.
    #[must_use]
    pub fn project(&self) -> Option<ProjectId> {
        self.quota?.project
    }
}

/// A record that is written and not in its place.
#[derive(Debug)]
pub struct PreparedRecord {
    temporary: String,
    file: OwnedFd,
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
        let Some(volumes) = self.own_folder(Folder::Volumes)? else { return Ok(None) };
        let name = file_name(key);
        self.read_record_in(&volumes, &name)
    }

    /// The record that the mount for trees has under a volume's name, which costs a call less where it remembers the
    /// name: it may be one that was moved away since. So nothing is decided by it alone.
    pub(super) fn known_record(&self, key: &RecordKey) -> Option<Record> {
        let volumes = self.known_folder(Folder::Volumes)?;
        self.read_record_in(&volumes, &file_name(key)).ok()?
    }

    /// Reads a record of any name; none if there is no such file.
    pub(super) fn read_record_in(&self, folder: &OwnedFd, name: &str) -> Result<Option<Record>, ExportError> {
        self.open_record(folder, name)?.map(|file| self.parse(name, &file)).transpose()
    }

    fn open_record(&self, folder: &OwnedFd, name: &str) -> Result<Option<OwnedFd>, ExportError> {
        small_file::open(folder, name).map_err(|errno| self.failed("open the record", name, errno))
    }

    fn parse(&self, name: &str, file: &OwnedFd) -> Result<Record, ExportError> {
        let (path, share) = (format!("volumes/{name}"), self.share().to_string());
        let text = small_file::read(file).map_err(|errno| self.failed("read the record", name, errno))?;
        parse(&text, FORMAT, path, share)
    }

    /// Puts a record in place if there is none. Its name in staging stays until [`Export::confirm_record`]: it says
    /// that nobody has made sure yet that the record has its directory.
    ///
    /// # Errors
    /// Where the server fails; then there is no record, or (an answer that was lost) it is in place.
    pub fn create_record(&self, key: &RecordKey, record: &Record) -> Result<Created, ExportError> {
        let prepared = self.prepare_record(key, record)?;
        self.create_prepared(prepared, key)
    }

    /// Writes a record that is to be put in place by [`Export::create_prepared`]. Otherwise [`Export::confirm_record`]
    /// removes it.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn prepare_record(&self, key: &RecordKey, record: &Record) -> Result<PreparedRecord, ExportError> {
        let temporary = self.temporary_name(key);
        let file = self.write_temporary(&self.tree_layout()?.staging, &temporary, record)?;
        Ok(PreparedRecord { temporary, file })
    }

    /// Puts a record in place that was prepared, as [`Export::create_record`] does.
    ///
    /// # Errors
    /// As there.
    pub fn create_prepared(&self, prepared: PreparedRecord, key: &RecordKey) -> Result<Created, ExportError> {
        let PreparedRecord { temporary, file } = prepared;
        let linked = self.publish_record(&file, &temporary, key);
        // Closed before its name goes, or the client keeps it as `.nfs…` until then.
        drop(file);
        if !matches!(linked, Ok(Created::Now)) {
            self.confirm_record(key)?;
        }
        linked
    }

    /// Notes that a record which this driver put in place has its directory.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn confirm_record(&self, key: &RecordKey) -> Result<(), ExportError> {
        let temporary = self.temporary_name(key);
        remove_known(&self.tree_layout()?.staging, &self.layout()?.staging, &temporary)
            .map_err(|errno| self.failed("remove the temporary record", temporary, errno))
    }

    /// Puts a record in place that this call has written to staging, in the mount for trees, if there is none.
    pub(super) fn publish_record(&self, file: &OwnedFd, from: &str, key: &RecordKey) -> Result<Created, ExportError> {
        let (layout, name) = (self.layout()?, file_name(key));
        let linked = match link(file, &self.tree_layout()?.volumes, &name) {
            // That mount may remember one that is gone: the server is asked.
            Err(Errno::EEXIST) => linkat(&layout.staging, from, &layout.volumes, name.as_str(), AtFlags::empty()),
            linked => linked,
        };
        self.linked(linked, key)
    }

    /// Puts a record in place that another process has written, if there is none.
    pub(super) fn link_record(&self, file: &OwnedFd, key: &RecordKey) -> Result<Created, ExportError> {
        self.linked(link(file, &self.layout()?.volumes, &file_name(key)), key)
    }

    /// What came of giving a record its name.
    pub(super) fn linked(&self, linked: nix::Result<()>, key: &RecordKey) -> Result<Created, ExportError> {
        match linked {
            Ok(()) => Ok(Created::Now),
            Err(Errno::EEXIST) => match self.record(key)? {
                Some(record) => Ok(Created::Before(Box::new(record))),
                None => Err(self.contended("create the record of", key.to_string())),
            },
            // It was swept from staging: whoever wrote it slept for that long.
            Err(Errno::ENOENT | Errno::ESTALE) => Err(self.contended("create the record of", key.to_string())),
            Err(errno) => Err(self.failed("create the record", file_name(key), errno)),
        }
    }

    /// Removes a deleted volume's record, and ends any change of it; none is success.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn remove_record(&self, key: &RecordKey) -> Result<(), ExportError> {
        let (name, volumes) = (file_name(key), &self.layout()?.volumes);
        let failed = |errno| self.failed("remove the record", &name, errno);
        remove_known(&self.tree_layout()?.volumes, volumes, &name).map_err(failed)?;
        if self.end_change(key)? { remove(volumes, &name).map_err(failed) } else { Ok(()) }
    }

    /// The records of volumes that were deleted and whose directories stay.
    pub(super) fn retained_folder(&self) -> Result<OwnedFd, ExportError> {
        let top = self.layout()?.top.as_fd();
        descend(top, &[RETAINED], Some(Mode::S_IRWXU))
            .map_err(|(name, errno)| self.failed("make the folder", name, errno))
    }

    /// Whether a volume was deleted and its directory was to stay.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn was_retained(&self, key: &RecordKey, subdir: &SubDir) -> Result<bool, ExportError> {
        let folder = match descend(self.root(), &[RESERVED, RETAINED], None) {
            Err((_, Errno::ENOENT)) => return Ok(false),
            folder => folder.map_err(|(name, errno)| self.failed("open the folder", name, errno))?,
        };
        Ok(self.read_record_in(&folder, &file_name(key))?.is_some_and(|record| record.subdir == *subdir))
    }

    /// Where a record is written, in staging, before it is put in place. Only this driver uses the name, for one call
    /// at a time.
    fn temporary_name(&self, key: &RecordKey) -> String {
        format!("{RECORDS}{key}.{}", self.shared.holder.instance)
    }

    /// Writes a record to this driver's own name for it. An earlier process may have left one, which may be in place
    /// too: so it is not written to.
    fn write_temporary(&self, folder: &OwnedFd, name: &str, record: &Record) -> Result<OwnedFd, ExportError> {
        match self.write_file(folder, name, record, OFlag::O_EXCL) {
            Err(ExportError::Io { errno: Errno::EEXIST, .. }) => {
                remove(folder, name).map_err(|errno| self.failed("remove the temporary record", name, errno))?;
                self.write_file(folder, name, record, OFlag::O_EXCL)
            }
            written => written,
        }
    }

    /// Writes a record to a name that only this call uses; it is on the server's disk then. (With `O_EXCL` that is a
    /// call more to the server.)
    pub(super) fn write_file(
        &self,
        folder: &OwnedFd,
        name: &str,
        record: &Record,
        flags: OFlag,
    ) -> Result<OwnedFd, ExportError> {
        let failed = |errno| self.failed("write the record", name, errno);
        let text = serde_json::to_vec(record).map_err(|_| failed(Errno::EINVAL))?;
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | flags;
        let file = beneath::open(folder, name, flags, Mode::S_IRUSR | Mode::S_IWUSR).map(File::from).map_err(failed)?;
        small_file::write(&file, &text).map_err(failed)?;
        Ok(file.into())
    }
}

impl Listed for Record {
    const FOLDER: Folder = Folder::Volumes;

    fn key(name: &OsStr) -> Option<RecordKey> {
        name.to_str()?.strip_suffix(SUFFIX)?.parse().ok()
    }

    fn read_in(export: &Export, folder: &OwnedFd, key: &RecordKey) -> Result<Option<Self>, ExportError> {
        export.read_record_in(folder, &file_name(key))
    }

    fn read(export: &Export, folder: &OwnedFd, key: &RecordKey) -> Result<Option<Self>, ExportError> {
        match export.known_record(key) {
            Some(record) => Ok(Some(record)),
            None => Self::read_in(export, folder, key),
        }
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

pub(super) const SUFFIX: &str = ".json";
/// The folder of the records of deleted volumes whose directories stay.
pub(super) const RETAINED: &str = "retained";

/// Gives an open file a name in a folder of its mount, where nothing of that name may be: by descriptor, so that it is
/// this file whatever a rival does with its other name.
fn link(file: &OwnedFd, folder: &OwnedFd, name: &str) -> nix::Result<()> {
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(AT_FDCWD, own.as_str(), folder, name, AtFlags::AT_SYMLINK_FOLLOW)
}

/// Where a volume's record is.
pub(super) fn file_name(key: &RecordKey) -> String {
    format!("{key}{SUFFIX}")
}

/// Removes a file by way of the mount that remembers names (`known`), where that is one call to the server. What it
/// remembers is not there may be there: then by way of the other (`folder`). None is success.
pub(super) fn remove_known(known: &OwnedFd, folder: &OwnedFd, name: &str) -> nix::Result<()> {
    unlinkat(known, name, UnlinkatFlags::NoRemoveDir).or_else(|_| remove(folder, name))
}

/// Removes a file; none is success.
pub(super) fn remove(folder: &OwnedFd, name: &str) -> nix::Result<()> {
    match unlinkat(folder, name, UnlinkatFlags::NoRemoveDir) {
        Err(Errno::ENOENT) => Ok(()),
        other => other,
    }
}
