//! Four million files with two names each, copied, archived and unpacked on this machine's own disk by the driver's own
//! code: in the guest it would take hours. What counts is the memory, which does not depend on the file system.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;

use nfs_csi::tree::archive::{self, Limits};
use nfs_csi::tree::copy::{self, FileSystem, FileSystems, Links, Place};
use nfs_csi::tree::effort::Effort;
use nfs_csi::tree::{Progress, SourceKind};

use crate::report::Report;

const FILES: usize = 4_000_000;
const DIRECTORIES: usize = 40;
/// The largest resident memory, in bytes.
const MEMORY: f64 = 64e6;

pub fn two_each(report: &mut Report) {
    // On a disk: two trees of so many entries fit no memory.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let [source, clone, staging] = ["source", "clone", "staging"].map(|name| folder.path().join(name));
    for directory in [&source, &clone, &staging] {
        fs::create_dir(directory).unwrap();
    }
    make(&source);
    let progress = Progress::default();
    measured(report, "clone", || {
        let [source, target, staging] = [&source, &clone, &staging].map(|path| File::open(path).unwrap());
        let links = Links::new(staging.as_fd(), c"links");
        let place = Place { directory: target.as_fd(), space: target.as_fd(), links, earlier: None, own: None };
        let local = FileSystem::default();
        let file_systems = FileSystems { source: &local, target: &local };
        copy::tree(&source, SourceKind::Live, place, file_systems, &Effort::default(), &progress).unwrap();
    });
    fs::remove_dir_all(&clone).unwrap();
    fs::create_dir(&clone).unwrap();
    let archived = folder.path().join("data.tar.zst");
    measured(report, "snapshot as tar.zst", || {
        let [source, output] = [File::open(&source), File::create_new(&archived)].map(Result::unwrap);
        archive::write(&source, None, &output, &progress).unwrap();
    });
    fs::remove_dir_all(&source).unwrap();
    measured(report, "restore of tar.zst", || {
        let [archive, target] = [&archived, &clone].map(|path| File::open(path).unwrap());
        archive::read(archive, &target, Limits::default(), &progress).unwrap();
    });
}

/// All first names come before all second ones.
fn make(source: &Path) {
    thread::scope(|scope| {
        for directory in 0..DIRECTORIES {
            let [first, second] = ["first", "second"].map(|part| source.join(format!("{part}-{directory:02}")));
            fs::create_dir(&first).unwrap();
            fs::create_dir(&second).unwrap();
            scope.spawn(move || {
                for number in 0..FILES / DIRECTORIES {
                    let name = format!("{number:040}");
                    File::create_new(first.join(&name)).unwrap();
                    fs::hard_link(first.join(&name), second.join(&name)).unwrap();
                }
            });
        }
    });
}

/// The memory that this process takes at most meanwhile.
fn measured(report: &mut Report, what: &str, work: impl FnOnce()) {
    // Sets back what is remembered of it (proc(5)).
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let begun = std::time::Instant::now();
    work();
    let seconds = begun.elapsed().as_secs_f64();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kilobytes: f64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    let of = "4,000,000 files with two names each";
    report.at_most(&format!("{what}, {of}, resident"), "MB", kilobytes * 1024.0 / 1e6, MEMORY / 1e6);
    report.at_most(&format!("{what}, {of}"), "s", seconds, f64::INFINITY);
}
