//! What stands for a name where the driver keeps something of it: a hash, of letters that every file system takes.

use std::fmt;

use data_encoding::BASE32_NOPAD;
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::quote::quote;

/// Bytes of the hash that a key is made of.
const KEY_BYTES: usize = 10;
/// Characters of a key: each stands for five bits.
const KEY_CHARACTERS: usize = 16;

/// What names a volume's files in the driver's own folder: 16 characters that follow from the volume's name, namely the
/// first 80 bits of its SHA-256 in base32 (`a` to `z`, `2` to `7`).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey([u8; KEY_CHARACTERS]);

/// Why a text is no key.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{key} is no key of a record: those have {KEY_CHARACTERS} characters of a-z and 2-7")]
pub struct KeyError {
    key: String,
}

impl RecordKey {
    /// The key of a name.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let hash = Sha256::digest(name.as_bytes());
        let mut key = [0; KEY_CHARACTERS];
        BASE32_NOPAD.encode_mut(&hash[..KEY_BYTES], &mut key);
        key.make_ascii_lowercase();
        Self(key)
    }

    /// Reads a key.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let is_digit = |byte: &u8| matches!(byte, b'a'..=b'z' | b'2'..=b'7');
        let key = text.as_bytes().try_into().ok().filter(|key: &[u8; KEY_CHARACTERS]| key.iter().all(is_digit));
        key.map(Self).ok_or_else(|| KeyError { key: quote(text) })
    }

    /// The key.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // All of it is ASCII.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RecordKey").field(&self.as_str()).finish()
    }
}

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
