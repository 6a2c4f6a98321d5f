//! One mount from beginning to end, as a worker process makes it: is the target free, which version does the server
//! take, and did the mount end up where it was asked for.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, fchmodat, fstat};

use super::errno::of_mount;
use super::{kernel, statd};
use crate::beneath;
use crate::mount::options::{Version, fs_type};
use crate::mount::protocol::error::MountError;
use crate::mount::protocol::{MountRequest, Occupant, Reached, Reply, Workplace};
use crate::mount::table::{self, Table};
use crate::reason::errno_of;

/// Mounts what the request names, unless something is mounted on its target: first in the workplace, and from there to
/// the target in one step, when it is known to be what was asked for. A worker that dies leaves nothing half-made there.
pub(super) fn mount(request: &MountRequest, server: &Reached, workplace: &Workplace) -> Result<Reply, MountError> {
    let real = kernel::real_path(Path::new(&request.target)).map_err(|error| target_error(request, &error))?;
    let made = make_target(&real).map_err(|error| target_error(request, &error))?;
    let attempt = Attempt {
        request,
        server,
        place: Path::new(&workplace.volume),
        share: Path::new(&workplace.share),
        real: &real,
    };
    let mounted = attempt.mount_a_version().and_then(|(version, refused)| {
        let finished = attempt.finish(version);
        if !matches!(finished, Ok(Finished::Moved { .. })) {
            // The error is worth more than a second one; the daemon looks for what is left.
            let _ = kernel::unmount(attempt.place);
        }
        Ok(match finished? {
            Finished::Moved { source } => Reply::Mounted { target: text(&real), version, refused, source },
            Finished::Occupied(occupant) => Reply::Occupied(occupant),
        })
    });
    if made && mounted.is_err() {
        // What was made for this mount goes with it; if it can't go, the next publish takes it as it is.
        let _ = std::fs::remove_dir(&real);
    }
    mounted
}

/// What is mounted, and where.
struct Attempt<'a> {
    request: &'a MountRequest,
    server: &'a Reached,
    /// Where the mount is made.
    place: &'a Path,
    /// Where the share is mounted for a moment, to look for the volume in it.
    share: &'a Path,
    /// The target, with every link in its parents resolved.
    real: &'a Path,
}

/// What became of a mount that was made.
enum Finished {
    /// It is on its target.
    Moved {
        /// The source as the mount table has it.
        source: String,
    },
    /// Something else is there.
    Occupied(Occupant),
}

