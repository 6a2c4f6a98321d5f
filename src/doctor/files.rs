//! What files on the export keep: that they can be made, owner, permissions, links, times and locks.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, readlinkat};
use nix::sys::stat::{FchmodatFlags, Mode, UtimensatFlags, fchmodat, fstat, fstatat, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, fchown, geteuid, linkat, symlinkat};
use rustix::fs::{FlockOperation, flock};

use super::check::{Check, Planned};
use super::scratch::Scratch;
use super::task::Subject;
use crate::beneath;
use crate::reason::errno_of;

const IF_LATE: &str = "look at the load of the NFS server: it stopped to answer in the middle of a call";

pub(super) const WRITABLE: Planned = Planned {
    name: "writable",
    if_late: "run the doctor again in two minutes, since a server that has just started opens no files, and look at the load \
              of the NFS server",
};
pub(super) const OWNER: Planned = Planned { name: "owner", if_late: IF_LATE };
pub(super) const IDS: Planned = Planned { name: "ids", if_late: IF_LATE };
pub(super) const LINKS: Planned = Planned { name: "links", if_late: IF_LATE };
pub(super) const ATTRIBUTES: Planned = Planned { name: "attributes", if_late: IF_LATE };
pub(super) const CLOCK: Planned = Planned { name: "clock", if_late: IF_LATE };
pub(super) const LOCKS: Planned = Planned {
    name: "locks",
    if_late: "run the doctor again in two minutes, since a server that has just started grants no locks, and with NFS 3 open \
              the ports of rpc.statd and of the server's lock manager",
};

/// How much is written to the file, in bytes.
pub(super) const LENGTH: usize = 64 * 1024;
/// The file's name, and that of another, of a link and of a directory.
pub(super) const FILE: &str = "file";
const LINK: &str = "link";
const SYMBOLIC: &str = "symbolic";
const TARGET: &str = "file";
const RENAMED: &str = "renamed";
/// An owner that no account is likely to have, so that nothing maps it by chance.
const STRANGER: (u32, u32) = (54_321, 54_322);
/// A moment of 2001.
const MOMENT: i64 = 1_000_000_000;
/// What clocks may be apart before the driver frees nothing that it keeps for a time, and before Kerberos refuses.
const APART: Duration = Duration::from_mins(2);
const APART_WITH_KERBEROS: Duration = Duration::from_mins(5);

/// What can be worked with.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) scratch: Scratch,
    /// Open for reading and writing, with [`content`]; none where there is no room for it.
    pub(super) file: Option<OwnedFd>,
}

/// What is written to the file.
pub(super) fn content() -> Vec<u8> {
    (0..LENGTH).map(|at| u8::try_from(at % 251).unwrap_or_default() + 1).collect()
}

/// Makes a directory and a file in it.
pub(super) fn writable(subject: &Subject, root: impl AsFd, unique: &str) -> (Check, Option<Work>) {
    if subject.options.read_only() {
        return (WRITABLE.skip("the mount option ro forbids writing"), None);
    }
    let full = |errno| matches!(errno, Errno::ENOSPC | Errno::EDQUOT);
    let scratch = match Scratch::make(&root, unique) {
        Ok(scratch) => scratch,
        Err(errno) if full(errno) => return (no_room(errno), None),
        Err(errno) => return (not_writable(errno), None),
    };
    let file = match beneath::open(
        &scratch.directory,
        FILE,
        OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL,
        Mode::S_IRUSR | Mode::S_IWUSR,
    ) {
        Ok(file) => file,
        Err(errno) if full(errno) => return (no_room(errno), Some(Work { scratch, file: None })),
        Err(errno) => return (not_writable(errno), Some(Work { scratch, file: None })),
    };
    match write(&file) {
        Ok(()) => {
            let check = WRITABLE.pass(format!(
                "a directory and a file of {} KiB were written ({})",
                LENGTH / 1024,
                scratch.path
            ));
            (check, Some(Work { scratch, file: Some(file) }))
        }
        Err(errno) if full(errno) => (no_room(errno), Some(Work { scratch, file: None })),
        Err(errno) => (not_writable(errno), Some(Work { scratch, file: None })),
    }
}

fn write(file: &OwnedFd) -> nix::Result<()> {
    let mut file = File::from(file.try_clone().map_err(errno_of)?);
    // Only when it is on the server's disk is it known that there is room for it.
    file.write_all(&content()).and_then(|()| file.sync_all()).map_err(errno_of)
}

fn no_room(errno: Errno) -> Check {
    WRITABLE.skip(format!("there is no room ({}): see free-space", errno.desc()))
}

