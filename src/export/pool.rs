//! The exports that are mounted: one mount each, held as long as it is used, given back when it is not.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::holder::Holder;
use super::tree_turns::Turns;
use super::{Export, ExportError, Mounted, Shared};
use crate::jobs::{Job, Jobs};
use crate::mount::daemon::mounter::{self as worker, Mounter};
use crate::mount::daemon::tidy::unmount_below;
use crate::mount::options::Options;
use crate::mount::protocol::MountRequest;
use crate::mount::protocol::error::MountError;
use crate::server_map::MappedServer;
use crate::tree::effort::Effort;
use crate::volume::export_id::ExportId;
use crate::volume::share::Share;

/// How long an unused export stays mounted.
const IDLE: Duration = Duration::from_mins(10);
/// How often the unused ones are looked for.
const IDLE_CHECK: Duration = Duration::from_mins(1);

/// How long the end waits for a mount that is under way, and how often it looks.
const CLOSING: Duration = Duration::from_secs(2);
const CLOSING_CHECK: Duration = Duration::from_millis(10);

/// The mounted exports of this process.
#[derive(Debug)]
pub struct Exports {
    pub(super) mounter: Arc<Mounter>,
    holder: Arc<Holder>,
    turns: Arc<Turns>,
    tree_workers: usize,
    /// The mount options of all exports, where a call's own say nothing else.
    defaults: Options,
    /// The options with which each share was mounted last for a call that had some: calls that have none follow them.
    remembered: Mutex<HashMap<Share, Options>>,
    user: User,
    pub(super) mounted: Mutex<HashMap<Key, Arc<Export>>>,
    shared: Mutex<HashMap<Share, Weak<Shared>>>,
    jobs: Arc<Jobs>,
    /// How many mounts were made: no two have one mount point, so that a late unmount takes nobody else's.
    mounts: AtomicU64,
    /// Nothing is mounted any more.
    is_closed: AtomicBool,
}

/// Whom the exports are mounted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum User {
    Driver,
    /// A command of the operator, who may work on a copy too, which needs a repair.
    Operator,
    /// A command that only looks: the kernel refuses all that would write.
    Reader,
}

/// One mount: a share, reached in one way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// By the name that its server has in the server map.
    share: Share,
    options: Options,
    /// What the map says of the server. When that changes, its exports are mounted anew.
    mapped: Option<Arc<MappedServer>>,
}

impl Exports {
    /// An empty pool that mounts with the options `defaults` where a call's own say nothing else, and as `holder` works
    /// on the trees of one share with at most `tree_workers` threads.
    #[must_use]
    pub fn start(mounter: Arc<Mounter>, holder: Holder, tree_workers: usize, defaults: Options) -> Arc<Self> {
        Self::start_with(mounter, holder, tree_workers, defaults, User::Driver)
    }

    /// The same for a command of the operator, who may work on a copy too, which needs a repair.
    #[must_use]
    pub fn start_for_operator(mounter: Arc<Mounter>, holder: Holder, tree_workers: usize) -> Arc<Self> {
        Self::start_with(mounter, holder, tree_workers, Options::default(), User::Operator)
    }

    /// The same where the mounts are read-only, for those who only look.
    #[must_use]
    pub fn start_read_only(mounter: Arc<Mounter>, holder: Holder, tree_workers: usize) -> Arc<Self> {
        Self::start_with(mounter, holder, tree_workers, Options::default(), User::Reader)
    }

    fn start_with(
        mounter: Arc<Mounter>,
        holder: Holder,
        tree_workers: usize,
        defaults: Options,
        user: User,
    ) -> Arc<Self> {
        let exports = Arc::new(Self {
            mounter,
            holder: Arc::new(holder),
            turns: Turns::new(),
            tree_workers,
            defaults,
            remembered: Mutex::default(),
            user,
            mounted: Mutex::default(),
            shared: Mutex::default(),
            jobs: Arc::default(),
            mounts: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
        });
        tokio::spawn(give_back_unused(Arc::downgrade(&exports)));
        exports.give_up_in_time();
        exports
    }

