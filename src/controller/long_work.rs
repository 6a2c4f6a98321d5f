//! One attempt at a long piece of work: it shows that it is alive, and ends when its work was taken away from it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;

use crate::export::limited::LimitedDirectory;
use crate::export::staging::{AttemptName, Attempts, Staged, StagingName};
use crate::export::{Export, ExportError};
use crate::tree::Progress;
use crate::tree::archive::ArchiveError;

/// An attempt, from before it has a place in staging until its tree is in its place.
#[derive(Debug)]
pub(super) struct Attempt {
    work: StagingName,
    /// How long another controller must have been silent before its attempt is taken over.
    silence: Duration,
    pub(super) progress: Arc<Progress>,
    staged: Mutex<Option<Kept>>,
    /// What may be in staging of it although it does not work on that any more.
    left: Mutex<Option<AttemptName>>,
    is_lost: AtomicBool,
}

#[derive(Debug)]
struct Kept {
    name: AttemptName,
    has_beat: bool,
}

impl Attempt {
    pub(super) fn new(work: StagingName, silence: Duration, progress: Arc<Progress>) -> Self {
        let (staged, left, is_lost) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        Self { work, silence, progress, staged, left, is_lost }
    }

    /// How often it shows that it is alive: a few times before it would be taken over.
    pub(super) fn heartbeat(&self) -> Duration {
        (self.silence / 12).max(Duration::from_millis(100))
    }

    /// What is in staging of the same work. `is_placed`: whether something is in the place of what it makes.
    pub(super) fn earlier(&self, export: &Export, is_placed: bool) -> Result<Attempts, ExportError> {
        if is_placed { export.attempts(&self.work) } else { export.attempts_before_place(&self.work) }
    }

    /// Makes a place in staging, or moves a limited directory there.
    pub(super) fn begin(
        &self,
        export: &Export,
        earlier: &Attempts,
        mode: u32,
        limited: Option<&LimitedDirectory>,
    ) -> Result<Staged, ExportError> {
        let name = export.name_attempt(&self.work);
        *self.left() = Some(name.clone());
        let staged = export.begin(name.clone(), earlier, self.silence, mode, limited)?;
        *self.left() = None;
        *self.staged() = Some(Kept { name, has_beat: false });
        Ok(staged)
    }

    /// Removes what an earlier try of it left, after one that succeeded without it: no retry comes that takes it over.
    pub(super) fn remove_left(&self, export: &Export) -> Result<(), ExportError> {
        match self.left().take() {
            Some(name) => export.finish_attempt(&name, false),
            None => Ok(()),
        }
    }

    /// Shows that it is alive. Where another controller has taken its tree, the work is ended.
    pub(super) fn beat(&self, export: &Export) -> Result<(), ExportError> {
        // Held meanwhile, so that no beat comes behind the end.
        let mut staged = self.staged();
        let Some(kept) = staged.as_mut() else { return Ok(()) };
        if let Some(state) = export.keep_staged(&kept.name)? {
            kept.has_beat = true;
            if state.asked.is_some_and(|asked| asked < 2 * self.heartbeat()) {
                self.progress.ask();
            }
        } else {
            self.is_lost.store(true, Ordering::Relaxed);
            self.progress.stop();
        }
        Ok(())
    }

    /// No beat comes from now on. Whether there was one.
    pub(super) fn end(&self) -> bool {
        self.staged().take().is_some_and(|kept| kept.has_beat)
    }

    /// The attempt failed: what it made is kept for its retry where that has a use for it. Gives the error, or why the
    /// work was ended.
    pub(super) fn fail(&self, export: &Export, staged: &Staged, error: ExportError) -> ExportError {
        self.end();
        let error = if is_stopped(&error) {
            self.why_stopped(export)
        } else if Self::is_taken(export, staged, &error) {
            self.contended(export)
        } else {
            error
        };
        let is_kept = match &error {
            // No retry has a use for a part of an archive, or for what was unpacked of one.
            ExportError::Archive { .. } if error.is_full() => false,
            _ if error.is_full() => export.note_full(staged.name()).is_ok(),
            _ => error.is_passing(),
        };
        if is_kept {
            *self.left() = Some(staged.name().clone());
        } else if let Err(left) = export.finish_attempt(staged.name(), false) {
            tracing::warn!(share = %export.share(), error = %left, "what a failed attempt left is swept later");
        }
        error
    }

    fn why_stopped(&self, export: &Export) -> ExportError {
        if self.is_lost.load(Ordering::Relaxed) {
            return self.contended(export);
        }
        ExportError::Abandoned { share: export.share().to_string() }
    }

    /// Whether an error came of it that another controller has taken the tree, and may have freed it: who slept is told
    /// so by the next step that he takes in it, and not by a beat.
    fn is_taken(export: &Export, staged: &Staged, error: &ExportError) -> bool {
        (!error.is_passing() || error.is_stale()) && export.is_staged(staged.name()).is_ok_and(|is_staged| !is_staged)
    }

    fn contended(&self, export: &Export) -> ExportError {
        export.contended("go on with", self.work.to_string())
    }

    fn staged(&self) -> MutexGuard<'_, Option<Kept>> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn left(&self) -> MutexGuard<'_, Option<AttemptName>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an error is that of work which was told to end.
fn is_stopped(error: &ExportError) -> bool {
    match error {
        ExportError::Io { errno, .. } => *errno == Errno::ECANCELED,
        ExportError::Archive { error: ArchiveError::Tree(error), .. } => error.errno == Errno::ECANCELED,
        _ => false,
    }
}
