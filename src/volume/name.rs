//! What a volume is called: the name that the orchestrator gave it, and the key that its records go by.
//!
//! The specification allows 128 bytes of almost any Unicode in a name, slashes and dots too, and the name alone tells
//! two volumes apart: the directory and the key follow from it in such a way that two names never share one.

use std::fmt;

use thiserror::Error;

use super::path::RESERVED;
use super::quote::quote;
use super::record_key::RecordKey;
use super::subdir::SubDir;

/// The specification's bound for a string, in bytes.
pub(super) const LONGEST: usize = 128;

/// The CSI name of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VolumeName(String);

/// Why a text is no name of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum NameError {
    #[error("the volume's name is missing")]
    Empty,

    #[error("the volume's name {name} is too long: it has {length} bytes, at most {LONGEST} are allowed")]
    TooLong { name: String, length: usize },

    #[error("the volume's name {name} holds a control character: leave it out")]
    Control { name: String },
}

impl VolumeName {
    /// Reads a name as the specification allows it: 1 to 128 bytes, without control characters other than tab, line
    /// feed and carriage return.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.len() > LONGEST {
            return Err(NameError::TooLong { name: quote(text), length: text.len() });
        }
        if text.contains(is_forbidden) {
            return Err(NameError::Control { name: quote(text) });
        }
        Ok(Self(text.to_owned()))
    }

    /// The name of a volume that exists: it was checked when the volume was made, perhaps by another driver's rules.
    #[must_use]
    pub fn recorded(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a name is of the kind that the external provisioner gives volumes: a prefix, `-`, and a UUID.
    #[must_use]
    pub fn is_provisioners(name: &str) -> bool {
        const GROUPS: [usize; 5] = [8, 4, 4, 4, 12];
        let groups: Vec<&str> = name.rsplitn(GROUPS.len() + 1, '-').collect();
        groups.len() > GROUPS.len()
            && groups
                .iter()
                .zip(GROUPS.iter().rev())
                .all(|(group, length)| group.len() == *length && group.bytes().all(|byte| byte.is_ascii_hexdigit()))
    }

    /// The directory of a volume whose `StorageClass` tells none: at the top of the share, of the volume's name. A name
    /// that is no name of a directory is percent-encoded, and one that looks like that already is too.
    #[must_use]
    pub fn directory(&self) -> SubDir {
        let is_plain = !self.0.contains('/') && !self.0.contains("${") && !has_escape(&self.0);
        if let (true, Ok(directory)) = (is_plain, SubDir::parse(&self.0)) {
            return directory;
        }
        // The hash of a name that is too long stands behind an escape that no name's encoding has.
        SubDir::parse(&encoded(&self.0)).unwrap_or_else(|_| SubDir::at_top(format!("%00{}", RecordKey::of(&self.0))))
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The control characters that the specification forbids in every string.
pub(super) fn is_forbidden(character: char) -> bool {
    character.is_control() && !matches!(character, '\t' | '\n' | '\r')
}

/// Whether a percent sign with two hexadecimal digits is there.
fn has_escape(text: &str) -> bool {
    text.as_bytes()
        .windows(3)
        .any(|bytes| bytes[0] == b'%' && bytes[1].is_ascii_hexdigit() && bytes[2].is_ascii_hexdigit())
}

fn encoded(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len() + 2);
    let mut rest = name;
    if matches!(name, "." | ".." | RESERVED) {
        encoded.push_str("%2E");
        rest = &name[1..];
    }
    for character in rest.chars() {
        match character {
            '/' => encoded.push_str("%2F"),
            '%' => encoded.push_str("%25"),
            // A node would read "${" in its volume's path as a variable.
            '$' => encoded.push_str("%24"),
            other => encoded.push(other),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::volume::subdir::{Metadata, Template};

    fn directory(name: &str) -> String {
        VolumeName::parse(name).unwrap().directory().to_string()
    }

    #[test]
    fn a_name_has_the_specification_s_bounds() {
        for name in ["a", "a/b", "..", "a#b", "näme €", "a\tb\nc\rd", "\u{a0}"] {
            assert_eq!(VolumeName::parse(name).unwrap().as_str(), name);
        }
        assert!(VolumeName::parse(&"n".repeat(128)).is_ok());
        assert_eq!(VolumeName::parse(""), Err(NameError::Empty));
        assert!(matches!(VolumeName::parse(&"é".repeat(65)), Err(NameError::TooLong { length: 130, .. })));
        for control in ["\0", "\u{1}", "\u{8}", "\u{b}", "\u{c}", "\u{e}", "\u{1f}", "\u{7f}", "\u{80}", "\u{9f}"] {
            let name = format!("a{control}b");
            assert_eq!(VolumeName::parse(&name), Err(NameError::Control { name: quote(&name) }));
        }
    }

    #[test]
    fn a_volume_s_directory_has_its_name_if_that_is_the_name_of_a_directory() {
        for name in ["pvc-4bcbf944", "a b", "a#b", "...", ".a", "a%", "%", "%2", "50%off", "$a", "näme €"] {
            assert_eq!(directory(name), name);
        }
        assert_eq!(directory(&"n".repeat(128)), "n".repeat(128));
    }

    #[test]
    fn the_provisioner_s_names_are_known() {
        for (name, is_provisioners) in [
            ("pvc-4bcbf944-0a0e-4a3c-9d3c-2f1a6f2b3c4d", true),
            ("my-prefix-4bcbf944-0a0e-4a3c-9d3c-2f1a6f2b3c4d", true),
            ("4bcbf944-0a0e-4a3c-9d3c-2f1a6f2b3c4d", false),
            ("pvc-4bcbf944-0a0e-4a3c-9d3c-2f1a6f2b3c4", false),
            ("pvc-4bcbf944", false),
            ("data", false),
        ] {
            assert_eq!(VolumeName::is_provisioners(name), is_provisioners, "{name}");
        }
    }

    #[test]
    fn other_names_are_encoded() {
        let cases = [
            ("a/b c", "a%2Fb c"),
            ("/", "%2F"),
            (".", "%2E"),
            ("..", "%2E."),
            (".nfs-csi", "%2Enfs-csi"),
            ("../x", "..%2Fx"),
            ("a%2Fb", "a%252Fb"),
            ("a%2fb", "a%252fb"),
            ("a/%", "a%2F%25"),
            ("${pv.metadata.name}", "%24{pv.metadata.name}"),
        ];
        for (name, encoded) in cases {
            assert_eq!(directory(name), encoded);
        }
    }

    #[test]
    fn a_name_whose_encoding_is_too_long_gives_a_directory_of_its_own() {
        let (long, longer) = ("/".repeat(127), "/".repeat(128));
        assert_eq!(directory(&long), format!("%00{}", RecordKey::of(&long)));
        assert_ne!(directory(&long), directory(&longer));
        assert_eq!(directory(&"/".repeat(85)), "%2F".repeat(85));
    }

    #[test]
    fn a_recorded_name_gives_a_directory_whatever_it_is() {
        for name in [String::new(), "a\0b".into(), "x".repeat(300)] {
            let directory = VolumeName::recorded(&name).directory();
            assert_eq!(SubDir::parse(directory.as_str()), Ok(directory));
        }
    }

    #[test]
    fn a_key_is_the_start_of_the_name_s_hash() {
        // sha256sum: ba7816bf8f01cfea4141…
        assert_eq!(RecordKey::of("abc").as_str(), "xj4bnp4pahh6uqkb");
    }

    #[test]
    fn a_key_is_read_strictly() {
        assert_eq!(RecordKey::parse("abcdefgh234567zz").unwrap().as_str(), "abcdefgh234567zz");
        for text in [
            "",
            "abcdefgh234567z",
            "abcdefgh234567zzz",
            "ABCDEFGH234567ZZ",
            "abcdefgh234567z1",
            "../defgh234567zz",
            "éééééééé",
        ] {
            let error = RecordKey::parse(text).unwrap_err();
            assert!(error.to_string().contains(&quote(text)), "{error}");
        }
    }

    #[test]
    fn two_names_never_give_one_directory() {
        let mut names = vec![String::new()];
        let mut seen = std::collections::HashSet::new();
        for _ in 0..5 {
            names = names.iter().flat_map(|name| "/%25F.${".chars().map(move |last| format!("{name}{last}"))).collect();
            for name in &names {
                assert!(seen.insert(directory(name)), "{name}");
            }
        }
    }

    const ODD: &str = "[a/%.$\\{2Ff]{1,40}|\\.nfs-csi|\\PC{1,40}|(/|%2F){40,120}";

    proptest! {
        #[test]
        fn every_name_gives_one_component(name in ODD) {
            if let Ok(name) = VolumeName::parse(&name) {
                let directory = name.directory();
                prop_assert_eq!(directory.components().count(), 1);
                let template = Template::parse(directory.as_str()).unwrap();
                prop_assert_eq!(template.render(&Metadata::default()), Ok(directory.clone()));
                prop_assert_eq!(SubDir::parse(directory.as_str()), Ok(directory));
            }
        }

        #[test]
        fn the_directory_of_a_directory_s_name_is_another_or_the_same(name in ODD) {
            if let Ok(name) = VolumeName::parse(&name) {
                let directory = name.directory();
                if let Ok(other) = VolumeName::parse(directory.as_str()) {
                    prop_assert_eq!(other.directory() == directory, other == name);
                }
            }
        }

        #[test]
        fn a_key_is_read_again_the_same(name in "\\PC*") {
            let key = RecordKey::of(&name);
            prop_assert_eq!(RecordKey::parse(key.as_str()), Ok(key));
        }
    }
}
