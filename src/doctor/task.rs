//! What the process of a group of checks is asked for, and what it answers, a line of JSON each.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::check::Check;
use crate::mount::options::{Options, Version};
use crate::mount::protocol::Reached;
use crate::volume::export_id::ExportId;

/// What is looked at.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Subject {
    /// The server's name or address, without brackets.
    pub server: Option<String>,
    /// The absolute path of the share on it.
    pub share: Option<String>,
    /// The mount options.
    pub options: Options,
    /// The id that the export of the share is to have, if the server map says it.
    pub export_id: Option<ExportId>,
    /// The file of the server map.
    pub servers: Option<PathBuf>,
    /// The kubelet's directory, where there is one.
    pub kubelet_dir: Option<PathBuf>,
    /// The driver's name, by which its volumes are known from those of others.
    pub driver_name: String,
    /// Where the node plugin answers over HTTP, as `host:port`.
    pub metrics_address: Option<String>,
}

impl Subject {
    /// Whether the options ask for Kerberos.
    pub(super) fn wants_kerberos(&self) -> bool {
        self.options.security().contains("krb5")
    }

    /// Whether the options ask for TLS.
    pub(super) fn wants_tls(&self) -> bool {
        self.options.security().contains("tls")
    }

    /// The source of the mount, `server:/share`.
    pub(super) fn source(&self) -> String {
        let (server, share) = (self.server.as_deref().unwrap_or_default(), self.share.as_deref().unwrap_or("/"));
        if server.contains(':') { format!("[{server}]:{share}") } else { format!("{server}:{share}") }
    }
}

/// A group of checks to make.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Task {
    /// What the kernel has.
    Kernel,
    /// Whether it knows the mount options.
    Options,
    /// What Kerberos needs on this host.
    Security,
    /// The kubelet's directory and the mounts that there are.
    Node,
    /// The server's name.
    Names,
    /// The server, which has these addresses.
    Server(Vec<SocketAddr>),
    /// The share on it: it is mounted, and another process works on it.
    Export(Reached, OnShare),
    /// That other process's part.
    Mounted(Version, OnShare),
}

/// What is done on the share.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct OnShare {
    /// The end of the name of the directory that is worked in.
    pub(super) unique: String,
    /// Whether that directory is only removed: the process that worked in it was killed.
    pub(super) sweep: bool,
    /// How long the process that works on the share may take.
    pub(super) limit: Duration,
}

/// A group's process is asked for this.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Assignment {
    pub(super) subject: Subject,
    pub(super) task: Task,
}

/// A line of its answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Line {
    /// A check has ended.
    Check(Check),
    /// The server has these addresses.
    Addresses(Vec<SocketAddr>),
    /// The server answers, and has these versions.
    Reached(Reached),
    /// The process that worked on the share was killed.
    Killed,
}

/// Where a group's process writes its answer.
#[derive(Debug)]
pub(super) struct Reporter<W>(pub(super) W);

impl<W: Write> Reporter<W> {
    /// Writes one line, at once: the process may be killed in the next check.
    pub(super) fn line(&mut self, line: &Line) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.0.write_all(&text)?;
        self.0.flush()
    }

    /// Writes how a check ended.
    pub(super) fn check(&mut self, check: Check) -> io::Result<()> {
        self.line(&Line::Check(check))
    }
}
