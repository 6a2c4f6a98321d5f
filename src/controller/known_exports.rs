//! The exports that this controller knows: those on its command line, and all that calls have named, also before a
//! restart. What was deleted on them is freed although no call names them again.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::mount::options::Options;
use crate::volume::share::Share;

const FILE: &str = "nfs-csi-exports";
/// More are not kept: those that were named last are.
const MOST: usize = 1024;

/// The exports, in the order in which they were named, each with the options that it was mounted with last for a call
/// that had some.
#[derive(Debug)]
pub(super) struct KnownExports {
    file: PathBuf,
    known: Mutex<Vec<(Share, Options)>>,
}

impl KnownExports {
    /// Those given, and those that the file in `folder` holds: one on a line, with its options behind a tab.
    pub(super) fn open(folder: &Path, given: &[Share]) -> Self {
        let file = folder.join(FILE);
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let mut known: Vec<(Share, Options)> = given.iter().map(|share| (share.clone(), Options::default())).collect();
        for (share, options) in text.lines().filter_map(read) {
            match known.iter_mut().find(|(other, _)| *other == share) {
                Some((_, given)) => *given = options,
                None => known.push((share, options)),
            }
        }
        Self { file, known: Mutex::new(known) }
    }

    /// Notes one that a call names, and the call's options if it has any. Those of a secret are not kept.
    pub(super) fn note(&self, share: &Share, options: &Options) {
        let options = options.without_secrets();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match known.iter_mut().find(|(other, _)| other == share) {
            Some((_, noted)) if options == Options::default() || *noted == options => return,
            Some((_, noted)) => *noted = options,
            None => {
                if known.len() >= MOST {
                    known.remove(0);
                }
                known.push((share.clone(), options));
            }
        }
        if let Err(error) = self.write(&known) {
            tracing::warn!(
                file = %self.file.display(), %error,
                "an export will not be known after a restart, before a call names it: name it by --export"
            );
        }
    }

    /// All of them, in the order of their names.
    pub(super) fn all(&self) -> Vec<(Share, Options)> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        known.sort_unstable_by_key(|(share, _)| share.to_string());
        known
    }

    /// Replaces the file: a crash leaves the old one or the new one.
    fn write(&self, known: &[(Share, Options)]) -> io::Result<()> {
        let folder = self.file.parent().unwrap_or(Path::new("/"));
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        for (share, options) in known {
            let tab = if *options == Options::default() { "" } else { "\t" };
            writeln!(file, "{share}{tab}{options}")?;
        }
        file.persist(&self.file).map(drop).map_err(|error| error.error)
    }
}

fn read(line: &str) -> Option<(Share, Options)> {
    // No share has a tab in it.
    let (share, options) = line.split_once('\t').unwrap_or((line, ""));
    Some((share.parse().ok()?, Options::parse([options]).unwrap_or_default()))
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
        let none = Options::default();
        for name in ["nas:/c", "nas:/a", "nas:/b"] {
            known.note(&share(name), &none);
        }
        let names = |known: &KnownExports| known.all().iter().map(|(share, _)| share.to_string()).collect::<Vec<_>>();
        assert_eq!(names(&known), ["nas:/a", "nas:/b", "nas:/c"]);
        assert_eq!(names(&KnownExports::open(folder.path(), &[])), ["nas:/a", "nas:/b", "nas:/c"]);
        std::fs::write(folder.path().join(FILE), "nonsense\nnas:/x\n\0").unwrap();
        assert_eq!(names(&KnownExports::open(folder.path(), &given)), ["nas:/b", "nas:/x"]);
    }

    #[test]
    fn the_options_of_the_last_call_that_had_some_are_known_after_a_restart_without_their_secrets() {
        let folder = tempfile::tempdir().unwrap();
        let share: Share = "nas:/a b".parse().unwrap();
        let options = |text: &str| Options::parse([text]).unwrap();
        let known = KnownExports::open(folder.path(), std::slice::from_ref(&share));
        known.note(&share, &options("nfsvers=4.1"));
        known.note(&share, &options("nfsvers=3,port=2050"));
        known.note(&share, &Options::default());
        let again = || KnownExports::open(folder.path(), std::slice::from_ref(&share)).all();
        assert_eq!(again(), [(share.clone(), options("nfsvers=3,port=2050"))]);
        known.note(&share, &options("port=2051").merged(Options::parse_secret("sec=krb5,hunter2").unwrap()));
        assert_eq!(again(), [(share.clone(), options("port=2051"))]);
    }
}