impl Attempt<'_> {
    /// Mounts with the newest version that the server has. Gives it, and those that it does not have.
    fn mount_a_version(&self) -> Result<(Version, Vec<Version>), MountError> {
        let Self { request, server, .. } = self;
        let mut refused = Vec::new();
        for &version in &server.candidates {
            if version == Version::V3 && request.options.locks_need_statd() && !statd::runs() {
                return Err(MountError::NoStatd { share: request.source() });
            }
            // Version 3 does not tell where mountd's walk has ended. So the walk is made here.
            let mounted = match &request.subdir {
                Some(subdir) if version == Version::V3 => self.mount_found(version, subdir),
                _ => self.mount_version(request, version, self.place),
            };
            match mounted {
                Ok(()) => return Ok((version, refused)),
                Err(None) => refused.push(version),
                Err(Some(error)) => return Err(error),
            }
        }
        Err(request.version_not_served(&refused))
    }

    /// Mounts with one version; none: the server does not have it.
    fn mount_version(&self, request: &MountRequest, version: Version, place: &Path) -> Result<(), Option<MountError>> {
        let data = request
            .options
            .data(version, self.server.address, self.server.client)
            .map_err(|error| MountError::Options { share: request.source(), reason: error.to_string() })?;
        let fs_type = fs_type(version);
        let flags = request.options.mount_flags();
        kernel::mount(&request.source(), place, fs_type, flags, &data).map_err(|error| match errno_of(&error) {
            Errno::EPROTONOSUPPORT => None,
            errno => Some(of_mount(request, fs_type, errno)),
        })
    }

    /// Mounts what a walk from the share's root ends in that follows no link.
    fn mount_found(&self, version: Version, subdir: &str) -> Result<(), Option<MountError>> {
        let share = MountRequest { subdir: None, ..self.request.clone() };
        self.mount_version(&share, version, self.share)?;
        // While the share is mounted: the kernel mounts further file systems of the server on the way below it.
        let found = open_path(self.share)
            .and_then(|root| beneath::open_dir_across(root, subdir))
            .and_then(|directory| kernel::mount_again(&directory, self.place));
        let detached = kernel::detach(self.share);
        found.and(detached).map_err(|errno| Some(self.not_found(errno)))
    }

    fn not_found(&self, errno: Errno) -> MountError {
        let share = self.request.source();
        match errno {
            Errno::ENOENT => MountError::NoSuchShare { share },
            Errno::ELOOP | Errno::ENOTDIR | Errno::EXDEV => MountError::Symlink { share, found: "elsewhere".into() },
            errno => MountError::system(format!("cannot look for {share} in its share without following links"), errno),
        }
    }

    /// Makes sure of what was mounted, gives it its permissions and its per-mount flags, and moves it to the target.
    fn finish(&self, version: Version) -> Result<Finished, MountError> {
        let table = Table::read_on(&[self.real, self.place])?;
        if let Some(occupant) = table.at(self.real) {
            return Ok(Finished::Occupied(Occupant::of(occupant)));
        }
        let mut source = source_at(&table, self.place);
        drop(table);
        if let Some(subdir) = &self.request.subdir
            && version > Version::V3
            && table::split_source(OsStr::new(&source)).is_none_or(|(_, path)| path != self.request.path())
        {
            // The kernel's client follows links, and tells where the walk has ended. The share itself may lead through
            // links: its administrator made them; a tenant could point one at a neighbour.
            self.find_again(version, subdir, &source)?;
            source = source_at(&Table::read_on(&[self.place])?, self.place);
        }
        set_permissions(self.request, self.place)?;
        set_flags(self.request, self.place)?;
        kernel::move_to(self.place, self.real).map_err(|errno| target_error(self.request, &errno.into()))?;
        Ok(Finished::Moved { source })
    }

    /// Mounts the volume once more, by a walk without links, in the place of what was mounted.
    fn find_again(&self, version: Version, subdir: &str, led_to: &str) -> Result<(), MountError> {
        kernel::unmount(self.place).map_err(|errno| MountError::system("cannot unmount a volume".into(), errno))?;
        self.mount_found(version, subdir).map_err(|error| match error {
            Some(MountError::Symlink { share, .. }) => MountError::Symlink { share, found: led_to.into() },
            Some(error) => error,
            None => self.request.version_not_served(&[version]),
        })
    }
}

/// The source of the topmost mount on a path, as the table has it.
fn source_at(table: &Table, place: &Path) -> String {
    table.at(place).map(|mount| mount.source.to_string_lossy().into_owned()).unwrap_or_default()
}

fn open_path(path: &Path) -> nix::Result<OwnedFd> {
    nix::fcntl::open(path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())
}

/// Gives the directory the bits for its owner, its group and others. Those above (setgid above all, by which new files
/// get the group that a pod's `fsGroup` asks for) stay as they are, unless they are asked for too. Each chmod is a
/// round trip: only where the bits differ.
fn set_permissions(request: &MountRequest, place: &Path) -> Result<(), MountError> {
    let Some(bits) = request.permissions else { return Ok(()) };
    let change = || {
        let root = open_path(place)?;
        let has = fstat(&root)?.st_mode & 0o7777;
        let wanted = has & 0o7000 | bits;
        if has == wanted {
            return Ok(());
        }
        fchmodat(&root, ".", Mode::from_bits_truncate(wanted), nix::sys::stat::FchmodatFlags::FollowSymlink)
    };
    change().map_err(|errno| {
        MountError::system(format!("cannot set mountPermissions {bits:04o} on {}", request.source()), errno)
    })
}

fn set_flags(request: &MountRequest, place: &Path) -> Result<(), MountError> {
    let Some(flags) = request.options.remount_flags(request.read_only) else { return Ok(()) };
    let refused = |error: io::Error| {
        MountError::system(format!("cannot make the mount of {} read-only", request.source()), errno_of(&error))
    };
    kernel::remount(place, flags).map_err(refused)
}

/// Makes the directory to mount on; says whether it was not there before.
fn make_target(real: &Path) -> io::Result<bool> {
    match std::fs::DirBuilder::new().mode(0o750).create(real) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if std::fs::symlink_metadata(real)?.is_dir() {
                Ok(false)
            } else {
                Err(io::Error::other("it exists and is not a directory: remove it"))
            }
        }
        Err(error) => Err(error),
    }
}

fn target_error(request: &MountRequest, error: &io::Error) -> MountError {
    MountError::Target { target: request.target.clone(), reason: error.to_string() }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
