//! Deleted volumes on their way out: a rename takes a directory out of sight at once, whatever is in it.

use std::ffi::OsString;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::renameat;

use super::layout::TRASH;
use super::{Export, ExportError};
use crate::beneath;
use crate::tree::make::descend;
use crate::tree::remove;
use crate::volume::name::RecordKey;
use crate::volume::subdir::{RESERVED, SubDir};

/// Where a directory is moved to, and whether it was there to move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Moved {
    /// It was moved.
    Yes,
    /// There is none.
    Missing,
}

impl Export {
    /// Moves a volume's directory into the trash; gives the name it has there. None if there was no directory.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn throw_away(&self, subdir: &SubDir, key: &RecordKey) -> Result<Option<String>, ExportError> {
        let name = trash_name(&key.to_string());
        let failed = |errno| self.failed("move to the trash", subdir.to_string(), errno);
        let trash = &self.layout()?.trash;
        let Some(parent) = self.parent(subdir).map_err(failed)? else { return Ok(None) };
        match renameat(&parent, subdir.file_name(), trash, name.as_str()) {
            Ok(()) => Ok(Some(name)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Moves a volume's directory to another name on the share, where nothing may be.
    ///
    /// # Errors
    /// EEXIST where something is there; where the server fails.
    pub fn move_directory(&self, from: &SubDir, to: &SubDir) -> Result<Moved, ExportError> {
        let failed = |errno| self.failed("rename", format!("{from} to {to}"), errno);
        let Some(source) = self.parent(from).map_err(failed)? else { return Ok(Moved::Missing) };
        let components: Vec<&str> = to.components().collect();
        let (name, parents) = components.split_last().ok_or_else(|| failed(Errno::EINVAL))?;
        let mode = nix::sys::stat::Mode::from_bits_truncate(crate::tree::make::DEFAULT_MODE);
        let place = descend(self.root(), parents, Some(mode)).map_err(|(_, errno)| failed(errno))?;
        // rename(2) replaces an empty directory, and NFS has no RENAME_NOREPLACE.
        match beneath::open(&place, name, nix::fcntl::OFlag::O_PATH, nix::sys::stat::Mode::empty()) {
            Err(Errno::ENOENT) => {}
            Ok(_) | Err(Errno::ELOOP) => return Err(failed(Errno::EEXIST)),
            Err(errno) => return Err(failed(errno)),
        }
        match renameat(&source, from.file_name(), &place, *name) {
            Ok(()) => Ok(Moved::Yes),
            Err(Errno::ENOENT) => Ok(Moved::Missing),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Whether a volume's directory is there.
    ///
    /// # Errors
    /// Where the server fails, or a link is in the way.
    pub fn has_directory(&self, subdir: &SubDir) -> Result<bool, ExportError> {
        let components: Vec<&str> = subdir.components().collect();
        match descend(self.root(), &components, None) {
            Ok(_) => Ok(true),
            Err((_, Errno::ENOENT)) => Ok(false),
            Err((_, errno)) => Err(self.failed("look for", subdir.to_string(), errno)),
        }
    }

    /// The names in the trash; none where this driver has no folder yet.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn trash(&self) -> Result<Vec<OsString>, ExportError> {
        let failed = |errno| self.failed("list", "the trash", errno);
        match descend(self.root(), &[RESERVED, TRASH], None) {
            Ok(trash) => beneath::names(&trash).map_err(failed),
            Err((_, Errno::ENOENT)) => Ok(Vec::new()),
            Err((_, errno)) => Err(failed(errno)),
        }
    }

    /// Frees what has this name in the trash.
    ///
    /// # Errors
    /// The entry that could not be removed; all that could be is gone.
    pub fn free(&self, name: &str) -> Result<(), ExportError> {
        remove::tree(&self.layout()?.trash, name).map_err(|(entry, errno)| {
            self.failed("remove", format!("trash/{name}: {}", entry.to_string_lossy()), errno)
        })
    }

    /// The directory that holds a volume's directory; none if it is not there.
    fn parent(&self, subdir: &SubDir) -> nix::Result<Option<std::os::fd::OwnedFd>> {
        let components: Vec<&str> = subdir.components().collect();
        let parents = components.split_last().map_or(&[][..], |(_, parents)| parents);
        match descend(self.root(), parents, None) {
            Ok(parent) => Ok(Some(parent)),
            Err((_, Errno::ENOENT)) => Ok(None),
            Err((_, errno)) => Err(errno),
        }
    }
}

/// A name that nothing in the trash has yet.
pub(super) fn trash_name(key: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    format!("{key}.{now:x}")
}
