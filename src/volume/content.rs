//! What a new volume begins with.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::id::VolumeId;
use super::share::Share;
use super::snapshot_id::SnapshotId;

/// Where a volume's first data comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A volume: the new one is its clone.
    Volume(VolumeId),
    /// A snapshot: it is restored.
    Snapshot(SnapshotId),
}

/// The same as a record has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordedSource {
    /// The volume of this id.
    Volume(String),
    /// The snapshot of this id.
    Snapshot(String),
}

impl Source {
    /// The share that it is on.
    #[must_use]
    pub fn share(&self) -> &Share {
        match self {
            Self::Volume(id) => id.share(),
            Self::Snapshot(id) => id.share(),
        }
    }

    /// The source as a record has it.
    #[must_use]
    pub fn recorded(&self) -> RecordedSource {
        match self {
            Self::Volume(id) => RecordedSource::Volume(id.to_string()),
            Self::Snapshot(id) => RecordedSource::Snapshot(id.to_string()),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.recorded())
    }
}

impl fmt::Display for RecordedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume(id) => write!(f, "volume {id}"),
            Self::Snapshot(id) => write!(f, "snapshot {id}"),
        }
    }
}
