//! The folders of the protocol on an export, by descriptors.
//!
//! An NFS client with root can put anything in them: links, pipes, directories, names without end. So nothing in them is
//! followed or waited for, a name counts only if it is a project's number, at most [`MOST`] names of a folder are read at
//! a time, and what is in the way of a file is moved aside.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::Result;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg, OFlag, RenameFlags, readlinkat, renameat, renameat2};
use nix::libc;
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat, fstat, fstatat, mkdirat, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, symlinkat, unlinkat};

use super::error::QuotaError;
use crate::beneath;
use crate::reason::errno_of;
use crate::volume::path::RESERVED;
use crate::volume::quota_files::{AGENT, APPLIED, LONGEST, ProjectId, QUOTA, READY, REFUSED, WANTED};

/// How many names of a folder are read at a time.
pub const MOST: usize = 250_000;
/// The name of what is being made, in each folder; one process works in them at a time.
const NEW: &str = ".new";
/// What is in the way of a file is moved to such a name.
const ASIDE: &str = ".in-the-way-";

/// A folder of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folder {
    /// Empty directories.
    Ready,
    /// What the driver wants.
    Wanted,
    /// The limits that are in force.
    Applied,
    /// The reasons why others are not.
    Refused,
}

impl Folder {
    const ALL: [Self; 4] = [Self::Ready, Self::Wanted, Self::Applied, Self::Refused];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => READY,
            Self::Wanted => WANTED,
            Self::Applied => APPLIED,
            Self::Refused => REFUSED,
        }
    }
}

/// What tells one state of a link from all others: its inode's number and the time of its change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// The inode's number.
    pub inode: u64,
    changed: (i64, i64),
}

impl Version {
    fn of(stat: &libc::stat) -> Self {
        Self { inode: stat.st_ino, changed: (stat.st_ctime, stat.st_ctime_nsec) }
    }
}

