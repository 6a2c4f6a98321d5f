//! NodePublishVolume: the volume is mounted straight on the target path; there is no staging.

use std::path::Path;
use std::sync::Arc;

use thiserror::Error;

use super::published::Published;
use super::scratch::ScratchError;
use super::{Node, job_key};
use crate::jobs::{Job, JobError};
use crate::mount::daemon::mounter::Mounted;
use crate::mount::options::Options;
use crate::mount::protocol::error::MountError;
use crate::mount::protocol::{MountRequest, Occupant};
use crate::mount::table::{Table, is_nfs, split_source};
use crate::volume::access::Mode;
use crate::volume::share::Share;
use crate::volume::subdir::SubDir;

/// A volume to mount.
#[derive(Clone, Debug)]
pub struct Publish {
    /// The volume id.
    pub volume: String,
    /// Where the volume is.
    pub share: Share,
    /// Its directory below the share; the share itself without.
    pub subdir: Option<SubDir>,
    /// Where it is to be mounted: an absolute path whose parent exists.
    pub target: String,
    /// Whether the pod may write.
    pub read_only: bool,
    /// Whether the volume may be published nowhere else on this node.
    pub single_target: bool,
    /// The mount options.
    pub options: Options,
    /// Permission bits to give the volume's directory where it has others.
    pub permissions: Option<Mode>,
    /// Whether the pod itself names it; none: it is a persistent volume.
    pub inline: Option<Inline>,
}

/// What an inline volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inline {
    /// The directory as it is.
    Directory,
    /// A directory of the pod's own in it, which goes with the pod.
    Scratch,
}

