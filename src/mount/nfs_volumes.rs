//! The file systems of NFS servers that the kernel holds, mounted or not, as `/proc/fs/nfsfs/volumes` lists them for
//! this network namespace: `NV SERVER PORT DEV FSID FSC`.

use std::io;

use nix::sys::stat::{dev_t, major, minor};

const VOLUMES: &str = "/proc/fs/nfsfs/volumes";

/// The list as it was read.
#[derive(Debug, Default)]
pub(super) struct NfsVolumes(Vec<NfsVolume>);

#[derive(Debug)]
struct NfsVolume {
    /// The number that mounts of it have.
    device: String,
    /// The protocol, the server's address and port, and the file system's number there.
    identity: [String; 4],
}

impl NfsVolumes {
    /// Reads the list, for which no server is asked.
    pub(super) fn read() -> io::Result<Self> {
        std::fs::read_to_string(VOLUMES).map(|text| Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let volume = |line: &str| {
            let mut words = line.split_whitespace().map(str::to_owned);
            let [version, server, port, device, number] = [(); 5].map(|()| words.next());
            Some(NfsVolume { device: device?, identity: [version?, server?, port?, number?] })
        };
        // The first line names the columns.
        Self(text.lines().skip(1).filter_map(volume).collect())
    }

    /// Whether the kernel holds the file system of a device.
    pub(super) fn has(&self, (major, minor): (u32, u32)) -> bool {
        self.of(&format!("{major}:{minor}")).is_some()
    }

    /// Whether two devices are the same file system of a server. Mounts that share no cache have a device each.
    pub(super) fn are_the_same(&self, one: dev_t, other: dev_t) -> bool {
        let of = |device| self.of(&format!("{}:{}", major(device), minor(device))).map(|volume| &volume.identity);
        of(one).is_some() && of(one) == of(other)
    }

    fn of(&self, device: &str) -> Option<&NfsVolume> {
        self.0.iter().find(|volume| volume.device == device)
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::makedev;

    use super::*;

    const TEXT: &str = "NV SERVER   PORT DEV          FSID                              FSC
v3 0a006301  801 0:40         6d1f2a1b:0                        no
v3 0a006301  801 0:41         6d1f2a1b:0                        no
v3 0a006301  801 0:42         1:0                               no
v4 0a006301  801 0:43         1:0                               no
";

    #[test]
    fn a_file_system_is_known_by_its_server_and_its_number_there() {
        let volumes = NfsVolumes::parse(TEXT);
        let are_the_same = |one, other| volumes.are_the_same(makedev(0, one), makedev(0, other));
        assert!(are_the_same(40, 41) && are_the_same(42, 42));
        assert!(!are_the_same(40, 42) && !are_the_same(42, 43) && !are_the_same(40, 7) && !are_the_same(7, 7));
        assert!(volumes.has((0, 43)) && !volumes.has((0, 4)) && !volumes.has((0, 7)));
    }
}
