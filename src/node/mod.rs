//! What the node does: volumes are mounted where a pod wants them, and unmounted.
//!
//! The daemon decides, worker processes act: nothing here touches a path that may be a mount.

mod inline;
mod publish;
mod published;
mod record;
mod scratch;
mod stats;
mod unpublish;
mod usages;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use self::publish::{Inline, Publish, PublishError};
use self::published::PublishedVolumes;
use self::scratch::{Scratch, Scratches};
pub use self::stats::{Problem, ProblemKind, Stats, StatsError};
pub use self::unpublish::UnpublishError;
use self::usages::Usages;
use crate::jobs::Jobs;
use crate::metrics::{self, Metrics};
use crate::mount::daemon::mounter::Mounter;
use crate::mount::options::Options;
use crate::mount::table::Table;
use crate::volume::inline_pattern::InlinePattern;

/// What the operator decides about a node.
#[derive(Clone, Debug, Default)]
pub struct NodeSettings {
    /// The node's name in the cluster; empty where no node is served.
    pub id: String,
    /// How many volumes may be published on it; 0: any number.
    pub max_volumes: i64,
    /// How long the figures of a volume's use are told again without asking its server.
    pub stats_cache: Duration,
    /// Where inline volumes may be; nowhere if there is none.
    pub inline: Vec<InlinePattern>,
    /// The mount options of all volumes, where a volume's own say nothing else.
    pub mount_options: Options,
}

/// The node plugin of one driver on one host.
#[derive(Debug)]
pub struct Node {
    settings: NodeSettings,
    mounter: Arc<Mounter>,
    published: PublishedVolumes,
    /// None where no inline volume can be or was.
    scratches: Option<Arc<Scratches>>,
    usages: Usages,
    jobs: Arc<Jobs>,
}

impl Node {
    /// The node plugin; what was published before is known again from the records in `state`.
    ///
    /// # Errors
    /// Where this host's file system refuses the folder of the records.
    pub fn start(settings: NodeSettings, mounter: Arc<Mounter>, state: &Path) -> io::Result<Arc<Self>> {
        let published = PublishedVolumes::open(state)?;
        let used = published.scratches();
        let scratches = if settings.inline.is_empty() && used.is_empty() && !scratch::any_left(state) {
            None
        } else {
            let is_used = |scratch: &Scratch| used.contains(scratch);
            Some(Scratches::start(Arc::clone(&mounter), state, is_used)?)
        };
        let (usages, jobs) = (Usages::new(settings.stats_cache), Arc::default());
        Ok(Arc::new(Self { settings, mounter, published, scratches, usages, jobs }))
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
        let node = Arc::downgrade(self);
        metrics.read_sets(metrics::MOUNTED_VOLUMES, move || {
            let table = Table::read().unwrap_or_default();
            let mut volumes = BTreeMap::new();
            for (server, point) in node.upgrade().map(|node| node.published.mount_points()).unwrap_or_default() {
                // The port is of no interest.
                if let Some(address) = table.at(&point).and_then(|mount| mount.address(0)) {
                    *volumes.entry(vec![server, address.ip().to_string()]).or_default() += 1;
                }
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