    /// The export, mounted. Without options any mount of it serves, and else one with those that it was mounted with
    /// last; with options one with just these.
    ///
    /// # Errors
    /// Where it cannot be mounted.
    pub async fn open(self: &Arc<Self>, share: &Share, options: &Options) -> Result<Arc<Export>, ExportError> {
        self.give_up_lost();
        if let Some(export) = self.find(share, options) {
            export.check_server()?;
            return Ok(export);
        }
        let remembered = if *options == Options::default() { self.remembered(share) } else { None };
        let Some(remembered) = remembered else { return Box::pin(self.open_with(share, options)).await };
        match Box::pin(self.open_with(share, &remembered)).await {
            // The server may have changed since.
            Err(ExportError::Mount(error)) if !error.is_silence() => {
                Box::pin(self.open_with(share, options)).await.map_err(|_| ExportError::Mount(error))
            }
            opened => opened,
        }
    }

    /// The export as calls name it: by the name that its server has in the server map.
    #[must_use]
    pub fn canonical(&self, share: &Share) -> Share {
        self.mounter.map().canonical(share)
    }

    /// Takes these options, but for those of a secret, for calls on the export that have none.
    pub fn remember(&self, share: &Share, options: &Options) {
        let options = options.without_secrets();
        if options != Options::default() {
            let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
            remembered.insert(self.canonical(share), options);
        }
    }

    fn remembered(&self, share: &Share) -> Option<Options> {
        let remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        remembered.get(&self.canonical(share)).cloned()
    }

    async fn open_with(self: &Arc<Self>, share: &Share, options: &Options) -> Result<Arc<Export>, ExportError> {
        let key = self.key(share, options);
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        // Many calls may want the same export first: they wait for one mount.
        let name = format!("{:016x}", hasher.finish());
        let exports = Arc::clone(self);
        let mounted = self.jobs.run(Job::short(name, "mount", String::new()), async move { exports.mount(key).await });
        mounted.await.unwrap_or_else(|error| {
            let what = format!("the mount of {share}");
            Err(MountError::Worker { what, reason: error.to_string() }.into())
        })
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

    /// Unmounts all, those that were forgotten too. Work in the background mounts none after that.
    pub async fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        let end = Instant::now() + CLOSING;
        while self.jobs.count() > 0 && Instant::now() < end {
            tokio::time::sleep(CLOSING_CHECK).await;
        }
        self.mounted.lock().unwrap_or_else(PoisonError::into_inner).clear();
        unmount_below(self.mounter.private().path(), &self.mounter).await;
    }

    pub(super) fn find(&self, share: &Share, options: &Options) -> Option<Arc<Export>> {
        let any = *options == Options::default();
        let wanted = self.key(share, options);
        let mounted = self.mounted.lock().unwrap_or_else(PoisonError::into_inner);
        let is_wanted = |key: &Key| {
            let is_there = key.share == wanted.share && key.mapped == wanted.mapped;
            is_there && (any || key.options == wanted.options)
        };
        mounted
            .iter()
            .filter(|(key, _)| is_wanted(key))
            .map(|(_, export)| export)
            .min_by_key(|export| export.idle())
            .map(Arc::clone)
    }

    /// What an export is mounted with for a call's options: the operator's defaults, those of the call over them, and
    /// those of the server map over all.
    pub(super) fn options(&self, share: &Share, of_call: &Options) -> Options {
        let options = self.defaults.clone().merged(of_call.clone());
        self.mounter.map().options_over(options, share.server().as_str()).for_controller()
    }

    fn key(&self, share: &Share, options: &Options) -> Key {
        let mapped = self.mounter.map().find(share.server().as_str());
        Key { share: self.canonical(share), options: self.options(share, options), mapped }
    }

