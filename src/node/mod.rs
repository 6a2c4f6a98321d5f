//! What the node does: volumes are mounted where a pod wants them, and unmounted.
//!
//! The daemon decides, worker processes act: nothing here touches a path that may be a mount.

mod publish;
mod published;
mod stats;
mod unpublish;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

pub use self::publish::{Publish, PublishError};
use self::published::PublishedVolumes;
pub use self::stats::{Stats, StatsError};
pub use self::unpublish::UnpublishError;
use crate::jobs::Jobs;
use crate::metrics::{self, Metrics};
use crate::mount::workers::Workers;

/// What the operator decides about a node.
#[derive(Clone, Debug, Default)]
pub struct NodeSettings {
    /// The node's name in the cluster; empty where no node is served.
    pub id: String,
    /// How many volumes may be published on it; 0: any number.
    pub max_volumes: i64,
}

/// The node plugin of one driver on one host.
#[derive(Debug)]
pub struct Node {
    settings: NodeSettings,
    workers: Arc<Workers>,
    published: PublishedVolumes,
    jobs: Arc<Jobs>,
}

impl Node {
    /// The node plugin; what was published before is known again from the records in `state`.
    ///
    /// # Errors
    /// Where this host's file system refuses the folder.
    pub fn start(settings: NodeSettings, workers: Arc<Workers>, state: &Path) -> io::Result<Arc<Self>> {
        let published = PublishedVolumes::open(state)?;
        Ok(Arc::new(Self { settings, workers, published, jobs: Arc::default() }))
    }

    /// Tells the metrics what this node holds.
    pub fn observe(self: &Arc<Self>, metrics: &Metrics) {
        let node = Arc::downgrade(self);
        metrics.read(metrics::PUBLISHED, move || {
            let mut volumes = BTreeMap::new();
            for server in node.upgrade().map(|node| node.published.servers()).unwrap_or_default() {
                *volumes.entry(server).or_default() += 1;
            }
            volumes.into_iter().collect()
        });
    }

    /// What the operator decided about this node.
    #[must_use]
    pub fn settings(&self) -> &NodeSettings {
        &self.settings
    }
}

/// The key under which all operations on a target path run.
fn job_key(target: &str) -> String {
    format!("target path {target}")
}