fn not_writable(errno: Errno) -> Check {
    let seen = |what: &str| format!("{what} ({})", errno.desc());
    match errno {
        Errno::EROFS => WRITABLE.fail(
            seen("the export is read-only"),
            "export the share with rw on the server (/etc/exports, then exportfs -ra)",
        ),
        Errno::EACCES | Errno::EPERM => WRITABLE.fail(
            seen("this host's root may not make a directory in the share"),
            "export the share with no_root_squash on the server (/etc/exports, then exportfs -ra), or let the user write \
             there that root is mapped to",
        ),
        _ => WRITABLE.fail(seen("the share cannot be written to"), "look at the server's log and at its disk"),
    }
}

/// Whether what root makes is root's.
pub(super) fn owner(work: &Work) -> Check {
    let own = geteuid().as_raw();
    match fstat(&work.scratch.directory) {
        Ok(stat) if stat.st_uid == own => OWNER.pass(format!("what user {own} makes is that user's")),
        Ok(stat) => OWNER.warn(
            format!("what user {own} makes is user {}'s: the server maps root to another user", stat.st_uid),
            "export the share with no_root_squash on the server (/etc/exports, then exportfs -ra): without it, volumes \
             cannot be given an owner, and what pods wrote may not be removable",
        ),
        Err(errno) => OWNER.fail(errno.desc(), IF_LATE),
    }
}

/// Whether an entry can be given to another user, and stays that user's.
pub(super) fn ids(work: &Work, file: &OwnedFd, is_squashed: bool) -> Check {
    if is_squashed {
        return IDS.skip("the server maps root to another user (owner)");
    }
    let (uid, gid) = STRANGER;
    let given = fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
        .and_then(|()| fstatat(&work.scratch.directory, FILE, AtFlags::AT_SYMLINK_NOFOLLOW));
    match given {
        Ok(stat) if (stat.st_uid, stat.st_gid) == STRANGER => IDS.pass("users and groups keep their numbers"),
        Ok(stat) => IDS.fail(
            format!("a file that was given to {uid}:{gid} is {}:{}'s", stat.st_uid, stat.st_gid),
            "have the server and its clients use numbers (nfs4_disable_idmapping=Y of the modules nfs and nfsd), or one \
             Domain= in /etc/idmapd.conf and the same users",
        ),
        Err(errno) => IDS.fail(
            format!("a file cannot be given to {uid}:{gid}: {}", errno.desc()),
            "export the share with no_root_squash on the server, from a file system that keeps owners",
        ),
    }
}

/// Hard and symbolic links, and a rename.
pub(super) fn links(work: &Work) -> Check {
    let directory = &work.scratch.directory;
    let linked = linkat(directory, FILE, directory, LINK, AtFlags::empty())
        .and_then(|()| fstatat(directory, FILE, AtFlags::AT_SYMLINK_NOFOLLOW))
        .map(|stat| stat.st_nlink == 2);
    let symbolic = symlinkat(TARGET, directory, SYMBOLIC).and_then(|()| readlinkat(directory, SYMBOLIC));
    let renamed = beneath::rename(directory, LINK, directory, RENAMED);
    let remedy = "export a file system that has hard and symbolic links (ext4, XFS, btrfs or ZFS, say)";
    match (linked, symbolic, renamed) {
        (Ok(true), Ok(target), Ok(())) if target == TARGET => LINKS.pass("hard links, symbolic links and renames work"),
        (Ok(false), ..) => LINKS.fail("a file with two names has not two links", remedy),
        (Ok(true), Ok(_), Ok(())) => LINKS.fail("a symbolic link has another text than it was made with", remedy),
        (Err(errno), ..) => LINKS.fail(format!("no hard link: {}", errno.desc()), remedy),
        (_, Err(errno), _) => LINKS.fail(format!("no symbolic link: {}", errno.desc()), remedy),
        (.., Err(errno)) => LINKS.fail(format!("no rename: {}", errno.desc()), remedy),
    }
}

/// Whether permissions and times are kept.
pub(super) fn attributes(work: &Work) -> Check {
    let directory = &work.scratch.directory;
    let mode = Mode::S_IRWXU | Mode::S_IRGRP | Mode::S_IXGRP;
    let moment = TimeSpec::new(MOMENT, 0);
    let kept = fchmodat(directory, FILE, mode, FchmodatFlags::FollowSymlink)
        .and_then(|()| utimensat(directory, FILE, &moment, &moment, UtimensatFlags::NoFollowSymlink))
        .and_then(|()| fstatat(directory, FILE, AtFlags::AT_SYMLINK_NOFOLLOW));
    let remedy = "export a file system that keeps permissions and times (ext4, XFS, btrfs or ZFS, say)";
    match kept {
        Ok(stat) if stat.st_mode & 0o7777 != mode.bits() => {
            ATTRIBUTES.fail(format!("permissions {:04o} became {:04o}", mode.bits(), stat.st_mode & 0o7777), remedy)
        }
        Ok(stat) if stat.st_mtime != MOMENT => ATTRIBUTES.fail("a time that was set is another one", remedy),
        Ok(_) => ATTRIBUTES.pass("permissions and times are kept"),
        Err(errno) => ATTRIBUTES.fail(format!("permissions or times cannot be set: {}", errno.desc()), remedy),
    }
}

