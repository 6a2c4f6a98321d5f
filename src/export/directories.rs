//! The volumes' own directories: made, found again by their inode number, and looked at. Whether one is there is for
//! the server to say; what this client remembers of a name decides nothing.

use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, fstat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::catalog::Record;
use super::layout::look;
use super::{Export, ExportError};
use crate::beneath;
use crate::tree::look_again;
use crate::tree::make::{self, Attributes, DEFAULT_MODE, descend};
use crate::volume::record_key::RecordKey;
use crate::volume::subdir::SubDir;

/// How often a directory on the way may be removed while it is used.
const TRIES: u32 = 5;

/// A volume's directory as it was made or found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadeDirectory {
    /// Its inode number.
    pub inode: u64,
    /// Whether it was there already and held something.
    pub had_content: bool,
    /// Whether it was made just now.
    pub is_new: bool,
}

/// Where the directory is that a record notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// Where the record says.
    InPlace,
    /// In the trash: a delete by another controller is about to free it or to put it back.
    InTrash,
    /// In neither.
    Gone,
}

/// A volume that is going to be read.
#[derive(Debug)]
pub struct SourceVolume {
    /// Its record, if it has one.
    pub record: Option<Record>,
    /// Where its directory is.
    pub subdir: SubDir,
    /// The directory, open for reading.
    pub directory: OwnedFd,
    /// The directory's number.
    pub inode: u64,
}

