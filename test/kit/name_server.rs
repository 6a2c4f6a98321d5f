//! The name servers that the guest's resolver asks.

use std::net::UdpSocket;

/// Another name server for the guest, until this goes.
pub struct NameServer(String);

impl NameServer {
    const RESOLVERS: &str = "/run/resolv.conf";

    /// Has the guest's resolver ask this address.
    pub fn set(address: &str) -> Self {
        let before = std::fs::read_to_string(Self::RESOLVERS).unwrap();
        std::fs::write(Self::RESOLVERS, format!("nameserver {address}\n")).unwrap();
        Self(before)
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        std::fs::write(Self::RESOLVERS, &self.0).unwrap();
    }
}

/// Answers each question of the DNS, from now on, that there is no such name.
pub fn no_such_name(address: &str) {
    let socket = UdpSocket::bind(address).unwrap();
    std::thread::spawn(move || {
        let mut query = [0; 512];
        while let Ok((length, client)) = socket.recv_from(&mut query) {
            let mut reply = query[..length].to_vec();
            (reply[2], reply[3]) = (0x81, 0x83);
            // Nothing but the question is in it.
            reply[6..12].fill(0);
            let _ = socket.send_to(&reply, client);
        }
    });
}

/// Types of records (RFC 1035): an IPv4 address, and the name that an address leads back to.
pub const A: u16 = 1;
pub const PTR: u16 = 12;

/// A record's type and data.
pub type Record = (u16, &'static [u8]);

/// Answers each question of the DNS with the record of its type, whatever the name; with none where there is none of that
/// type.
pub fn answering(address: &str, records: &'static [Record]) {
    let socket = UdpSocket::bind(address).unwrap();
    std::thread::spawn(move || {
        let mut query = [0; 512];
        while let Ok((length, client)) = socket.recv_from(&mut query) {
            // The question is a name (labels up to an empty one), a type and a class.
            let name = query[12..length].iter().position(|&byte| byte == 0).unwrap();
            let question = &query[12..12 + name + 5];
            let kind = u16::from_be_bytes([question[name + 1], question[name + 2]]);
            let data = records.iter().find(|(of, _)| *of == kind).map(|(_, data)| *data);
            let record = data.map(|data| {
                let [high, low] = kind.to_be_bytes();
                let length = u8::try_from(data.len()).unwrap();
                [&[0xc0, 12, high, low, 0, 1, 0, 0, 0, 1, 0, length][..], data].concat()
            });
            let head = [query[0], query[1], 0x81, 0x80, 0, 1, 0, u8::from(record.is_some()), 0, 0, 0, 0];
            let reply = [&head[..], question, record.as_deref().unwrap_or_default()].concat();
            let _ = socket.send_to(&reply, client);
        }
    });
}
