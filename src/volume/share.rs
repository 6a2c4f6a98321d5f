//! Where an export is: a server, and the path of the share on it.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use thiserror::Error;

use super::path::{self, PathError};
use super::quote::quote;

/// The longest host name, in bytes (RFC 1035, without the length bytes).
const LONGEST_HOST: usize = 253;
/// The longest name of a network interface, in bytes.
const LONGEST_ZONE: usize = 15;

/// A server: a host name, or an IPv4 or IPv6 address, the latter perhaps with a zone (`fe80::1%eth0`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server(String);

/// Why a text names no server.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum ServerError {
    #[error("the server is empty: give its host name or address")]
    Empty,

    #[error(
        "{server} names no server: give a host name (letters, digits, '.', '-' and '_'), an IPv4 address or an IPv6 \
         address"
    )]
    Malformed { server: String },
}

impl Server {
    /// Reads a host name or an address. An IPv6 address may stand in brackets; slashes around it all are left out.
    pub fn parse(text: &str) -> Result<Self, ServerError> {
        let server = text.trim_matches('/');
        if server.is_empty() {
            return Err(ServerError::Empty);
        }
        let bracketed = server.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let is_server = match bracketed {
            Some(address) => is_ipv6(address),
            None => is_ipv6(server) || is_host_or_ipv4(server),
        };
        if is_server {
            Ok(Self(bracketed.unwrap_or(server).to_owned()))
        } else {
            Err(ServerError::Malformed { server: quote(text) })
        }
    }

    /// The name or address, without brackets.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name or address as it stands in a mount's source: an IPv6 address in brackets.
    #[must_use]
    pub fn bracketed(&self) -> String {
        if self.0.contains(':') { format!("[{}]", self.0) } else { self.0.clone() }
    }
}

/// The name or address, without brackets.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_ipv6(text: &str) -> bool {
    let (address, zone) = match text.split_once('%') {
        Some((address, zone)) => (address, Some(zone)),
        None => (text, None),
    };
    let is_zone = |zone: &str| (1..=LONGEST_ZONE).contains(&zone.len()) && zone.bytes().all(is_host_byte);
    address.parse::<Ipv6Addr>().is_ok() && zone.is_none_or(is_zone)
}

fn is_host_or_ipv4(text: &str) -> bool {
    let name = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| !label.is_empty() && !label.starts_with('-') && label.bytes().all(is_host_byte);
    if text.len() > LONGEST_HOST || !name.split('.').all(is_label) {
        return false;
    }
    // No top level domain is a number: what ends in one is meant as an address.
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    !name.rsplit('.').next().is_some_and(is_number) || text.parse::<Ipv4Addr>().is_ok()
}

fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

/// The absolute path of a share on its server, with single slashes and none at the end; `/` is a share too.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SharePath(String);

impl SharePath {
    /// Reads a share's path. A slash that is missing at its start is added; those that double others, or end it, go.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        if text.is_empty() {
            return Err(PathError::Empty);
        }
        let components = || text.split('/').filter(|component| !component.is_empty());
        let path: String = components().flat_map(|component| ["/", component]).collect();
        path::check(&path, components())?;
        if path.contains(char::is_control) {
            return Err(PathError::Control { path: quote(&path) });
        }
        Ok(Self(if path.is_empty() { "/".into() } else { path }))
    }

    /// The path, with a slash at its start.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path as a volume id has it: without a slash at its start, and empty for `/`.
    pub(super) fn relative(&self) -> &str {
        self.0.trim_start_matches('/')
    }
}

impl fmt::Display for SharePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A share on a server. As text: `server:/path`, with an IPv6 address in brackets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    server: Server,
    path: SharePath,
}

