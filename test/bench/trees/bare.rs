//! What trees are handled with otherwise: cp, tar and rm on a mount of the same share, and the bare copy of a file.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What is enough for a processor that was idle.
const WARM: Duration = Duration::from_millis(1500);

/// Forgets what is cached, on the clients and on the servers: all share one kernel. What was written is on the disks
/// before.
pub fn forget() {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
}

/// Lets the processor run for a while: one that was idle is slow at first on some virtual machines, and every
/// measurement is to begin with the same one.
pub fn warm_up() {
    let begun = Instant::now();
    while begun.elapsed() < WARM {}
}

/// Begins a measurement: nothing cached, and the processor awake.
pub fn begin() -> Instant {
    forget();
    warm_up();
    Instant::now()
}

/// Runs a program in a folder with nothing cached; how long it takes.
pub fn run(folder: &Path, program: &str, arguments: &[&str]) -> Duration {
    let begun = begin();
    let status = Command::new(program).args(arguments).current_dir(folder).stdin(Stdio::null()).status().unwrap();
    assert!(status.success(), "{program} {arguments:?}: {status}");
    begun.elapsed()
}

/// Copies what is in `from` to `to`, a new directory.
pub fn copy(folder: &Path, from: &str, to: &str) -> Duration {
    run(folder, "cp", &["-a", "--reflink=auto", from, to])
}

pub fn remove(folder: &Path, name: &str) -> Duration {
    run(folder, "rm", &["-rf", name])
}

/// Archives a directory into a file on the same mount, with zstd if it is asked for.
pub fn archive(folder: &Path, from: &str, to: &str, with_zstd: bool) -> Duration {
    let how: &[&str] = if with_zstd { &["--zstd", "-cf"] } else { &["-cf"] };
    run(folder, "tar", &[how, &[to, "-C", from, "."]].concat())
}

/// Unpacks an archive into a new directory.
pub fn unpack(folder: &Path, archive: &str, to: &str) -> Duration {
    std::fs::create_dir(folder.join(to)).unwrap();
    run(folder, "tar", &["-xf", archive, "-C", to])
}

pub fn has_zstd() -> bool {
    Command::new("zstd").arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// copy_file_range(2) of a whole file to a new one, and fsync(2): what a copy by the server costs without anything
/// else.
pub fn copy_range(from: &Path, to: &Path) -> Duration {
    let begun = begin();
    let (from, to) = (File::open(from).unwrap(), File::create_new(to).unwrap());
    let mut left = usize::try_from(from.metadata().unwrap().len()).unwrap();
    while left > 0 {
        let copied = rustix::fs::copy_file_range(&from, None, &to, None, left).unwrap();
        assert!(copied > 0, "the file became shorter");
        left -= copied;
    }
    to.sync_all().unwrap();
    begun.elapsed()
}
