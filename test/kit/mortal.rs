//! NFS servers of their own (test/guest/servers.sh), which can die or be far away.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::wait_for;

/// The server that dies, with its share `/`.
pub const MORTAL: Server = Server { name: "mortal", address: "10.0.11.1" };
/// Another one, which lives on.
pub const OTHER: Server = Server { name: "other", address: "10.0.12.1" };

#[derive(Clone, Copy)]
pub struct Server {
    name: &'static str,
    pub address: &'static str,
}

/// A server that is as it was again when this goes.
pub struct Changed {
    server: Server,
    back: String,
}

impl Server {
    /// A further one that the tests' job has started.
    pub const fn named(name: &'static str, address: &'static str) -> Self {
        Self { name, address }
    }

    /// A path on the server's own disk.
    pub fn on_disk(self, path: &str) -> PathBuf {
        PathBuf::from(format!("/run/servers/{}", self.name)).join(path)
    }

    /// The parameters of a volume on it.
    pub fn parameters(self) -> [(&'static str, &'static str); 2] {
        [("server", self.address), ("share", "/")]
    }

    /// Drops its packets from now on, of connections that stand too.
    pub fn die(self) -> Changed {
        self.run("iptables-legacy -A INPUT -p tcp -j DROP");
        Changed { server: self, back: "iptables-legacy -F INPUT".into() }
    }

    /// Makes its answers take so long.
    pub fn move_away(self, milliseconds: u32) -> Changed {
        let interface = format!("s-{}", self.name);
        self.run(&format!("tc qdisc add dev {interface} root netem delay {milliseconds}ms"));
        Changed { server: self, back: format!("tc qdisc del dev {interface} root") }
    }

    /// Waits until the server takes files to open and locks, some seconds after its start.
    pub fn wait_for_end_of_grace(self) {
        let state = format!("/proc/{}/root/proc/fs/nfsd/v4_end_grace", self.pid());
        wait_for("the end of a server's grace period", Duration::from_mins(2), || {
            std::fs::read_to_string(&state).is_ok_and(|state| state.starts_with('Y')).then_some(())
        });
    }

    /// Runs a command where the server lives.
    pub fn run(self, command: &str) {
        let words = command.split_whitespace();
        let status = Command::new("nsenter").args(["-t", &self.pid(), "-m", "-n", "-u"]).args(words).status();
        assert!(status.expect("nsenter").success(), "{command}");
    }

    fn pid(self) -> String {
        let pid = std::fs::read_to_string(format!("/run/server-{}.pid", self.name)).expect("the server's process");
        pid.trim().to_owned()
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        self.server.run(&self.back);
    }
}