/// Why a text names no share.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum ShareError {
    #[error("{share} names no share: write server:/path, with an IPv6 address in brackets")]
    Form { share: String },

    #[error(transparent)]
    Server(#[from] ServerError),

    #[error(transparent)]
    Path(#[from] PathError),
}

impl Share {
    /// The share that a server has under a path.
    #[must_use]
    pub fn new(server: Server, path: SharePath) -> Self {
        Self { server, path }
    }

    /// Reads `server:/path`.
    pub fn parse(text: &str) -> Result<Self, ShareError> {
        let end = if text.starts_with('[') { text.find("]:").map(|at| at + 1) } else { text.find(':') };
        let (server, path) = match end.map(|end| (&text[..end], &text[end + 1..])) {
            Some((server, path)) if !server.is_empty() && path.starts_with('/') => (server, path),
            _ => return Err(ShareError::Form { share: quote(text) }),
        };
        Ok(Self::new(Server::parse(server)?, SharePath::parse(path)?))
    }

    /// The same share with its server under another name; under its own where that is none.
    #[must_use]
    pub fn named(&self, server: Option<&str>) -> Self {
        match server.map(Server::parse) {
            Some(Ok(server)) => Self::new(server, self.path.clone()),
            _ => self.clone(),
        }
    }

    /// The server.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The path on the server.
    #[must_use]
    pub fn path(&self) -> &SharePath {
        &self.path
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.server.bracketed(), self.path)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn share(text: &str) -> Share {
        Share::parse(text).unwrap()
    }

    #[test]
    fn names_and_addresses_are_servers() {
        let cases = [
            ("nfs-server.default.svc.cluster.local", "nfs-server.default.svc.cluster.local"),
            ("NAS_1", "NAS_1"),
            ("nas.example.", "nas.example."),
            ("10.0.0.1", "10.0.0.1"),
            ("1a", "1a"),
            ("fd00::1", "fd00::1"),
            ("[fd00::1]", "fd00::1"),
            ("fe80::1%eth0", "fe80::1%eth0"),
            ("[fe80::1%eth0.100]", "fe80::1%eth0.100"),
            ("::ffff:10.0.0.1", "::ffff:10.0.0.1"),
            ("//nas/", "nas"),
        ];
        for (text, server) in cases {
            assert_eq!(Server::parse(text).unwrap().as_str(), server);
        }
    }

    #[test]
    fn what_names_no_server_is_refused_and_named() {
        let long = "x".repeat(254);
        for text in [
            "a b",
            "-o bind",
            "-o",
            "..",
            ".a",
            "a..b",
            "a:/b",
            "a/b",
            "a,b",
            "a\nb",
            "a\0",
            "näs",
            "10.0.0.256",
            "10.0.0",
            "1",
            "[nas]",
            "[10.0.0.1]",
            "[fd00::1",
            "fd00::1]",
            "fd00::1%",
            "fd00::1%a/b",
            "fd00::1%a-very-long-zone",
            "fd00:::1",
            &long,
        ] {
            let error = Server::parse(text).unwrap_err();
            assert_eq!(error, ServerError::Malformed { server: quote(text) });
            assert!(error.to_string().contains(&quote(text)), "{error}");
        }
        assert_eq!(Server::parse(""), Err(ServerError::Empty));
        assert_eq!(Server::parse("//"), Err(ServerError::Empty));
        assert!(Server::parse(&"x".repeat(253)).is_ok());
    }

    #[test]
    fn an_ipv6_address_is_bracketed_in_a_source_only() {
        let server = Server::parse("[fe80::1%eth0]").unwrap();
        assert_eq!((server.to_string(), server.bracketed()), ("fe80::1%eth0".into(), "[fe80::1%eth0]".into()));
        assert_eq!(Server::parse("nas").unwrap().bracketed(), "nas");
    }

    #[test]
    fn the_path_of_a_share_has_one_form() {
        for text in ["/export/a b", "export/a b", "//export///a b//"] {
            assert_eq!(SharePath::parse(text).unwrap().as_str(), "/export/a b");
        }
        for text in ["/", "//"] {
            assert_eq!(SharePath::parse(text).unwrap().as_str(), "/");
        }
    }

    #[test]
    fn what_is_no_path_of_a_share_is_refused_with_its_reason() {
        let refused = |text: &str| SharePath::parse(text).unwrap_err();
        assert_eq!(refused(""), PathError::Empty);
        assert!(matches!(refused("/a/../b"), PathError::DotDot { .. }));
        assert!(matches!(refused("/a/./b"), PathError::Dot { .. }));
        assert!(matches!(refused("/a\0b"), PathError::Nul { .. }));
        assert!(matches!(refused("/a\nb"), PathError::Control { .. }));
        assert!(matches!(refused("/a/.nfs-csi/b"), PathError::Reserved { .. }));
        assert!(matches!(refused(&"x".repeat(256)), PathError::LongComponent { length: 256, .. }));
        assert!(SharePath::parse(&"x".repeat(255)).is_ok());
        assert!(matches!(refused(&"x/".repeat(512)), PathError::TooLong { length: 1024, .. }));
        assert!(SharePath::parse(&format!("x{}", "/x".repeat(510))).is_ok());
    }

    #[test]
    fn a_share_is_read_as_a_mount_source_has_it() {
        for text in ["nas:/export", "10.0.0.1:/", "[fd00::1]:/a/b", "[fe80::1%eth0]:/a:b", "nas:/a]:/b"] {
            assert_eq!(share(text).to_string(), text);
        }
        assert_eq!(share("nas:/a//b/").to_string(), "nas:/a/b");
        for text in ["", "nowhere", "nas", "nas:", "nas:export", ":/export", "fd00::1:/x", "[fd00::1]", "[fd00::1]/x"] {
            assert_eq!(Share::parse(text), Err(ShareError::Form { share: quote(text) }));
        }
        assert!(matches!(Share::parse("a b:/x"), Err(ShareError::Server(_))));
        assert!(matches!(Share::parse("nas:/../x"), Err(ShareError::Path(_))));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parsers_panic_and_what_they_read_is_read_again_the_same(text in "\\PC*|[a/.:%#\\[\\]-]*") {
            if let Ok(server) = Server::parse(&text) {
                prop_assert_eq!(Server::parse(server.as_str()), Ok(server.clone()));
                prop_assert_eq!(Server::parse(&server.bracketed()), Ok(server));
            }
            if let Ok(path) = SharePath::parse(&text) {
                prop_assert_eq!(SharePath::parse(path.as_str()), Ok(path));
            }
            if let Ok(share) = Share::parse(&text) {
                prop_assert_eq!(Share::parse(&share.to_string()), Ok(share));
            }
        }
    }
}
