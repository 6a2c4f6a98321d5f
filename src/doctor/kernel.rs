//! What this host's kernel has, and what this process may do with it.

use std::io::{self, Write};

use nix::errno::Errno;

use super::check::{Check, Planned};
use super::task::{Reporter, Subject};
use crate::mount::fs_context::FsContext;
use crate::mount::host::{self, HostError};
use crate::mount::options::{Version, fs_type};

const SYSTEM_CALLS: Planned = Planned::local("system-calls");
const CAPABILITY: Planned = Planned::local("capability");
const NFS_CLIENT: Planned = Planned::local("nfs-client");
/// This group's checks, in their order.
pub(super) const CHECKS: &[Planned] = &[SYSTEM_CALLS, CAPABILITY, NFS_CLIENT];

pub(super) fn run(subject: &Subject, report: &mut Reporter<impl Write>) -> io::Result<()> {
    report.check(system_calls(host::is_new_enough()))?;
    let has = host::has_capability();
    report.check(capability(&has))?;
    report.check(if matches!(has, Ok(true)) { nfs_client(subject) } else { unknown(NFS_CLIENT) })
}

/// A check that only a process that may mount can make.
pub(super) fn unknown(planned: Planned) -> Check {
    planned.skip("this process may not mount (capability)")
}

fn system_calls(found: Result<(), HostError>) -> Check {
    match found {
        Ok(()) => SYSTEM_CALLS.pass("the kernel has openat2, open_tree and move_mount"),
        Err(error) => SYSTEM_CALLS.fail(error.to_string(), "run a kernel of Linux 5.6 or newer on this host"),
    }
}

fn capability(has: &Result<bool, HostError>) -> Check {
    match has {
        Ok(true) => CAPABILITY.pass("this process has CAP_SYS_ADMIN"),
        Ok(false) => CAPABILITY.fail(
            "this process lacks CAP_SYS_ADMIN, which mounting needs",
            "run it as root in a container with securityContext.privileged: true, or with the capability SYS_ADMIN",
        ),
        Err(error) => CAPABILITY.fail(error.to_string(), "mount /proc in the container"),
    }
}

/// Of the versions that the options ask for, the kernel must have one.
fn nfs_client(subject: &Subject) -> Check {
    let wanted: Vec<&str> = subject.options.candidates().into_iter().map(fs_type).collect();
    let has = |version| match FsContext::open(fs_type(version)) {
        Ok(_) => Ok(true),
        Err(refused) if refused.errno == Errno::ENODEV => Ok(false),
        Err(refused) => Err(refused),
    };
    let remedy = "run modprobe -a nfs nfsv4 nfsv3 on the node, or install its kernel's NFS client \
                  (linux-modules-extra-$(uname -r) on Ubuntu)";
    match (has(Version::V4_2), has(Version::V3)) {
        (Ok(true), Ok(true)) => NFS_CLIENT.pass("the kernel has the file systems nfs4 and nfs (versions 4 and 3)"),
        (Ok(true), Ok(false)) if wanted.contains(&"nfs4") => {
            NFS_CLIENT.pass("the kernel has the file system nfs4, and not nfs (version 3)")
        }
        (Ok(false), Ok(true)) if wanted.contains(&"nfs") => {
            NFS_CLIENT.warn("the kernel has the file system nfs (version 3), and not nfs4", remedy)
        }
        (Ok(_), Ok(_)) => NFS_CLIENT.fail("the kernel lacks the file system that the mount options ask for", remedy),
        (Err(refused), _) | (_, Err(refused)) if refused.errno == Errno::EPERM => NFS_CLIENT.fail(
            format!("fsopen(2): {refused}"),
            "allow fsopen(2) and mount(2) in the container's seccomp profile (securityContext.privileged: true does)",
        ),
        (Err(refused), _) | (_, Err(refused)) => NFS_CLIENT.fail(format!("fsopen(2): {refused}"), remedy),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Outcome;

    #[test]
    fn an_old_kernel_and_a_missing_capability_are_failures_with_a_remedy() {
        let old = system_calls(Err(HostError::OldKernel { call: "openat2" }));
        assert_eq!(old.outcome, Outcome::Fail);
        assert!(old.seen.contains("openat2") && old.remedy.unwrap().contains("5.6"));
        assert_eq!(system_calls(Ok(())).outcome, Outcome::Pass);
        let lacks = capability(&Ok(false));
        assert!(lacks.outcome == Outcome::Fail && lacks.remedy.unwrap().contains("privileged: true"));
    }
}
