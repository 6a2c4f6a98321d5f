//! What is being made: a tree stands here until it is complete, and is then renamed to its place in one step.
//!
//! Its name follows from what is made and from what, so a retry of the same request finds what an earlier try left and
//! goes on there, and another request never does. What nobody asks for again goes into the trash after a while; work
//! that is under way says so by a new time of change now and then.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, renameat};
use nix::sys::stat::{Mode, UtimensatFlags, fstat, fstatat, mkdirat, utimensat};
use nix::sys::time::TimeSpec;

use super::trash::{Kind, TrashName};
use super::{Export, ExportError};
use crate::beneath;
use crate::tree::make::{DEFAULT_MODE, descend};
use crate::volume::name::RecordKey;
use crate::volume::subdir::SubDir;

/// The name of something that is being made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagingName(String);

impl StagingName {
    /// For the volume of this key. `request` is a text that is equal for equal requests.
    #[must_use]
    pub fn volume(key: &RecordKey, request: &str) -> Self {
        Self(format!("v.{key}.{}", RecordKey::of(request)))
    }

    /// For the snapshot of this key.
    #[must_use]
    pub fn snapshot(key: &RecordKey, request: &str) -> Self {
        Self(format!("s.{key}.{}", RecordKey::of(request)))
    }

    /// The folder that keeps second names of hard links meanwhile.
    #[must_use]
    pub fn links(&self) -> CString {
        // A name of letters, digits and dots has no NUL.
        CString::new(format!("{}.links", self.0)).unwrap_or_default()
    }
}

/// A directory that is being filled.
#[derive(Debug)]
pub struct Staged {
    name: StagingName,
    directory: OwnedFd,
    /// Whether it was made just now: otherwise an earlier try may have left something in it.
    pub is_new: bool,
}

impl AsFd for Staged {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

impl Staged {
    /// The number by which the directory is known again after it was renamed.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn inode(&self) -> nix::Result<u64> {
        fstat(&self.directory).map(|stat| stat.st_ino)
    }
}

impl Export {
    /// The directory of this name in staging, made with these permissions (and the owner's) if it is not there. No
    /// others than the driver reach it, whatever they are.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn stage(&self, name: &StagingName, mode: u32) -> Result<Staged, ExportError> {
        let failed = |errno| self.failed("make in staging", &*name.0, errno);
        let staging = self.staging()?;
        let mode = Mode::from_bits_truncate(mode) | Mode::S_IRWXU;
        let is_new = match mkdirat(staging, name.0.as_str(), mode) {
            Ok(()) => true,
            Err(Errno::EEXIST) => false,
            Err(errno) => return Err(failed(errno)),
        };
        let directory = beneath::open_dir(staging, name.0.as_str()).map_err(failed)?;
        Ok(Staged { name: name.clone(), directory, is_new })
    }

    /// The folder of all that is being made.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn staging(&self) -> Result<BorrowedFd<'_>, ExportError> {
        Ok(self.layout()?.staging.as_fd())
    }

    /// Says that the work under this name goes on.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn keep_staged(&self, name: &StagingName) -> Result<(), ExportError> {
        let now = TimeSpec::UTIME_NOW;
        match utimensat(self.staging()?, name.0.as_str(), &now, &now, UtimensatFlags::NoFollowSymlink) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(self.failed("touch", &*name.0, errno)),
        }
    }

    /// Renames what was made to a volume's directory. Nothing but an empty directory may be there.
    ///
    /// # Errors
    /// EEXIST where something is there; where the server fails.
    pub fn place_volume(&self, staged: &Staged, subdir: &SubDir) -> Result<(), ExportError> {
        let components: Vec<&str> = subdir.components().collect();
        let (name, parents) = components.split_last().map_or(("", &[][..]), |(last, parents)| (*last, parents));
        let mode = Mode::from_bits_truncate(DEFAULT_MODE);
        let place = descend(self.root(), parents, Some(mode))
            .map_err(|(component, errno)| self.failed("make the directory", component, errno))?;
        self.place(staged, &place, name).map_err(|errno| self.failed("put in place", subdir.to_string(), errno))
    }

    /// Renames what was made to a snapshot's folder.
    ///
    /// # Errors
    /// EEXIST where another was faster; where the server fails.
    pub fn place_snapshot(&self, staged: &Staged, key: &RecordKey) -> Result<(), ExportError> {
        let snapshots = &self.layout()?.snapshots;
        self.place(staged, snapshots, &key.to_string())
            .map_err(|errno| self.failed("put in place", key.to_string(), errno))
    }

    fn place(&self, staged: &Staged, place: &OwnedFd, name: &str) -> nix::Result<()> {
        let staging = self.staging().map_err(|_| Errno::EIO)?;
        match renameat(staging, staged.name.0.as_str(), place, name) {
            // What NFS says of a directory that is not empty, and of a file.
            Err(Errno::ENOTEMPTY | Errno::ENOTDIR) => Err(Errno::EEXIST),
            other => other,
        }
    }

    /// Whether the volume's directory is the one with this number.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn is_directory(&self, subdir: &SubDir, inode: u64) -> Result<bool, ExportError> {
        let components: Vec<&str> = subdir.components().collect();
        match descend(self.root(), &components, None) {
            Ok(directory) => fstat(directory)
                .map(|stat| stat.st_ino == inode)
                .map_err(|errno| self.failed("look at", subdir.to_string(), errno)),
            Err((_, Errno::ENOENT)) => Ok(false),
            Err((_, errno)) => Err(self.failed("look at", subdir.to_string(), errno)),
        }
    }

    /// Moves what is in staging, and records that were never put in place, into the trash if nobody worked on them for
    /// so long. Gives their names there.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn sweep_staging(&self, retention: Duration) -> Result<Vec<String>, ExportError> {
        let layout = self.layout()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut swept = Vec::new();
        for (folder, is_litter) in
            [(&layout.staging, (|_| true) as fn(&str) -> bool), (&layout.volumes, |name: &str| name.starts_with('.'))]
        {
            let names = beneath::names(folder).map_err(|errno| self.failed("list", "staging", errno))?;
            for name in names.iter().filter_map(|name| name.to_str()).filter(|name| is_litter(name)) {
                let Ok(stat) = fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW) else { continue };
                let changed = Duration::from_secs(u64::try_from(stat.st_ctime).unwrap_or_default());
                if now.saturating_sub(changed) < retention {
                    continue;
                }
                let trashed = TrashName::now(Kind::Staged, RecordKey::of(name), Duration::ZERO).to_string();
                match renameat(folder, name, &layout.trash, trashed.as_str()) {
                    Ok(()) => swept.push(trashed),
                    Err(Errno::ENOENT) => {}
                    Err(errno) => return Err(self.failed("move to the trash", name, errno)),
                }
            }
        }
        Ok(swept)
    }

    /// A volume's directory, open for reading.
    ///
    /// # Errors
    /// ENOENT where there is none; where the server fails or a link is in the way.
    pub fn open_directory(&self, subdir: &SubDir) -> Result<OwnedFd, ExportError> {
        let failed = |errno| self.failed("open", subdir.to_string(), errno);
        let components: Vec<&str> = subdir.components().collect();
        let (name, parents) = components.split_last().map_or(("", &[][..]), |(last, parents)| (*last, parents));
        let parent = descend(self.root(), parents, None).map_err(|(_, errno)| failed(errno))?;
        beneath::open(parent, name, OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty()).map_err(failed)
    }
}
