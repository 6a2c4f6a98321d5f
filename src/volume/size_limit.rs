//! The limit of a volume's size that its server holds: what a `StorageClass` asks for, and what a record notes.

use std::fmt;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::quota_files::{LARGEST, ProjectId};
use super::quote::quote;

const GIB: u64 = 1 << 30;
/// The fewest inodes of a volume: fewer are of no use.
const LEAST_INODES: u64 = 16;
/// The largest factor of [`Overcommit`], and its unit.
const MOST_OVERCOMMIT: u64 = 1000;
const HUNDREDTHS: u64 = 100;

/// Whether a volume's size is held by the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QuotaMode {
    /// The size is only recorded.
    #[default]
    None,
    /// It is held where the export has a quota agent that answers.
    Preferred,
    /// There is no volume without its limit.
    Required,
}

/// Why a text is no mode.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text} is none of required, preferred and none")]
pub struct QuotaModeError {
    text: String,
}

impl QuotaMode {
    /// Reads a mode, in any case.
    pub fn parse(text: &str) -> Result<Self, QuotaModeError> {
        let all = [Self::None, Self::Preferred, Self::Required];
        let found = all.into_iter().find(|mode| mode.as_str().eq_ignore_ascii_case(text));
        found.ok_or_else(|| QuotaModeError { text: quote(text) })
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Preferred => "preferred",
            Self::Required => "required",
        }
    }
}

impl fmt::Display for QuotaMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a `StorageClass` says of limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaPolicy {
    /// Whether there are limits.
    pub mode: QuotaMode,
    /// How many files and directories a volume may have for each GiB of its size; as many as it likes without.
    pub inodes_per_gib: Option<NonZeroU64>,
    /// Whether a limit is taken that does not hold for root.
    pub root_exempt: bool,
    /// How much may be promised of the export; as much as is asked for without.
    pub overcommit: Option<Overcommit>,
}

/// How many times its size may be promised of an export, in hundredths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overcommit(u64);

/// Why a text is no such factor.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text} is no factor from 0.01 to {MOST_OVERCOMMIT} with at most two decimal places, such as 1.5")]
pub struct OvercommitError {
    text: String,
}

impl Overcommit {
    /// Reads a factor such as `2` or `1.5`.
    pub fn parse(text: &str) -> Result<Self, OvercommitError> {
        let error = || OvercommitError { text: quote(text) };
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(whole) || !is_number(part) || part.len() > 2 || whole.len() > 4 {
            return Err(error());
        }
        let number = |text: &str| text.parse::<u64>().map_err(|_| error());
        let part = number(part)? * if part.len() == 1 { 10 } else { 1 };
        let hundredths = number(whole)? * HUNDREDTHS + part;
        let is_in_range = (1..=MOST_OVERCOMMIT * HUNDREDTHS).contains(&hundredths);
        if is_in_range { Ok(Self(hundredths)) } else { Err(error()) }
    }

    /// How many bytes may be promised of an export of this size in bytes.
    #[must_use]
    pub fn of(self, size: u64) -> u64 {
        let most = u128::from(size) * u128::from(self.0) / u128::from(HUNDREDTHS);
        u64::try_from(most).unwrap_or(u64::MAX)
    }
}

impl fmt::Display for Overcommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.0 / HUNDREDTHS, self.0 % HUNDREDTHS)
    }
}

/// A limit: bytes and inodes (0: no limit of inodes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeLimit {
    /// Bytes; never 0.
    pub bytes: u64,
    /// Files and directories; 0: no limit.
    pub inodes: u64,
}

impl SizeLimit {
    /// That of a volume of so many bytes.
    #[must_use]
    pub fn new(bytes: NonZeroU64, inodes_per_gib: Option<NonZeroU64>) -> Self {
        let bytes = bytes.get();
        let inodes = inodes_per_gib.map_or(0, |each| {
            let inodes = (u128::from(bytes) * u128::from(each.get())).div_ceil(u128::from(GIB));
            u64::try_from(inodes).unwrap_or(u64::MAX).clamp(LEAST_INODES, LARGEST)
        });
        Self { bytes, inodes }
    }

