//! The name that an address leads back to: from /etc/hosts, or from a name server (RFC 1035), which is asked by one
//! datagram. The C library's call for it has no safe wrapper.

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

const HOSTS: &str = "/etc/hosts";
/// How long a name server may take.
const TIMEOUT: Duration = Duration::from_secs(1);
const DNS_PORT: u16 = 53;
/// A question's type and class: a name for an address, on the Internet.
const PTR_IN: [u8; 4] = [0, 12, 0, 1];
/// No answer over UDP is longer without an extension that is not asked for.
const LONGEST: usize = 512;

/// The name servers that a resolv.conf(5) names.
pub(super) fn name_servers(resolvers: &str) -> Vec<IpAddr> {
    let servers = resolvers.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    servers.filter_map(|server| server.trim().parse().ok()).collect()
}

/// The name that an address leads back to; none where no name server has one.
pub(super) fn name_of(address: IpAddr, name_servers: &[IpAddr]) -> Option<String> {
    let hosts = std::fs::read_to_string(HOSTS).unwrap_or_default();
    in_hosts(&hosts, address).or_else(|| name_servers.iter().find_map(|&server| ask(server, address)))
}

fn in_hosts(hosts: &str, address: IpAddr) -> Option<String> {
    let entries = hosts.lines().map(|line| line.split('#').next().unwrap_or_default().split_whitespace());
    let mut names = entries.filter_map(|mut words| {
        let is_it = words.next()?.parse() == Ok(address);
        is_it.then(|| words.next().map(str::to_owned)).flatten()
    });
    names.next()
}

fn ask(server: IpAddr, address: IpAddr) -> Option<String> {
    let any: IpAddr = if server.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.set_read_timeout(Some(TIMEOUT)).ok()?;
    socket.connect((server, DNS_PORT)).ok()?;
    let question = question(address);
    socket.send(&question).ok()?;
    let mut answer = [0; LONGEST];
    let length = socket.recv(&mut answer).ok()?;
    name_in(&question, answer.get(..length)?)
}

/// A message with one question, which a name server is to answer with the help of others.
fn question(address: IpAddr) -> Vec<u8> {
    let name = match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        IpAddr::V6(address) => {
            let nibbles = address.octets().into_iter().rev().flat_map(|byte| [byte & 15, byte >> 4]);
            let labels: Vec<String> = nibbles.map(|nibble| format!("{nibble:x}")).collect();
            format!("{}.ip6.arpa", labels.join("."))
        }
    };
    let id = std::process::id().to_be_bytes();
    let mut message = vec![id[2], id[3], 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        message.push(u8::try_from(label.len()).unwrap_or_default());
        message.extend_from_slice(label.as_bytes());
    }
    message.push(0);
    message.extend_from_slice(&PTR_IN);
    message
}

/// The name in the first record of an answer that holds one.
fn name_in(question: &[u8], answer: &[u8]) -> Option<String> {
    let is_answer = answer.get(..2)? == &question[..2] && answer.get(2)? & 0x80 != 0;
    let records = u16::from_be_bytes([*answer.get(6)?, *answer.get(7)?]);
    let mut at = question.len();
    for _ in 0..records.min(16) {
        at = name_at(answer, at)?.1;
        let kind = answer.get(at..at + 4)?;
        let length = usize::from(u16::from_be_bytes([*answer.get(at + 8)?, *answer.get(at + 9)?]));
        if is_answer && kind == PTR_IN {
            return name_at(answer, at + 10).map(|(name, _)| name);
        }
        at += 10 + length;
    }
    None
}

/// The name at a place of a message, and where what follows it begins. Two bits of a length say that the rest of the
/// name is elsewhere in the message.
fn name_at(message: &[u8], at: usize) -> Option<(String, usize)> {
    let (mut labels, mut at, mut end) = (Vec::new(), at, None);
    // No name has more labels, and one that leads back to itself ends.
    for _ in 0..128 {
        let length = usize::from(*message.get(at)?);
        if length & 0xc0 == 0xc0 {
            end = end.or(Some(at + 2));
            at = (length & 0x3f) << 8 | usize::from(*message.get(at + 1)?);
        } else if length == 0 {
            return Some((labels.join("."), end.unwrap_or(at + 1)));
        } else {
            labels.push(String::from_utf8_lossy(message.get(at + 1..at + 1 + length)?).into_owned());
            at += 1 + length;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 2, 3));

    fn answer(records: &[u8], count: u8) -> Vec<u8> {
        let mut answer = question(ADDRESS);
        answer[2] |= 0x80;
        answer[7] = count;
        answer.extend_from_slice(records);
        answer
    }

    #[test]
    fn the_name_is_read_from_the_answer_also_behind_an_alias() {
        // The second label leads to `arpa`, within the question's name.
        let arpa = u8::try_from(question(ADDRESS).len() - 4 - 6).unwrap();
        let ptr = [&[0xc0, 12, 0, 12, 0, 1, 0, 0, 0, 9, 0, 6, 3][..], b"nas", &[0xc0, arpa]].concat();
        let alias = [0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 9, 0, 2, 0xc0, 12];
        let question = question(ADDRESS);
        assert_eq!(name_in(&question, &answer(&ptr, 1)).as_deref(), Some("nas.arpa"));
        assert_eq!(name_in(&question, &answer(&[&alias, &ptr[..]].concat(), 2)).as_deref(), Some("nas.arpa"));
        assert_eq!(name_in(&question, &answer(&[], 0)), None);
        assert_eq!(name_in(&question, &question), None, "a question is no answer");
    }

    #[test]
    fn hosts_and_resolvers_are_read_as_their_files_have_them() {
        let hosts = "127.0.0.1 localhost\n10.1.2.3\tnas.example.com nas # the filer\n";
        assert_eq!(in_hosts(hosts, ADDRESS).as_deref(), Some("nas.example.com"));
        assert_eq!(in_hosts("#10.1.2.3 nas\n", ADDRESS), None);
        let resolvers = "search example.com\nnameserver 10.96.0.10\n nameserver fd00::53\n#nameserver 10.0.0.1\n";
        assert_eq!(name_servers(resolvers), ["10.96.0.10", "fd00::53"].map(|one| one.parse::<IpAddr>().unwrap()));
        assert!(question("fd00::1".parse().unwrap()).windows(4).any(|part| part == b"\x03ip6"));
    }

    proptest! {
        #[test]
        fn nothing_that_a_name_server_sends_is_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80), count: u8) {
            let _ = name_in(&question(ADDRESS), &bytes);
            let _ = name_in(&question(ADDRESS), &answer(&bytes, count));
        }
    }
}
