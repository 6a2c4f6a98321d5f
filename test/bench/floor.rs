//! The bare system calls: what nobody can be faster than.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, umount2};

use crate::kit::client::Client;

/// The kernel's data for a mount of this version from this server.
fn data(version: &str, server: &str) -> String {
    match version {
        "3" => format!("vers=3,addr={server},nolock,proto=tcp,port=2049,mountproto=tcp,mountvers=3,mountport=20048"),
        _ => format!("vers={version},addr={server}"),
    }
}

/// RPC NULL to the server, then a mount; RPC NULL, then the unmount: how long each pair takes.
pub fn mount(server: &str, path: &str, target: &Path, version: &str) -> [Duration; 2] {
    std::fs::create_dir_all(target).unwrap();
    let fs_type = if version == "3" { "nfs" } else { "nfs4" };
    let (source, data) = (format!("{server}:{path}"), data(version, server));
    let begun = Instant::now();
    null(server);
    nix::mount::mount(Some(source.as_str()), target, Some(fs_type), MsFlags::empty(), Some(data.as_str())).unwrap();
    let mounted = begun.elapsed();
    std::thread::sleep(Duration::from_millis(30));
    let begun = Instant::now();
    null(server);
    umount2(target, MntFlags::UMOUNT_NOFOLLOW).unwrap();
    [mounted, begun.elapsed()]
}

/// One RPC NULL of the NFS program over a connection of its own.
fn null(server: &str) {
    let mut stream = TcpStream::connect((server, 2049)).unwrap();
    stream.set_nodelay(true).unwrap();
    let words: [u32; 11] = [0x8000_0028, 7, 0, 2, 100_003, 4, 0, 0, 0, 0, 0];
    stream.write_all(&words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>()).unwrap();
    let mut reply = [0; 28];
    stream.read_exact(&mut reply).unwrap();
}

/// A mount of a share for bare calls, with a superblock that no other mount shares.
pub struct Share {
    path: PathBuf,
}

impl Share {
    pub fn mount(server: &str, share: &str, path: PathBuf) -> Self {
        std::fs::create_dir_all(&path).unwrap();
        let data = format!("{},nosharecache", data("4.2", server));
        let source = format!("{server}:{share}");
        nix::mount::mount(Some(source.as_str()), &path, Some("nfs4"), MsFlags::empty(), Some(data.as_str()))
            .unwrap_or_else(|errno| panic!("mount {source} on {} with {data}: {errno}", path.display()));
        Self { path }
    }

    /// The same by another client than this process, with any version of NFS.
    pub fn mount_in(client: Client, server: &str, share: &str, path: PathBuf, version: &str) -> Self {
        std::fs::create_dir_all(&path).unwrap();
        let fs_type = if version == "3" { "nfs" } else { "nfs4" };
        let data = format!("{},nosharecache", data(version, server));
        // Without mount.nfs (-i): all that the kernel needs is in the data.
        let mut mount = client.enter();
        mount.args(["mount", "-i", "-t", fs_type, "-o", &data]).arg(format!("{server}:{share}")).arg(&path);
        let status = mount.status().unwrap();
        assert!(status.success(), "{mount:?}: {status}");
        Self { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// mkdir and chmod, then rename into another folder, of `count` directories by as many threads at once: the rates
    /// a second of both.
    pub fn rates(&self, count: usize, threads: usize) -> [f64; 2] {
        let trash = self.path.join(".bench-trash");
        std::fs::create_dir_all(&trash).unwrap();
        let made = rate(count, threads, |number| {
            let path = self.path.join(format!("bench-{number}"));
            std::fs::create_dir(&path).unwrap();
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        });
        let renamed = rate(count, threads, |number| {
            std::fs::rename(self.path.join(format!("bench-{number}")), trash.join(number.to_string())).unwrap();
        });
        std::fs::remove_dir_all(&trash).unwrap();
        [made, renamed]
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let _ = umount2(&self.path, MntFlags::MNT_DETACH);
    }
}

fn rate(count: usize, threads: usize, work: impl Fn(usize) + Sync) -> f64 {
    let next = AtomicUsize::new(0);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    work(number);
                }
            });
        }
    });
    count as f64 / begun.elapsed().as_secs_f64()
}

/// Operations on a server, by their names, as its kernel counts them: each is a round trip.
#[derive(Clone, Debug, Default)]
pub struct Operations(BTreeMap<String, u64>);

impl Operations {
    /// Those so far on the mounts below a folder, from the mounts' own statistics.
    pub fn so_far(folder: &Path) -> Self {
        let text = std::fs::read_to_string("/proc/self/mountstats").unwrap();
        let mut counted = false;
        let mut operations = false;
        let mut counts = BTreeMap::new();
        for line in text.lines() {
            if let Some(device) = line.strip_prefix("device ") {
                counted =
                    device.contains(&format!(" mounted on {}/", folder.display())) && device.contains("fstype nfs");
                operations = false;
            } else if line.trim_start().starts_with("per-op statistics") {
                operations = true;
            } else if counted
                && operations
                // `NAME: operations transmissions …`
                && let Some((name, figures)) = line.split_once(':')
                && let Some(count) = figures.split_whitespace().next().and_then(|count| count.parse::<u64>().ok())
            {
                *counts.entry(name.trim().to_owned()).or_default() += count;
            }
        }
        Self(counts)
    }

    /// Those since an earlier count.
    pub fn since(mut self, earlier: &Self) -> Self {
        for (name, count) in &mut self.0 {
            *count -= earlier.of(name);
        }
        self.0.retain(|_, count| *count > 0);
        self
    }

    pub fn of(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    pub fn sum(&self) -> u64 {
        self.0.values().sum()
    }
}

impl fmt::Display for Operations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<String> = self.0.iter().map(|(name, count)| format!("{name} {count}")).collect();
        f.write_str(&counts.join(", "))
    }
}

/// Round trips to the server so far on the mounts below a folder.
pub fn round_trips(folder: &Path) -> u64 {
    Operations::so_far(folder).sum()
}