/// Why a volume was not mounted.
#[derive(Clone, Debug, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum PublishError {
    #[error("{target} has {found} mounted already, not {wanted}: unpublish that first")]
    Occupied { target: String, found: String, wanted: String },

    #[error(
        "volume {volume} is published on {elsewhere} already, and its access mode allows one pod at a time: delete \
         that pod first"
    )]
    InUse { volume: String, elsewhere: String },

    #[error(
        "inline (ephemeral) volumes are not allowed on this node: use a PersistentVolumeClaim, or have the node plugin \
         started with --allow-inline-volumes=server:/path"
    )]
    InlineOff,

    #[error(
        "an inline volume may not be at {place}: no pattern of the node plugin's --allow-inline-volumes covers it; name \
         a directory that is allowed, or use a PersistentVolumeClaim"
    )]
    InlineRefused { place: String },

    #[error(
        "an inline volume may not have the mount option mountaddr (mounthost): --allow-inline-volumes says which server \
         it may name; leave the option out"
    )]
    InlineServer,

    #[error(transparent)]
    Mount(#[from] MountError),

    #[error("cannot note in {folder} what is published ({reason}): this host's disk may be full or read-only")]
    State { folder: String, reason: String },

    #[error(transparent)]
    Job(#[from] JobError),
}

impl Node {
    /// Mounts a volume on its target path, or finds that it is mounted there as asked for.
    ///
    /// # Errors
    /// See [`PublishError`]; nothing is mounted then that was not before.
    pub async fn publish(self: &Arc<Self>, publish: Publish) -> Result<(), PublishError> {
        let key = job_key(&publish.target);
        let options = self.settings.mount_options.clone().merged(publish.options);
        let publish = Publish { read_only: publish.read_only || options.read_only(), options, ..publish };
        let fingerprint = format!("{publish:?}");
        let node = Arc::clone(self);
        self.jobs
            .run(Job::short(key, "NodePublishVolume", fingerprint), async move { node.mount(publish).await })
            .await?
    }

    async fn mount(&self, publish: Publish) -> Result<(), PublishError> {
        let publish = if publish.inline.is_some() { self.admit_inline(publish)? } else { publish };
        self.refuse_second_target(&publish)?;
        let before = self.published.at(&publish.target);
        let scratch = self.scratch(&publish, before.as_ref())?;
        let mut request = self.request(&publish);
        if let Some(scratch) = &scratch {
            request.subdir = Some(scratch.path());
        }
        let wanted = Published {
            volume: publish.volume,
            target: publish.target,
            mount_point: request.target.clone(),
            server: request.server.clone(),
            source: request.source(),
            mounted: None,
            options: request.options.to_string(),
            read_only: request.read_only,
            single_target: publish.single_target,
            scratch,
        };
        if before.is_none() {
            self.note(wanted.clone()).await?;
        }
        let mounted = match self.make_scratch(&wanted, before.as_ref(), publish.permissions).await {
            Ok(()) => self.mounter.mount(request.clone()).await,
            Err(ScratchError::BrokeOff(error)) => Err(error),
            Err(ScratchError::NotReached(error)) => {
                if before.is_none() {
                    self.forget(&wanted.target);
                }
                return Err(error.into());
            }
        };
        match mounted {
            Ok(Mounted::Now { target, version, source, server }) => {
                tracing::debug!(target, version, source, server, "mounted");
                // The host is told by the mount table, and may be another than the volume's by the server map.
                let mounted = (path_of(&source) != path_of(&wanted.source)).then_some(source);
                let now = Published { mount_point: target, mounted, ..wanted };
                let is_news = before.is_some() || now.mount_point != now.target || now.mounted.is_some();
                if is_news { self.note(now).await } else { Ok(()) }
            }
            Ok(Mounted::Before(occupant)) => {
                self.accept(&occupant, before, wanted).await?;
                self.heal(&occupant.target, request).await
            }
            Err(error) => {
                if before.is_none() {
                    self.take_back(&wanted).await;
                }
                Err(error.into())
            }
        }
    }

    /// Takes what is mounted on the target already, if it is what is asked for.
    async fn accept(
        &self,
        occupant: &Occupant,
        before: Option<Published>,
        wanted: Published,
    ) -> Result<(), PublishError> {
        // The record tells more than the table; a mount without one may be another driver's, made before this one's.
        let same = match &before {
            Some(before) => before.is_same(&wanted) && is_mount_of(occupant, before),
            None => has_source(occupant, &wanted.source) && occupant.read_only == wanted.read_only,
        };
        if same {
            let (mounted, options) = before.map_or((None, wanted.options.clone()), |before| {
                if before.options != wanted.options {
                    tracing::warn!(
                        volume = wanted.volume,
                        target = wanted.target,
                        mounted = before.options,
                        wanted = wanted.options,
                        "the volume's mount options were changed: they take effect with the next pod"
                    );
                }
                (before.mounted, before.options)
            });
            return self.note(Published { mount_point: occupant.target.clone(), mounted, options, ..wanted }).await;
        }
        if before.is_none() {
            self.take_back(&wanted).await;
        }
        let access = |read_only: bool| if read_only { "read-only" } else { "read-write" };
        let found = match before {
            Some(before) => {
                format!("volume {} ({}, options {})", before.volume, access(before.read_only), before.options)
            }
            None => format!("{} ({}, {})", occupant.source, occupant.fs_type, access(occupant.read_only)),
        };
        let asked = format!("volume {} ({}, options {})", wanted.volume, access(wanted.read_only), wanted.options);
        Err(PublishError::Occupied { target: wanted.target, found, wanted: asked })
    }

    /// Mounts anew what is mounted of an export that its server has lost. Who has files open there keeps them, as lost
    /// as they are.
    async fn heal(&self, target: &str, request: MountRequest) -> Result<(), PublishError> {
        if !self.mounter.is_stale(target).await {
            return Ok(());
        }
        tracing::warn!(target, source = request.source(), "the mount is stale: mounted anew");
        self.mounter.unmount(&request.server, target, false).await?;
        self.mounter.mount(request).await?;
        Ok(())
    }

    /// A volume for one pod at a time has one target; so has one that such a publication has already.
    fn refuse_second_target(&self, publish: &Publish) -> Result<(), PublishError> {
        let mut others = self.published.elsewhere(&publish.volume, &publish.target);
        others.retain(|other| publish.single_target || other.single_target);
        if others.is_empty() {
            return Ok(());
        }
        // A record without its mount says nothing, unless that is being made: the record comes first.
        let table = Table::read().map_err(|error| self.unknown(&error))?;
        let is_there = |other: &&Published| {
            table.at(Path::new(&other.mount_point)).is_some() || self.jobs.is_running(&job_key(&other.target))
        };
        match others.iter().find(is_there) {
            Some(other) => Err(PublishError::InUse { volume: publish.volume.clone(), elsewhere: other.target.clone() }),
            None => Ok(()),
        }
    }

    fn request(&self, publish: &Publish) -> MountRequest {
        let server = publish.share.server().to_string();
        let options = self.mounter.map().options_over(publish.options.clone(), &server);
        let read_only = publish.read_only || options.read_only();
        MountRequest {
            server,
            share: publish.share.path().to_string(),
            subdir: publish.subdir.as_ref().map(ToString::to_string),
            target: publish.target.clone(),
            options,
            read_only,
            permissions: publish.permissions.filter(|_| !read_only).map(Mode::bits),
        }
    }

    async fn note(&self, published: Published) -> Result<(), PublishError> {
        self.published.write(published).await.map_err(|error| self.unknown(&error))
    }

    pub(super) fn unknown(&self, error: &dyn ToString) -> PublishError {
        PublishError::State { folder: self.published.folder().display().to_string(), reason: error.to_string() }
    }

    pub(super) fn forget(&self, target: &str) {
        if let Err(error) = self.published.remove(target) {
            // The record has no mount any more, so it says nothing; the next publish overwrites it.
            tracing::warn!(target, %error, "cannot remove the record of a publication");
        }
    }
}

/// Whether a mount is the one that a record tells of. A plugin that was killed may have had no time to note where the
/// share led: then it is enough that the mount is of its server.
fn is_mount_of(occupant: &Occupant, published: &Published) -> bool {
    let host = |source: &str| split_source(source.as_ref()).map(|(host, _)| host.to_owned());
    match &published.mounted {
        Some(source) => has_source(occupant, source),
        None => {
            has_source(occupant, &published.source)
                || (is_nfs(&occupant.fs_type) && host(&occupant.source) == host(&published.source))
        }
    }
}

/// Whether the table's source is the one asked for. The host may differ: two addresses of one NFS 4.1 server are one
/// server to the kernel, which shows the one it saw first.
fn has_source(occupant: &Occupant, source: &str) -> bool {
    is_nfs(&occupant.fs_type) && path_of(&occupant.source).is_some() && path_of(&occupant.source) == path_of(source)
}

/// The path on the server in `server:/path`.
fn path_of(source: &str) -> Option<String> {
    split_source(source.as_ref()).map(|(_, path)| path.to_owned())
}
