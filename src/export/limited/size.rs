//! What the server shows of a directory's size, and whether that is the limit that is recorded.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::sys::statvfs::{Statvfs, fstatvfs};

use crate::beneath;
use crate::export::catalog::Record;
use crate::export::{Export, ExportError};
use crate::tree::make::descend;
use crate::volume::size_limit::QuotaMode;
use crate::volume::subdir::SubDir;

/// What the server shows of a directory's size, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShownSize {
    /// Its size.
    pub(super) size: u64,
    /// What is used of it.
    pub(super) used: u64,
    /// The unit that both are rounded up to.
    pub(super) unit: u64,
}

impl ShownSize {
    pub(super) fn of(has: &Statvfs) -> Self {
        let unit = has.fragment_size();
        let used = has.blocks().saturating_sub(has.blocks_free());
        Self { size: has.blocks() * unit, used: used * unit, unit }
    }
}

/// How it is with a volume's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitState {
    /// None is recorded.
    Unlimited,
    /// One was asked for, and there was none to be had.
    NotHad,
    /// It is in force, and so many bytes are used.
    InForce {
        /// Bytes.
        used: u64,
    },
    /// The server shows another size than is recorded.
    Differs {
        /// The recorded limit, in bytes.
        recorded: u64,
        /// What the server shows, in bytes.
        shown: u64,
    },
    /// The volume has no directory.
    NoDirectory,
}

impl Export {
    /// How it is with a volume's limit, as the server shows it.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn limit_state(&self, record: &Record) -> Result<LimitState, ExportError> {
        let Some(quota) = record.quota.filter(|quota| quota.mode != QuotaMode::None) else {
            return Ok(LimitState::Unlimited);
        };
        let Some((_, limit)) = quota.limit(record.capacity_bytes) else { return Ok(LimitState::NotHad) };
        let Some(shown) = self.shown_size_of(&record.subdir)? else { return Ok(LimitState::NoDirectory) };
        if self.shows_limit(limit.bytes, &shown)? {
            return Ok(LimitState::InForce { used: shown.used });
        }
        Ok(LimitState::Differs { recorded: limit.bytes, shown: shown.size })
    }

    /// Whether this is what the server shows of a directory with a limit of so many bytes. It rounds up to its blocks, and
    /// this host to the unit. A limit that is larger than the export shows the export's size.
    pub(super) fn shows_limit(&self, bytes: u64, shown: &ShownSize) -> Result<bool, ExportError> {
        let most = bytes.saturating_add(2 * shown.unit);
        Ok(shown.size <= most && (shown.size >= bytes || bytes >= self.shown_total()?))
    }

    /// What the server shows of a volume's size; none if it has no directory.
    pub(super) fn shown_size_of(&self, subdir: &SubDir) -> Result<Option<ShownSize>, ExportError> {
        let components: Vec<&str> = subdir.components().collect();
        match beneath::settled(|| descend(self.root(), &components, None).map_err(|(_, errno)| errno)) {
            Ok(directory) => self.shown_size(directory).map(Some),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.failed("look for", subdir.to_string(), errno)),
        }
    }

    /// What the server shows of the export's own size, in bytes.
    pub(super) fn shown_total(&self) -> Result<u64, ExportError> {
        self.shown_size(self.root()).map(|shown| shown.size)
    }

    pub(super) fn shown_size(&self, directory: impl AsFd) -> Result<ShownSize, ExportError> {
        let has = fstatvfs(directory).map_err(|errno| self.failed("ask for the size of", ".", errno))?;
        Ok(ShownSize::of(&has))
    }
}
