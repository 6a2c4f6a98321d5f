//! The names in the trash (their form: trash.rs).

use std::fmt;
use std::time::Duration;

use crate::volume::record_key::RecordKey;

/// What ends the name of a record, and of a note why something could not be freed.
const RECORD: &str = ".json";
const FAILED: &str = ".failed";

/// What a name in the trash stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A volume's directory.
    Volume,
    /// A snapshot.
    Snapshot,
    /// What was being made and nobody asked for again.
    Staged,
}

/// The name of something in the trash.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TrashName {
    /// What it was.
    pub kind: Kind,
    /// The key of its name.
    pub key: RecordKey,
    /// When it was deleted, in nanoseconds since 1970.
    pub deleted_at: u64,
    /// Before this second since 1970 it is not freed.
    pub keep_until: u64,
}

impl TrashName {
    /// A name that nothing has yet, for something that is deleted now and kept for so long.
    #[must_use]
    pub fn new(kind: Kind, key: RecordKey, now: Duration, kept: Duration) -> Self {
        let keep_until = if kept.is_zero() { 0 } else { (now + kept).as_secs().max(1) };
        Self { kind, key, deleted_at: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), keep_until }
    }

    /// Reads the name of a directory in the trash; none if it is not one.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let mut fields = name.split('.');
        let parsed = Self::of_fields(&mut fields)?;
        fields.next().is_none().then_some(parsed)
    }

    fn of_fields<'a>(fields: &mut impl Iterator<Item = &'a str>) -> Option<Self> {
        let kind = match fields.next()? {
            "v" => Kind::Volume,
            "s" => Kind::Snapshot,
            "t" => Kind::Staged,
            _ => return None,
        };
        let key = fields.next()?.parse().ok()?;
        let mut number = || u64::from_str_radix(fields.next()?, 16).ok();
        let (deleted_at, keep_until) = (number()?, number()?);
        Some(Self { kind, key, deleted_at, keep_until })
    }

    /// Whether it is kept for now, so that it can be brought back.
    #[must_use]
    pub fn is_kept(&self, now: Duration) -> bool {
        self.keep_until > now.as_secs()
    }

    pub(super) fn record(&self) -> String {
        format!("{self}{RECORD}")
    }

    pub(super) fn failed(&self) -> String {
        format!("{self}{FAILED}")
    }

    /// The name that it has from when it is freed on: it cannot be brought back then.
    pub(super) fn let_go(&self) -> Self {
        Self { keep_until: 0, ..self.clone() }
    }
}

impl fmt::Display for TrashName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Volume => 'v',
            Kind::Snapshot => 's',
            Kind::Staged => 't',
        };
        write!(f, "{kind}.{}.{:x}.{:x}", self.key, self.deleted_at, self.keep_until)
    }
}

/// What a name in the trash is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Something that was deleted.
    Entry(TrashName),
    /// Its record.
    Record(TrashName),
    /// The note why it could not be freed.
    Failed(TrashName),
    /// A directory that was below it.
    Rest(TrashName),
    /// A later version's.
    Unknown,
}

impl Part {
    pub(super) fn of(name: &str) -> Self {
        let mut fields = name.split('.');
        let Some(entry) = TrashName::of_fields(&mut fields) else { return Self::Unknown };
        let rest: Vec<&str> = fields.collect();
        match rest.as_slice() {
            [] => Self::Entry(entry),
            ["json"] => Self::Record(entry),
            ["failed"] => Self::Failed(entry),
            // One that was below such a one has two numbers, and so on.
            numbers if numbers.iter().all(|number| number.parse::<u64>().is_ok()) => Self::Rest(entry),
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Duration = Duration::from_secs(1_000_000);

    #[test]
    fn a_name_tells_what_it_was_when_it_went_and_how_long_it_stays() {
        let key = RecordKey::of("pvc-1");
        let kept = TrashName::new(Kind::Volume, key.clone(), NOW, Duration::from_hours(1));
        let free = TrashName::new(Kind::Snapshot, key, NOW, Duration::ZERO);
        assert!(kept.is_kept(NOW) && !kept.is_kept(NOW + Duration::from_hours(1)) && !free.is_kept(NOW));
        assert!(!kept.let_go().is_kept(NOW));
        for name in [kept, free] {
            assert_eq!(TrashName::parse(&name.to_string()), Some(name));
        }
    }

    #[test]
    fn what_is_beside_an_entry_is_known_and_what_another_version_put_there_is_not() {
        let name = TrashName::new(Kind::Volume, RecordKey::of("pvc-1"), NOW, Duration::ZERO);
        assert_eq!(Part::of(&name.record()), Part::Record(name.clone()));
        assert_eq!(Part::of(&name.failed()), Part::Failed(name.clone()));
        for rest in ["7", "7.0", "7.0.12"] {
            assert_eq!(Part::of(&format!("{name}.{rest}")), Part::Rest(name.clone()));
        }
        for other in [format!("{name}.held"), format!("{name}.0.json"), "x".into(), "v.short.1.0".into(), String::new()]
        {
            assert_eq!(Part::of(&other), Part::Unknown, "{other}");
            assert_eq!(TrashName::parse(&other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "[vst]?\\.?[a-z2-7.]{0,30}|\\PC{0,40}") {
            let _ = Part::of(&text);
        }
    }
}
