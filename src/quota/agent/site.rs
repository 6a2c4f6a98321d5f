//! One export, as the agent knows it: its folders, its projects, and what it refused there.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::quota::folders::{Folders, Version};
use crate::quota::wish::Granted;
use crate::volume::quota_files::ProjectId;

/// An export.
#[derive(Debug)]
pub(super) struct Site {
    /// Its folders.
    pub(super) folders: Folders,
    /// The projects that this agent, or one before it, gave out there.
    pub(super) projects: BTreeMap<ProjectId, Project>,
    /// The wishes that were refused, and when.
    pub(super) refusals: BTreeMap<ProjectId, Refusal>,
    /// How many directories in `ready/` can be claimed.
    pub(super) ready: u64,
    /// Whether more of them are being made.
    pub(super) is_filling: bool,
    /// How many wishes were refused since the start.
    pub(super) refused: u64,
}

/// A project that was given out.
#[derive(Debug)]
pub(super) enum Project {
    /// Its directory is in `ready/`, with a limit that leaves no space for files, and can be claimed.
    Ready,
    /// It has the limit that was wanted.
    Limited(Limited),
}

/// A project with the limit that was wanted.
#[derive(Debug)]
pub(super) struct Limited {
    /// The limit.
    pub(super) granted: Granted,
    /// The link that asked for it; none where an earlier process read it.
    pub(super) answered: Option<Version>,
    /// Since when its directory is in `ready/` with that limit, as this process saw it.
    pub(super) unclaimed_since: Option<Instant>,
}

/// A wish that was refused.
#[derive(Debug)]
pub(super) struct Refusal {
    /// The link; none where an earlier process read it.
    pub(super) version: Option<Version>,
    /// When it was first refused, as this process saw it.
    pub(super) since: Instant,
}

impl Site {
    /// An export of which nothing is known yet.
    #[must_use]
    pub(super) fn new(folders: Folders) -> Self {
        Self { folders, projects: BTreeMap::new(), refusals: BTreeMap::new(), ready: 0, is_filling: true, refused: 0 }
    }

    /// Whether directories are to be made in `ready/`, where there are to be so many.
    pub(super) fn lacks_ready(&mut self, wanted: u64) -> bool {
        self.is_filling = self.ready < wanted && (self.is_filling || self.ready <= wanted / 2);
        self.is_filling
    }

    /// Whether a project was given out here.
    #[must_use]
    pub(super) fn has(&self, id: ProjectId) -> bool {
        self.projects.contains_key(&id)
    }

    /// All limits that were wanted.
    pub(super) fn limited(&self) -> impl Iterator<Item = (ProjectId, &Limited)> {
        self.projects.iter().filter_map(|(id, project)| match project {
            Project::Limited(limited) => Some((*id, limited)),
            Project::Ready => None,
        })
    }

    /// The wish that was last answered for a project, granted or refused.
    #[must_use]
    pub(super) fn answered(&self, id: ProjectId) -> Option<Version> {
        if let Some(refusal) = self.refusals.get(&id) {
            return refusal.version;
        }
        match self.projects.get(&id) {
            Some(Project::Limited(limited)) => limited.answered,
            _ => None,
        }
    }
}

impl Project {
    /// A project whose limit an agent before this one set.
    #[must_use]
    pub(super) fn adopted(granted: Granted) -> Self {
        Self::Limited(Limited { granted, answered: None, unclaimed_since: None })
    }
}
