//! The server map: whether it is right, and which mounts are older than its last change.

use std::collections::HashSet;
use std::net::{IpAddr, ToSocketAddrs};

use super::check::{Check, Planned};
use super::task::Subject;
use crate::mount::table::{Mount, Table};
use crate::server_map::ServerMap;

pub(super) const SERVER_MAP: Planned = Planned {
    name: "server-map",
    if_late: "look whether the name servers of this host answer: the names in the server map were looked up",
};

/// So many mounts are named.
const NAMED: usize = 3;

pub(super) fn server_map(subject: &Subject, table: &Table) -> Check {
    let Some(file) = &subject.servers else { return SERVER_MAP.skip("no server map is named (--servers)") };
    let map = match ServerMap::open(file) {
        Ok(map) => map,
        Err(error) => {
            return SERVER_MAP.fail(
                error.to_string(),
                "correct the map (the chart's value servers): the last one that was right holds",
            );
        }
    };
    let servers = map.servers();
    if servers.is_empty() {
        return SERVER_MAP.skip(format!("the server map {} has no server", file.display()));
    }
    let old: Vec<String> = table.iter().filter(|mount| mount.is_nfs() && is_old(mount, &map)).map(shown).collect();
    if old.is_empty() {
        return SERVER_MAP.pass(format!("no mount is at another address than the map says ({})", servers.join(", ")));
    }
    let more = if old.len() > NAMED { ", …" } else { "" };
    SERVER_MAP.warn(
        format!(
            "{} mounts are at another address than the map says: {}{more}",
            old.len(),
            old[..old.len().min(NAMED)].join(", ")
        ),
        "delete the pods that use them, whose ids are in the paths: their next ones mount from the new address",
    )
}

/// Whether a mount was made by a name of a server before that moved.
fn is_old(mount: &Mount, map: &ServerMap) -> bool {
    let Some(address) = mount.address(0).map(|address| address.ip()) else { return false };
    match map.find(mount.server()) {
        // Where two servers changed places, a name of one is an address of the other.
        Some(mapped) if !map.is_address(mount.server()) => !addresses(mapped.addresses()).contains(&address),
        _ => false,
    }
}

/// The addresses that names have now.
fn addresses(names: &[String]) -> HashSet<IpAddr> {
    let of = |name: &String| match name.parse() {
        Ok(address) => vec![address],
        Err(_) => (name.as_str(), 0).to_socket_addrs().map(|all| all.map(|it| it.ip()).collect()).unwrap_or_default(),
    };
    names.iter().flat_map(of).collect()
}

fn shown(mount: &Mount) -> String {
    let address = mount.address(0).map(|address| address.ip().to_string()).unwrap_or_default();
    format!("{} at {address} on {}", mount.source.to_string_lossy(), mount.mount_point.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Outcome;

    const TABLE: &[u8] = b"30 1 0:30 / /pods/one rw - nfs4 10.0.0.5:/export/a rw,vers=4.2,addr=10.0.0.5\n\
        31 1 0:31 / /pods/two rw - nfs4 10.0.0.6:/export/a rw,vers=4.2,addr=10.0.0.6\n\
        32 1 0:32 / /pods/three rw - nfs4 10.0.0.9:/export/a rw,vers=4.2,addr=10.0.0.9\n";

    fn seen(map: &str) -> Check {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("servers.json");
        std::fs::write(&file, map).unwrap();
        let subject = Subject { servers: Some(file), ..Subject::default() };
        server_map(&subject, &Table::parse(TABLE).unwrap())
    }

    #[test]
    fn mounts_that_are_older_than_the_map_are_named() {
        let moved = seen(r#"{"servers": {"nas": {"address": "10.0.0.6", "was": ["10.0.0.5"]}}}"#);
        assert_eq!(moved.outcome, Outcome::Warn);
        assert!(moved.seen.starts_with("1 mounts") && moved.seen.contains("/pods/one"), "{}", moved.seen);
        let there = seen(r#"{"servers": {"nas": {"address": ["10.0.0.6", "10.0.0.5"], "was": ["10.0.0.5"]}}}"#);
        assert_eq!(there.outcome, Outcome::Pass, "{}", there.seen);
    }

    #[test]
    fn servers_that_changed_places_are_not_confused() {
        let seen = seen(
            r#"{"servers": {"a": {"address": "10.0.0.6", "was": ["10.0.0.5"]},
                            "b": {"address": "10.0.0.5", "was": ["10.0.0.6"]}}}"#,
        );
        assert_eq!(seen.outcome, Outcome::Pass, "{}", seen.seen);
    }

    #[test]
    fn a_map_that_is_wrong_is_a_failure_and_one_without_servers_is_skipped() {
        assert_eq!(seen("{").outcome, Outcome::Fail);
        assert_eq!(seen(r#"{"servers": {}}"#).outcome, Outcome::Skip);
    }
}
