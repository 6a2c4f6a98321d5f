//! NodeGetVolumeStats: how full a published volume is, asked in a worker with a deadline, and kept for a while
//! (usages.rs). Where the server does not answer, what was known last is told again, and marked as old.

use std::path::Path;
use std::sync::Arc;

use thiserror::Error;

use super::Node;
use super::usages::Known;
use crate::mount::protocol::Usage;
use crate::mount::protocol::error::MountError;
use crate::mount::table::Table;

/// How a published volume fares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// How full it is, or was when its server answered last; unknown if it never did.
    pub usage: Option<Usage>,
    /// What is wrong with it; none: nothing.
    pub problem: Option<Problem>,
}

/// What is wrong with a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What kind of thing.
    pub kind: ProblemKind,
    /// For people: what it is, and what to do.
    pub message: String,
}

/// What can be wrong with a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    /// Its server does not answer.
    ServerSilent,
    /// The server has lost the export.
    Stale,
    /// Something else.
    Other,
}

/// Why nothing can be said of a volume.
#[derive(Clone, Debug, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum StatsError {
    #[error("volume {volume} is not published on {path}: nothing is mounted there")]
    NotPublished { volume: String, path: String },

    #[error("volume {volume} is not published on this node")]
    Nowhere { volume: String },

    #[error("{path} holds volume {other}, not {volume}")]
    AnotherVolume { volume: String, path: String, other: String },

    #[error("cannot see what is mounted on this host: {reason}")]
    Table { reason: String },
}

impl Node {
    /// How full the volume published on `path` is, and whether it is well. A silent server is a problem, not an error.
    ///
    /// # Errors
    /// See [`StatsError`].
    pub async fn stats(self: &Arc<Self>, volume: &str, path: &str) -> Result<Stats, StatsError> {
        let known = self.published.at(path);
        if let Some(other) = known.as_ref().filter(|published| published.volume != volume) {
            let (volume, path, other) = (volume.into(), path.into(), other.volume.clone());
            return Err(StatsError::AnotherVolume { volume, path, other });
        }
        let mount_point = known.map_or_else(|| path.to_owned(), |published| published.mount_point);
        let table = Table::read().map_err(|error| StatsError::Table { reason: error.to_string() })?;
        let Some(mount) = table.at(Path::new(&mount_point)) else {
            return Err(StatsError::NotPublished { volume: volume.into(), path: path.into() });
        };
        match self.usages.get(mount, async || self.mounter.usage(mount).await).await {
            Ok(usage) => Ok(Stats { usage: Some(usage), problem: None }),
            Err(error) => {
                let last = self.usages.last(mount);
                let problem = Problem::of(&error, mount.server(), last);
                Ok(Stats { usage: last.map(|known| known.usage), problem: Some(problem) })
            }
        }
    }

    /// Whether a published volume is well: on `path`, or wherever it is published if that is not known.
    ///
    /// # Errors
    /// See [`StatsError`].
    pub async fn health(self: &Arc<Self>, volume: &str, path: Option<&str>) -> Result<Stats, StatsError> {
        if let Some(path) = path {
            return self.stats(volume, path).await;
        }
        // All are mounts of one directory of one server.
        match self.published.elsewhere(volume, "").first() {
            Some(published) => self.stats(volume, &published.target).await,
            None => Err(StatsError::Nowhere { volume: volume.into() }),
        }
    }
}

impl Problem {
    fn of(error: &MountError, server: &str, last: Option<Known>) -> Self {
        let (kind, what) = match error {
            MountError::TimedOut { .. } => {
                (ProblemKind::ServerSilent, format!("NFS server {server} does not answer: {error}"))
            }
            MountError::Refused { .. } => (ProblemKind::ServerSilent, error.to_string()),
            MountError::Stale { .. } => (ProblemKind::Stale, error.to_string()),
            _ => (ProblemKind::Other, error.to_string()),
        };
        let message = match last {
            Some(known) => format!("{what} (the figures of its use are {} s old)", known.since.elapsed().as_secs()),
            None => what,
        };
        Self { kind, message }
    }
}
