//! Who works on an export: a name for this driver that tells its attempts from those of all others, and that the driver
//! which is started in its place after a crash has too.
//!
//! The name is kept in a file in the driver's working folder, which is locked as long as the driver lives. Who holds
//! the lock knows that whatever has this name and is not its own belongs to a process that is dead: it need not wait
//! for a sign of life.

use std::fmt;
use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use data_encoding::BASE32_NOPAD;

const FILE: &str = "nfs-csi-instance";
/// Bytes of chance in a name: eight characters.
const BYTES: usize = 5;
/// A host's name is cut to this, in bytes.
const LONGEST_HOST: usize = 63;

/// The name of a driver that works on exports.
#[derive(Debug)]
pub struct Holder {
    /// What its attempts are known by after a crash, too.
    pub(super) instance: String,
    /// The cluster that it works for; none: it has no name.
    pub(super) cluster: Option<String>,
    /// Its host's or its pod's name, for people.
    pub(super) host: String,
    /// Locked.
    _file: Option<File>,
}

impl Holder {
    /// The holder whose file is in `folder`. Where another process has it, or there can be none, it is a new one.
    #[must_use]
    pub fn open(folder: &Path, cluster: Option<String>) -> Self {
        let (instance, file) = match kept(folder) {
            Ok((instance, file)) => (instance, Some(file)),
            Err(error) => {
                tracing::debug!(%error, "this driver has a name for the time of its life only");
                (nonce(), None)
            }
        };
        Self { instance, cluster, host: host(), _file: file }
    }
}

/// The name in the folder's file, which is locked from now on.
fn kept(folder: &Path) -> io::Result<(String, File)> {
    let mut file = File::options().read(true).write(true).create(true).truncate(false).open(folder.join(FILE))?;
    file.try_lock().map_err(|error| match error {
        TryLockError::Error(error) => error,
        TryLockError::WouldBlock => io::Error::from(io::ErrorKind::ResourceBusy),
    })?;
    let mut text = String::new();
    (&mut file).take(64).read_to_string(&mut text)?;
    if is_nonce(&text) {
        return Ok((text, file));
    }
    let instance = nonce();
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(instance.as_bytes())?;
    Ok((instance, file))
}

/// A part of a name that no other has: eight characters of chance.
#[must_use]
pub(crate) fn nonce() -> String {
    let mut bytes = [0; BYTES];
    // The kernel's source of chance gives so few bytes at once, and always: it was filled when the host booted.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    BASE32_NOPAD.encode(&bytes).to_ascii_lowercase()
}

/// Whether a text has the form that [`nonce`] gives.
pub(super) fn is_nonce(text: &str) -> bool {
    text.len() == BYTES * 8 / 5 && text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7'))
}

/// This host's name with nothing but letters, digits and `-`: it becomes a part of names.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let label: String = name
        .trim()
        .chars()
        .map(|character| if character.is_ascii_alphanumeric() { character } else { '-' })
        .take(LONGEST_HOST)
        .collect();
    if label.is_empty() { "unknown".into() } else { label }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cluster {
            Some(cluster) => write!(f, "{} of cluster {cluster}", self.host),
            None => f.write_str(&self.host),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_in_the_same_folder_has_the_name_of_the_one_that_died_and_another_one_beside_it_has_not() {
        let folder = tempfile::tempdir().unwrap();
        let first = Holder::open(folder.path(), None);
        let beside = Holder::open(folder.path(), None);
        assert_ne!(first.instance, beside.instance);
        let instance = first.instance.clone();
        drop(first);
        assert_eq!(Holder::open(folder.path(), None).instance, instance);
        assert_ne!(Holder::open(Path::new("/no/such/folder"), None).instance, instance);
    }

    #[test]
    fn names_of_chance_have_their_form() {
        let names: std::collections::HashSet<String> = (0..100).map(|_| nonce()).collect();
        assert_eq!(names.len(), 100);
        assert!(names.iter().all(|name| is_nonce(name)));
        assert!(!host().contains('.') && !host().is_empty());
    }
}
