//! Inline volumes: a pod's author writes server and share into the pod itself, and no administrator sees it. So they
//! are taken only where the operator's patterns allow.

use std::io;
use std::path::Path;

use super::published::Published;
use super::scratch::{self, Scratch, ScratchError};
use super::{Inline, Node, Publish, PublishError};
use crate::mount::table::Table;
use crate::volume::access::Mode;

impl Node {
    /// The volume, told from the operator's place on, so that no link that a tenant made below that place is followed.
    pub(super) fn admit_inline(&self, publish: Publish) -> Result<Publish, PublishError> {
        let patterns = &self.settings.inline;
        if patterns.is_empty() {
            return Err(PublishError::InlineOff);
        }
        if publish.options.names_server() {
            return Err(PublishError::InlineServer);
        }
        // The operator vouches for the path that a pattern has, so the longest one says most.
        let located = patterns
            .iter()
            .filter_map(|pattern| Some((pattern.depth(), pattern.locate(&publish.share, publish.subdir.as_ref())?)))
            .max_by_key(|(depth, _)| *depth);
        match located {
            Some((_, (share, subdir))) => Ok(Publish { share, subdir, ..publish }),
            None => Err(PublishError::InlineRefused { place: place(&publish) }),
        }
    }

    /// The scratch directory that the volume has or is to get, if it wants one.
    pub(super) fn scratch(
        &self,
        publish: &Publish,
        before: Option<&Published>,
    ) -> Result<Option<Scratch>, PublishError> {
        let wants = publish.inline == Some(Inline::Scratch);
        let (share, subdir, options) = (&publish.share, publish.subdir.as_ref(), &publish.options);
        match before.and_then(|before| before.scratch.as_ref()) {
            Some(kept) if wants && kept.is_in(share, subdir, options) => Ok(Some(kept.clone())),
            Some(kept) => Err(PublishError::Occupied {
                target: publish.target.clone(),
                found: format!("the scratch directory {}", kept.path()),
                wanted: format!("volume {} at {}", publish.volume, place(publish)),
            }),
            None if wants => Scratch::new(share, subdir, options).map(Some).map_err(|error| self.unknown(&error)),
            None => Ok(None),
        }
    }

    /// Makes the scratch directory of a publication that has one, unless it is mounted: a publication that is repeated
    /// needs no server.
    pub(super) async fn make_scratch(
        &self,
        published: &Published,
        before: Option<&Published>,
        permissions: Option<Mode>,
    ) -> Result<(), ScratchError> {
        match (&self.scratches, &published.scratch) {
            (Some(_), Some(_)) if before.is_some_and(is_mounted) => Ok(()),
            (Some(scratches), Some(scratch)) => {
                scratches.make(scratch, permissions.map_or(scratch::MODE, Mode::bits)).await
            }
            _ => Ok(()),
        }
    }

    /// Forgets a publication that did not come to be; what was made for it goes in the background.
    pub(super) async fn take_back(&self, published: &Published) {
        match self.leave_scratch(published).await {
            Ok(scratch) => {
                self.forget(&published.target);
                if let (Some(scratches), Some(scratch)) = (self.scratches.clone(), scratch) {
                    tokio::spawn(async move { scratches.remove(scratch).await });
                }
            }
            // Its record stays, and the directory with it, for an unpublish or a retry.
            Err(error) => tracing::warn!(target = published.target, %error, "cannot note what is to be removed"),
        }
    }

    /// Notes that a publication's scratch directory is to be removed, if it has one, and gives it.
    pub(super) async fn leave_scratch(&self, published: &Published) -> io::Result<Option<Scratch>> {
        match (&self.scratches, &published.scratch) {
            (Some(scratches), Some(scratch)) => {
                scratches.leave(scratch).await?;
                Ok(Some(scratch.clone()))
            }
            _ => Ok(None),
        }
    }
}

fn is_mounted(published: &Published) -> bool {
    let path = Path::new(&published.mount_point);
    Table::read_on(&[path]).is_ok_and(|table| table.at(path).is_some())
}

fn place(publish: &Publish) -> String {
    match &publish.subdir {
        Some(subdir) => format!("{}/{subdir}", publish.share.to_string().trim_end_matches('/')),
        None => publish.share.to_string(),
    }
}
