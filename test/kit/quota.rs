//! Exports with quotas: a disk of the guest's server, an agent that works there, and what a driver does with its files,
//! over NFS.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nfs_csi::quota::ids::IdRange;
use nfs_csi::quota::quotactl::{Disk, Kernel, Quota};
use nfs_csi::volume::quota_files::{Applied, FORMAT, ProjectId, Refused, Wanted};
use nfs_csi::volume::record_key::RecordKey;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::driver::binary;
use super::{names_in, wait_for};

/// An XFS disk with limits of projects.
pub const XFS: &str = "/run/exports/quota-xfs";
/// An ext4 disk with limits of projects.
pub const EXT4: &str = "/run/exports/quota-ext4";
/// How long things may take on a machine that is busy.
pub const DEADLINE: Duration = Duration::from_mins(2);
/// How many directories an agent has ready.
pub const READY: usize = 8;
/// How many ids each test has.
const IDS: u32 = 1000;

/// A directory of a disk that is an export of its own for one test, and its mount over NFS.
pub struct Export {
    directory: tempfile::TempDir,
    mounted: tempfile::TempDir,
    pub ids: IdRange,
    disk: Disk,
}

impl Export {
    pub fn on(disk: &str) -> Self {
        Self::on_with(disk, IDS)
    }

    /// The same with so many ids.
    pub fn on_with(disk: &str, ids: u32) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1_000_000);
        let directory = tempfile::Builder::new().prefix("quota-").tempdir_in(disk).expect("a folder on the disk");
        let mounted = tempfile::tempdir().expect("a folder");
        let source = format!("127.0.0.1:{}", directory.path().display());
        let data = Some("vers=4.2,addr=127.0.0.1,actimeo=0");
        mount(Some(source.as_str()), mounted.path(), Some("nfs4"), MsFlags::empty(), data).expect("a mount");
        let first = NEXT.fetch_add(ids, Ordering::Relaxed);
        let ids = format!("{first}-{}", first + ids - 1).parse().expect("a range");
        let disk = Disk::of(File::open(disk).expect("the disk").into());
        Self { directory, mounted, ids, disk }
    }

    /// The export on the server's disk.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A path on the server's disk.
    pub fn on_disk(&self, path: &str) -> PathBuf {
        self.path().join(path)
    }

    /// A path over NFS.
    pub fn over_nfs(&self, path: &str) -> PathBuf {
        self.mounted.path().join(path)
    }

    /// A path of the protocol over NFS.
    pub fn quota_path(&self, path: &str) -> PathBuf {
        self.over_nfs(".nfs-csi/quota").join(path)
    }

    /// The projects that have a name in a folder of the protocol, on the server's disk.
    pub fn projects(&self, folder: &str) -> Vec<ProjectId> {
        let names = names_in(&self.on_disk(".nfs-csi/quota").join(folder));
        names.iter().filter_map(|name| ProjectId::parse(name)).collect()
    }

    /// The projects whose directory can be claimed.
    pub fn ready(&self) -> Vec<ProjectId> {
        let limited = self.projects("applied");
        self.projects("ready").into_iter().filter(|id| !limited.contains(id)).collect()
    }

    /// The projects whose directory has its limit, and that no driver has taken.
    pub fn unclaimed(&self) -> Vec<ProjectId> {
        let limited = self.projects("applied");
        self.projects("ready").into_iter().filter(|id| limited.contains(id)).collect()
    }

    /// What the kernel knows of a project.
    pub fn kernel(&self, id: ProjectId) -> Quota {
        self.disk.quota(id).expect("the kernel's quotas")
    }

    /// Sets a limit past the agent.
    pub fn set_limit(&self, id: ProjectId, bytes: u64) {
        let limit = nfs_csi::quota::quotactl::Limit { bytes, inodes: 0 };
        self.disk.set_limit(id, limit).expect("the kernel's quotas");
    }

    /// Makes a directory that belongs to a project, past the agent.
    pub fn assigned(&self, path: &str, id: ProjectId) -> PathBuf {
        let path = self.on_disk(path);
        std::fs::create_dir(&path).expect("a directory");
        self.disk.assign(&File::open(&path).expect("a directory").into(), id).expect("a project");
        path
    }

    /// The project of a directory on the server's disk.
    pub fn project_of(&self, path: &Path) -> Option<ProjectId> {
        self.disk.project_of(&File::open(path).expect("a directory").into()).expect("its project")
    }

    /// An id of this test's range.
    pub fn id(&self, at: u32) -> ProjectId {
        ProjectId::new(self.ids.first.get() + at).expect("an id")
    }

    /// Replaces what is wanted, as a driver does.
    pub fn want(&self, id: ProjectId, wanted: &Wanted) {
        let new = self.quota_path(&format!("wanted/.driver-{id}"));
        symlink(serde_json::to_string(wanted).expect("a text"), &new).expect("a link");
        std::fs::rename(new, self.quota_path(&format!("wanted/{id}"))).expect("a link");
    }

    pub fn applied(&self, id: ProjectId) -> Option<Applied> {
        text(&self.quota_path(&format!("applied/{id}")))
    }

    pub fn refused(&self, id: ProjectId) -> Option<Refused> {
        text(&self.quota_path(&format!("refused/{id}")))
    }

    /// Claims a directory, as a driver does, without waiting for its limit; none where none is ready.
    pub fn try_claim(&self, wanted: &Wanted) -> Option<ProjectId> {
        let text = serde_json::to_string(wanted).expect("a text");
        let names = names_in(&self.quota_path("ready"));
        names.iter().filter_map(|name| ProjectId::parse(name)).find(|id| {
            match symlink(&text, self.quota_path(&format!("wanted/{id}"))) {
                Ok(()) => true,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
                Err(error) => panic!("{error}"),
            }
        })
    }

    /// Moves a project's directory from `ready/` to its place, if the server shows that it has this limit.
    pub fn try_take(&self, id: ProjectId, bytes: u64, name: &str) -> bool {
        let directory = self.quota_path(&format!("ready/{id}"));
        let shown = nix::sys::statvfs::statvfs(&directory).map(|shown| shown.blocks() * shown.fragment_size());
        shown.is_ok_and(|shown| shown >= bytes) && std::fs::rename(directory, self.over_nfs(name)).is_ok()
    }

    /// Claims a directory and takes it to its place; gives its id.
    pub fn claim(&self, name: &str, wanted: &Wanted) -> ProjectId {
        let id = wait_for("a directory to be ready", DEADLINE, || self.try_claim(wanted));
        wait_for("the limit to be in force", DEADLINE, || {
            assert!(self.refused(id).is_none(), "{:?}", self.refused(id));
            let is_applied = self.applied(id).is_some_and(|applied| applied.generation >= wanted.generation);
            (is_applied && self.try_take(id, wanted.bytes, name)).then_some(())
        });
        id
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        umount2(self.mounted.path(), MntFlags::MNT_DETACH).expect("a mount of this test");
    }
}

