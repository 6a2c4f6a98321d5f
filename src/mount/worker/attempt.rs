//! One mount from beginning to end, as a worker process makes it: is the target free, which version does the server
//! take, and did the mount end up where it was asked for.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, dev_t, fchmodat, fstat};

use super::errno::{errno_of, of_mount};
use super::{kernel, statd};
use crate::beneath;
use crate::mount::nfs_volumes::NfsVolumes;
use crate::mount::options::{Version, fs_type};
use crate::mount::protocol::error::MountError;
use crate::mount::protocol::{MountRequest, Occupant, Reached, Reply, Workplace};
use crate::mount::table::{self, Table};

/// Mounts what the request names, unless something is mounted on its target: first in the workplace, and from there to
/// the target in one step, when it is known to be what was asked for. A worker that dies leaves nothing half-made there.
pub(super) fn mount(request: &MountRequest, server: &Reached, workplace: &Workplace) -> Result<Reply, MountError> {
    let place = Path::new(&workplace.volume);
    let real = kernel::real_path(Path::new(&request.target)).map_err(|error| target_error(request, &error))?;
    let made = make_target(&real).map_err(|error| target_error(request, &error))?;
    let mounted = mount_a_version(request, server, place).and_then(|(version, refused)| {
        let finished = finish(request, server, version, workplace, &real);
        if !matches!(finished, Ok(Finished::Moved { .. })) {
            // The error is worth more than a second one; the daemon looks for what is left.
            let _ = kernel::unmount(place);
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

/// Mounts with the newest version that the server has. Gives it, and those that it does not have.
fn mount_a_version(
    request: &MountRequest,
    server: &Reached,
    place: &Path,
) -> Result<(Version, Vec<Version>), MountError> {
    let mut refused = Vec::new();
    for &version in &server.candidates {
        if version == Version::V3 && request.options.locks_need_statd() && !statd::runs() {
            return Err(MountError::NoStatd { share: request.source() });
        }
        match mount_version(request, server, version, place) {
            Ok(()) => return Ok((version, refused)),
            Err(None) => refused.push(version),
            Err(Some(error)) => return Err(error),
        }
    }
    Err(request.version_not_served(&refused))
}

/// Mounts with one version; none: the server does not have it.
fn mount_version(
    request: &MountRequest,
    server: &Reached,
    version: Version,
    place: &Path,
) -> Result<(), Option<MountError>> {
    let data = request
        .options
        .data(version, server.address.ip(), server.client)
        .map_err(|error| MountError::Options { share: request.source(), reason: error.to_string() })?;
    let fs_type = fs_type(version);
    let flags = request.options.mount_flags();
    kernel::mount(&request.source(), place, fs_type, flags, &data).map_err(|error| match errno_of(&error) {
        Errno::EPROTONOSUPPORT => None,
        errno => Some(of_mount(request, fs_type, errno)),
    })
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

/// Makes sure of what was mounted in the workplace, gives it its permissions and its per-mount flags, and moves it to
/// `real`.
fn finish(
    request: &MountRequest,
    server: &Reached,
    version: Version,
    workplace: &Workplace,
    real: &Path,
) -> Result<Finished, MountError> {
    let place = Path::new(&workplace.volume);
    let table = Table::read()?;
    if let Some(occupant) = table.at(real) {
        return Ok(Finished::Occupied(Occupant::of(occupant)));
    }
    let source = table.at(place).map(|mount| mount.source.clone()).unwrap_or_default();
    drop(table);
    refuse_links(request, server, version, workplace, &source)?;
    set_permissions(request, place)?;
    set_flags(request, place)?;
    kernel::move_to(place, real).map_err(|errno| target_error(request, &errno.into()))?;
    Ok(Finished::Moved { source: source.to_string_lossy().into_owned() })
}

/// Refuses a mount whose path below the share led through a symbolic link. The kernel's client (version 4) and the
/// server's mountd (version 3) follow links; a tenant could point one at a neighbour.
fn refuse_links(
    request: &MountRequest,
    server: &Reached,
    version: Version,
    workplace: &Workplace,
    source: &OsStr,
) -> Result<(), MountError> {
    let Some(subdir) = &request.subdir else { return Ok(()) };
    let found_path = table::split_source(source).map(|(_, path)| path.to_owned()).unwrap_or_default();
    // Version 4 shows where the walk really ended. Version 3 shows what was asked for.
    if version > Version::V3 && found_path == request.path() {
        return Ok(());
    }
    // The share itself may lead through links: its administrator made them. So compare with a walk below the share.
    match same_directory(request, server, version, subdir, workplace) {
        Ok(true) => Ok(()),
        Ok(false) | Err(Errno::ELOOP | Errno::ENOTDIR | Errno::EXDEV) => {
            let found = source.to_string_lossy().into_owned();
            Err(MountError::Symlink { share: request.source(), found })
        }
        Err(errno) => {
            Err(MountError::system(format!("cannot make sure that {} holds no link", request.source()), errno))
        }
    }
}

/// Whether the directory that was mounted is the one that a walk without links from the share's root ends in.
fn same_directory(
    request: &MountRequest,
    server: &Reached,
    version: Version,
    subdir: &str,
    workplace: &Workplace,
) -> Result<bool, Errno> {
    let (volume, place) = (Path::new(&workplace.volume), Path::new(&workplace.share));
    let share = MountRequest { subdir: None, ..request.clone() };
    let data = share.options.data(version, server.address.ip(), server.client).map_err(|_| Errno::EINVAL)?;
    kernel::mount(&share.source(), place, fs_type(version), share.options.mount_flags(), &data)
        .map_err(|error| errno_of(&error))?;
    // While it is mounted: the kernel mounts further file systems on the way below it, and knows which they are.
    let is_same = open_path(place).and_then(|root| {
        let wanted = fstat(&beneath::open_dir_across(&root, subdir)?)?;
        let got = fstat(&open_path(volume)?)?;
        Ok(wanted.st_ino == got.st_ino && same_file_system(wanted.st_dev, got.st_dev))
    });
    kernel::detach(place)?;
    is_same
}

/// Whether two devices are one file system of a server. Mounts that share no cache (`nosharecache`) have a device each.
fn same_file_system(one: dev_t, other: dev_t) -> bool {
    one == other || NfsVolumes::read().is_ok_and(|volumes| volumes.are_the_same(one, other))
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
