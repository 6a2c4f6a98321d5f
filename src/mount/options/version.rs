//! The versions of NFS, and what carries its calls.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A version of NFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Version {
    V3,
    V4_0,
    V4_1,
    V4_2,
}

impl Version {
    /// The version of the RPC program, as a server's ports know it.
    #[must_use]
    pub fn major(self) -> u32 {
        if self == Self::V3 { 3 } else { 4 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::V3 => "3",
            Self::V4_0 => "4.0",
            Self::V4_1 => "4.1",
            Self::V4_2 => "4.2",
        })
    }
}

/// The kernel's name of the file system for a version.
#[must_use]
pub fn fs_type(version: Version) -> &'static str {
    if version == Version::V3 { "nfs" } else { "nfs4" }
}

/// What carries the calls to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Transport {
    Tcp,
    Udp,
    Rdma,
}

impl Transport {
    /// By the name that mount options and the mount table have for it, of either family.
    #[must_use]
    pub fn named(name: &str) -> Self {
        match name {
            "udp" | "udp6" => Self::Udp,
            "rdma" | "rdma6" => Self::Rdma,
            _ => Self::Tcp,
        }
    }

    /// Whether a server can be asked over it whether it is there.
    #[must_use]
    pub fn can_be_asked(self) -> bool {
        self == Self::Tcp
    }
}
