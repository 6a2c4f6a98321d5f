//! Scratch directories: what an inline volume with `inlineScratch` gets on its share for as long as its pod lives.
//!
//! A publication's record names the directory before it is made. When the volume is unpublished, a record of what is
//! left takes its place before anything is removed; it goes when the directory is gone. So a crash leaves no directory
//! without a record, and a server that is dead when the pod goes is cleaned up when it is back.
//!
//! The share is mounted in a folder of this process's own for each of these: nothing is removed through a pod's mount.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::Semaphore;

use super::record;
use crate::jobs::{Job, Jobs};
use crate::mount::daemon::mounter::{Mounted, Mounter};
use crate::mount::options::Options;
use crate::mount::protocol::MountRequest;
use crate::mount::protocol::ScratchRequest;
use crate::mount::protocol::error::MountError;
use crate::volume::secret::Secret;
use crate::volume::share::Share;
use crate::volume::subdir::SubDir;

/// The records of what is to be removed.
const FOLDER: &str = "scratch";
/// How often what could not be removed is tried again.
const RETRY: Duration = Duration::from_mins(1);
/// How long a share that is not there is taken for one that comes back.
const MISSED: Duration = Duration::from_hours(7 * 24);
/// How long an unpublish waits for the removal, which goes on after it.
const PATIENCE: Duration = Duration::from_secs(1);
/// What a scratch directory may be used for where nothing is said: everything, as an emptyDir.
pub(super) const MODE: u32 = 0o777;

/// A scratch directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Scratch {
    share: Share,
    /// The directory that holds it; the share itself without.
    subdir: Option<SubDir>,
    options: Options,
    /// The directory that is made in that one; only root lists it.
    outer: String,
    /// The directory in it that the pod gets; nobody else knows its name.
    inner: String,
}

impl Scratch {
    /// One with a name that nothing has yet.
    pub(super) fn new(share: &Share, subdir: Option<&SubDir>, options: &Options) -> io::Result<Self> {
        let name = Secret::new()?.to_string();
        let (outer, inner) = name.split_at(12);
        Ok(Self {
            share: share.clone(),
            subdir: subdir.cloned(),
            options: options.clone(),
            outer: format!("inline-{outer}"),
            inner: inner.to_owned(),
        })
    }

    /// Whether it is in this place, reached in this way.
    pub(super) fn is_in(&self, share: &Share, subdir: Option<&SubDir>, options: &Options) -> bool {
        self.share == *share && self.subdir.as_ref() == subdir && self.options == *options
    }

    /// Its path below the share.
    pub(super) fn path(&self) -> String {
        let parent = self.subdir.as_ref().map(|subdir| format!("{subdir}/")).unwrap_or_default();
        format!("{parent}{}/{}", self.outer, self.inner)
    }

    fn server(&self) -> &str {
        self.share.server().as_str()
    }
}

/// Why a scratch directory was not made or removed.
#[derive(Debug, Error)]
pub(super) enum ScratchError {
    /// The share was not mounted: nothing changed on it.
    #[error(transparent)]
    NotReached(MountError),
    /// Something may have changed.
    #[error(transparent)]
    BrokeOff(MountError),
}

/// Whether an earlier run noted what is to be removed.
pub(super) fn any_left(state: &Path) -> bool {
    std::fs::read_dir(state.join(FOLDER)).is_ok_and(|mut records| records.next().is_some())
}

/// The scratch directories of this node.
#[derive(Debug)]
pub(super) struct Scratches {
    mounter: Arc<Mounter>,
    folder: PathBuf,
    /// Those that are to be removed, by the name of the outer directory.
    left: Mutex<HashMap<String, Scratch>>,
    /// One removal a server at a time: publications wait for the same server's places.
    turns: Mutex<HashMap<String, Arc<Semaphore>>>,
    jobs: Arc<Jobs>,
}

