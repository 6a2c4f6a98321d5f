//! One controller at a time changes a record that exists: whoever makes an empty directory in staging, `x2.<key>`.

use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, renameat};
use nix::sys::stat::{Mode, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::attempt_name::LOCKS;
use super::holder::nonce;
use super::{Export, ExportError};
use crate::volume::name::RecordKey;

impl Export {
    /// Keeps other controllers from changing a record that exists. False if one is at it, and was begun less than
    /// `silence` ago. Whoever sleeps for longer finds the record changed, and begins again.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn lock_record(&self, key: &RecordKey, silence: Duration) -> Result<bool, ExportError> {
        let staging = &self.layout()?.staging;
        let name = format!("{LOCKS}{key}");
        let failed = |errno| self.failed("make in staging", &name, errno);
        match mkdirat(staging, name.as_str(), Mode::S_IRWXU) {
            Ok(()) => return Ok(true),
            Err(Errno::EEXIST) => {}
            Err(errno) => return Err(failed(errno)),
        }
        let Ok(stat) = fstatat(staging, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW) else { return Ok(false) };
        if self.age(&stat) < silence {
            return Ok(false);
        }
        // One takes it away, whoever else sees that it is old too.
        let aside = format!("{name}.{}", nonce());
        match renameat(staging, name.as_str(), staging, aside.as_str()) {
            Ok(()) => unlinkat(staging, aside.as_str(), UnlinkatFlags::RemoveDir).map_err(failed)?,
            Err(Errno::ENOENT) => return Ok(false),
            Err(errno) => return Err(failed(errno)),
        }
        match mkdirat(staging, name.as_str(), Mode::S_IRWXU) {
            Ok(()) => Ok(true),
            Err(Errno::EEXIST) => Ok(false),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Lets others change a record again.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn unlock_record(&self, key: &RecordKey) -> Result<(), ExportError> {
        let name = format!("{LOCKS}{key}");
        match unlinkat(&self.layout()?.staging, name.as_str(), UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(self.failed("remove from staging", name, errno)),
        }
    }
}