/// A link's state, and its text or why it has none.
pub type Text = (Version, std::result::Result<String, &'static str>);

/// A file that has a project's name.
#[derive(Debug)]
pub struct Link {
    /// The file itself, open as a path.
    pub file: OwnedFd,
    /// Which state of it this is.
    pub version: Version,
    /// The link's text, or why it has none.
    pub text: std::result::Result<String, &'static str>,
}

/// The folders, open, and kept from other agents until this goes.
#[derive(Debug)]
pub struct Folders {
    path: PathBuf,
    export: OwnedFd,
    own: Flock<OwnedFd>,
    open: [OwnedFd; 4],
    owner: (Uid, Gid),
}

impl Folders {
    /// Opens the folders of an export; makes those that are missing. They get the owner of the driver's folder, which is
    /// not root where the export does not let root be root.
    ///
    /// # Errors
    /// See [`QuotaError`].
    pub fn open(path: &Path, export: OwnedFd) -> std::result::Result<Self, QuotaError> {
        let failed = |name: &str| {
            let path = path.join(RESERVED).join(name);
            move |errno| QuotaError::Io { path, errno }
        };
        let root = fstat(&export).map_err(failed(""))?;
        let owner = (Uid::from_raw(root.st_uid), Gid::from_raw(root.st_gid));
        let driver = folder(&export, RESERVED, owner).map_err(failed(""))?;
        let stat = fstat(&driver).map_err(failed(""))?;
        let owner = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        let own = folder(&driver, QUOTA, owner).map_err(failed(QUOTA))?;
        let own = Flock::lock(own, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
            Errno::EWOULDBLOCK => QuotaError::Locked { path: path.into() },
            errno => failed(QUOTA)(errno),
        })?;
        let open = |of: Folder| {
            folder(&own, of.name(), owner).map_err(|errno| failed(&format!("{QUOTA}/{}", of.name()))(errno))
        };
        let [ready, wanted, applied, refused] = Folder::ALL.map(open);
        let open = [ready?, wanted?, applied?, refused?];
        Ok(Self { path: path.into(), export, own, open, owner })
    }

    /// The export's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path to a folder for a call that takes no descriptor.
    #[must_use]
    pub fn proc_path(&self, of: Folder) -> String {
        format!("/proc/self/fd/{}", self.folder(of).as_raw_fd())
    }

    /// Makes sure that all folders are still what their paths lead to.
    ///
    /// # Errors
    /// [`QuotaError::Replaced`].
    pub fn are_in_place(&self) -> std::result::Result<(), QuotaError> {
        let same = |one: &OwnedFd, other: Result<OwnedFd>| {
            let (one, other) = (fstat(one)?, fstat(other?)?);
            Ok::<_, Errno>((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
        };
        let replaced = |path: PathBuf| Err(QuotaError::Replaced { path });
        let export = File::open(&self.path).map(OwnedFd::from).map_err(errno_of);
        if !same(&self.export, export).unwrap_or(false) {
            return replaced(self.path.clone());
        }
        let own = Path::new(RESERVED).join(QUOTA);
        if !same(&self.own, beneath::open_dir(&self.export, &own)).unwrap_or(false) {
            return replaced(self.path.join(own));
        }
        for of in Folder::ALL {
            if !same(self.folder(of), beneath::open_dir(&*self.own, of.name())).unwrap_or(false) {
                return replaced(self.path.join(own).join(of.name()));
            }
        }
        Ok(())
    }

    fn folder(&self, of: Folder) -> &OwnedFd {
        let [ready, wanted, applied, refused] = &self.open;
        match of {
            Folder::Ready => ready,
            Folder::Wanted => wanted,
            Folder::Applied => applied,
            Folder::Refused => refused,
        }
    }

    /// Gives the projects that have a name in a folder, with the number of its inode. Gives how many other names were
    /// seen; at most [`MOST`] names are.
    ///
    /// # Errors
    /// What opening or reading the folder gives.
    pub fn names(&self, of: Folder, mut see: impl FnMut(ProjectId, u64)) -> Result<usize> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        let mut entries = Dir::from_fd(beneath::open(self.folder(of), ".", flags, Mode::empty())?)?;
        let mut others = 0;
        for entry in entries.iter().take(MOST + 2) {
            let entry = entry?;
            match std::str::from_utf8(entry.file_name().to_bytes()).ok().and_then(ProjectId::parse) {
                Some(id) => see(id, entry.ino()),
                None if entry.file_name().to_bytes().starts_with(b".") => {}
                None => others += 1,
            }
        }
        Ok(others)
    }

    /// Whether a project has a name in a folder.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn has(&self, of: Folder, id: ProjectId) -> Result<bool> {
        match fstatat(self.folder(of), id.to_string().as_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// The state of a project's link; none if it has none.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn version(&self, of: Folder, id: ProjectId) -> Result<Option<Version>> {
        match fstatat(self.folder(of), id.to_string().as_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Version::of(&stat))),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// The text of a project's link, without opening it; none if it has none. The state is that of before the text: where
    /// something else came in between, the text is looked at again.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn text(&self, of: Folder, id: ProjectId) -> Result<Option<Text>> {
        let (folder, name) = (self.folder(of), id.to_string());
        let stat = match fstatat(folder, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT) => return Ok(None),
            stat => stat?,
        };
        Ok(Some((Version::of(&stat), read_text(&stat, || readlinkat(folder, name.as_str())))))
    }

    /// A project's link; none if it has none.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn link(&self, of: Folder, id: ProjectId) -> Result<Option<Link>> {
        match self.link_named(of, &id.to_string()) {
            Ok(link) => Ok(Some(link)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn link_named(&self, of: Folder, name: &str) -> Result<Link> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW;
        let file = beneath::open(self.folder(of), name, flags, Mode::empty())?;
        let stat = fstat(&file)?;
        let text = read_text(&stat, || readlinkat(&file, ""));
        Ok(Link { version: Version::of(&stat), file, text })
    }

    /// Puts a link in place of what has a project's name. Before it is there, `mark` has seen it with its text.
    ///
    /// # Errors
    /// What the kernel gives; EAGAIN where an NFS client put something else to the link's first name.
    pub fn put_link(
        &self,
        of: Folder,
        id: ProjectId,
        text: &str,
        mark: impl FnOnce(&OwnedFd) -> Result<()>,
    ) -> Result<()> {
        let (folder, name) = (self.folder(of), id.to_string());
        match symlinkat(text, folder, NEW) {
            Err(Errno::EEXIST) => {
                self.clear(of, NEW)?;
                symlinkat(text, folder, NEW)?;
            }
            linked => linked?,
        }
        let link = self.link_named(of, NEW)?;
        if link.text.as_deref() != Ok(text) {
            return Err(Errno::EAGAIN);
        }
        mark(&link.file)?;
        match renameat(folder, NEW, folder, name.as_str()) {
            Err(Errno::EISDIR) => {
                self.clear(of, &name)?;
                renameat(folder, NEW, folder, name.as_str())?;
            }
            renamed => renamed?,
        }
        let placed = self.version(of, id)?;
        if placed.is_some_and(|placed| placed.inode == link.version.inode) { Ok(()) } else { Err(Errno::EAGAIN) }
    }

    /// Removes what has a project's name, unless it is a directory that holds something: that is moved aside. Nothing
    /// there is success.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn remove(&self, of: Folder, id: ProjectId) -> Result<()> {
        self.clear(of, &id.to_string())
    }

    fn clear(&self, of: Folder, name: &str) -> Result<()> {
        clear(self.folder(of), name)
    }

    /// Opens a project's directory for reading; none if it has none, or something else has its name.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn directory(&self, of: Folder, id: ProjectId) -> Result<Option<OwnedFd>> {
        self.directory_named(of, &id.to_string())
    }

    fn directory_named(&self, of: Folder, name: &str) -> Result<Option<OwnedFd>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
        match beneath::open(self.folder(of), name, flags, Mode::empty()) {
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV) => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// The directory that an agent was making when it ended.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn unfinished_directory(&self) -> Result<Option<OwnedFd>> {
        self.directory_named(Folder::Ready, NEW)
    }

    /// Removes what an agent was making when it ended.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn remove_unfinished(&self) -> Result<()> {
        for of in Folder::ALL {
            self.clear(of, NEW)?;
        }
        clear(&self.own, NEW)
    }

    /// Makes an empty directory of the folders' owner, which has no project's name yet.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn make_directory(&self) -> Result<OwnedFd> {
        let folder = self.folder(Folder::Ready);
        self.clear(Folder::Ready, NEW)?;
        mkdirat(folder, NEW, Mode::S_IRWXU)?;
        let directory = self.directory_named(Folder::Ready, NEW)?.ok_or(Errno::EAGAIN)?;
        fchown(&directory, Some(self.owner.0), Some(self.owner.1))?;
        let all = Mode::S_IRGRP | Mode::S_IXGRP | Mode::S_IROTH | Mode::S_IXOTH;
        Self::set_mode(&directory, (Mode::S_IRWXU | all).bits())?;
        Ok(directory)
    }

    /// Gives that directory a project's name in `ready/`.
    ///
    /// # Errors
    /// What the kernel gives; EEXIST where something has the name.
    pub fn publish_directory(&self, id: ProjectId) -> Result<()> {
        let folder = self.folder(Folder::Ready);
        renameat2(folder, NEW, folder, id.to_string().as_str(), RenameFlags::RENAME_NOREPLACE)
    }

    /// Gives a project's directory in `ready/`, which is open for reading, its permissions.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn set_mode(directory: &OwnedFd, mode: u32) -> Result<()> {
        fchmodat(directory, ".", Mode::from_bits_truncate(mode), FchmodatFlags::FollowSymlink)
    }

    /// Removes a directory of `ready/` if it is empty; none is success.
    ///
    /// # Errors
    /// What the kernel gives; ENOTEMPTY or EEXIST if it is not.
    pub fn remove_directory(&self, id: ProjectId) -> Result<()> {
        match unlinkat(self.folder(Folder::Ready), id.to_string().as_str(), UnlinkatFlags::RemoveDir) {
            Err(Errno::ENOENT) => Ok(()),
            removed => removed,
        }
    }

    /// Replaces a file of the agent's own folder.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn write(&self, name: &str, text: &[u8]) -> Result<()> {
        clear(&self.own, NEW)?;
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW;
        let mut file = File::from(beneath::open(&*self.own, NEW, flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
        fchown(&file, Some(self.owner.0), Some(self.owner.1))?;
        file.write_all(text).map_err(errno_of)?;
        match renameat(&*self.own, NEW, &*self.own, name) {
            Err(Errno::EISDIR) => {
                clear(&self.own, name)?;
                renameat(&*self.own, NEW, &*self.own, name)
            }
            renamed => renamed,
        }
    }

    /// Sets the time of change of the agent's state to now. That needs no space.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn touch(&self) -> Result<()> {
        let flags = nix::sys::stat::UtimensatFlags::NoFollowSymlink;
        utimensat(&*self.own, AGENT, &TimeSpec::UTIME_NOW, &TimeSpec::UTIME_NOW, flags)
    }
}

