//! The share: it is mounted for the doctor alone, and a directory on it is worked in that is removed at the end.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::check::{Check, Outcome, Planned};
use super::copies::{self, ACLS, CLONE, COPY, XATTRS};
use super::files::{self, ATTRIBUTES, CLOCK, IDS, LINKS, LOCKS, OWNER, WRITABLE, Work};
use super::mounting::{MOUNT, Mounted, mount_share};
use super::records::{self, EXPORT_ID, QUOTA_AGENT, RECORDS};
use super::scratch::{CLEANUP, clean};
use super::task::{Assignment, Line, OnShare, Reporter, Subject, Task};
use crate::mount::options::Version;
use crate::mount::protocol::Reached;

const FREE_SPACE: Planned = Planned {
    name: "free-space",
    if_late: "look at the load of the NFS server: it does not say how full the export is",
};
/// This group's checks, in their order. Locks come late, since they wait where the server is not ready for them.
pub(super) const CHECKS: &[Planned] = &[
    MOUNT,
    FREE_SPACE,
    EXPORT_ID,
    RECORDS,
    WRITABLE,
    OWNER,
    IDS,
    LINKS,
    ATTRIBUTES,
    CLOCK,
    CLONE,
    COPY,
    XATTRS,
    ACLS,
    QUOTA_AGENT,
    LOCKS,
    CLEANUP,
];
/// How soon the process that works on the share is looked after again.
const PAUSE: Duration = Duration::from_millis(2);
/// Less than this is no room, in bytes; and less than this part of all is little.
const LEAST: u64 = 1 << 20;
const LITTLE: u64 = 20;

/// Mounts the share, and has another process work on it.
///
/// A process that is killed while it waits for a server ends at once, but one that lets go of the last mount of a dead
/// server when it ends cannot be killed any more. So the process that works holds no such mount: this one does, lets go
/// of it before its end, and can be killed while it waits for that.
pub(super) fn run(
    subject: &Subject,
    server: &Reached,
    work: &OnShare,
    command: &str,
    report: &mut Reporter<impl Write>,
) -> io::Result<()> {
    let (check, mounted) = mount_share(subject, server);
    let Some((root, version)) = mounted else {
        if work.sweep {
            let seen = format!("a directory of the doctor may be left in the share: {}", check.seen);
            return report.check(CLEANUP.warn(seen, CLEANUP.if_late));
        }
        report.check(check)?;
        let reason = "the share is not mounted (mount)";
        return CHECKS[1..].iter().try_for_each(|planned| report.check(planned.skip(reason)));
    };
    if !work.sweep {
        report.check(check)?;
    }
    let end = Instant::now() + work.limit;
    let task = Task::Mounted(version, work.clone());
    let assignment = serde_json::to_string(&Assignment { subject: subject.clone(), task })?;
    let mut worker = Command::new(std::env::current_exe()?)
        .args([command, &std::process::id().to_string(), &assignment])
        .stdin(Stdio::from(root.try_clone()?))
        .spawn()?;
    while worker.try_wait()?.is_none() {
        if Instant::now() > end {
            worker.kill()?;
            worker.wait()?;
            report.line(&Line::Killed)?;
            break;
        }
        std::thread::sleep(PAUSE);
    }
    drop(root);
    Ok(())
}

/// Works on the share, which is standard input.
pub(super) fn on_share(
    subject: &Subject,
    version: Version,
    work: &OnShare,
    report: &mut Reporter<impl Write>,
) -> io::Result<()> {
    let mounted = Mounted::attach(io::stdin().as_fd().try_clone_to_owned()?, version);
    if work.sweep {
        return report.check(clean(&mounted.root, &work.unique, Duration::ZERO));
    }
    report.check(free_space(&mounted.root))?;
    report.check(records::export_id(&mounted.root, subject.export_id.as_ref()))?;
    report.check(records::records(&mounted.root))?;
    let (check, files) = files::writable(subject, &mounted.root, &work.unique);
    report.check(check)?;
    let Some(files) = files else {
        let reason = "there is no directory to work in (writable)";
        [OWNER, IDS, LINKS, ATTRIBUTES, CLOCK, CLONE, COPY, XATTRS, ACLS]
            .into_iter()
            .try_for_each(|planned| report.check(planned.skip(reason)))?;
        report.check(records::quota_agent(&mounted.root, files::host_time()))?;
        report.check(LOCKS.skip(reason))?;
        return report.check(CLEANUP.pass("nothing was written to the export"));
    };
    let now = on_directory(subject, &mounted, &files, report)?;
    // What is open stays under another name when it is removed.
    drop(files);
    report.check(clean(&mounted.root, &work.unique, now.unwrap_or_default()))
}

/// Makes the checks that need the directory; gives the server's time, since 1970.
fn on_directory(
    subject: &Subject,
    mounted: &Mounted,
    work: &Work,
    report: &mut Reporter<impl Write>,
) -> io::Result<Option<Duration>> {
    let on_file = |planned: Planned, check: &dyn Fn(&OwnedFd) -> Check| match &work.file {
        Some(file) => check(file),
        None => planned.skip("there is no file to work with (writable)"),
    };
    let owner = files::owner(work);
    let is_squashed = owner.outcome != Outcome::Pass;
    report.check(owner)?;
    report.check(on_file(IDS, &|file| files::ids(work, file, is_squashed)))?;
    report.check(on_file(LINKS, &|_| files::links(work)))?;
    report.check(on_file(ATTRIBUTES, &|_| files::attributes(work)))?;
    let now = files::server_time(work);
    report.check(files::clock(now, files::host_time(), subject.wants_kerberos()))?;
    report.check(on_file(CLONE, &|file| copies::clone(mounted, work, file)))?;
    report.check(on_file(COPY, &|file| copies::copy(mounted, work, file)))?;
    report.check(on_file(XATTRS, &|file| copies::xattrs(mounted, file)))?;
    report.check(on_file(ACLS, &|file| copies::acls(mounted, file)))?;
    report.check(records::quota_agent(&mounted.root, now.unwrap_or_else(|_| files::host_time())))?;
    report.check(on_file(LOCKS, &|_| files::locks(work)))?;
    Ok(now.ok())
}

fn free_space(root: &OwnedFd) -> Check {
    match nix::sys::statvfs::fstatvfs(root) {
        Ok(stat) => room(stat.blocks_available() * stat.fragment_size(), stat.blocks() * stat.fragment_size()),
        Err(errno) => {
            FREE_SPACE.fail(format!("the size of the export is unknown: {}", errno.desc()), FREE_SPACE.if_late)
        }
    }
}

fn room(available: u64, total: u64) -> Check {
    let seen = format!("{} MiB of {} MiB are free", available >> 20, total >> 20);
    let remedy = "remove data from the export (nfs-csi trash purge frees deleted volumes), or enlarge its file system";
    match available {
        _ if available < LEAST => FREE_SPACE.fail(seen, remedy),
        _ if available < total / LITTLE => FREE_SPACE.warn(seen, remedy),
        _ => FREE_SPACE.pass(seen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_that_is_full_is_a_failure_and_one_that_is_nearly_full_a_warning() {
        for (available, outcome) in
            [(0, Outcome::Fail), (LEAST - 1, Outcome::Fail), (4 << 20, Outcome::Warn), (50 << 20, Outcome::Pass)]
        {
            assert_eq!(room(available, 100 << 20).outcome, outcome, "{available}");
        }
    }
}
