//! What Kerberos needs on this host.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::check::{Check, Planned};
use super::task::{Reporter, Subject};

/// The daemon that gets tickets for the kernel, and how the kernel names its process.
const GSSD_NAME: &str = "rpc.gssd";
/// The kernel's own process in the host's namespace of processes, by number and name.
const KERNEL_S: (u32, &str) = (2, "kthreadd");
/// Where the host's keys are, below its root, and the variable that names another place.
const KEYTAB_PATH: &str = "etc/krb5.keytab";
const KEYTAB_VARIABLE: &str = "KRB5_KTNAME";

const GSSD: Planned = Planned::local("gssd");
const KEYTAB: Planned = Planned::local("keytab");
/// This group's checks, in their order.
pub(super) const CHECKS: &[Planned] = &[GSSD, KEYTAB];

pub(super) fn run(subject: &Subject, report: &mut Reporter<impl Write>) -> io::Result<()> {
    if !subject.wants_kerberos() {
        return CHECKS
            .iter()
            .try_for_each(|planned| report.check(planned.skip("the mount options ask for no Kerberos")));
    }
    let host = Host { processes: "/proc".into() };
    report.check(host.gssd())?;
    let keytab = std::env::var(KEYTAB_VARIABLE).ok();
    report.check(host.keytab(keytab.as_deref()))
}

/// The host's processes, which a container does not see unless it has `hostPID`.
struct Host {
    processes: PathBuf,
}

impl Host {
    fn gssd(&self) -> Check {
        let remedy = "start rpc.gssd on the node (package nfs-common or nfs-utils; systemctl enable --now rpc-gssd)";
        if self.runs(GSSD_NAME) {
            GSSD.pass("rpc.gssd runs on this host")
        } else if self.is_seen() {
            GSSD.fail("rpc.gssd does not run on this host: a mount with sec=krb5 would fail or hang", remedy)
        } else {
            GSSD.warn("this container does not see the host's processes, so rpc.gssd may run or not", remedy)
        }
    }

    fn keytab(&self, named: Option<&str>) -> Check {
        let remedy = "put a keytab with the principal host/ or nfs/ of this node into /etc/krb5.keytab on the node";
        let path = match named {
            Some(path) => PathBuf::from(path.strip_prefix("FILE:").unwrap_or(path)),
            None if self.is_seen() => self.processes.join("1/root").join(KEYTAB_PATH),
            None => return KEYTAB.warn("this container does not see the host's /etc/krb5.keytab", remedy),
        };
        let shown = named.map_or_else(|| Path::new("/").join(KEYTAB_PATH), |_| path.clone());
        match std::fs::metadata(&path) {
            Ok(file) if file.len() > 0 => KEYTAB.pass(format!("{} is there", shown.display())),
            Ok(_) => KEYTAB.fail(format!("{} is empty", shown.display()), remedy),
            Err(error) => KEYTAB.fail(format!("{}: {error}", shown.display()), remedy),
        }
    }

    fn runs(&self, name: &str) -> bool {
        let entries = std::fs::read_dir(&self.processes).into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        numbers.into_iter().any(|number| self.name(number).as_deref() == Some(name))
    }

    /// Whether the host's processes are seen.
    fn is_seen(&self) -> bool {
        self.name(KERNEL_S.0).as_deref() == Some(KERNEL_S.1)
    }

    fn name(&self, process: u32) -> Option<String> {
        let name = std::fs::read_to_string(self.processes.join(process.to_string()).join("comm")).ok()?;
        Some(name.trim_end().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Outcome;

    #[test]
    fn what_a_container_does_not_see_is_a_warning_and_what_the_host_lacks_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        let process = |number: u32, name: &str| {
            let process = folder.path().join(number.to_string());
            std::fs::create_dir_all(process.join("root/etc")).unwrap();
            std::fs::write(process.join("comm"), format!("{name}\n")).unwrap();
            process
        };
        let host = Host { processes: folder.path().into() };
        let outcomes = || [host.gssd().outcome, host.keytab(None).outcome];
        let first = process(1, "systemd");
        assert_eq!(outcomes(), [Outcome::Warn; 2]);
        process(2, "kthreadd");
        assert_eq!(outcomes(), [Outcome::Fail; 2]);
        process(77, "rpc.gssd");
        std::fs::write(first.join("root/etc/krb5.keytab"), "").unwrap();
        assert_eq!(outcomes(), [Outcome::Pass, Outcome::Fail]);
        std::fs::write(first.join("root/etc/krb5.keytab"), "keys").unwrap();
        assert_eq!(outcomes(), [Outcome::Pass; 2]);
        let elsewhere = format!("FILE:{}", folder.path().join("missing").display());
        assert_eq!(host.keytab(Some(&elsewhere)).outcome, Outcome::Fail);
    }
}
