//! GetCapacity: what the server says is free. Volumes share it; none has a part of its own.

use super::Controller;
use crate::export::{Export, ExportError};
use crate::mount::options::Options;
use crate::volume::share::Share;

impl Controller {
    /// Free bytes on a share; without one, those on all shares known, as far as they answer.
    ///
    /// # Errors
    /// Where the share named cannot be mounted or asked.
    pub async fn available_bytes(&self, share: Option<&Share>) -> Result<u64, ExportError> {
        if let Some(share) = share {
            return self.available_on(share).await;
        }
        let mut sum = 0_u64;
        for share in self.shares() {
            match self.available_on(&share).await {
                Ok(bytes) => sum = sum.saturating_add(bytes),
                Err(error) => tracing::warn!(%share, %error, "cannot tell the free space of an export"),
            }
        }
        Ok(sum)
    }

    async fn available_on(&self, share: &Share) -> Result<u64, ExportError> {
        self.look(share, &Options::default(), Export::available_bytes).await
    }
}
