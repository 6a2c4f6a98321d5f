//! NodeGetVolumeStats: how full a published volume is, asked in a worker with a deadline.

use std::path::Path;
use std::sync::Arc;

use thiserror::Error;

use super::Node;
use crate::mount::error::MountError;
use crate::mount::request::Usage;
use crate::mount::table::{Table, split_source};

/// How a published volume fares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// How full it is; unknown if its server does not answer.
    pub usage: Option<Usage>,
    /// What is wrong with it; none: nothing.
    pub problem: Option<String>,
}

/// Why nothing can be said of a volume.
#[derive(Clone, Debug, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum StatsError {
    #[error("volume {volume} is not published on {path}: nothing is mounted there")]
    NotPublished { volume: String, path: String },

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
        let server = split_source(&mount.source).map_or(String::new(), |(server, _)| server.to_owned());
        Ok(match self.workers.usage(&server, &mount_point).await {
            Ok(usage) => Stats { usage: Some(usage), problem: None },
            Err(error @ MountError::TimedOut { .. }) => {
                Stats { usage: None, problem: Some(format!("NFS server {server} does not answer: {error}")) }
            }
            Err(error) => Stats { usage: None, problem: Some(error.to_string()) },
        })
    }
}
