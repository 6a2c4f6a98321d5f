//! The mount of the share, which only this process has.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, move_mount};

use super::check::{Check, Planned};
use super::task::Subject;
use crate::mount::fs_context::{FsContext, Refused};
use crate::mount::options::{Options, Version, fs_type};
use crate::mount::protocol::Reached;
use crate::reason::errno_of;

pub(super) const MOUNT: Planned = Planned {
    name: "mount",
    if_late: "restart the NFS service on the server: it answers RPC NULL, and not the calls that a mount makes",
};
const STATISTICS: &str = "/proc/self/mountstats";
/// Which of a kind's numbers there is how many calls failed (since Linux 5.3).
const ERRORS: usize = 8;

/// A share that is mounted.
#[derive(Debug)]
pub(super) struct Mounted {
    pub(super) root: OwnedFd,
    pub(super) version: Version,
    /// Where this process's own mount table has it; none where it may not have one.
    place: Option<PathBuf>,
}

/// Mounts the share with the newest version that the server has, and nowhere in a mount table.
pub(super) fn mount_share(subject: &Subject, server: &Reached) -> (Check, Option<(OwnedFd, Version)>) {
    let source = subject.source();
    let mut refused = Vec::new();
    for &version in &server.candidates {
        match mount_version(subject, server, version) {
            Ok(root) => {
                let check = mounted(subject, &source, version, &refused);
                return (check, Some((root, version)));
            }
            Err(Refused { errno: Errno::EPROTONOSUPPORT, .. }) => refused.push(version.to_string()),
            Err(error) => return (failed(subject, &source, &error), None),
        }
    }
    let check = MOUNT.fail(
        format!("the server has none of the NFS versions {}", refused.join(", ")),
        "enable one of them on the server ([nfsd] in /etc/nfs.conf), or ask for another with the mount option nfsvers=",
    );
    (check, None)
}

fn mount_version(subject: &Subject, server: &Reached, version: Version) -> Result<OwnedFd, Refused> {
    // Where the server dies now, the calls that the kernel still has for it end by themselves, and block no other mount.
    let own = Options::parse(["soft,timeo=30,retrans=1,nosharecache"]).unwrap_or_default();
    let options = subject.options.clone().merged(own);
    let parts = options.parts(version, server.address, server.client);
    let parts = parts.map_err(|error| Refused { errno: Errno::EINVAL, message: error.to_string() })?;
    let context = FsContext::open(fs_type(version))?;
    parts.iter().try_for_each(|part| context.set(part))?;
    context.create(&subject.source())
}

fn mounted(subject: &Subject, source: &str, version: Version, refused: &[String]) -> Check {
    let seen = format!("{source} is mounted with NFS {version}");
    if refused.is_empty() || subject.options.candidates().first() == Some(&version) {
        return MOUNT.pass(seen);
    }
    MOUNT.warn(
        format!("{seen}, since the server lacks {}: there are no clones by reflink", refused.join(", ")),
        "enable NFS 4.2 on the server (vers4.2=y below [nfsd] in /etc/nfs.conf)",
    )
}

fn failed(subject: &Subject, source: &str, error: &Refused) -> Check {
    let Refused { errno, message } = error;
    let seen = |what: &str| format!("{source}: {what} ({}: {message})", errno.desc());
    match errno {
        Errno::ENOENT => MOUNT.fail(
            seen("the server has no such directory"),
            "correct --share, or make the directory and export it on the server (/etc/exports, then exportfs -ra)",
        ),
        Errno::EACCES => MOUNT.fail(
            seen("the server refuses it to this host, or (NFS 3) does not have it"),
            "add this host's address to the export's list of clients on the server (/etc/exports, then exportfs -ra), or \
             correct --share",
        ),
        Errno::EPERM => MOUNT.fail(
            seen("the server refuses this mount's security or its client port"),
            "ask for the export's security with the mount option sec=, or add insecure to the export",
        ),
        Errno::EINVAL if subject.wants_kerberos() => MOUNT.fail(
            seen("the kernel cannot use Kerberos"),
            "start rpc.gssd on the node, and load its kernel's module rpcsec_gss_krb5",
        ),
        Errno::EINVAL => MOUNT.fail(seen("the kernel refuses the mount options"), "correct the mount options"),
        _ => MOUNT.fail(seen("it cannot be mounted"), "look at the kernel's log on this host (dmesg) and on the server"),
    }
}