/// The directory that `components` lead to below `top`; none where there is none.
pub(super) fn reach(top: impl AsFd, components: &[&str]) -> nix::Result<Option<OwnedFd>> {
    match beneath::settled(|| descend(&top, components, None).map_err(|(_, errno)| errno)) {
        Ok(directory) => Ok(Some(directory)),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Does something again for which a directory on the way was removed: a rival removes those that become empty.
pub(super) fn despite_rivals<T>(mut work: impl FnMut() -> Result<T, (String, Errno)>) -> Result<T, (String, Errno)> {
    for _ in 1..TRIES {
        match work() {
            Err((_, Errno::ENOENT | Errno::ESTALE)) => {}
            done => return done,
        }
    }
    work()
}

impl Export {
    /// Makes a volume's directory and those on the way, or takes the one that is there, and gives it its attributes.
    ///
    /// # Errors
    /// Where the server fails, and where a link or a file is in the way.
    pub fn make_directory(&self, subdir: &SubDir, attributes: Attributes) -> Result<MadeDirectory, ExportError> {
        let components: Vec<&str> = subdir.components().collect();
        let failed = |(component, errno): (String, Errno)| {
            let path = subdir.to_string();
            let path = if component == path { path } else { format!("{path} (at {component})") };
            self.failed("make the directory", path, errno)
        };
        match despite_rivals(|| self.try_to_make(&components, attributes)) {
            Err((_, Errno::ENOENT | Errno::ESTALE)) => Err(self.contended("make", subdir.to_string())),
            made => made.map_err(failed),
        }
    }

    fn try_to_make(&self, components: &[&str], attributes: Attributes) -> Result<MadeDirectory, (String, Errno)> {
        let Some((last, parents)) = components.split_last() else { return Err((".".into(), Errno::EINVAL)) };
        let named = |errno| ((*last).to_owned(), errno);
        let parent = self.make_parents(parents)?;
        let mode = Mode::from_bits_truncate(attributes.mode.unwrap_or(DEFAULT_MODE));
        // At the top of the share in the mount that remembers names: so what was just made need not be looked up.
        if parents.is_empty() && mkdirat(self.tree_root(), *last, mode).is_ok() {
            let directory = beneath::open_dir(self.tree_root(), *last).map_err(named)?;
            return finish_directory(&directory, attributes, true).map_err(named);
        }
        let is_new = match mkdirat(&parent, *last, mode) {
            Ok(()) => true,
            Err(Errno::EEXIST) => false,
            Err(errno) => return Err(named(errno)),
        };
        let directory = beneath::open_dir(&parent, *last).map_err(named)?;
        finish_directory(&directory, attributes, is_new).map_err(named)
    }

    /// Makes the directories that lead to a volume's. There is a note for each that was made: it goes with the last
    /// volume below it.
    fn make_parents(&self, parents: &[&str]) -> Result<OwnedFd, (String, Errno)> {
        let mut at = descend(self.root(), &[], None)?;
        for (depth, component) in parents.iter().enumerate() {
            let named = |errno| ((*component).to_owned(), errno);
            at = match beneath::open_dir(&at, *component) {
                Err(Errno::ENOENT) => {
                    match mkdirat(&at, *component, Mode::from_bits_truncate(DEFAULT_MODE)) {
                        Ok(()) => self.note_made(&parents[..=depth]).map_err(named)?,
                        Err(Errno::EEXIST) => {}
                        Err(errno) => return Err(named(errno)),
                    }
                    beneath::open_dir(&at, *component).map_err(named)?
                }
                opened => opened.map_err(named)?,
            };
        }
        Ok(at)
    }

    /// The directory that a volume's is in, made if it is missing, in the mount for trees.
    pub(super) fn place_of_new(&self, subdir: &SubDir) -> Result<OwnedFd, ExportError> {
        let parents: Vec<&str> = subdir.parents().collect();
        let failed = |component: String, errno| match errno {
            Errno::ENOENT | Errno::ESTALE => self.contended("make", component),
            errno => self.failed("make the directory", component, errno),
        };
        let of_all = |errno| failed(subdir.to_string(), errno);
        if parents.is_empty() {
            return descend(self.tree_root(), &[], None).map_err(|(_, errno)| of_all(errno));
        }
        let made = self.make_parents(&parents).map_err(|(component, errno)| failed(component, errno))?;
        let inode = fstat(made).map_err(of_all)?.st_ino;
        self.open_in_trees(&parents, inode).map_err(of_all)
    }

    /// The inode number of a volume's directory; none if there is no directory.
    ///
    /// # Errors
    /// Where the server fails, or a link or a file is in the way.
    pub fn inode_of(&self, subdir: &SubDir) -> Result<Option<u64>, ExportError> {
        let components: Vec<&str> = subdir.components().collect();
        let found = beneath::settled(|| {
            let directory = descend(self.root(), &components, None).map_err(|(_, errno)| errno)?;
            fstat(directory).map(|stat| stat.st_ino)
        });
        match found {
            Ok(inode) => Ok(Some(inode)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.failed("look for", subdir.to_string(), errno)),
        }
    }

    /// Where the directory is that a record notes.
    ///
    /// # Errors
    /// Where the server fails, or a link or a file is in the way.
    pub fn whereabouts(&self, record: &Record) -> Result<Whereabouts, ExportError> {
        let trash = &self.layout()?.trash;
        let is_in_trash = |inode| {
            // What is remembered of the names in it holds until it is found to have changed.
            look(trash)?;
            beneath::holds_inode(trash, inode)
        };
        // Once more, for it may be put back in between.
        for _ in 0..2 {
            let found = self.inode_of(&record.subdir)?;
            let Some(inode) = record.inode else {
                return Ok(if found.is_some() { Whereabouts::InPlace } else { Whereabouts::Gone });
            };
            if found == Some(inode) {
                return Ok(Whereabouts::InPlace);
            }
            if is_in_trash(inode).map_err(|errno| self.failed("list", "the trash", errno))? {
                return Ok(Whereabouts::InTrash);
            }
        }
        Ok(Whereabouts::Gone)
    }

    /// Whether a volume's directory is there.
    ///
    /// # Errors
    /// Where the server fails, or a link or a file is in the way.
    pub fn has_directory(&self, subdir: &SubDir) -> Result<bool, ExportError> {
        self.inode_of(subdir).map(|inode| inode.is_some())
    }

    /// Removes a directory if nothing is in it; one that is gone is success.
    pub(super) fn remove_empty(&self, components: &[&str]) -> nix::Result<()> {
        let Some((last, parents)) = components.split_last() else { return Ok(()) };
        let Some(parent) = reach(self.root(), parents)? else { return Ok(()) };
        match unlinkat(parent, *last, UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT | Errno::ESTALE) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// A volume's directory, open for reading in the mount for trees, and its inode number.
    ///
    /// # Errors
    /// ENOENT where there is none; where the server fails or a link is in the way.
    pub fn open_directory(&self, subdir: &SubDir) -> Result<(OwnedFd, u64), ExportError> {
        let failed = |errno| self.failed("open", subdir.to_string(), errno);
        let inode = self.inode_of(subdir)?.ok_or_else(|| failed(Errno::ENOENT))?;
        let directory = self.open_in_trees(&subdir.components().collect::<Vec<_>>(), inode).map_err(failed)?;
        Ok((directory, inode))
    }

    /// A volume's record and its directory, which is going to be read; none if there is no such volume. They are the
    /// ones that the mount for trees remembers, if they belong together: [`Export::is_in_place`] tells afterwards
    /// whether they still were the volume's.
    ///
    /// # Errors
    /// Where the server fails, a link is in the way, or the record cannot be read.
    pub fn open_source(
        &self,
        key: &RecordKey,
        is_its: impl Fn(&Record) -> bool,
        subdir: Option<&SubDir>,
    ) -> Result<Option<SourceVolume>, ExportError> {
        if let Some(record) = self.known_record(key).filter(&is_its)
            && let Ok(directory) = open_below(self.tree_root(), &record.subdir.components().collect::<Vec<_>>())
            && let Ok(stat) = fstat(&directory)
            && record.inode == Some(stat.st_ino)
        {
            return Ok(Some(SourceVolume {
                subdir: record.subdir.clone(),
                record: Some(record),
                directory,
                inode: stat.st_ino,
            }));
        }
        let record = self.record(key)?.filter(is_its);
        let Some(subdir) = subdir.or_else(|| record.as_ref().map(|record| &record.subdir)).cloned() else {
            return Ok(None);
        };
        match self.open_directory(&subdir) {
            Ok((directory, inode)) => Ok(Some(SourceVolume { record, subdir, directory, inode })),
            Err(ExportError::Io { errno: Errno::ENOENT, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether a volume's directory is still the one with this number. Where it is not, the mount for trees forgets it.
    ///
    /// # Errors
    /// As [`Export::inode_of`].
    pub fn is_in_place(&self, subdir: &SubDir, inode: u64) -> Result<bool, ExportError> {
        let is_in_place = self.inode_of(subdir)? == Some(inode);
        if !is_in_place {
            self.refresh_trees(&subdir.components().collect::<Vec<_>>());
        }
        Ok(is_in_place)
    }

    /// The directory that `components` lead to, open for reading in the mount for trees. Which it is, by its number,
    /// the server has said.
    pub(super) fn open_in_trees(&self, components: &[&str], inode: u64) -> nix::Result<OwnedFd> {
        let open = || {
            let opened = open_below(self.tree_root(), components)?;
            if fstat(&opened)?.st_ino == inode { Ok(opened) } else { Err(Errno::ESTALE) }
        };
        match open() {
            Err(Errno::ENOENT | Errno::ESTALE) => {
                self.refresh_trees(components);
                open()
            }
            opened => opened,
        }
    }

    /// Makes the mount for trees ask the server again for the names on the way to a directory.
    fn refresh_trees(&self, components: &[&str]) {
        for depth in 0..components.len() {
            let Ok(directory) = descend(self.tree_root(), &components[..depth], None) else { return };
            // What is remembered of the names in a directory holds until the directory is found to have changed.
            let _ = look_again(directory);
        }
    }
}

/// Gives a directory its attributes, and says what it is.
fn finish_directory(directory: &OwnedFd, attributes: Attributes, is_new: bool) -> nix::Result<MadeDirectory> {
    let had_content = !is_new && {
        let opened = beneath::open(directory, ".", OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty())?;
        !beneath::is_empty(opened)?
    };
    if !is_new || attributes != Attributes::default() {
        make::set(directory, attributes)?;
    }
    Ok(MadeDirectory { inode: fstat(directory)?.st_ino, had_content, is_new })
}

/// A directory, open for reading.
fn open_below(top: impl AsFd, components: &[&str]) -> nix::Result<OwnedFd> {
    let (name, parents) = components.split_last().map_or((".", &[][..]), |(last, parents)| (*last, parents));
    let parent = descend(top, parents, None).map_err(|(_, errno)| errno)?;
    beneath::open(parent, name, OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty())
}
