//! GetCapacity: what the server says is free, and no more than may still be promised where the class has a bound.

use super::Controller;
use crate::export::{Export, ExportError};
use crate::mount::options::Options;
use crate::volume::share::Share;
use crate::volume::size_limit::Overcommit;

impl Controller {
    /// Free bytes on a share; without one, those on all shares known, as far as they answer.
    ///
    /// # Errors
    /// Where the share named cannot be mounted or asked.
    pub async fn available_bytes(
        &self,
        share: Option<&Share>,
        overcommit: Option<Overcommit>,
    ) -> Result<u64, ExportError> {
        if let Some(share) = share {
            return self.available_on(share, overcommit).await;
        }
        let mut sum = 0_u64;
        for share in self.shares() {
            match self.available_on(&share, overcommit).await {
                Ok(bytes) => sum = sum.saturating_add(bytes),
                Err(error) => tracing::warn!(%share, %error, "cannot tell the free space of an export"),
            }
        }
        Ok(sum)
    }

    async fn available_on(&self, share: &Share, overcommit: Option<Overcommit>) -> Result<u64, ExportError> {
        let work = move |export: &Export| {
            let free = export.available_bytes()?;
            let unpromised = overcommit.map(|overcommit| export.unpromised_bytes(overcommit)).transpose()?.flatten();
            Ok(unpromised.map_or(free, |unpromised| unpromised.min(free)))
        };
        self.look(share, &Options::default(), work).await
    }
}