/// Puts the mount into a mount table that this process alone has and that goes with it: the kernel's statistics show
/// only what is in a table.
fn attach(root: &OwnedFd) -> Option<PathBuf> {
    let place = std::env::temp_dir().canonicalize().ok()?;
    unshare(CloneFlags::CLONE_NEWNS).ok()?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).ok()?;
    let attached = move_mount(root, "", CWD, &place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH);
    attached.map_err(errno_of).ok().map(|()| place)
}

impl Mounted {
    /// A share that [`mount_share`] has mounted, in this process's own mount table.
    pub(super) fn attach(root: OwnedFd, version: Version) -> Self {
        let place = attach(&root);
        Self { root, version, place }
    }

    /// How many calls of a kind (`COPY`) the server has answered without an error on this file system; none where that is
    /// not known.
    pub(super) fn calls(&self, kind: &str) -> Option<u64> {
        calls(&std::fs::read_to_string(STATISTICS).ok()?, self.place.as_deref()?, kind)
    }
}

fn calls(statistics: &str, place: &Path, kind: &str) -> Option<u64> {
    let head = format!(" mounted on {} with fstype nfs", place.display());
    // The mount that was made last hides the others.
    let block =
        statistics.split("\ndevice ").filter(|block| block.lines().next().is_some_and(|line| line.contains(&head)));
    let mut numbers = block.last()?.lines().filter_map(|line| line.trim_start().strip_prefix(kind)?.strip_prefix(": "));
    let numbers: Vec<u64> = numbers.next()?.split(' ').map_while(|number| number.parse().ok()).collect();
    // How many there were is the first number.
    Some(numbers.first()?.saturating_sub(*numbers.get(ERRORS)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Outcome;

    #[test]
    fn calls_without_an_error_are_counted_by_kind_on_the_mount_that_hides_the_others() {
        let text = "device none mounted on /tmp with fstype tmpfs\n\
                    device a:/ mounted on /tmp with fstype nfs4 statvers=1.1\n\tper-op statistics\n\
                    \t  COPY: 3 3 0 1 2 3 4 5 0\n\
                    device b:/ mounted on /tmp with fstype nfs4 statvers=1.1\n\tper-op statistics\n\
                    \t  CLONE: 9 9 0 1 2 3 4 5 9\n\t  COPY: 5 5 0 1 2 3 4 5 1\n\t   COPY_NOTIFY: 0 0 0 0 0 0 0 0 0\n\
                    device c:/ mounted on /mnt with fstype nfs4 statvers=1.1\n\tper-op statistics\n\
                    \t  COPY: 7 7 0 1 2 3 4 5\n";
        assert_eq!(calls(text, Path::new("/tmp"), "COPY"), Some(4));
        assert_eq!(calls(text, Path::new("/tmp"), "CLONE"), Some(0));
        assert_eq!(calls(text, Path::new("/mnt"), "COPY"), None);
        assert_eq!(calls(text, Path::new("/nowhere"), "COPY"), None);
    }

    #[test]
    fn each_refusal_of_a_mount_has_its_remedy() {
        let subject = Subject { server: Some("nas".into()), share: Some("/x".into()), ..Subject::default() };
        for (errno, word) in
            [(Errno::ENOENT, "--share"), (Errno::EACCES, "clients"), (Errno::EPERM, "insecure"), (Errno::EIO, "dmesg")]
        {
            let check = failed(&subject, "nas:/x", &Refused { errno, message: "why".into() });
            assert_eq!(check.outcome, Outcome::Fail);
            assert!(check.seen.contains("nas:/x") && check.remedy.unwrap().contains(word));
        }
    }

    #[test]
    fn an_older_version_than_the_newest_is_a_warning_unless_it_was_asked_for() {
        let refused = ["4.2".to_owned()];
        let outcome = |options: &str, refused: &[String]| {
            let options = Options::parse([options]).unwrap();
            mounted(&Subject { options, ..Subject::default() }, "nas:/x", Version::V4_1, refused).outcome
        };
        assert_eq!(outcome("", &refused), Outcome::Warn);
        assert_eq!(outcome("nfsvers=4.1", &[]), Outcome::Pass);
    }
}