fn text<T: serde::de::DeserializeOwned>(link: &Path) -> Option<T> {
    serde_json::from_slice(std::fs::read_link(link).ok()?.as_os_str().as_encoded_bytes()).ok()
}

pub fn wanted(volume: &str, generation: u64, bytes: u64, inodes: u64) -> Wanted {
    let (volume, claim) = (RecordKey::of(volume), format!("claim of {volume}"));
    Wanted { format: FORMAT, generation, bytes, inodes, mode: None, volume, claim }
}

/// Writes so many bytes to a new file as a user, to the server's disk; gives whether there was space, and what was said.
pub fn write_as(uid: u32, file: &Path, kibibytes: u64) -> (bool, String) {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".into(), "dd".into()]);
    command.args(["if=/dev/zero", "bs=64K", "conv=fsync", &format!("count={}", kibibytes / 64)]);
    let output = command.arg(format!("of={}", file.display())).stdin(Stdio::null()).output().expect("dd");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A running agent; killed when dropped.
pub struct Agent {
    process: Child,
    log: PathBuf,
}

impl Agent {
    /// Starts the agent for an export, and waits until all its directories are there.
    pub fn start(export: &Export, flags: &[&str]) -> Self {
        let agent = Self::spawn(export, flags);
        wait_for("the directories to be ready", DEADLINE, || (export.ready().len() >= READY).then_some(()));
        agent
    }

    /// Starts the agent for an export. Its log is beside the mount of the export.
    pub fn spawn(export: &Export, flags: &[&str]) -> Self {
        let ids = format!("--ids={}-{}", export.ids.first, export.ids.last);
        let path = format!("--export={}", export.path().display());
        let ready = format!("--ready={READY}");
        Self::run(&[&[path.as_str(), &ids, &ready, "--usage-interval=1s"], flags].concat())
    }

    /// Starts the agent with these flags.
    pub fn run(flags: &[&str]) -> Self {
        let (file, log) = tempfile::NamedTempFile::new().expect("a log file").keep().expect("a log file");
        let mut command = Command::new(binary());
        command.arg("quota").args(flags).stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        Self { process: command.spawn().expect("the agent starts"), log }
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn is_running(&mut self) -> bool {
        self.process.try_wait().expect("the agent is ours").is_none()
    }

    /// Ends it by SIGKILL and waits.
    pub fn kill(mut self) {
        self.process.kill().expect("the agent runs");
        self.process.wait().expect("the agent is ours");
    }

    /// Ends it by SIGTERM and waits.
    pub fn stop(mut self) -> ExitStatus {
        let pid = i32::try_from(self.process.id()).expect("a process id");
        kill(Pid::from_raw(pid), Signal::SIGTERM).expect("the agent runs");
        self.wait()
    }

    pub fn wait(&mut self) -> ExitStatus {
        wait_for("the agent to end", DEADLINE, || self.process.try_wait().expect("the agent is ours"))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if self.is_running() {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- the agent's log\n{}---", self.log());
        }
        let _ = std::fs::remove_file(&self.log);
    }
}