impl Scratches {
    /// Knows what is to be removed from the records in `state`, but for what `is_used`, and goes on with it.
    pub(super) fn start(
        mounter: Arc<Mounter>,
        state: &Path,
        is_used: impl Fn(&Scratch) -> bool,
    ) -> io::Result<Arc<Self>> {
        let folder = state.join(FOLDER);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let mut left = HashMap::new();
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            match std::fs::read(&path).and_then(|text| Ok(serde_json::from_slice::<Scratch>(&text)?)) {
                // An unpublish that broke off before it was one: the publication's own record holds.
                Ok(scratch) if is_used(&scratch) => std::fs::remove_file(&path)?,
                Ok(scratch) => drop(left.insert(scratch.outer.clone(), scratch)),
                // The publication's record was kept: it goes only when this one is complete.
                Err(error) => tracing::warn!(path = %path.display(), %error, "cannot read what is to be removed"),
            }
        }
        let (left, turns, jobs) = (Mutex::new(left), Mutex::default(), Arc::default());
        let scratches = Arc::new(Self { mounter, folder, left, turns, jobs });
        tokio::spawn(go_on(Arc::downgrade(&scratches)));
        Ok(scratches)
    }

    /// Makes the directory, with these permission bits. It may be there already.
    pub(super) async fn make(&self, scratch: &Scratch, mode: u32) -> Result<(), ScratchError> {
        self.carry_out(scratch, Some(mode)).await
    }

    /// Notes that the directory is to be removed. Its publication's record may go now, and the removal begin.
    pub(super) async fn leave(&self, scratch: &Scratch) -> io::Result<()> {
        record::write_durably(self.record(scratch), serde_json::to_vec(scratch)?).await?;
        self.left().insert(scratch.outer.clone(), scratch.clone());
        Ok(())
    }

    /// Removes the directory, with all that is in it. Waits for a moment only: what takes longer, or fails, goes on in
    /// the background.
    pub(super) async fn remove(self: &Arc<Self>, scratch: Scratch) {
        let job = Job { patience: Some(PATIENCE), ..Job::short(scratch.outer.clone(), "removal", String::new()) };
        let scratches = Arc::clone(self);
        // An error is logged where it is made; the work is not lost.
        let _ = self.jobs.run(job, async move { scratches.remove_now(&scratch).await }).await;
    }

    async fn remove_now(&self, scratch: &Scratch) {
        let turn = self.turn(scratch.server());
        // The semaphore is never closed.
        let _turn = turn.acquire().await;
        let (share, directory) = (scratch.share.to_string(), scratch.path());
        let removed = match self.carry_out(scratch, None).await {
            // Not exported just now, or gone with what held it.
            Err(ScratchError::NotReached(error)) if is_missing(&error) && self.is_old(scratch) => Ok(()),
            other => other,
        };
        if let Err(error) = removed {
            tracing::warn!(share, directory, %error, "cannot remove the scratch directory of an inline volume yet");
            return;
        }
        if let Err(error) = std::fs::remove_file(self.record(scratch)) {
            tracing::warn!(directory, %error, "cannot remove the record of a scratch directory");
        }
        self.left().remove(&scratch.outer);
        tracing::debug!(share, directory, "scratch directory removed");
    }

    /// Mounts the directory that holds it, makes or removes it there, and unmounts that again.
    async fn carry_out(&self, scratch: &Scratch, make: Option<u32>) -> Result<(), ScratchError> {
        let refused = |error: io::Error| {
            let target = format!("(for the share {})", scratch.share);
            ScratchError::NotReached(MountError::Target { target, reason: error.to_string() })
        };
        let place = self.mounter.private().mount_point(&scratch.outer).map_err(refused)?;
        let request = MountRequest {
            server: scratch.server().into(),
            share: scratch.share.path().to_string(),
            subdir: scratch.subdir.as_ref().map(ToString::to_string),
            target: place.to_string_lossy().into_owned(),
            options: self.mounter.map().options_over(scratch.options.clone(), scratch.server()).for_controller(),
            read_only: false,
            permissions: None,
        };
        let (outer, inner) = (scratch.outer.clone(), scratch.inner.clone());
        let work = ScratchRequest { place: request.target.clone(), outer, inner, make };
        let target = request.target.clone();
        let done = match self.mounter.mount(request).await {
            Ok(Mounted::Now { .. }) => {
                self.mounter.scratch(scratch.server(), work).await.map_err(ScratchError::BrokeOff)
            }
            // An unmount that failed left it; the next try finds it gone.
            Ok(Mounted::Before(_)) => Err(refused(io::Error::from(io::ErrorKind::ResourceBusy))),
            Err(error) => Err(ScratchError::NotReached(error)),
        };
        if let Err(error) = self.mounter.unmount(scratch.server(), &target, true).await {
            tracing::warn!(share = %scratch.share, %error, "cannot unmount the share of a scratch directory");
        }
        done
    }

    /// Whether its removal has been due for longer than a share is missed.
    fn is_old(&self, scratch: &Scratch) -> bool {
        let noted = std::fs::metadata(self.record(scratch)).and_then(|record| record.modified());
        noted.is_ok_and(|noted| noted.elapsed().is_ok_and(|age| age > MISSED))
    }

    fn turn(&self, server: &str) -> Arc<Semaphore> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(turns.entry(server.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(1))))
    }

    fn record(&self, scratch: &Scratch) -> PathBuf {
        self.folder.join(format!("{}.json", scratch.outer))
    }

    fn left(&self) -> std::sync::MutexGuard<'_, HashMap<String, Scratch>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_missing(error: &MountError) -> bool {
    matches!(error.plain(), MountError::NoSuchShare { .. })
}

async fn go_on(scratches: Weak<Scratches>) {
    loop {
        let Some(all) = scratches.upgrade() else { return };
        let left: Vec<Scratch> = all.left().values().cloned().collect();
        for scratch in left {
            all.remove(scratch).await;
        }
        drop(all);
        tokio::time::sleep(RETRY).await;
    }
}
