//! What is on an export besides records and snapshots, for those who only look: nothing here makes a folder, touches
//! the clock file or writes in another way, so it works on a read-only mount too.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat};
use nix::sys::statvfs::fstatvfs;

use super::catalog::{RETAINED, Record, SUFFIX};
use super::directories::reach;
use super::{Export, ExportError};
use crate::beneath;
use crate::reason::errno_of;
use crate::tree::TreeError;
use crate::tree::count::{self, Pace, Usage};
use crate::tree::make::descend;
use crate::volume::path::RESERVED;
use crate::volume::quota_files::{ProjectId, QUOTA, USAGE, parse_usage_line};

/// The quota agent's report is no longer than this: a line for each of two million projects.
const LONGEST_REPORT: u64 = 64 << 20;

/// What a directory says of one of its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its inode number.
    pub inode: u64,
    /// Whether it is a directory; none: the server did not say.
    pub is_directory: Option<bool>,
}

/// What volumes use, as the quota agent reported it.
#[derive(Clone, Debug, Default)]
pub struct ReportedUsage {
    /// The bytes of each project.
    pub bytes: BTreeMap<ProjectId, u64>,
    /// When the report was written, in seconds since 1970 by the server's clock.
    pub at: u64,
}

impl Export {
    /// What is in a directory below the share (empty: the share's top), by name; none where there is no such directory.
    /// Names that are no text are left out.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn entries_of(&self, path: &str) -> Result<Option<HashMap<String, Listed>>, ExportError> {
        let failed = |errno| self.failed("list", if path.is_empty() { "." } else { path }, errno);
        let Some(directory) = self.look_at(path)? else { return Ok(None) };
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        let directory = beneath::open(&directory, ".", flags, Mode::empty()).map_err(failed)?;
        let mut entries = HashMap::new();
        for entry in Dir::from_fd(directory).map_err(failed)?.iter() {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name != "." && name != ".." {
                let is_directory = entry.file_type().map(|kind| kind == Type::Directory);
                entries.insert(name.to_owned(), Listed { inode: entry.ino(), is_directory });
            }
        }
        Ok(Some(entries))
    }

    /// Whether there is a directory at a path below the share. What is reached over a link, or what another file system
    /// holds, is none.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn is_directory(&self, path: &str) -> Result<bool, ExportError> {
        self.look_at(path).map(|directory| directory.is_some())
    }

    fn look_at(&self, path: &str) -> Result<Option<OwnedFd>, ExportError> {
        let components: Vec<&str> = path.split('/').filter(|component| !component.is_empty()).collect();
        match reach(self.root(), &components) {
            Err(Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV) => Ok(None),
            looked => looked.map_err(|errno| self.failed("look for", path, errno)),
        }
    }

    /// The one name in a directory below the share; none where it has none or several, or is gone.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn only_name_in(&self, path: &str) -> Result<Option<String>, ExportError> {
        let names = self.entries_of(path)?.unwrap_or_default();
        Ok(if names.len() == 1 { names.into_keys().next() } else { None })
    }

    /// The records of deleted volumes whose directories stay (`onDelete: retain`). One that cannot be read is left out.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn retained(&self) -> Result<Vec<Record>, ExportError> {
        let failed = |errno| self.failed("list", RETAINED, errno);
        let folder = match descend(self.root(), &[RESERVED, RETAINED], None) {
            Err((_, Errno::ENOENT)) => return Ok(Vec::new()),
            folder => folder.map_err(|(_, errno)| failed(errno))?,
        };
        let is_record = |name: &std::ffi::OsStr| name.as_bytes().ends_with(SUFFIX.as_bytes());
        let names = beneath::collect_names(&folder, |name| {
            Ok(name.to_str().filter(|name| is_record(name.as_ref())).map(str::to_owned))
        });
        self.for_each(&names.map_err(failed)?, |name| match self.read_record_in(&folder, name) {
            Ok(record) => Ok(record),
            Err(error) => self.of_entry_alone(&folder, error).map(|_| None),
        })
    }

    /// What volumes use, as the quota agent reported it last; none where no agent has.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn reported_usage(&self) -> Result<Option<ReportedUsage>, ExportError> {
        let failed = |errno| self.failed("read", format!("{RESERVED}/{QUOTA}/{USAGE}"), errno);
        let folder = match descend(self.root(), &[RESERVED, QUOTA], None) {
            Err((_, Errno::ENOENT)) => return Ok(None),
            folder => folder.map_err(|(_, errno)| failed(errno))?,
        };
        let file = match beneath::open(&folder, USAGE, OFlag::O_RDONLY | OFlag::O_NONBLOCK, Mode::empty()) {
            Err(Errno::ENOENT) => return Ok(None),
            file => file.map_err(failed)?,
        };
        let stat = fstat(&file).map_err(failed)?;
        let mut text = String::new();
        let read = File::from(file).take(LONGEST_REPORT).read_to_string(&mut text);
        read.map_err(|error| failed(errno_of(error)))?;
        let bytes = text.lines().filter_map(parse_usage_line).map(|(project, bytes, _)| (project, bytes)).collect();
        Ok(Some(ReportedUsage { bytes, at: u64::try_from(stat.st_mtime).unwrap_or_default() }))
    }

    /// How many bytes of a volume's limit are used in its directory, as the server shows it; none without a limit.
    #[must_use]
    pub fn used_of_limit(&self, record: &Record, directory: impl AsFd) -> Option<u64> {
        record.project()?;
        let has = fstatvfs(directory).ok()?;
        // Where the limit is not in force, this is the export's own figure.
        let size = has.blocks() * has.fragment_size();
        let used = has.blocks().saturating_sub(has.blocks_free()) * has.fragment_size();
        (size <= record.capacity_bytes.saturating_add(2 * has.fragment_size())).then_some(used)
    }

    /// Walks a directory below the share and adds up what is in it, no faster than `pace` allows; none where there is no
    /// such directory. No link is followed, and no other file system entered.
    ///
    /// # Errors
    /// Where the server fails, or the directory itself cannot be read.
    pub fn measure(&self, path: &str, pace: &Pace) -> Result<Option<Usage>, ExportError> {
        let Some(directory) = self.look_at(path)? else { return Ok(None) };
        match count::usage(&directory, self.effort(), pace) {
            Ok(usage) => Ok(Some(usage)),
            Err(TreeError { errno: Errno::ENOENT | Errno::ESTALE, .. }) => Ok(None),
            Err(error) => Err(self.tree_failed(&path, &error)),
        }
    }

    /// Whether an entry of a directory below the share is a directory, where the listing did not say.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn is_listed_directory(&self, path: &str, listed: Listed) -> Result<bool, ExportError> {
        if let Some(is_directory) = listed.is_directory {
            return Ok(is_directory);
        }
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let Some(directory) = self.look_at(above)? else { return Ok(false) };
        match fstatat(&directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR),
            Err(Errno::ENOENT | Errno::ESTALE) => Ok(false),
            Err(errno) => Err(self.failed("look at", path, errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_looked_at_is_not_changed_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |path: &str| folder.path().join(path);
        std::fs::create_dir_all(path("team/pvc-a")).unwrap();
        std::fs::write(path("team/file"), "x").unwrap();
        std::os::unix::fs::symlink("team", path("link")).unwrap();
        let export = Export::local(folder.path());
        let top = export.entries_of("").unwrap().unwrap();
        assert_eq!(top["team"].is_directory, Some(true));
        assert!(!export.is_listed_directory("link", top["link"]).unwrap());
        assert!(!export.is_listed_directory("link", Listed { is_directory: None, ..top["link"] }).unwrap());
        assert!(export.is_directory("team/pvc-a").unwrap() && !export.is_directory("link/pvc-a").unwrap());
        assert!(!export.is_directory("team/file").unwrap() && !export.is_directory("no/such").unwrap());
        assert_eq!(export.entries_of("no").unwrap(), None);
        assert!(export.retained().unwrap().is_empty() && export.reported_usage().unwrap().is_none());
        assert!(export.read_trash(std::time::Duration::ZERO).unwrap().1.is_empty());
        assert!(!path(RESERVED).exists());
    }

    #[test]
    fn the_usage_is_the_agent_s_with_the_time_at_which_it_wrote_it() {
        let folder = tempfile::tempdir().unwrap();
        let quota = folder.path().join(format!("{RESERVED}/{QUOTA}"));
        std::fs::create_dir_all(&quota).unwrap();
        std::fs::write(quota.join(USAGE), "7 4096 2\nnonsense\n8 0 1\n").unwrap();
        let file = File::options().write(true).open(quota.join(USAGE)).unwrap();
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000)).unwrap();
        let usage = Export::local(folder.path()).reported_usage().unwrap().unwrap();
        let project = |number| ProjectId::new(number).unwrap();
        assert_eq!((usage.at, usage.bytes), (1_000_000, [(project(7), 4096), (project(8), 0)].into()));
    }
}
