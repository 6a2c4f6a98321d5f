//! Which volumes name which directory, for those whose StorageClass names one: several may share it, and one may lie
//! inside another. The data goes with the last volume that names it.
//!
//! The folder `subdirs/` mirrors the volumes' paths: the volume with key K in `a/b` has the folder `d.a/d.b/v.K`. The
//! server itself then tells who is last: rmdir(2) of `d.b` fails as long as another volume is there or below. A volume
//! in the directory of its own name needs no claim: nobody else has that name, and its record stands for it.

use nix::errno::Errno;
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::{Export, ExportError};
use crate::beneath;
use crate::tree::make::descend;
use crate::volume::name::RecordKey;
use crate::volume::subdir::SubDir;

/// Who else names a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claims {
    /// Nobody.
    None,
    /// Another volume names the same directory.
    Shared,
    /// Another volume lies inside it.
    Inside,
}

/// A rival may remove a folder that became empty while this one is about to use it.
const TRIES: u32 = 5;

impl Export {
    /// Notes that a volume names a directory. Noting it twice is noting it once.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn claim(&self, subdir: &SubDir, key: &RecordKey) -> Result<(), ExportError> {
        let folders = folders(subdir);
        let failed = |errno| self.failed("claim", subdir.to_string(), errno);
        let mut tries = 0;
        loop {
            tries += 1;
            let claimed = descend(&self.layout()?.subdirs, &names(&folders), Some(Mode::S_IRWXU))
                .map_err(|(_, errno)| errno)
                .and_then(|folder| mkdirat(&folder, claim_name(key).as_str(), Mode::S_IRWXU));
            match claimed {
                Ok(()) | Err(Errno::EEXIST) => return Ok(()),
                Err(Errno::ENOENT | Errno::ESTALE) if tries < TRIES => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
    }

    /// Who besides the volume `key` names the directory or one inside it.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn claims(&self, subdir: &SubDir, key: &RecordKey) -> Result<Claims, ExportError> {
        let failed = |errno| self.failed("look who claims", subdir.to_string(), errno);
        let folder = match descend(&self.layout()?.subdirs, &names(&folders(subdir)), None) {
            Ok(folder) => folder,
            Err((_, Errno::ENOENT)) => return Ok(Claims::None),
            Err((_, errno)) => return Err(failed(errno)),
        };
        let own = claim_name(key);
        let mut claims = Claims::None;
        for name in beneath::names(&folder).map_err(failed)? {
            if name.as_encoded_bytes().starts_with(b"v.") && name != own.as_str() {
                return Ok(Claims::Shared);
            }
            if name.as_encoded_bytes().starts_with(b"d.") {
                claims = Claims::Inside;
            }
        }
        Ok(claims)
    }

    /// Takes a volume's claim back, if it has one.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn release(&self, subdir: &SubDir, key: &RecordKey) -> Result<(), ExportError> {
        let failed = |errno| self.failed("release", subdir.to_string(), errno);
        let top = &self.layout()?.subdirs;
        let folders = folders(subdir);
        let mut name = claim_name(key);
        // From the claim upwards, as far as nobody else is there.
        for depth in (0..=folders.len()).rev() {
            let removed = descend(top, &names(&folders[..depth]), None)
                .map_err(|(_, errno)| errno)
                .and_then(|folder| unlinkat(&folder, name.as_str(), UnlinkatFlags::RemoveDir));
            match removed {
                // Also where a release that was cut short has removed the lower folders already.
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(Errno::ENOTEMPTY | Errno::EEXIST) => return Ok(()),
                Err(errno) => return Err(failed(errno)),
            }
            let Some(above) = depth.checked_sub(1) else { break };
            name.clone_from(&folders[above]);
        }
        Ok(())
    }
}

/// The folder for each component of a path. A name that the prefix would make too long is hashed.
fn folders(subdir: &SubDir) -> Vec<String> {
    subdir
        .components()
        .map(|component| match format!("d.{component}") {
            name if name.len() <= 255 => name,
            _ => format!("d.{}", RecordKey::of(component)),
        })
        .collect()
}

fn names(folders: &[String]) -> Vec<&str> {
    folders.iter().map(String::as_str).collect()
}

fn claim_name(key: &RecordKey) -> String {
    format!("v.{key}")
}
