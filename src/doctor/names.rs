//! The server's name: its addresses, and whether they lead back to it.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use super::check::{Check, Planned};
use super::reverse;
use super::task::{Line, Reporter, Subject};

const RESOLVERS: &str = "/etc/resolv.conf";
const IF_LATE: &str = "make the name servers in this host's /etc/resolv.conf answer, or name the server by its address";

const NAME_LOOKUP: Planned = Planned { name: "name-lookup", if_late: IF_LATE };
const REVERSE_LOOKUP: Planned = Planned { name: "reverse-lookup", if_late: IF_LATE };
/// This group's checks, in their order.
pub(super) const CHECKS: &[Planned] = &[NAME_LOOKUP, REVERSE_LOOKUP];

/// In this group's process the resolver asks each name server once, for a second. (It would ask twice, for five.)
pub(super) const RESOLVER: (&str, &str) = ("RES_OPTIONS", "timeout:1 attempts:1");

pub(super) fn run(subject: &Subject, report: &mut Reporter<impl Write>) -> io::Result<()> {
    let server = subject.server.as_deref().unwrap_or_default();
    let found = (server, subject.options.port()).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
    let name_servers = reverse::name_servers(&std::fs::read_to_string(RESOLVERS).unwrap_or_default());
    report.check(lookup(server, &found, &name_servers))?;
    let addresses = found.unwrap_or_default();
    report.check(reverse_lookup(subject, server, &addresses, &name_servers))?;
    report.line(&Line::Addresses(addresses))
}

fn lookup(server: &str, found: &io::Result<Vec<SocketAddr>>, name_servers: &[IpAddr]) -> Check {
    match found {
        Ok(_) if server.parse::<IpAddr>().is_ok() => NAME_LOOKUP.pass(format!("{server} is an address")),
        Ok(addresses) if !addresses.is_empty() => {
            let addresses: Vec<String> = addresses.iter().map(|address| address.ip().to_string()).collect();
            NAME_LOOKUP.pass(format!("{server} is {}", addresses.join(", ")))
        }
        Ok(_) => NAME_LOOKUP.fail(format!("{server} has no address"), format!("give {server} an address in the DNS")),
        Err(error) => {
            let reason = error.to_string();
            let reason = reason.rsplit(": ").next().unwrap_or_default();
            let servers: Vec<String> = name_servers.iter().map(ToString::to_string).collect();
            // The resolver's own text for EAI_AGAIN; there is no code behind it.
            let remedy = if reason.contains("Temporary failure") {
                format!("make the name servers of this host's {RESOLVERS} answer ({})", servers.join(", "))
            } else {
                format!("correct the name of the server, or add it to the DNS that {} serve", servers.join(", "))
            };
            NAME_LOOKUP.fail(format!("{server} does not resolve: {reason}"), remedy)
        }
    }
}

/// Kerberos makes the server's principal from the name that its address leads back to.
fn reverse_lookup(subject: &Subject, server: &str, addresses: &[SocketAddr], name_servers: &[IpAddr]) -> Check {
    let Some(address) = addresses.first().map(SocketAddr::ip) else {
        return REVERSE_LOOKUP.skip("the server has no address (name-lookup)");
    };
    if !subject.wants_kerberos() {
        return REVERSE_LOOKUP.skip("only Kerberos needs it (sec=krb5, krb5i, krb5p)");
    }
    let remedy = format!("add a PTR record for {address} to the DNS, with the name that the server's keytab has");
    match reverse::name_of(address, name_servers) {
        Some(name) if server.parse::<IpAddr>().is_ok() || same_name(&name, server) => {
            REVERSE_LOOKUP.pass(format!("{address} leads back to {name}"))
        }
        Some(name) => REVERSE_LOOKUP.warn(format!("{address} leads back to {name}, and not to {server}"), remedy),
        None => REVERSE_LOOKUP.warn(format!("{address} leads back to no name"), remedy),
    }
}

/// Whether two names are one, also where one of them lacks the domain.
fn same_name(name: &str, server: &str) -> bool {
    let [name, server] = [name, server].map(|name| name.trim_end_matches('.').to_ascii_lowercase());
    name == server || name.strip_prefix(&server).is_some_and(|domain| domain.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Outcome;

    #[test]
    fn a_name_that_is_unknown_and_name_servers_that_are_silent_have_remedies_of_their_own() {
        let servers = ["10.96.0.10".parse().unwrap()];
        let failed = |reason: &str| {
            lookup("nas", &Err(io::Error::other(format!("failed to lookup address information: {reason}"))), &servers)
        };
        let unknown = failed("Name or service not known");
        assert_eq!(
            (unknown.outcome, unknown.seen.as_str()),
            (Outcome::Fail, "nas does not resolve: Name or service not known")
        );
        assert!(unknown.remedy.unwrap().contains("correct the name"));
        let silent = failed("Temporary failure in name resolution").remedy.unwrap();
        assert!(silent.contains("/etc/resolv.conf answer (10.96.0.10)"), "{silent}");
        assert_eq!(lookup("10.0.0.1", &Ok(vec!["10.0.0.1:2049".parse().unwrap()]), &[]).outcome, Outcome::Pass);
    }

    #[test]
    fn a_name_and_the_same_with_its_domain_are_one() {
        assert!(same_name("NAS.example.com.", "nas.example.com"));
        assert!(same_name("nas.example.com", "nas"));
        assert!(!same_name("nas2.example.com", "nas"));
        assert!(!same_name("other.example.com", "nas.example.com"));
    }
}
