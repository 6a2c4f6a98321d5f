//! NFS clients of the guest's server (test/guest/servers.sh): drivers in different ones share no cache, as on different
//! hosts.

use std::path::PathBuf;
use std::process::Command;

pub const A: Client = Client("a");
pub const B: Client = Client("b");
pub const C: Client = Client("c");
/// The guest's server, as every client reaches it.
pub const SERVER: &str = "10.0.99.1";

/// A host of its own, as far as NFS sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client(&'static str);

/// What is near again when this goes.
pub enum Far {
    Client(Client),
    Outside,
}

/// Makes all that the guest itself sends to what is outside take so long.
pub fn move_outside_away(milliseconds: u32) -> Far {
    run(Command::new("tc"), &format!("qdisc replace dev eth0 root netem delay {milliseconds}ms limit 100000"));
    Far::Outside
}

fn run(mut program: Command, arguments: &str) {
    let status = program.args(arguments.split_whitespace()).status();
    assert!(status.expect("a program").success(), "{arguments}");
}

impl Client {
    /// A command that will run there; its process is the command's own.
    pub fn enter(self) -> Command {
        let namespaces = PathBuf::from("/proc").join(self.pid()).join("ns");
        let mut command = Command::new("nsenter");
        for kind in ["net", "uts"] {
            command.arg(format!("--{kind}={}", namespaces.join(kind).display()));
        }
        command
    }

    /// Makes all that it sends take so long.
    pub fn move_away(self, milliseconds: u32) -> Far {
        self.run(&format!("tc qdisc replace dev server root netem delay {milliseconds}ms limit 100000"));
        Far::Client(self)
    }

    /// The names of the servers that its kernel is connected to.
    pub fn servers(self) -> Vec<String> {
        let path = PathBuf::from("/proc").join(self.pid()).join("net/nfsfs/servers");
        let table = std::fs::read_to_string(path).expect("the servers of a client");
        table.lines().skip(1).filter_map(|line| line.split_whitespace().last()).map(str::to_owned).collect()
    }

    fn pid(self) -> String {
        let pid = std::fs::read_to_string(format!("/run/client-{}.pid", self.0)).expect("the client's process");
        pid.trim().to_owned()
    }

    fn run(self, command: &str) {
        run(self.enter(), command);
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        match self {
            Self::Client(client) => client.run("tc qdisc del dev server root"),
            Self::Outside => run(Command::new("tc"), "qdisc del dev eth0 root"),
        }
    }
}
