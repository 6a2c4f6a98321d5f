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
