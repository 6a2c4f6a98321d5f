//! The names in staging (their form: staging.rs).

use std::fmt;

use super::holder::{Holder, is_nonce, nonce};
use crate::volume::record_key::RecordKey;

pub(super) const LINKS: &str = ".links";
pub(super) const BEAT: &str = ".beat";
pub(super) const ASKED: &str = ".asked";
pub(super) const RECORD: &str = ".json";
pub(super) const OLD: &str = ".old";
pub(super) const FULL: &str = ".full";
/// All that stands beside a tree.
pub(super) const COMPANIONS: [&str; 6] = [LINKS, BEAT, ASKED, RECORD, OLD, FULL];
/// How the names of records begin that are about to be put in place.
pub(super) const RECORDS: &str = "r2.";
/// How the names of locks begin.
pub(super) const LOCKS: &str = "x2.";
/// In the place of a cluster's name.
const NO_CLUSTER: &str = "0";

/// What is made, and from what: the beginning of the names of all its attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagingName(pub(super) String);

impl StagingName {
    /// For the volume of this key. `request` is a text that is equal for equal requests.
    #[must_use]
    pub fn volume(key: &RecordKey, request: &str) -> Self {
        Self(format!("v2.{key}.{}", RecordKey::of(request)))
    }

    /// For the snapshot of this key.
    #[must_use]
    pub fn snapshot(key: &RecordKey, request: &str) -> Self {
        Self(format!("s2.{key}.{}", RecordKey::of(request)))
    }
}

impl fmt::Display for StagingName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptName {
    pub(super) work: String,
    pub(super) instance: String,
    nonce: String,
    cluster: Option<String>,
    host: String,
}

impl AttemptName {
    pub(super) fn new(work: &StagingName, holder: &Holder) -> Self {
        Self {
            work: work.0.clone(),
            instance: holder.instance.clone(),
            nonce: nonce(),
            cluster: holder.cluster.clone(),
            host: holder.host.clone(),
        }
    }

    /// Reads a name in staging: the attempt, and which of its companions it is (empty: its tree). None if it is not
    /// one.
    pub(super) fn parse(name: &str) -> Option<(Self, &str)> {
        let fields: Vec<&str> = name.splitn(8, '.').collect();
        let &[kind, key, request, instance, nonce, cluster, host, ref rest @ ..] = fields.as_slice() else {
            return None;
        };
        let is_key = |text: &str| text.parse::<RecordKey>().is_ok();
        if !matches!(kind, "v2" | "s2") || !is_key(key) || !is_key(request) || !is_nonce(instance) || !is_nonce(nonce) {
            return None;
        }
        let companion = match rest {
            [] => "",
            [rest] => &name[name.len() - rest.len() - 1..],
            _ => return None,
        };
        if !companion.is_empty() && !COMPANIONS.contains(&companion) {
            return None;
        }
        let attempt = Self {
            work: format!("{kind}.{key}.{request}"),
            instance: instance.into(),
            nonce: nonce.into(),
            cluster: Some(cluster.to_owned()).filter(|cluster| cluster != NO_CLUSTER),
            host: host.into(),
        };
        Some((attempt, companion))
    }

    pub(super) fn companion(&self, companion: &str) -> String {
        format!("{self}{companion}")
    }

    /// Who makes the attempt, for people.
    #[must_use]
    pub fn holder(&self) -> String {
        match &self.cluster {
            Some(cluster) => format!("{} of cluster {cluster}", self.host),
            None => self.host.clone(),
        }
    }
}

impl fmt::Display for AttemptName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cluster = self.cluster.as_deref().unwrap_or(NO_CLUSTER);
        write!(f, "{}.{}.{}.{cluster}.{}", self.work, self.instance, self.nonce, self.host)
    }
}

/// Whether a name in staging is that of a record which is about to be put in place, or of a lock.
pub(super) fn is_temporary(name: &str) -> bool {
    if let Some(rest) = name.strip_prefix(LOCKS) {
        return rest.split('.').next().is_some_and(|key| key.parse::<RecordKey>().is_ok());
    }
    let fields = name.strip_prefix(RECORDS).and_then(|rest| rest.split_once('.'));
    fields.is_some_and(|(key, nonce)| key.parse::<RecordKey>().is_ok() && is_nonce(nonce))
}

/// Whether a name in staging is one that version 0.1.0 gave: `v.<key>.<request>`, `s.<key>.<request>`, and `.links`.
pub(super) fn is_of_first_version(name: &str) -> bool {
    let mut fields = name.split('.');
    let is_key = |field: Option<&str>| field.is_some_and(|key| key.parse::<RecordKey>().is_ok());
    matches!(fields.next(), Some("v" | "s"))
        && is_key(fields.next())
        && is_key(fields.next())
        && matches!((fields.next(), fields.next()), (None | Some("links"), None))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn attempt(cluster: Option<&str>) -> AttemptName {
        let folder = tempfile::tempdir().unwrap();
        let holder = Holder::open(folder.path(), cluster.map(Into::into));
        AttemptName::new(&StagingName::volume(&RecordKey::of("pvc-1"), "from x"), &holder)
    }

    #[test]
    fn a_name_says_what_is_made_by_whom_and_which_part_it_is() {
        for cluster in [None, Some("east-1")] {
            let name = attempt(cluster);
            assert!(name.to_string().len() + ASKED.len() <= 255);
            for part in COMPANIONS.iter().chain([&""]) {
                let text = name.companion(part);
                assert_eq!(AttemptName::parse(&text), Some((name.clone(), *part)));
            }
            assert_eq!(name.holder().contains("east-1"), cluster.is_some());
        }
    }

    #[test]
    fn what_another_version_may_have_put_there_is_none_of_these_names() {
        let name = attempt(None).to_string();
        let key = RecordKey::of("x");
        for other in [
            format!("{name}.other"),
            format!("{name}.links.1"),
            name.replacen("v2", "v3", 1),
            format!("x3.{key}"),
            "v2".into(),
            format!("v.{key}"),
            format!("v.{key}.{key}.beat"),
            format!("r3.{key}.abcdefgh"),
            String::new(),
        ] {
            assert_eq!(AttemptName::parse(&other), None, "{other}");
            assert!(!is_temporary(&other) && !is_of_first_version(&other), "{other}");
        }
        assert!(is_temporary(&format!("r2.{key}.abcdefgh")));
        assert!(is_of_first_version(&format!("v.{key}.{key}")) && is_of_first_version(&format!("s.{key}.{key}.links")));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "[vs]2?\\.?[a-z2-7.]{0,80}|\\PC{0,40}") {
            let _ = (AttemptName::parse(&text), is_temporary(&text), is_of_first_version(&text));
        }
    }
}
