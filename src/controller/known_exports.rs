//! The exports that this controller knows: those on its command line, and all that calls have named, also before a
//! restart. What was deleted on them is freed although no call names them again.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::volume::share::Share;

const FILE: &str = "nfs-csi-exports";
/// More are not kept: those that were named last are.
const MOST: usize = 1024;

/// The exports, in the order in which they were named.
#[derive(Debug)]
pub(super) struct KnownExports {
    file: PathBuf,
    known: Mutex<Vec<Share>>,
}

impl KnownExports {
    /// Those given, and those that the file in `folder` holds, one on a line.
    pub(super) fn open(folder: &Path, given: &[Share]) -> Self {
        let file = folder.join(FILE);
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let mut known = given.to_vec();
        for share in text.lines().filter_map(|line| line.parse().ok()) {
            if !known.contains(&share) {
                known.push(share);
            }
        }
        Self { file, known: Mutex::new(known) }
    }

    /// Notes one that a call names.
    pub(super) fn note(&self, share: &Share) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains(share) {
            return;
        }
        if known.len() >= MOST {
            known.remove(0);
        }
        known.push(share.clone());
        if let Err(error) = self.write(&known) {
            tracing::warn!(
                file = %self.file.display(), %error,
                "an export will not be known after a restart, before a call names it: name it by --export"
            );
        }
    }

    /// All of them, in the order of their names.
    pub(super) fn all(&self) -> Vec<Share> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        known.sort_unstable_by_key(ToString::to_string);
        known
    }

    /// Replaces the file: a crash leaves the old one or the new one.
    fn write(&self, known: &[Share]) -> io::Result<()> {
        let folder = self.file.parent().unwrap_or(Path::new("/"));
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        for share in known {
            writeln!(file, "{share}")?;
        }
        file.persist(&self.file).map(drop).map_err(|error| error.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_named_is_known_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let share = |text: &str| text.parse::<Share>().unwrap();
        let given = [share("nas:/b")];
        let known = KnownExports::open(folder.path(), &given);
        known.note(&share("nas:/c"));
        known.note(&share("nas:/a"));
        known.note(&share("nas:/b"));
        let names = |known: &KnownExports| known.all().iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names(&known), ["nas:/a", "nas:/b", "nas:/c"]);
        assert_eq!(names(&KnownExports::open(folder.path(), &[])), ["nas:/a", "nas:/b", "nas:/c"]);
        std::fs::write(folder.path().join(FILE), "nonsense\nnas:/x\n\0").unwrap();
        assert_eq!(names(&KnownExports::open(folder.path(), &given)), ["nas:/b", "nas:/x"]);
    }
}
