//! A check, and what came of it.

use serde::{Deserialize, Serialize};

/// How a check ended, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It does not apply here, or cannot be made; `seen` has the reason.
    Skip,
    /// It is as the driver needs it.
    Pass,
    /// The driver works, and something is missing.
    Warn,
    /// Volumes will not work.
    Fail,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Its name, which does not change from version to version.
    pub name: String,
    /// How it ended.
    pub outcome: Outcome,
    /// What was seen.
    pub seen: String,
    /// What to do, in one sentence; none where nothing is wrong.
    pub remedy: Option<String>,
}

/// A check that will be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned {
    /// Its name.
    pub(super) name: &'static str,
    /// What to do where it does not end in time.
    pub(super) if_late: &'static str,
}

impl Planned {
    /// A check that only a host that is in trouble itself does not end in time.
    pub(super) const fn local(name: &'static str) -> Self {
        Self { name, if_late: "look at the load of this host, and run the doctor again" }
    }

    pub(super) fn pass(self, seen: impl Into<String>) -> Check {
        self.ended(Outcome::Pass, seen, None)
    }

    pub(super) fn warn(self, seen: impl Into<String>, remedy: impl Into<String>) -> Check {
        self.ended(Outcome::Warn, seen, Some(remedy.into()))
    }

    pub(super) fn fail(self, seen: impl Into<String>, remedy: impl Into<String>) -> Check {
        self.ended(Outcome::Fail, seen, Some(remedy.into()))
    }

    pub(super) fn skip(self, reason: impl Into<String>) -> Check {
        self.ended(Outcome::Skip, reason, None)
    }

    fn ended(self, outcome: Outcome, seen: impl Into<String>, remedy: Option<String>) -> Check {
        Check { name: self.name.into(), outcome, seen: seen.into(), remedy }
    }
}

/// All checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// How the worst of them ended; never [`Outcome::Skip`].
    pub outcome: Outcome,
    /// All of them, in the order in which they depend on each other.
    pub checks: Vec<Check>,
}

impl Report {
    /// The report of these checks.
    #[must_use]
    pub fn of(checks: Vec<Check>) -> Self {
        let outcome = checks.iter().map(|check| check.outcome).max().unwrap_or(Outcome::Pass).max(Outcome::Pass);
        Self { outcome, checks }
    }

    /// How many checks ended so.
    #[must_use]
    pub fn count(&self, outcome: Outcome) -> usize {
        self.checks.iter().filter(|check| check.outcome == outcome).count()
    }

    /// The status that the command exits with: 0 where nothing is wrong, 1 for a warning, 2 for a failure.
    #[must_use]
    pub fn status(&self) -> u8 {
        match self.outcome {
            Outcome::Skip | Outcome::Pass => 0,
            Outcome::Warn => 1,
            Outcome::Fail => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Planned = Planned::local("one");

    #[test]
    fn the_worst_check_decides_and_a_skipped_one_does_not() {
        for (checks, outcome, status) in [
            (vec![], Outcome::Pass, 0),
            (vec![ONE.skip("no server")], Outcome::Pass, 0),
            (vec![ONE.skip("no server"), ONE.pass("fine")], Outcome::Pass, 0),
            (vec![ONE.warn("slow", "wait"), ONE.pass("fine")], Outcome::Warn, 1),
            (vec![ONE.fail("dead", "start it"), ONE.warn("slow", "wait"), ONE.skip("no")], Outcome::Fail, 2),
        ] {
            let report = Report::of(checks);
            assert_eq!((report.outcome, report.status()), (outcome, status));
        }
    }

    #[test]
    fn a_report_as_json_has_a_name_an_outcome_what_was_seen_and_the_remedy() {
        let report = Report::of(vec![ONE.pass("fine"), ONE.fail("dead", "start it")]);
        let expected = serde_json::json!({
            "outcome": "fail",
            "checks": [
                {"name": "one", "outcome": "pass", "seen": "fine", "remedy": null},
                {"name": "one", "outcome": "fail", "seen": "dead", "remedy": "start it"},
            ],
        });
        assert_eq!(serde_json::to_value(report).unwrap(), expected);
    }
}
