//! Whether the kernel knows the mount options: each is set on a mount that is never made.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::errno::Errno;

use super::check::{Check, Planned};
use super::kernel;
use super::task::{Reporter, Subject};
use crate::mount::fs_context::{FsContext, Refused};
use crate::mount::options::{OptionError, Version, fs_type};

const MOUNT_OPTIONS: Planned = Planned::local("mount-options");
/// This group's checks, in their order.
pub(super) const CHECKS: &[Planned] = &[MOUNT_OPTIONS];

pub(super) fn run(subject: &Subject, report: &mut Reporter<impl Write>) -> io::Result<()> {
    report.check(known(subject))
}

fn known(subject: &Subject) -> Check {
    let version = subject.options.candidates().first().copied().unwrap_or(Version::V4_2);
    let parts = match parts(subject, version) {
        Ok(parts) => parts,
        Err(error) => return MOUNT_OPTIONS.fail(error.to_string(), "correct the mount options"),
    };
    let context = match FsContext::open(fs_type(version)) {
        Ok(context) => context,
        Err(Refused { errno: Errno::EPERM, .. }) => return kernel::unknown(MOUNT_OPTIONS),
        Err(refused) => return MOUNT_OPTIONS.skip(format!("there is no {}: {refused}", fs_type(version))),
    };
    for part in parts {
        if let Err(refused) = context.set(&part) {
            return MOUNT_OPTIONS.fail(
                format!("the kernel refuses {part} with NFS {version}: {refused}"),
                format!("leave out the mount option {part}, or run a kernel on this host that knows it"),
            );
        }
    }
    let given = subject.options.to_string();
    MOUNT_OPTIONS.pass(match given.as_str() {
        "" => "none are given".into(),
        given => format!("the kernel knows {given}"),
    })
}

/// The options one by one, as the kernel gets them. Which address the server has does not matter, but for its family.
fn parts(subject: &Subject, version: Version) -> Result<Vec<String>, OptionError> {
    let literal = subject.server.as_deref().and_then(|server| server.parse().ok());
    let parts = |address: IpAddr| {
        let address = SocketAddr::new(address, subject.options.port());
        subject.options.parts(version, address, Some(address.ip()))
    };
    match parts(literal.unwrap_or(Ipv4Addr::LOCALHOST.into())) {
        Err(OptionError::Family { .. }) if literal.is_none() => parts(Ipv6Addr::LOCALHOST.into()),
        parts => parts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::options::Options;

    fn subject(server: Option<&str>, options: &str) -> Subject {
        let options = Options::parse([options]).unwrap();
        Subject { server: server.map(str::to_owned), options, ..Subject::default() }
    }

    #[test]
    fn options_are_given_to_the_kernel_one_by_one_with_an_address_of_the_family_that_they_ask_for() {
        let parts = |server, options| parts(&subject(server, options), Version::V4_2);
        let usual = parts(None, "proto=tcp,nconnect=4,noatime").unwrap();
        assert_eq!(usual, ["vers=4.2", "addr=127.0.0.1", "proto=tcp", "nconnect=4"]);
        assert!(parts(None, "proto=tcp6").unwrap().contains(&"addr=::1".into()));
        assert!(parts(Some("fd00::7"), "proto=tcp").unwrap().contains(&"proto=tcp6".into()));
        assert!(parts(Some("10.0.0.7"), "proto=tcp6").is_err());
        let label = parts(None, r#"context="system_u:object_r:container_file_t:s0:c1,c2""#).unwrap();
        assert_eq!(label.last().unwrap(), r#"context="system_u:object_r:container_file_t:s0:c1,c2""#);
    }
}
