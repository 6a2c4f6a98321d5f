//! The driver under test: the binary that `$E2E_DRIVER` names, run as a process.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use nfs_csi::proto::controller_client::ControllerClient;
use nfs_csi::proto::identity_client::IdentityClient;
use nfs_csi::proto::node_client::NodeClient;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use super::client::Client;
use super::wait_for;

/// A running driver; killed when dropped.
pub struct Driver {
    process: Child,
    socket: PathBuf,
    log: PathBuf,
}

/// The binary under test.
pub fn binary() -> OsString {
    std::env::var_os("E2E_DRIVER").expect("E2E_DRIVER names the driver's binary: run the tests with `make integration`")
}

impl Driver {
    /// Starts `nfs-csi all` with its socket, state and log in `folder`, and waits until it listens.
    pub fn start(folder: &Path, flags: &[&str]) -> Self {
        Self::start_as("all", folder, flags)
    }

    /// Starts a command of the driver; the socket's folder is also where exports are mounted.
    pub fn start_as(command: &str, folder: &Path, flags: &[&str]) -> Self {
        Self::start_by(Command::new(binary()), command, folder, flags)
    }

    /// Starts `nfs-csi all` in a mount table of its own that hands its mounts on to this process's, as a container with
    /// bidirectional propagation does.
    pub fn start_apart(folder: &Path, flags: &[&str]) -> Self {
        let mut program = Command::new("unshare");
        program.args(["--mount", "--propagation", "unchanged"]).arg(binary());
        Self::start_by(program, "all", folder, flags)
    }

    /// Starts `nfs-csi controller` in a client of its own.
    pub fn start_in(client: Client, folder: &Path, flags: &[&str]) -> Self {
        let mut program = client.enter();
        program.arg(binary());
        Self::start_by(program, "controller", folder, flags)
    }

    /// Starts a command of the driver by way of another program, which becomes the driver.
    pub fn start_by(mut program: Command, command: &str, folder: &Path, flags: &[&str]) -> Self {
        program
            .arg(command)
            .arg(format!("--endpoint=unix://{}", folder.join("csi.sock").display()))
            .arg("--node-id=guest")
            .arg(format!("--working-mount-dir={}", folder.display()))
            .args(flags);
        Self::spawn(program, folder)
    }

    /// Starts a program that becomes the driver, and waits until it listens on `csi.sock` in `folder`.
    pub fn spawn(mut program: Command, folder: &Path) -> Self {
        let socket = folder.join("csi.sock");
        let log = folder.join("driver.log");
        let output = File::options().create(true).append(true).open(&log).expect("a log file");
        let process =
            program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output).spawn().expect("the driver starts");
        let driver = Self { process, socket, log };
        wait_for("the driver to listen", Duration::from_secs(30), || {
            std::os::unix::net::UnixStream::connect(&driver.socket).ok()
        });
        driver
    }

    /// A connection to the driver.
    pub async fn channel(&self) -> Channel {
        connect(&self.socket).await.expect("a connection to the driver")
    }

    pub async fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel().await)
    }

    pub async fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel().await)
    }

    pub async fn identity(&self) -> IdentityClient<Channel> {
        IdentityClient::new(self.channel().await)
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The process ids of its workers.
    pub fn workers(&self) -> Vec<u32> {
        workers(self.pid())
    }

    /// Resident memory of the driver and its workers, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        resident_bytes(self.pid())
    }

    /// The most that was resident of the driver and its workers since each began, in bytes.
    pub fn most_resident_bytes(&self) -> u64 {
        memory(self.pid(), "VmHWM:")
    }

    /// Its threads that wait in the kernel and cannot be interrupted.
    pub fn waiting_threads(&self) -> usize {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("the driver runs").flatten();
        let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
        stats.filter(|stat| is_waiting(stat)).count()
    }

    /// Where in the kernel its threads are that wait there.
    fn stacks(&self) -> String {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).into_iter().flatten().flatten();
        let read = |task: &std::fs::DirEntry, name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let waiting = tasks.filter(|task| is_waiting(&read(task, "stat")));
        let stack = |task| format!("--- a thread waits ({})\n{}", read(&task, "comm").trim(), read(&task, "stack"));
        waiting.map(stack).collect::<Vec<_>>().concat()
    }

    /// What it logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Ends it by SIGTERM and waits; the clients of this process answer it meanwhile.
    pub async fn stop(mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.wait().await
    }

    /// Ends it by SIGKILL and waits.
    pub async fn kill(mut self) {
        self.signal(Signal::SIGKILL);
        self.wait().await;
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.process.id()).expect("a process id");
        kill(Pid::from_raw(pid), signal).expect("the driver runs");
    }

    pub async fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + Duration::from_mins(1);
        loop {
            if let Some(status) = self.process.try_wait().expect("the driver is ours") {
                return status;
            }
            assert!(Instant::now() < end, "the driver did not end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprint!("{}", self.stacks());
        }
        if self.process.try_wait().ok().flatten().is_none() {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- the driver's log\n{}---", self.log());
        }
    }
}

/// Whether a thread waits in the kernel and cannot be interrupted, from its `stat`.
fn is_waiting(stat: &str) -> bool {
    // The state follows the name, which is in parentheses.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('D'))
}

fn workers(driver: u32) -> Vec<u32> {
    let is_child = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name, in parentheses, may hold anything; state and parent follow it.
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse::<u32>().ok());
        parent == Some(driver)
    };
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_child).collect()
}

/// Resident memory of a driver and its workers, in bytes.
pub fn resident_bytes(driver: u32) -> u64 {
    memory(driver, "VmRSS:")
}

/// What /proc/PID/status tells of the memory of a driver and its workers, in bytes.
fn memory(driver: u32, what: &str) -> u64 {
    let of_process = |pid: u32| -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with(what));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0) * 1024
    };
    workers(driver).into_iter().map(of_process).sum::<u64>() + of_process(driver)
}

/// Connects to a driver's unix socket.
pub async fn connect(socket: &Path) -> Result<Channel, tonic::transport::Error> {
    let socket = socket.to_owned();
    let connector = service_fn(move |_| {
        let socket = socket.clone();
        async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://localhost").connect_with_connector(connector).await
}

/// Runs the driver with these arguments until it ends; gives its status and what it wrote to standard error.
pub fn run(arguments: &[&str]) -> (ExitStatus, String) {
    let output = Command::new(binary()).args(arguments).stdin(Stdio::null()).output().expect("the driver starts");
    (output.status, String::from_utf8_lossy(&output.stderr).into_owned())
}
