//! The two drivers that are compared, each started as its own Helm chart starts it.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nfs_csi::proto::GetPluginInfoRequest;
use nfs_csi::proto::controller_client::ControllerClient;
use nfs_csi::proto::identity_client::IdentityClient;
use nfs_csi::proto::node_client::NodeClient;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::kit::driver::{binary, connect, resident_bytes};
use crate::kit::wait_for;

/// The longest that an answer is waited for.
pub const DEADLINE: Duration = Duration::from_mins(3);
/// Where the drivers mount for themselves; the job makes it.
const PRIVATE: &str = "/run/private";
/// Where sockets, logs, the kubelet's directory and target paths are.
const SHARED: &str = "/run/compare";

/// The result of a call, or its error in words.
pub type Answer<T> = Result<T, String>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Own,
    Peer,
}

/// A driver of the comparison.
#[derive(Debug)]
pub struct Candidate {
    kind: Kind,
    pub program: PathBuf,
}

/// A service of a driver, as a process; killed with all that it started when dropped.
pub struct Process {
    child: Child,
    socket: PathBuf,
}

impl Candidate {
    /// The peer and this project's driver, in the order of the table's columns.
    pub fn both() -> [Self; 2] {
        let peer = std::env::var_os("E2E_PEER").expect("E2E_PEER names the other driver's binary: run `make compare`");
        [Self { kind: Kind::Peer, program: peer.into() }, Self { kind: Kind::Own, program: binary().into() }]
    }

    /// A name that nothing had before: the peer answers a second delete of one id without looking, for some minutes.
    pub fn unique(&self, what: &str) -> String {
        static NAMED: AtomicUsize = AtomicUsize::new(0);
        format!("pvc-{}-{what}-{}", self.name(), NAMED.fetch_add(1, Ordering::Relaxed))
    }

    /// For the names of folders.
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Own => "own",
            Kind::Peer => "peer",
        }
    }

    pub fn is_own(&self) -> bool {
        self.kind == Kind::Own
    }

    /// The flags of the controller in its chart.
    pub fn controller_flags(&self) -> Vec<String> {
        let flags: &[&str] = match self.kind {
            Kind::Own => &[
                "controller",
                "--driver-name=nfs.csi.k8s.io",
                "--mount-permissions=0",
                "--default-ondelete-policy=delete",
                "--trash-retention=0",
                "--log-level=info",
                "--log-format=text",
                "--metrics-address=:29652",
            ],
            Kind::Peer => &[
                "--v=5",
                "--nodeid=guest",
                "--drivername=nfs.csi.k8s.io",
                "--mount-permissions=0",
                "--default-ondelete-policy=delete",
                "--use-tar-command-in-snapshot=false",
                "--enable-snapshot-compression=true",
            ],
        };
        flags.iter().map(ToString::to_string).collect()
    }

    /// The flags of the node plugin in its chart.
    pub fn node_flags(&self) -> Vec<String> {
        let flags: &[&str] = match self.kind {
            Kind::Own => &[
                "node",
                "--node-id=guest",
                "--driver-name=nfs.csi.k8s.io",
                "--mount-permissions=0",
                "--kubelet-dir=/run/compare/kubelet",
                "--registration-dir=/run/compare/kubelet/plugins_registry",
                "--registration-endpoint=/run/compare/kubelet/plugins/csi-nfsplugin/csi.sock",
                "--max-volumes-per-node=0",
                "--log-level=info",
                "--log-format=text",
                "--metrics-address=:29653",
            ],
            Kind::Peer => &["--v=5", "--nodeid=guest", "--drivername=nfs.csi.k8s.io", "--mount-permissions=0"],
        };
        flags.iter().map(ToString::to_string).collect()
    }

    /// Starts the controller, with more flags, in a mount table of its own as in a container.
    pub fn controller(&self, more: &[&str]) -> Process {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--propagation", "private"])
            .arg(&self.program)
            .args(self.controller_flags())
            .args(more);
        self.start("controller", command)
    }

    /// Starts the node plugin, whose mounts are seen by all.
    pub fn node(&self) -> Process {
        for folder in ["plugins_registry", "plugins/csi-nfsplugin", "pods"] {
            std::fs::create_dir_all(Path::new(SHARED).join("kubelet").join(folder)).unwrap();
        }
        let mut command = Command::new(&self.program);
        command.args(self.node_flags());
        self.start("node", command)
    }

    /// A process that was killed and started again finds the working folder of the one before, as in a pod whose
    /// container is restarted, and none of its mounts.
    fn start(&self, service: &str, mut command: Command) -> Process {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let name = format!("{}-{}", self.name(), STARTED.fetch_add(1, Ordering::Relaxed));
        let folder = Path::new(SHARED).join(&name);
        let private = Path::new(PRIVATE).join(format!("{}-{service}", self.name()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::create_dir_all(&private).unwrap();
        let socket = folder.join("csi.sock");
        let log = File::create(folder.join("log")).unwrap();
        let child = command
            .arg(format!("--endpoint=unix://{}", socket.display()))
            .arg(format!("--working-mount-dir={}", private.display()))
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let process = Process { child, socket };
        wait_for("the driver to listen", Duration::from_secs(30), || {
            std::os::unix::net::UnixStream::connect(&process.socket).ok()
        });
        process
    }

    /// Where a volume is published.
    pub fn target(&self, name: &str) -> PathBuf {
        Path::new(SHARED).join("kubelet/pods").join(format!("{}-{name}", self.name()))
    }

    /// The version that the driver reports.
    pub async fn version(&self) -> String {
        let process = self.controller(&[]);
        let mut identity = IdentityClient::new(process.channel().await);
        identity.get_plugin_info(GetPluginInfoRequest {}).await.unwrap().into_inner().vendor_version
    }

    /// Passes an answer on. This project's driver must not fail at what is compared.
    pub fn works<T>(&self, answer: Answer<T>) -> Answer<T> {
        if let (Kind::Own, Err(error)) = (self.kind, &answer) {
            panic!("nfs-csi failed: {error}");
        }
        answer
    }
}

impl Process {
    pub async fn channel(&self) -> Channel {
        connect(&self.socket).await.unwrap()
    }

    pub async fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel().await)
    }

    pub async fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel().await)
    }

    /// Resident memory of the driver and its children, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        resident_bytes(self.child.id())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // With what it started, as at the end of a container.
        let group = Pid::from_raw(self.child.id().cast_signed());
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

/// How long a call takes, and its answer.
pub async fn asked<T>(call: impl Future<Output = Result<Response<T>, Status>>) -> (Duration, Answer<T>) {
    let begun = Instant::now();
    let ended = tokio::time::timeout(DEADLINE, call).await;
    let time = begun.elapsed();
    let answer = match ended {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(format!("{:?}: {}", status.code(), status.message())),
        Err(_) => Err(format!("no answer after {} s", DEADLINE.as_secs())),
    };
    (time, answer)
}
