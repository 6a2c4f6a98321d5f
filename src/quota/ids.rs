//! Which numbers the agent may give to projects, and which of them it gives next.

use std::collections::VecDeque;
use std::str::FromStr;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::volume::quota_files::ProjectId;

/// How long a number rests before it is given out again, while there are others. A driver that was frozen and wakes up
/// finds its project gone, rather than another volume's.
const REST: Duration = Duration::from_mins(10);

/// The agent's own range of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// The first of them.
    pub first: ProjectId,
    /// The last of them.
    pub last: ProjectId,
}

/// Why a text is no range.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a range of ids is FIRST-LAST, two numbers from 1 to 2147483647, such as 1000000-1999999")]
pub struct RangeError;

impl IdRange {
    /// Whether a number is in it.
    #[must_use]
    pub fn contains(&self, id: ProjectId) -> bool {
        (self.first..=self.last).contains(&id)
    }
}

impl FromStr for IdRange {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (first, last) = text.split_once('-').ok_or(RangeError)?;
        let (first, last) = (ProjectId::parse(first).ok_or(RangeError)?, ProjectId::parse(last).ok_or(RangeError)?);
        if first <= last { Ok(Self { first, last }) } else { Err(RangeError) }
    }
}

/// The numbers of one file system that are not given out.
#[derive(Debug)]
pub struct FreeIds {
    range: IdRange,
    /// What lies before it was looked at.
    next: Option<ProjectId>,
    /// Those that were used, and since when they are not.
    resting: VecDeque<(Instant, ProjectId)>,
}

impl FreeIds {
    /// All of a range.
    #[must_use]
    pub fn new(range: IdRange) -> Self {
        Self { range, next: Some(range.first), resting: VecDeque::new() }
    }

    /// A number that may be free; none: all were given out. The caller makes sure that it is.
    pub fn take(&mut self, now: Instant) -> Option<ProjectId> {
        let rested = self.resting.front().is_some_and(|(since, _)| now.duration_since(*since) >= REST);
        match self.next {
            Some(id) if !rested => {
                self.next = ProjectId::new(id.get() + 1).filter(|next| self.range.contains(*next));
                Some(id)
            }
            _ => self.resting.pop_front().map(|(_, id)| id),
        }
    }

    /// Takes back a number that is used no more.
    pub fn give(&mut self, id: ProjectId, now: Instant) {
        // It is found again where it is ahead.
        if self.next.is_none_or(|next| id < next) {
            self.resting.push_back((now, id));
        }
    }

    /// Looks through all numbers again, once all were given out: what others used may be free by now.
    pub fn start_over(&mut self) {
        if self.next.is_none() {
            self.resting.clear();
            self.next = Some(self.range.first);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::volume::quota_files::{parse_usage_line, usage_line};

    proptest! {
        #[test]
        fn a_range_and_a_project_s_name_are_read_as_they_were_written(one in 1..1u32 << 31, other in 1..1u32 << 31) {
            let (first, last) = (id(one.min(other)), id(one.max(other)));
            prop_assert_eq!(format!("{first}-{last}").parse(), Ok(IdRange { first, last }));
            prop_assert_eq!(ProjectId::parse(&first.to_string()), Some(first));
        }

        #[test]
        fn a_line_of_usage_is_read_as_it_was_written(number in 1..1u32 << 31, bytes: u64, inodes: u64) {
            let line = usage_line(id(number), bytes, inodes);
            prop_assert_eq!(parse_usage_line(line.trim_end()), Some((id(number), bytes, inodes)));
        }

        #[test]
        fn any_text_is_read_without_a_crash(text: String) {
            let _ = (text.parse::<IdRange>(), parse_usage_line(&text), ProjectId::parse(&text));
        }
    }

    fn id(number: u32) -> ProjectId {
        ProjectId::new(number).unwrap()
    }

    #[test]
    fn a_range_is_two_numbers_of_31_bits_in_order() {
        assert_eq!("5-7".parse(), Ok(IdRange { first: id(5), last: id(7) }));
        assert_eq!("5-5".parse(), Ok(IdRange { first: id(5), last: id(5) }));
        for wrong in ["", "5", "7-5", "0-5", "05-7", "1-2147483648", "-1-5", "a-b", "1-2-3", " 1-2"] {
            assert_eq!(wrong.parse::<IdRange>(), Err(RangeError), "{wrong}");
        }
    }

    #[test]
    fn a_number_that_was_used_rests_while_there_are_others() {
        let now = Instant::now();
        let mut free = FreeIds::new("5-7".parse().unwrap());
        assert_eq!([free.take(now), free.take(now)], [Some(id(5)), Some(id(6))]);
        free.give(id(5), now);
        assert_eq!(free.take(now), Some(id(7)));
        assert_eq!([free.take(now), free.take(now)], [Some(id(5)), None]);
        free.give(id(6), now);
        free.start_over();
        assert_eq!(free.take(now), Some(id(5)));
        free.give(id(5), now);
        assert_eq!(free.take(now + REST), Some(id(5)));
    }
}
