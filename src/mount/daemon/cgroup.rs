//! The control group of a worker process whose call takes long.
//!
//! A call that the kernel lets wait uninterruptibly holds its process, killed or not, until the kernel lets it go: a
//! first mount, say, behind one of another network namespace whose server hangs. A container ends only when its control
//! group is empty, and its successor starts only then. So such a process is moved to the host's root group.
//!
//! That takes a daemon in the host's process namespace (`hostPID`): one that is the first process of its own namespace
//! cannot end before all processes in it have.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;

use nix::sched::{CloneFlags, setns};

/// The host's first process, as a daemon in its process namespace sees it.
const FIRST: &str = "/proc/1";

/// Moves a process of this daemon to the root of all hierarchies of the host, of version 2 and 1. Its caller's thread is
/// of no further use: it is in the host's cgroup namespace then.
///
/// # Errors
/// Where this daemon is in a process namespace of its own, or the host refuses it.
pub(super) fn leave(process: u32) -> io::Result<()> {
    if std::process::id() == 1 {
        return Err(io::Error::other(
            "the daemon is in a process namespace of its own: run it in the host's (hostPID)",
        ));
    }
    // The host's root groups are out of sight from a cgroup namespace below them.
    setns(File::open(format!("{FIRST}/ns/cgroup"))?, CloneFlags::CLONE_NEWCGROUP)?;
    let mounts = std::fs::read_to_string(format!("{FIRST}/mounts"))?;
    let mut last = Err(io::Error::new(ErrorKind::NotFound, "the host has no control groups mounted"));
    for root in roots(&mounts) {
        let group = Path::new(FIRST).join("root").join(root.trim_start_matches('/')).join("cgroup.procs");
        last = std::fs::write(&group, process.to_string());
        if let Err(error) = &last
            && error.kind() != ErrorKind::NotFound
        {
            return last;
        }
    }
    last
}

/// Where hierarchies are mounted, by the text of `/proc/…/mounts`.
fn roots(mounts: &str) -> impl Iterator<Item = &str> {
    mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (place, kind) = (words.next()?, words.next()?);
        matches!(kind, "cgroup" | "cgroup2").then_some(place)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_of_both_versions_are_found() {
        let mounts = "proc /proc proc rw 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,nsdelegate 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0
/dev/sda1 /cgroup ext4 rw 0 0
";
        assert_eq!(roots(mounts).collect::<Vec<_>>(), ["/sys/fs/cgroup/unified", "/sys/fs/cgroup/cpu,cpuacct"]);
    }
}
