//! One attempt at a long piece of work: it shows that it is alive, and ends when its work was taken away from it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;

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
    is_lost: AtomicBool,
}

#[derive(Debug)]
struct Kept {
    name: AttemptName,
    has_beat: bool,
}

impl Attempt {
    pub(super) fn new(work: StagingName, silence: Duration, progress: Arc<Progress>) -> Self {
        let (staged, is_lost) = (Mutex::default(), AtomicBool::new(false));
        Self { work, silence, progress, staged, is_lost }
    }

    /// How often it shows that it is alive: a few times before it would be taken over.
    pub(super) fn heartbeat(&self) -> Duration {
        (self.silence / 12).max(Duration::from_millis(100))
    }

    /// What is in staging of the same work. `is_placed`: whether something is in the place of what it makes.
    pub(super) fn earlier(&self, export: &Export, is_placed: bool) -> Result<Attempts, ExportError> {
        if is_placed { export.attempts(&self.work) } else { export.attempts_before_place(&self.work) }
    }

    /// Makes a place in staging.
    pub(super) fn begin(&self, export: &Export, earlier: &Attempts, mode: u32) -> Result<Staged, ExportError> {
        let staged = export.begin(&self.work, earlier, self.silence, mode)?;
        *self.staged() = Some(Kept { name: staged.name().clone(), has_beat: false });
        Ok(staged)
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
        if !is_kept && let Err(left) = export.finish_attempt(staged.name(), false) {
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

    fn staged(&self) -> std::sync::MutexGuard<'_, Option<Kept>> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner)
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