/// The server's time, since 1970: that of a change that is made now.
pub(super) fn server_time(work: &Work) -> nix::Result<Duration> {
    let now = TimeSpec::UTIME_NOW;
    utimensat(&work.scratch.directory, ".", &now, &now, UtimensatFlags::NoFollowSymlink)?;
    let stat = fstat(&work.scratch.directory)?;
    Ok(Duration::from_secs(u64::try_from(stat.st_mtime).unwrap_or_default()))
}

/// This host's time, since 1970.
pub(super) fn host_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Whether two clocks agree.
pub(super) fn clock(server: nix::Result<Duration>, host: Duration, with_kerberos: bool) -> Check {
    let remedy = "run a time service (chrony, say) on this host and on the server";
    let server = match server {
        Ok(server) => server,
        Err(errno) => return CLOCK.fail(format!("the server's time is unknown: {}", errno.desc()), IF_LATE),
    };
    let apart = server.abs_diff(host);
    if apart < APART {
        return CLOCK.pass(format!("the server's clock and this host's are within {} s", APART.as_secs()));
    }
    let which = if server > host { "ahead of" } else { "behind" };
    let seen = format!("the server's clock is {} s {which} this host's", apart.as_secs());
    if with_kerberos && apart >= APART_WITH_KERBEROS {
        return CLOCK.fail(format!("{seen}, and Kerberos allows {} s", APART_WITH_KERBEROS.as_secs()), remedy);
    }
    CLOCK.warn(format!("{seen}: nothing that is kept for a time is freed"), remedy)
}

/// Whether a lock keeps another out.
pub(super) fn locks(work: &Work) -> Check {
    let open = || beneath::open(&work.scratch.directory, FILE, OFlag::O_RDWR, Mode::empty());
    let locked = || -> nix::Result<bool> {
        let (one, other) = (open()?, open()?);
        flock(&one, FlockOperation::NonBlockingLockExclusive).map_err(errno_of)?;
        match flock(&other, FlockOperation::NonBlockingLockExclusive).map_err(errno_of) {
            Err(Errno::EWOULDBLOCK) => Ok(true),
            Ok(()) => Ok(false),
            Err(errno) => Err(errno),
        }
    };
    let remedy = "start the lock manager on the server (rpc.statd and lockd for NFS 3), or add the mount option nolock";
    match locked() {
        Ok(true) => LOCKS.pass("a lock keeps others out"),
        Ok(false) => LOCKS.fail("two have the same lock", remedy),
        Err(errno) => LOCKS.fail(format!("no lock: {}", errno.desc()), remedy),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Outcome;

    #[test]
    fn clocks_that_are_minutes_apart_are_a_warning_and_a_failure_with_kerberos() {
        let moment = Duration::from_secs;
        for (server, host, with_kerberos, outcome, seen) in [
            (moment(1000), moment(1000), false, Outcome::Pass, "within 120 s"),
            (moment(1060), moment(1000), true, Outcome::Pass, "within 120 s"),
            (moment(1180), moment(1000), false, Outcome::Warn, "180 s ahead of"),
            (moment(1000), moment(1180), true, Outcome::Warn, "180 s behind"),
            (moment(1000), moment(1600), false, Outcome::Warn, "600 s behind"),
            (moment(1600), moment(1000), true, Outcome::Fail, "600 s ahead of"),
        ] {
            let check = clock(Ok(server), host, with_kerberos);
            assert_eq!(check.outcome, outcome, "{}", check.seen);
            assert!(check.seen.contains(seen), "{}", check.seen);
            assert_eq!(check.remedy.is_some_and(|remedy| remedy.contains("chrony")), outcome != Outcome::Pass);
        }
    }

    #[test]
    fn each_refusal_of_a_write_has_its_remedy() {
        for (errno, word) in [(Errno::EROFS, "rw"), (Errno::EACCES, "no_root_squash"), (Errno::EIO, "log")] {
            assert!(not_writable(errno).remedy.unwrap().contains(word));
        }
    }

    #[test]
    fn a_file_system_of_this_host_keeps_all_that_is_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let root = File::open(folder.path()).unwrap();
        let (check, work) = writable(&Subject::default(), &root, "test");
        assert_eq!(check.outcome, Outcome::Pass, "{}", check.seen);
        let work = work.unwrap();
        let checks =
            [owner(&work), links(&work), attributes(&work), clock(server_time(&work), host_time(), true), locks(&work)];
        for check in checks {
            assert_eq!(check.outcome, Outcome::Pass, "{check:?}");
        }
    }
}