    async fn mount(&self, key: Key) -> Result<Arc<Export>, ExportError> {
        if let Some(export) = self.mounted.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(Arc::clone(export));
        }
        if self.is_closed.load(Ordering::Relaxed) {
            let what = format!("the mount of {}", key.share);
            return Err(MountError::Worker { what, reason: "the driver ends".into() }.into());
        }
        let (names, version, server) = self.mount_with(&key.share, key.options.for_lookups()).await?;
        let (trees, _, _) = match self.mount_with(&key.share, key.options.clone()).await {
            Ok(mounted) => mounted,
            Err(error) => {
                self.unmount(&key.share, std::slice::from_ref(&names.point)).await;
                return Err(error.into());
            }
        };
        let shared = self.shared(&key.share);
        let held = self.mounter.held(&server, &key.options, &names.point);
        let (share, options) = (key.share.clone(), key.options.clone());
        let export = Arc::new(Export::new(share, options, version, names, Some(trees), Some(held), shared));
        let id = match self.identify(&export, &key).await {
            Ok(id) => id.map_or_else(|| "none".into(), |id| id.to_string()),
            Err(error) => {
                let points = export.mount_points();
                drop(export);
                self.unmount(&key.share, &points).await;
                return Err(error);
            }
        };
        let (version, options) = (export.version(), export.options());
        tracing::info!(share = %key.share, address = server, version, %options, id, "export mounted");
        self.mounted.lock().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::clone(&export));
        Ok(export)
    }

    /// The export's id, which must be the one that the server map has, if it has one.
    async fn identify(&self, export: &Arc<Export>, key: &Key) -> Result<Option<ExportId>, ExportError> {
        let wanted = key.mapped.as_ref().and_then(|mapped| mapped.export_id(key.share.path()).cloned());
        let takes_copies = self.user != User::Driver;
        export.run(move |export| export.identify(wanted.as_ref(), takes_copies)).await
    }

    /// What all mounts of a share have in common, those that were forgotten and are still in use too.
    fn shared(&self, share: &Share) -> Arc<Shared> {
        let mut all = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, shared| shared.strong_count() > 0);
        if let Some(shared) = all.get(share).and_then(Weak::upgrade) {
            return shared;
        }
        let shared = Shared::new(Effort::new(self.tree_workers), Arc::clone(&self.holder), Arc::clone(&self.turns));
        all.insert(share.clone(), Arc::downgrade(&shared));
        shared
    }

    /// Mounts a share in the driver's folder; gives the NFS version and where the server was found, too.
    async fn mount_with(&self, share: &Share, options: Options) -> Result<(Mounted, String, String), MountError> {
        let refused = |error: io::Error| MountError::Target {
            target: format!("(for the export {share})"),
            reason: error.to_string(),
        };
        let name = self.mounts.fetch_add(1, Ordering::Relaxed).to_string();
        let point = self.mounter.private().mount_point(&name).map_err(refused)?;
        let request = MountRequest {
            server: share.server().to_string(),
            share: share.path().to_string(),
            subdir: None,
            target: point.to_string_lossy().into_owned(),
            options,
            read_only: self.user == User::Reader,
            permissions: None,
        };
        match self.mounter.mount(request).await? {
            worker::Mounted::Now { version, server, .. } => {
                Ok((Mounted::open(point).map_err(refused)?, version, server))
            }
            worker::Mounted::Before(_) => Err(refused(io::Error::from(io::ErrorKind::ResourceBusy))),
        }
    }

    pub(super) async fn unmount(&self, share: &Share, points: &[PathBuf]) {
        let server = share.server().to_string();
        for point in points {
            match self.mounter.unmount(&server, &point.to_string_lossy(), true).await {
                Ok(()) => tracing::debug!(%share, "export unmounted"),
                Err(error) => tracing::warn!(%share, %error, "cannot unmount the export"),
            }
        }
    }

    async fn give_back(&self) {
        let unused: Vec<Arc<Export>> = {
            let mut mounted = self.mounted.lock().unwrap_or_else(PoisonError::into_inner);
            let is_unused = |export: &Arc<Export>| Arc::strong_count(export) == 1 && export.idle() > IDLE;
            mounted.extract_if(|_, export| is_unused(export)).map(|(_, export)| export).collect()
        };
        for export in unused {
            let (share, points) = (export.share.clone(), export.mount_points());
            drop(export);
            self.unmount(&share, &points).await;
            tracing::info!(%share, "export unmounted");
        }
    }
}

async fn give_back_unused(exports: Weak<Exports>) {
    loop {
        tokio::time::sleep(IDLE_CHECK).await;
        let Some(exports) = exports.upgrade() else { return };
        exports.give_back().await;
    }
}
