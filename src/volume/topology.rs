//! Where volumes can be reached from: a label that all nodes have in common from where the exports can be reached.
//!
//! A directory on an NFS server is not in one place, so volumes have no topology. It is there because Kubernetes keeps
//! a `CSIStorageCapacity` only for drivers whose nodes tell one.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The longest domain before the slash, in bytes.
const LONGEST_PREFIX: usize = 253;
/// The longest name and the longest value, in bytes.
const LONGEST_WORD: usize = 63;

/// A topology segment, `key=value`, which is also a node's label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// `[domain/]name`.
    pub key: String,
    /// Never empty.
    pub value: String,
}

/// It cannot be a label.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "write [domain/]name=value, such as kubernetes.io/os=linux: name and value have at most 63 letters, digits, '-', \
     '_' and '.', and begin and end with a letter or digit"
)]
pub struct SegmentError;

impl FromStr for Segment {
    type Err = SegmentError;

    fn from_str(text: &str) -> Result<Self, SegmentError> {
        let (key, value) = text.split_once('=').ok_or(SegmentError)?;
        let (prefix, name) = key.rsplit_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
        if prefix.is_none_or(is_domain) && is_word(name) && is_word(value) {
            return Ok(Self { key: key.into(), value: value.into() });
        }
        Err(SegmentError)
    }
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

/// The specification's rule for the names of segments, and Kubernetes' for labels and their values: at most 63 letters,
/// digits, `-`, `_` and `.`, with a letter or digit at both ends.
#[must_use]
pub fn is_word(text: &str) -> bool {
    let ends_well = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= LONGEST_WORD
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
        && ends_well(bytes.first())
        && ends_well(bytes.last())
}

/// A DNS name in lower case.
fn is_domain(text: &str) -> bool {
    text.len() <= LONGEST_PREFIX
        && text.split('.').all(|label| is_word(label) && !label.contains(|c: char| c == '_' || c.is_ascii_uppercase()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_segment_is_a_label() {
        for text in ["kubernetes.io/os=linux", "zone=a", "topology.example.com/nfs_zone=Room-1.b"] {
            assert_eq!(text.parse::<Segment>().unwrap().to_string(), text);
        }
        let long = "x".repeat(64);
        for text in
            ["", "zone", "zone=", "=a", "/zone=a", "-x/zone=a", "A.io/zone=a", "a..b/zone=a", "x/y/zone=a", "zone=a b"]
        {
            assert_eq!(text.parse::<Segment>(), Err(SegmentError), "{text}");
        }
        assert!(format!("zone={long}").parse::<Segment>().is_err());
        assert!(format!("{long}=zone").parse::<Segment>().is_err());
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_the_same(text in any::<String>()) {
            if let Ok(segment) = text.parse::<Segment>() {
                prop_assert_eq!(segment.to_string(), text);
            }
        }
    }
}
