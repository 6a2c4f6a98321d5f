//! How a volume may be used, how large it is, whose permission bits it gets, and what its deletion does.

use std::fmt;

use thiserror::Error;

use super::quote::quote;

/// An access mode of the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the specification's names")]
pub enum AccessMode {
    SingleNodeWriter,
    SingleNodeReaderOnly,
    MultiNodeReaderOnly,
    MultiNodeSingleWriter,
    MultiNodeMultiWriter,
    SingleNodeSingleWriter,
    SingleNodeMultiWriter,
}

impl AccessMode {
    /// Whether nobody may write.
    #[must_use]
    pub fn read_only(self) -> bool {
        matches!(self, Self::SingleNodeReaderOnly | Self::MultiNodeReaderOnly)
    }

    /// Whether the volume may be published on one target path of a node only (Kubernetes: `ReadWriteOncePod`).
    #[must_use]
    pub fn single_target(self) -> bool {
        self == Self::SingleNodeSingleWriter
    }
}

/// What deleting a volume does with its directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnDelete {
    /// It is deleted too.
    #[default]
    Delete,
    /// It stays where it is.
    Retain,
    /// It is renamed.
    Archive,
}

/// A text that is no [`OnDelete`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{policy} is nothing to do with a deleted volume's directory: write delete, retain or archive")]
pub struct OnDeleteError {
    policy: String,
}

impl OnDelete {
    /// Reads `delete`, `retain` or `archive`, in any case.
    pub fn parse(text: &str) -> Result<Self, OnDeleteError> {
        [Self::Delete, Self::Retain, Self::Archive]
            .into_iter()
            .find(|policy| text.eq_ignore_ascii_case(policy.as_str()))
            .ok_or_else(|| OnDeleteError { policy: quote(text) })
    }

    /// The policy as a `StorageClass` has it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::Retain => "retain",
            Self::Archive => "archive",
        }
    }
}

impl fmt::Display for OnDelete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Permission bits, with set-user-id, set-group-id and sticky bit: 0 to 0o7777. As text: octal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mode(u32);

/// A text that is no [`Mode`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{mode} is no mode: write permission bits in octal, from 0 to 7777, such as 0755")]
pub struct ModeError {
    mode: String,
}

impl Mode {
    /// Reads octal digits.
    pub fn parse(text: &str) -> Result<Self, ModeError> {
        let is_octal = text.bytes().all(|digit| matches!(digit, b'0'..=b'7'));
        let bits = u32::from_str_radix(text, 8).ok().filter(|_| is_octal);
        bits.and_then(Self::from_bits).ok_or_else(|| ModeError { mode: quote(text) })
    }

    /// The mode of these bits; none if others than permission bits are among them.
    #[must_use]
    pub fn from_bits(bits: u32) -> Option<Self> {
        (bits <= 0o7777).then_some(Self(bits))
    }

    /// The bits.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

/// How large a volume is to be, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CapacityRange {
    required: u64,
    limit: Option<u64>,
}

/// Why two numbers are no range of sizes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum CapacityError {
    #[error("{field} is {value}: a size is not negative")]
    Negative { field: &'static str, value: i64 },

    #[error("limit_bytes {limit} is below required_bytes {required}: no volume has such a size")]
    LimitBelowRequired { required: u64, limit: u64 },
}

impl CapacityRange {
    /// The range from the specification's `required_bytes` to its `limit_bytes`; 0 stands for a bound that is not set.
    pub fn parse(required_bytes: i64, limit_bytes: i64) -> Result<Self, CapacityError> {
        let unsigned = |field, value: i64| u64::try_from(value).map_err(|_| CapacityError::Negative { field, value });
        let required = unsigned("required_bytes", required_bytes)?;
        let limit = Some(unsigned("limit_bytes", limit_bytes)?).filter(|&limit| limit != 0);
        match limit {
            Some(limit) if limit < required => Err(CapacityError::LimitBelowRequired { required, limit }),
            _ => Ok(Self { required, limit }),
        }
    }

    /// The size that a volume gets: what is required, and no more. 0 if nothing is.
    #[must_use]
    pub fn capacity(self) -> u64 {
        self.required
    }

    /// The size of a volume that has to hold so many bytes: what is required, and without that just so much. None if
    /// the range is below.
    #[must_use]
    pub fn capacity_for(self, bytes: u64) -> Option<u64> {
        let capacity = if self.required == 0 { bytes } else { self.required };
        (capacity >= bytes && self.admits(capacity)).then_some(capacity)
    }

    /// Whether a volume of this size is in the range.
    #[must_use]
    pub fn admits(self, capacity: u64) -> bool {
        self.required <= capacity && self.limit.is_none_or(|limit| capacity <= limit)
    }
}

