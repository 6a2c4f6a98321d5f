//! What version 0.1.0 left on an export: records that it wrote beside the others, `volumes/.<key>.new`, and did not put
//! in place.

use std::time::Duration;

use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{Mode, fstatat};

use super::catalog::{self, Created, Record};
use super::{Export, ExportError};
use crate::beneath;
use crate::volume::record_key::RecordKey;

impl Export {
    /// The record that version 0.1.0 wrote for the directory with this number, and did not put in place: puts it in
    /// place.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn complete_prepared(&self, key: &RecordKey, inode: u64) -> Result<Option<Record>, ExportError> {
        let (volumes, name) = (&self.layout()?.volumes, format!(".{key}.new"));
        let record = match self.read_record_in(volumes, &name) {
            // It died while it wrote.
            Err(ExportError::Record { .. }) => None,
            record => record?.filter(|record| record.inode == Some(inode)),
        };
        let Some(record) = record else { return Ok(None) };
        let failed = |errno| self.failed("open the record", &name, errno);
        let file = beneath::open(volumes, name.as_str(), OFlag::O_RDONLY, Mode::empty()).map_err(failed)?;
        let linked = self.link_record(&file, key)?;
        drop(file);
        catalog::remove(volumes, &name).map_err(|errno| self.failed("remove the record", &name, errno))?;
        Ok(Some(match linked {
            Created::Now => record,
            Created::Before(record) => *record,
        }))
    }

    /// Removes the records that version 0.1.0 wrote and did not put in place: `volumes/.<key>.new`.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn sweep_prepared(&self, retention: Duration) -> Result<(), ExportError> {
        let volumes = &self.layout()?.volumes;
        let names = beneath::names(volumes).map_err(|errno| self.failed("list", "volumes", errno))?;
        let is_prepared = |name: &&str| name.strip_prefix('.').is_some_and(|name| name.strip_suffix(".new").is_some());
        for name in names.iter().filter_map(|name| name.to_str()).filter(is_prepared) {
            match fstatat(volumes, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
                Ok(stat) if self.age(&stat) >= retention => {
                    catalog::remove(volumes, name).map_err(|errno| self.failed("remove", name, errno))?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}