    /// As good as none.
    #[must_use]
    pub fn none() -> Self {
        Self { bytes: LARGEST, inodes: 0 }
    }
}

/// What a volume's record notes of its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecordedQuota {
    /// What was asked for.
    pub mode: QuotaMode,
    /// The project of its directory; without one it has no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<ProjectId>,
    /// How many inodes it may have for each GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inodes_per_gib: Option<NonZeroU64>,
}

impl RecordedQuota {
    /// The limit that a volume of so many bytes is to have; none if it has no project.
    #[must_use]
    pub fn limit(&self, bytes: u64) -> Option<(ProjectId, SizeLimit)> {
        let project = self.project?;
        Some(match (self.mode, NonZeroU64::new(bytes)) {
            (QuotaMode::None, _) | (_, None) => (project, SizeLimit::none()),
            (_, Some(bytes)) => (project, SizeLimit::new(bytes, self.inodes_per_gib)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_read_in_any_case_and_others_are_refused_with_the_list() {
        assert_eq!(QuotaMode::parse("Required"), Ok(QuotaMode::Required));
        assert_eq!(QuotaMode::parse("preferred"), Ok(QuotaMode::Preferred));
        assert_eq!(QuotaMode::parse("none"), Ok(QuotaMode::None));
        for text in ["", "yes", " required"] {
            let message = QuotaMode::parse(text).unwrap_err().to_string();
            assert!(message.contains("required, preferred"), "{message}");
        }
    }

    #[test]
    fn a_factor_has_at_most_two_decimal_places() {
        let of = |text: &str| Overcommit::parse(text).map(|factor| factor.of(1000));
        assert_eq!([of("1"), of("1.5"), of("0.25"), of("1000")], [Ok(1000), Ok(1500), Ok(250), Ok(1_000_000)]);
        assert_eq!(Overcommit::parse("2").unwrap().of(u64::MAX), u64::MAX);
        for text in ["", "0", "0.00", "-1", "1.", ".5", "1.555", "1001", "+1", "1e3", "1,5", "99999999999999999999"] {
            assert!(Overcommit::parse(text).is_err(), "{text}");
        }
        assert_eq!(Overcommit::parse("1.5").unwrap().to_string(), "1.50");
    }

    #[test]
    fn inodes_are_counted_for_each_gib_that_is_begun_in_proportion() {
        let inodes = |bytes, each| SizeLimit::new(NonZeroU64::new(bytes).unwrap(), NonZeroU64::new(each)).inodes;
        assert_eq!(inodes(GIB, 1000), 1000);
        assert_eq!(inodes(GIB / 2, 1000), 500);
        assert_eq!(inodes(GIB / 2 + 1, 1000), 501);
        assert_eq!(inodes(1, 1000), LEAST_INODES);
        assert_eq!(inodes(u64::MAX, u64::MAX), LARGEST);
        assert_eq!(inodes(GIB, 0), 0);
    }

    #[test]
    fn a_record_notes_the_mode_and_the_project() {
        let quota = RecordedQuota { mode: QuotaMode::Required, project: ProjectId::new(7), inodes_per_gib: None };
        let text = r#"{"mode":"required","project":7}"#;
        assert_eq!(serde_json::to_string(&quota).unwrap(), text);
        assert_eq!(serde_json::from_str::<RecordedQuota>(text).unwrap(), quota);
        assert_eq!(quota.limit(0).unwrap().1, SizeLimit::none());
        assert_eq!(quota.limit(5).unwrap().1, SizeLimit { bytes: 5, inodes: 0 });
        for text in [r#"{"mode":"required","project":0}"#, r#"{"mode":"required","project":4294967295}"#] {
            assert!(serde_json::from_str::<RecordedQuota>(text).is_err(), "{text}");
        }
    }
}