impl fmt::Display for CapacityRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.limit {
            None => write!(f, "{} bytes or more", self.required),
            Some(limit) if limit == self.required => write!(f, "{limit} bytes"),
            Some(limit) => write!(f, "{} to {limit} bytes", self.required),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_the_reader_modes_are_read_only_and_only_one_mode_has_one_target() {
        use AccessMode::{
            MultiNodeMultiWriter, MultiNodeReaderOnly, MultiNodeSingleWriter, SingleNodeMultiWriter,
            SingleNodeReaderOnly, SingleNodeSingleWriter, SingleNodeWriter,
        };
        let cases = [
            (SingleNodeWriter, false, false),
            (SingleNodeReaderOnly, true, false),
            (MultiNodeReaderOnly, true, false),
            (MultiNodeSingleWriter, false, false),
            (MultiNodeMultiWriter, false, false),
            (SingleNodeSingleWriter, false, true),
            (SingleNodeMultiWriter, false, false),
        ];
        for (mode, read_only, single_target) in cases {
            assert_eq!((mode.read_only(), mode.single_target()), (read_only, single_target), "{mode:?}");
        }
    }

    #[test]
    fn a_volume_with_data_is_as_large_as_its_source_or_larger() {
        let capacity = |required, limit| CapacityRange::parse(required, limit).unwrap().capacity_for(10);
        assert_eq!(capacity(0, 0), Some(10));
        assert_eq!(capacity(10, 10), Some(10));
        assert_eq!(capacity(11, 0), Some(11));
        assert_eq!(capacity(0, 20), Some(10));
        assert_eq!(capacity(9, 0), None);
        assert_eq!(capacity(9, 20), None);
        assert_eq!(capacity(0, 9), None);
    }

    #[test]
    fn a_policy_is_read_in_any_case_and_others_are_refused_with_the_list() {
        assert_eq!(OnDelete::parse("delete"), Ok(OnDelete::Delete));
        assert_eq!(OnDelete::parse("Retain"), Ok(OnDelete::Retain));
        assert_eq!(OnDelete::parse("ARCHIVE"), Ok(OnDelete::Archive));
        assert_eq!(OnDelete::Archive.to_string(), "archive");
        for text in ["", "burn", " retain", "deleted"] {
            let message = OnDelete::parse(text).unwrap_err().to_string();
            assert!(
                [&quote(text), "delete", "retain", "archive"].iter().all(|part| message.contains(*part)),
                "{message}"
            );
        }
    }

    #[test]
    fn a_mode_is_octal() {
        for (text, bits) in
            [("0777", 0o777), ("777", 0o777), ("1777", 0o1777), ("2770", 0o2770), ("0", 0), ("00750", 0o750)]
        {
            assert_eq!(Mode::parse(text).map(Mode::bits), Ok(bits));
        }
        for text in ["", "8", "0999", "07ab", "-1", "+7", "0o755", "10000", "77777", " 755", "99999999999999999999"] {
            let error = Mode::parse(text).unwrap_err();
            assert!(error.to_string().contains(&quote(text)), "{error}");
        }
        assert_eq!(Mode::from_bits(0o10000), None);
        assert_eq!(Mode::parse("750").unwrap().to_string(), "0750");
    }

    #[test]
    fn a_range_of_sizes_has_its_lower_end_for_a_size() {
        let range = |required, limit| CapacityRange::parse(required, limit).unwrap();
        assert_eq!(range(0, 0).capacity(), 0);
        assert_eq!(range(5, 10).capacity(), 5);
        assert_eq!(range(0, 10).capacity(), 0);
        assert!(range(0, 0).admits(u64::MAX));
        assert!(range(5, 10).admits(5) && range(5, 10).admits(10));
        assert!(!range(5, 10).admits(4) && !range(5, 10).admits(11));
        assert!(range(5, 0).admits(6) && !range(5, 0).admits(4));
        let shown = [range(5, 0), range(5, 5), range(5, 10)].map(|range| range.to_string());
        assert_eq!(shown, ["5 bytes or more", "5 bytes", "5 to 10 bytes"]);
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        assert_eq!(CapacityRange::parse(-1, 0), Err(CapacityError::Negative { field: "required_bytes", value: -1 }));
        assert_eq!(CapacityRange::parse(0, -2), Err(CapacityError::Negative { field: "limit_bytes", value: -2 }));
        assert_eq!(CapacityRange::parse(2, 1), Err(CapacityError::LimitBelowRequired { required: 2, limit: 1 }));
    }

    proptest! {
        #[test]
        fn every_mode_is_read_again_the_same(bits in 0_u32..=0o7777) {
            let mode = Mode::from_bits(bits).unwrap();
            prop_assert_eq!(Mode::parse(&mode.to_string()), Ok(mode));
        }

        #[test]
        fn a_range_admits_the_size_it_gives(required: i64, limit: i64) {
            if let Ok(range) = CapacityRange::parse(required, limit) {
                prop_assert!(range.admits(range.capacity()));
            }
        }

        #[test]
        fn no_text_makes_the_parsers_panic(text: String) {
            let _ = (Mode::parse(&text), OnDelete::parse(&text));
        }
    }
}
