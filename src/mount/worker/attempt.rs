//! One mount from beginning to end, as a worker process makes it: is the target free, which version does the server
//! take, and did the mount end up where it was asked for.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, fchmodat, fstat};

use super::errno::{errno_of, of_mount};
use super::{kernel, statd};
use crate::beneath;
use crate::mount::options::{Version, fs_type};
use crate::mount::protocol::error::MountError;
use crate::mount::protocol::{MountRequest, Occupant, Reached, Reply};
use crate::mount::table::{self, Table};

/// Mounts what the request names, unless something is mounted on its target.
pub(super) fn mount(request: &MountRequest, server: &Reached) -> Result<Reply, MountError> {
    let real = kernel::real_path(Path::new(&request.target)).map_err(|error| target_error(request, &error))?;
    if let Some(occupant) = occupant(&real)? {
        return Ok(Reply::Occupied(occupant));
    }
    let made = make_target(&real).map_err(|error| target_error(request, &error))?;
    let mounted = mount_a_version(request, server, &real)
        .and_then(|(version, refused)| Ok((version, refused, finish(request, server, version, &real)?)));
    match mounted {
        Ok((version, refused, source)) => Ok(Reply::Mounted { target: text(&real), version, refused, source }),
        // A worker of a daemon that was killed was not done yet.
        Err(MountError::System { errno, .. })
            if errno == Errno::EBUSY as i32
                && let Some(occupant) = occupant(&real)? =>
        {
            Ok(Reply::Occupied(occupant))
        }
        Err(error) => {
            if made {
                // What was made for this mount goes with it; if it can't go, the next publish takes it as it is.
                let _ = std::fs::remove_dir(&real);
            }
            Err(error)
        }
    }
}

/// What is mounted on a path, if anything is.
fn occupant(real: &Path) -> Result<Option<Occupant>, MountError> {
    let table = Table::read()?;
    Ok(table.at(real).map(Occupant::of))
}

/// Mounts with the newest version that the server has. Gives it, and those that it does not have.
fn mount_a_version(
    request: &MountRequest,
    server: &Reached,
    real: &Path,
) -> Result<(Version, Vec<Version>), MountError> {
    let mut refused = Vec::new();
    for &version in &server.candidates {
        if version == Version::V3 && request.options.locks_need_statd() && !statd::runs() {
            return Err(MountError::NoStatd { share: request.source() });
        }
        match mount_version(request, server, version, real) {
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
    real: &Path,
) -> Result<(), Option<MountError>> {
    let data = request
        .options
        .data(version, server.address.ip(), server.client)
        .map_err(|error| MountError::Options { share: request.source(), reason: error.to_string() })?;
    let fs_type = fs_type(version);
    let flags = request.options.mount_flags();
    kernel::mount(&request.source(), real, fs_type, flags, &data).map_err(|error| match errno_of(&error) {
        Errno::EPROTONOSUPPORT => None,
        errno => Some(of_mount(request, fs_type, errno)),
    })
}

/// Makes sure of what was mounted, and gives it its permissions and its per-mount flags; undoes the mount otherwise.
/// Gives the source as the mount table has it.
fn finish(request: &MountRequest, server: &Reached, version: Version, real: &Path) -> Result<String, MountError> {
    let done = refuse_links(request, server, version, real).and_then(|found| {
        set_permissions(request, real)?;
        set_flags(request, real)?;
        Ok(found)
    });
    if done.is_err() {
        // The error is worth more than a second one; an unpublish finds what is left in the mount table.
        let _ = kernel::unmount(real);
    }
    done
}

/// Refuses a mount whose path below the share led through a symbolic link. The kernel's client (version 4) and the
/// server's mountd (version 3) follow links; a tenant could point one at a neighbour.
fn refuse_links(request: &MountRequest, server: &Reached, version: Version, real: &Path) -> Result<String, MountError> {
    let table = Table::read()?;
    let found = table.at(real).map(|mount| mount.source.clone()).unwrap_or_default();
    let shown = found.to_string_lossy().into_owned();
    let Some(subdir) = &request.subdir else { return Ok(shown) };
    let found_path = table::split_source(&found).map(|(_, path)| path.to_owned()).unwrap_or_default();
    // Version 4 shows where the walk really ended. Version 3 shows what was asked for.
    if version > Version::V3 && found_path == request.path() {
        return Ok(shown);
    }
    // The share itself may lead through links: its administrator made them. So compare with a walk below the share.
    match same_directory(request, server, version, subdir, real) {
        Ok(true) => Ok(shown),
        Ok(false) | Err(Errno::ELOOP | Errno::ENOTDIR | Errno::EXDEV) => {
            Err(MountError::Symlink { share: request.source(), found: shown })
        }
        Err(errno) => {
            Err(MountError::system(format!("cannot make sure that {} holds no link", request.source()), errno))
        }
    }
}

/// Whether the directory mounted on `real` is the one that a walk without links from the share's root ends in.
fn same_directory(
    request: &MountRequest,
    server: &Reached,
    version: Version,
    subdir: &str,
    real: &Path,
) -> Result<bool, Errno> {
    // Kept at once: tempfile would remove it with all that is mounted in it.
    let private = tempfile::tempdir().map_err(|error| errno_of(&error))?.keep();
    let root = open_root(request, server, version, &private);
    // Nothing is mounted on it any more, or rmdir leaves it.
    let _ = std::fs::remove_dir(&private);
    let wanted = fstat(&beneath::open_dir(&root?, subdir)?)?;
    let got = fstat(&open_path(real)?)?;
    Ok((wanted.st_dev, wanted.st_ino) == (got.st_dev, got.st_ino))
}

/// The root of the share, held by its descriptor alone: nothing is left over if this process is killed.
fn open_root(request: &MountRequest, server: &Reached, version: Version, place: &Path) -> Result<OwnedFd, Errno> {
    let share = MountRequest { subdir: None, ..request.clone() };
    let data = share.options.data(version, server.address.ip(), server.client).map_err(|_| Errno::EINVAL)?;
    kernel::mount(&share.source(), place, fs_type(version), share.options.mount_flags(), &data)
        .map_err(|error| errno_of(&error))?;
    let root = open_path(place);
    kernel::detach(place)?;
    root
}

fn open_path(path: &Path) -> nix::Result<OwnedFd> {
    nix::fcntl::open(path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())
}

/// Gives the directory the bits for its owner, its group and others. Those above (setgid above all, by which new files
/// get the group that a pod's `fsGroup` asks for) stay as they are, unless they are asked for too. Each chmod is a
/// round trip: only where the bits differ.
fn set_permissions(request: &MountRequest, real: &Path) -> Result<(), MountError> {
    let Some(bits) = request.permissions else { return Ok(()) };
    let change = || {
        let root = open_path(real)?;
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

fn set_flags(request: &MountRequest, real: &Path) -> Result<(), MountError> {
    let Some(flags) = request.options.remount_flags(request.read_only) else { return Ok(()) };
    let refused = |error: io::Error| {
        MountError::system(format!("cannot make the mount of {} read-only", request.source()), errno_of(&error))
    };
    kernel::remount(real, flags).map_err(refused)?;
    kernel::attach_anew(real).map_err(|errno| refused(errno.into()))
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
