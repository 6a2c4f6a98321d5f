//! The exports that are mounted: one mount each, held as long as it is used, given back when it is not.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

use super::{Export, ExportError};
use crate::jobs::{Job, Jobs};
use crate::mount::error::MountError;
use crate::mount::options::Options;
use crate::mount::private_dir::{PrivateDir, tidy_up, unmount_below};
use crate::mount::request::MountRequest;
use crate::mount::workers::{Mounted, Workers};
use crate::tree::effort::Effort;
use crate::volume::share::Share;

/// How long an unused export stays mounted.
const IDLE: Duration = Duration::from_mins(10);
/// How often the unused ones are looked for.
const IDLE_CHECK: Duration = Duration::from_mins(1);

/// The mounted exports of this process.
#[derive(Debug)]
pub struct Exports {
    workers: Arc<Workers>,
    folder: PrivateDir,
    tree_workers: usize,
    mounted: Mutex<HashMap<Key, Arc<Export>>>,
    jobs: Arc<Jobs>,
}

/// One mount: a share, reached in one way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    share: Share,
    options: Options,
}

impl Exports {
    /// An empty pool that mounts below `place`, after tidying up there, and works on the trees of one share with at most
    /// `tree_workers` threads.
    ///
    /// # Errors
    /// Where this host's file system refuses the folder.
    pub async fn start(workers: Arc<Workers>, place: &Path, tree_workers: usize) -> io::Result<Arc<Self>> {
        tidy_up(place, &workers).await;
        let exports = Arc::new(Self {
            workers,
            folder: PrivateDir::create(place)?,
            tree_workers,
            mounted: Mutex::default(),
            jobs: Arc::default(),
        });
        tokio::spawn(give_back_unused(Arc::downgrade(&exports)));
        Ok(exports)
    }

    /// The export, mounted. Without options any mount of it serves; else one with just these.
    ///
    /// # Errors
    /// Where it cannot be mounted.
    pub async fn open(self: &Arc<Self>, share: &Share, options: &Options) -> Result<Arc<Export>, ExportError> {
        if let Some(export) = self.find(share, options) {
            return Ok(export);
        }
        let key = Key { share: share.clone(), options: options.for_controller() };
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        // Many calls may want the same export first: they wait for one mount.
        let name = format!("{:016x}", hasher.finish());
        let exports = Arc::clone(self);
        let job_name = name.clone();
        let mounted =
            self.jobs.run(Job::short(name, "mount", String::new()), async move { exports.mount(key, &job_name).await });
        mounted
            .await
            .unwrap_or_else(|error| {
                let what = format!("the mount of {share}");
                Err(MountError::Worker { what, reason: error.to_string() })
            })
            .map_err(ExportError::from)
    }

    /// Forgets a mount that lost its export: the next use makes a new one.
    pub fn forget(&self, export: &Arc<Export>) {
        let mut mounted = self.mounted.lock().unwrap_or_else(PoisonError::into_inner);
        mounted.retain(|_, held| !Arc::ptr_eq(held, export));
    }

    /// The shares that are mounted.
    #[must_use]
    pub fn shares(&self) -> Vec<Share> {
        self.mounted.lock().unwrap_or_else(PoisonError::into_inner).keys().map(|key| key.share.clone()).collect()
    }

    /// Unmounts all, those that were forgotten too.
    pub async fn close(&self) {
        self.mounted.lock().unwrap_or_else(PoisonError::into_inner).clear();
        unmount_below(self.folder.path(), &self.workers).await;
    }

    fn find(&self, share: &Share, options: &Options) -> Option<Arc<Export>> {
        let mounted = self.mounted.lock().unwrap_or_else(PoisonError::into_inner);
        let any = *options == Options::default();
        let wanted = options.for_controller();
        mounted
            .iter()
            .filter(|(key, _)| key.share == *share && (any || key.options == wanted))
            .map(|(_, export)| export)
            .min_by_key(|export| export.idle())
            .map(Arc::clone)
    }

    async fn mount(&self, key: Key, name: &str) -> Result<Arc<Export>, MountError> {
        if let Some(export) = self.find(&key.share, &key.options) {
            return Ok(export);
        }
        let refused = |error: io::Error| MountError::Target {
            target: format!("(for the export {})", key.share),
            reason: error.to_string(),
        };
        let mount_point = self.folder.mount_point(name).map_err(refused)?;
        let request = MountRequest {
            server: key.share.server().to_string(),
            share: key.share.path().to_string(),
            subdir: None,
            target: mount_point.to_string_lossy().into_owned(),
            options: key.options.clone(),
            read_only: false,
            permissions: None,
        };
        let version = match self.workers.mount(request.clone()).await? {
            Mounted::Now { version, .. } => version,
            // A mount that was given up on and lost its export: it makes place.
            Mounted::Before(_) => {
                self.workers.unmount(&request.server, &request.target, false).await?;
                match self.workers.mount(request.clone()).await? {
                    Mounted::Now { version, .. } => version,
                    Mounted::Before(_) => return Err(refused(io::Error::from(io::ErrorKind::ResourceBusy))),
                }
            }
        };
        // O_PATH asks no server, so this process does not wait here.
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root = nix::fcntl::open(&mount_point, flags, Mode::empty()).map_err(|errno| refused(errno.into()))?;
        tracing::info!(share = %key.share, version, options = %key.options, "export mounted");
        let mut mounted = self.mounted.lock().unwrap_or_else(PoisonError::into_inner);
        // A share that is mounted in several ways has one bound all the same.
        let effort =
            mounted.iter().find(|(other, _)| other.share == key.share).map(|(_, other)| other.effort().clone());
        let effort = effort.unwrap_or_else(|| Effort::new(self.tree_workers));
        let export = Export::new(key.share.clone(), key.options.clone(), version, mount_point, root, effort);
        let export = Arc::new(export);
        mounted.insert(key, Arc::clone(&export));
        Ok(export)
    }

    async fn unmount(&self, export: Arc<Export>) {
        let server = export.share.server().to_string();
        let target = export.mount_point.to_string_lossy().into_owned();
        let share = export.share.to_string();
        drop(export);
        match self.workers.unmount(&server, &target, true).await {
            Ok(()) => tracing::info!(share, "export unmounted"),
            Err(error) => tracing::warn!(share, %error, "cannot unmount the export"),
        }
    }

    async fn give_back(&self) {
        let unused: Vec<Arc<Export>> = {
            let mut mounted = self.mounted.lock().unwrap_or_else(PoisonError::into_inner);
            let is_unused = |export: &Arc<Export>| Arc::strong_count(export) == 1 && export.idle() > IDLE;
            mounted.extract_if(|_, export| is_unused(export)).map(|(_, export)| export).collect()
        };
        for export in unused {
            self.unmount(export).await;
        }
    }
}

async fn give_back_unused(exports: std::sync::Weak<Exports>) {
    loop {
        tokio::time::sleep(IDLE_CHECK).await;
        let Some(exports) = exports.upgrade() else { return };
        exports.give_back().await;
    }
}
