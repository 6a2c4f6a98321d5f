//! From an archive to a tree.
//!
//! The target is empty, and nothing else writes there. An archive may name a member twice: the later one takes the
//! place of the earlier, which is removed and never written through, so that neither a link nor another name of the
//! same file passes the data on. A directory that comes again stays and is filled up; one that something else takes the
//! place of is removed with all in it. A member's directory is opened beneath the target,
//! component by component, and a link on the way ends the restore.
//!
//! Files get their attributes when their data is on the server. A directory gets its own when the work leaves it, and
//! again if a later member leads back into it: whatever the order of the members, all have the right times in the end,
//! and no more is held in memory than the directories from the root to the member at hand.

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode as OpenMode;
use rustix::fs::{AtFlags, FileType, Mode, fdatasync, fstat, linkat, mkdirat, mknodat, symlinkat};

use super::chain::{self, Chain};
use super::further::Further;
use super::member::{self, Kind, Member, Name};
use super::placing::{OWNER, PERMISSIONS, finish, is_directory, remove_entry, replacing};
use super::sparse::Piece;
use super::stream::Stream;
use super::{ArchiveError, At as _, CHUNK, Reason, check};
use crate::beneath;
use crate::tree::Progress;
use crate::tree::access_list;
use crate::tree::attributes::{Attributes, POSIX_DEFAULT, Xattr, is_user, set_xattrs, size_of_xattrs};
use crate::tree::memory::{Part, TREES};
use crate::tree::space::{Space, Writing};

/// A directory that no member describes.
const DIRECTORY_MODE: u32 = 0o755;
/// How many directories are entered again at most, for members that are not in the order in which a tree is walked: so
/// many, and so many for each member. Nothing else bounds the time that a small archive takes.
const DETOURS: u64 = 4 * 16 * 1024;
const DETOURS_OF_MEMBER: u64 = 64;
/// So many zeroes, where they are aligned, become a hole: the smallest block of the file systems behind NFS.
const HOLE: usize = 4096;
const ZEROES: [u8; HOLE] = [0; HOLE];
const CONTINUE: &str = "continue unpacking";

/// What an archive may do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits<'a> {
    /// Whether it may make device nodes. An archive with one is refused otherwise.
    pub devices: bool,
    /// A directory of the same file system whose free space is all that there is: the target may have a limit of its
    /// own.
    pub space: Option<BorrowedFd<'a>>,
}

/// Unpacks `archive` into the directory `target`, which gets the attributes of the archive's root: made for this call,
/// and empty. Compressed with zstd, with gzip, or not at all: its first bytes tell.
///
/// # Errors
/// [`ArchiveError`], with ECANCELED if `progress` was stopped. What was unpacked until then stays.
pub fn read(
    archive: impl Read,
    target: impl AsFd,
    limits: Limits<'_>,
    progress: &Progress,
) -> Result<(), ArchiveError> {
    let mut stream = Stream::new(archive)?;
    let target = chain::open(target, b".").at("open", b"")?;
    access_list::remove_inherited(&target).at("remove the inherited access control list of", b"")?;
    let attributes = Attributes::of(&fstat(&target).at("read", b"")?);
    let chain = Chain::new(&target, Wanted { attributes, lists: Vec::new() }).at("open", b"")?;
    let space = Space::new(limits.space.unwrap_or(target.as_fd()));
    let mut restore = Restore {
        chain,
        space: &space,
        limits,
        progress,
        waiting: TREES.part(),
        members: 0,
        detours: 0,
        further: Further::default(),
        buffer: vec![0; CHUNK],
    };
    while let Some(member) = member::next(&mut stream)? {
        let bytes = restore.member(&mut stream, &member)?;
        progress.add(1, bytes);
    }
    restore.leave_to(0)?;
    restore.finish_directory()
}

struct Restore<'a> {
    chain: Chain<Wanted>,
    space: &'a Space<'a>,
    limits: Limits<'a>,
    progress: &'a Progress,
    /// What the access control lists of the directories in the chain take: they wait until those are left.
    waiting: Part,
    members: u64,
    /// How many directories were entered besides those that were members just then.
    detours: u64,
    further: Further,
    buffer: Vec<u8>,
}