/// The text of a link with this state, or why it has none that counts.
fn read_text(stat: &libc::stat, read: impl FnOnce() -> Result<OsString>) -> std::result::Result<String, &'static str> {
    match u64::try_from(stat.st_size) {
        _ if stat.st_mode & libc::S_IFMT != libc::S_IFLNK => Err("it is no symbolic link"),
        Ok(length) if length > LONGEST as u64 => Err("its text is too long"),
        _ => match read() {
            Ok(text) => text.into_string().map_err(|_| "its text is not UTF-8"),
            Err(_) => Err("its text cannot be read"),
        },
    }
}

/// Removes a name, or moves it aside where it is a directory that holds something.
fn clear(folder: &OwnedFd, name: &str) -> Result<()> {
    let gone = |removed| match removed {
        Err(Errno::ENOENT) => Ok(()),
        removed => removed,
    };
    match gone(unlinkat(folder, name, UnlinkatFlags::NoRemoveDir)) {
        Err(Errno::EISDIR | Errno::EPERM) => match gone(unlinkat(folder, name, UnlinkatFlags::RemoveDir)) {
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => move_aside(folder, name),
            removed => removed,
        },
        removed => removed,
    }
}

/// Moves what is in the way of a name to another name in the folder, which nothing has.
fn move_aside(folder: &OwnedFd, name: &str) -> Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    loop {
        let aside = format!("{ASIDE}{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        match renameat2(folder, name, folder, aside.as_str(), RenameFlags::RENAME_NOREPLACE) {
            Err(Errno::EEXIST) => {}
            moved => {
                moved?;
                tracing::warn!(name, aside, "what is in the way of the agent's files was moved aside");
                return Ok(());
            }
        }
    }
}

/// Opens a folder to work in; makes it, private to its owner, if it is missing.
fn folder(parent: &OwnedFd, name: &str, owner: (Uid, Gid)) -> Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    let open = || beneath::open(parent, OsStr::from_bytes(name.as_bytes()), flags, Mode::empty());
    match open() {
        Err(Errno::ENOENT) => match mkdirat(parent, name, Mode::S_IRWXU) {
            Ok(()) => {
                let made = open()?;
                fchown(&made, Some(owner.0), Some(owner.1))?;
                Ok(made)
            }
            Err(Errno::EEXIST) => open(),
            Err(errno) => Err(errno),
        },
        opened => opened,
    }
}