/// What a directory gets when the work leaves it: what its member says, or what it had when the work came.
struct Wanted {
    attributes: Attributes,
    /// Access control lists. They are set last, for what is made in the directory might inherit them.
    lists: Vec<Xattr>,
}

impl Restore<'_> {
    /// Makes a member; gives the bytes in it.
    fn member(&mut self, stream: &mut Stream<'_>, member: &Member) -> Result<u64, ArchiveError> {
        check(self.progress, CONTINUE, member.name.bytes())?;
        self.members += 1;
        let Some((parent, own)) = member.name.split() else {
            self.leave_to(0)?;
            let before = std::mem::take(&mut self.chain.state().lists);
            self.waiting.shrink(size_of_xattrs(&before));
            let here = self.chain.here().and_then(|here| chain::open(here, b".")).at("open", b"")?;
            *self.chain.state() = self.wanted_by(member, &here)?;
            return Ok(0);
        };
        self.go_to(parent, &member.name)?;
        self.space.entry()?;
        match &member.kind {
            Kind::Directory => self.directory(member, own)?,
            Kind::File { size, pieces } => return self.file(stream, member, own, *size, pieces),
            Kind::Link(to) => self.link(&member.name, own, to)?,
            Kind::Symlink(to) => self.symlink(member, own, to)?,
            Kind::Special(kind, device) => self.special(member, own, *kind, *device)?,
        }
        Ok(0)
    }

    /// What a directory that was just made or found gets when it is left. All else its member says of it is set here.
    fn wanted_by(&mut self, member: &Member, directory: &OwnedFd) -> Result<Wanted, ArchiveError> {
        let name = member.name.bytes();
        let (users, mut lists): (Vec<_>, Vec<_>) = member.xattrs.iter().cloned().partition(is_user);
        set_xattrs(directory, &users).at("set the extended attributes of", name)?;
        let mut attributes = member.attributes;
        if !self.waiting.grow(size_of_xattrs(&lists)) {
            // What is made in the directory may inherit them, but an archive with so many has one for each entry.
            // POSIX lists are different: an entry without one must not inherit any, so there are none to be inherited.
            lists.retain(|(name, _)| name.as_c_str() != POSIX_DEFAULT);
            attributes.mode = access_list::set_all(directory, &lists, attributes.mode, self.progress)
                .at("set the access control list of", name)?;
            lists.clear();
        }
        Ok(Wanted { attributes, lists })
    }

    /// Goes to a member's directory, and makes what is missing on the way.
    fn go_to(&mut self, directory: &[u8], member: &Name) -> Result<(), ArchiveError> {
        let names = || directory.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
        let common = self.chain.names().zip(names()).take_while(|(here, there)| here == there).count();
        self.leave_to(common)?;
        for name in names().skip(common) {
            check(self.progress, CONTINUE, member.bytes())?;
            self.detours += 1;
            if self.detours > DETOURS + DETOURS_OF_MEMBER * self.members {
                return Err(ArchiveError::hostile(member.bytes(), "leads back into deep directories once too often"));
            }
            let here = self.chain.here().at("open the directory of", member.bytes())?;
            let opened = match chain::open(here, name) {
                Err(Errno::ENOENT) => {
                    self.space.entry()?;
                    mkdirat(here, name, Mode::from_raw_mode(DIRECTORY_MODE))
                        .at("make the directory of", member.bytes())?;
                    chain::open(here, name)
                }
                opened => opened,
            };
            let opened = match opened {
                Err(Errno::ELOOP | Errno::ENOTDIR) => {
                    return Err(ArchiveError::hostile(member.bytes(), "lies behind a link or a file"));
                }
                opened => opened.at("open the directory of", member.bytes())?,
            };
            let attributes = Attributes::of(&fstat(&opened).at("read the directory of", member.bytes())?);
            self.chain.enter(name, opened, Wanted { attributes, lists: Vec::new() });
        }
        Ok(())
    }

    /// Leaves directories until so many are left below the root.
    fn leave_to(&mut self, depth: usize) -> Result<(), ArchiveError> {
        while self.chain.depth() > depth {
            check(self.progress, CONTINUE, self.chain.path())?;
            self.finish_directory()?;
            self.chain.leave();
        }
        Ok(())
    }

    fn finish_directory(&mut self) -> Result<(), ArchiveError> {
        let path = self.chain.path().to_vec();
        let lists = std::mem::take(&mut self.chain.state().lists);
        self.waiting.shrink(size_of_xattrs(&lists));
        let mut attributes = self.chain.state().attributes;
        let directory = self.chain.here().at("open", &path)?;
        attributes.mode = access_list::set_all(directory, &lists, attributes.mode, self.progress)
            .at("set the access control list of", &path)?;
        let has = fstat(directory).at("read", &path)?;
        attributes.set(directory, &has).at("set the attributes of", &path)
    }

    fn directory(&mut self, member: &Member, own: &[u8]) -> Result<(), ArchiveError> {
        let name = member.name.bytes();
        let here = self.chain.here().at("open the directory of", name)?;
        let mode = Mode::from_raw_mode(member.attributes.mode & PERMISSIONS | OWNER);
        let make = || match mkdirat(here, own, mode).map_err(Reason::errno) {
            Ok(()) | Err(Errno::EEXIST) => chain::open(here, own),
            Err(errno) => Err(errno),
        };
        let directory = match make() {
            // Something else is in its place.
            Err(Errno::ELOOP | Errno::ENOTDIR) => remove_entry(here, own).and_then(|()| make()),
            result => result,
        };
        let directory = directory.at("make the directory", name)?;
        let wanted = self.wanted_by(member, &directory)?;
        self.chain.enter(own, directory, wanted);
        Ok(())
    }

    fn file(
        &mut self,
        stream: &mut Stream<'_>,
        member: &Member,
        own: &[u8],
        size: u64,
        pieces: &[Piece],
    ) -> Result<u64, ArchiveError> {
        let name = member.name.bytes();
        self.space.ask(pieces.iter().map(|piece| piece.length).sum())?;
        let here = self.chain.here().at("open the directory of", name)?;
        let mode = OpenMode::from_bits_truncate(member.attributes.mode & PERMISSIONS);
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW;
        let file = replacing(here, own, || beneath::open(here, OsStr::from_bytes(own), flags, mode));
        let file = File::from(file.at("make", name)?);
        let (users, lists): (Vec<_>, Vec<_>) = member.xattrs.iter().cloned().partition(is_user);
        set_xattrs(&file, &users).at("set the extended attributes of", name)?;
        let mut attributes = member.attributes;
        attributes.mode = access_list::set_all(&file, &lists, attributes.mode, self.progress)
            .at("set the access control list of", name)?;
        // Before the data: afterwards the server would have to be asked again.
        let has = fstat(&file).at("read", name)?;
        let mut end = 0;
        let taken = Writing::new(self.space);
        for piece in pieces {
            end = self.piece(stream, name, (&file, &taken), *piece)?.max(end);
        }
        member::skip_filling(stream, pieces)?;
        if end < size {
            file.set_len(size).at("set the size of", name)?;
        }
        if size > 0 {
            // What the server has no room for, or cannot write, is told here and nowhere later.
            fdatasync(&file).at("write", name)?;
        }
        attributes.set(&file, &has).at("set the attributes of", name)?;
        Ok(size)
    }

    /// Writes a piece of a file, without its zeroes. Gives where the file ends now.
    fn piece(
        &mut self,
        stream: &mut Stream<'_>,
        name: &[u8],
        (file, taken): (&File, &Writing<'_>),
        piece: Piece,
    ) -> Result<u64, ArchiveError> {
        let mut end = 0;
        let mut at = piece.offset;
        let mut left = piece.length;
        while left > 0 {
            check(self.progress, CONTINUE, name)?;
            // Whole chunks begin at multiples of their size, so that holes are found at those of a block.
            let room = CHUNK as u64 - at % CHUNK as u64;
            let length = left.min(room);
            let Some(chunk) = usize::try_from(length).ok().and_then(|length| self.buffer.get_mut(..length)) else {
                break;
            };
            stream.fill(chunk)?;
            for (offset, data) in data(at, chunk) {
                taken.bytes(data.len() as u64)?;
                file.write_all_at(data, offset).at("write", name)?;
                end = offset + data.len() as u64;
            }
            if taken.is_much() {
                fdatasync(file).at("write", name)?;
                taken.flushed();
            }
            at += length;
            left -= length;
        }
        Ok(end)
    }

    fn link(&mut self, name: &Name, own: &[u8], to: &Name) -> Result<(), ArchiveError> {
        let fail = |reason| Err(ArchiveError::hostile(name.bytes(), reason));
        let Some((parent, target)) = to.split() else { return fail("is a hard link to the whole volume") };
        if to == name {
            return fail("is a hard link to itself");
        }
        let place = match self.chain.open(parent) {
            Err(Errno::ELOOP | Errno::ENOTDIR) => return fail("is a hard link to a name behind a link or a file"),
            Err(Errno::ENOENT) => return fail("is a hard link to a name that no earlier member has"),
            place => place.at("open the target of", name.bytes())?,
        };
        let here = self.chain.here().at("open the directory of", name.bytes())?;
        // Without AT_SYMLINK_FOLLOW: one more name of a symbolic link is just that.
        match replacing(here, own, || linkat(&place, target, here, own, AtFlags::empty())) {
            Err(Errno::ENOENT) => fail("is a hard link to a name that no earlier member has"),
            Err(Errno::EPERM) if is_directory(&place, target) => fail("is a hard link to a directory"),
            Err(Errno::EMLINK) => {
                let first = (to, place.as_fd(), target);
                self.further.link(&mut self.chain, (name, own), first, self.space, self.progress)
            }
            made => made.at("make the hard link", name.bytes()),
        }
    }

    fn symlink(&mut self, member: &Member, own: &[u8], to: &CStr) -> Result<(), ArchiveError> {
        let name = member.name.bytes();
        let here = self.chain.here().at("open the directory of", name)?;
        replacing(here, own, || symlinkat(to, here, own)).at("make the symbolic link", name)?;
        finish(here, own, &member.attributes).at("set the attributes of", name)
    }

    fn special(
        &mut self,
        member: &Member,
        own: &[u8],
        kind: FileType,
        (major, minor): (u32, u32),
    ) -> Result<(), ArchiveError> {
        let name = member.name.bytes();
        if matches!(kind, FileType::CharacterDevice | FileType::BlockDevice) && !self.limits.devices {
            return Err(ArchiveError::unsupported(name, "a device node, which this archive may not make"));
        }
        let here = self.chain.here().at("open the directory of", name)?;
        let mut attributes = member.attributes;
        for list in member.xattrs.iter().filter(|xattr| !is_user(xattr)) {
            attributes.mode = access_list::give_up(attributes.mode, list, self.progress);
        }
        let mode = Mode::from_raw_mode(attributes.mode & PERMISSIONS);
        let number = rustix::fs::makedev(major, minor);
        replacing(here, own, || mknodat(here, own, kind, mode, number)).at("make the special file", name)?;
        finish(here, own, &attributes).at("set the attributes of", name)
    }
}

/// The data of a chunk at its places in the file: everything but the aligned blocks that are all zeroes.
fn data(at: u64, chunk: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let is_hole = move |begin: usize| {
        let aligned = (at + begin as u64).is_multiple_of(HOLE as u64);
        aligned && chunk.get(begin..begin + HOLE) == Some(&ZEROES)
    };
    // Up to the next multiple of a block.
    let step = move |begin: usize| {
        let step = HOLE as u64 - (at + begin as u64) % HOLE as u64;
        (begin + usize::try_from(step).unwrap_or(HOLE)).min(chunk.len())
    };
    let mut next = 0;
    std::iter::from_fn(move || {
        while next < chunk.len() && is_hole(next) {
            next = step(next);
        }
        let begin = next;
        while next < chunk.len() && !is_hole(next) {
            next = step(next);
        }
        (begin < next).then(|| (at + begin as u64, &chunk[begin..next]))
    })
}
