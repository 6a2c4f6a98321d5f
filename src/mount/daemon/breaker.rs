//! One server's breaker: after a failure, calls for it are refused at once until it is known to answer again.
//!
//! Plain state; who asks the server, and when, is in `servers`. It opens when the server does not answer, and closes
//! with the first answer to a question that is asked again and again meanwhile. A server that answers that question and
//! then lets a mount hang is another matter: nothing but a mount tells whether it is well, and each try that hangs
//! keeps all other first mounts of this host waiting. So it is left alone for a while, longer after each time: not the
//! server as a whole, but mounts of this manner (the version whose mountd is dead, the security flavour whose KDC is).

use std::time::{Duration, Instant};

/// How soon after a failure the server is asked again, and how long that waits at most after further ones.
const SHORTEST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(3);
/// How long that waits at most when it has not answered for this long: a thousand nodes ask it.
const LONGEST_LATER: Duration = Duration::from_secs(20);
const LATER: Duration = Duration::from_mins(1);
/// The same for servers that answer and let mounts hang.
const SHORTEST_REST: Duration = Duration::from_secs(5);
const LONGEST_REST: Duration = Duration::from_mins(1);

/// What is known of a server.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    answered: Option<Instant>,
    open: Option<Open>,
    /// Mounts that hung since the last that did not.
    hangs: u32,
}

#[derive(Debug)]
struct Open {
    since: Instant,
    reason: String,
    wait: Duration,
    next: Instant,
    rests_until: Instant,
}

/// Why a call is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// What the server did, or did not.
    pub(super) reason: String,
    /// How long ago it answered last.
    pub(super) answered: Option<Duration>,
    /// How long until it is asked again.
    pub(super) next: Duration,
}

impl Breaker {
    /// Why a call is refused now; none if it may be made.
    pub(super) fn refusal(&self, now: Instant) -> Option<Refusal> {
        self.open.as_ref().map(|open| Refusal {
            reason: open.reason.clone(),
            answered: self.answered.map(|answered| now.saturating_duration_since(answered)),
            next: open.next.max(open.rests_until).saturating_duration_since(now),
        })
    }

    /// Why calls are refused; none while they are not.
    pub(super) fn reason(&self) -> Option<&str> {
        self.open.as_ref().map(|open| open.reason.as_str())
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// The server does not answer. True if this is news: somebody has to begin to ask it.
    pub(super) fn fail(&mut self, now: Instant, reason: String) -> bool {
        let is_news = self.open.is_none();
        let open = self.open.get_or_insert_with(|| Open::new(now));
        if !is_news {
            let longest = if now.saturating_duration_since(open.since) > LATER { LONGEST_LATER } else { LONGEST };
            open.wait = (open.wait * 2).min(longest);
        }
        open.next = now + open.wait;
        open.reason = reason;
        is_news
    }

    /// The server answers, and a mount of it hung. True if this is news.
    pub(super) fn hang(&mut self, now: Instant, reason: String) -> bool {
        let rest = SHORTEST_REST.saturating_mul(1 << self.hangs.min(8)).min(LONGEST_REST);
        self.hangs += 1;
        let is_news = self.fail(now, reason);
        if let Some(open) = &mut self.open {
            open.rests_until = now + rest;
        }
        is_news
    }

    /// The server answered the question whether it is there.
    pub(super) fn answer(&mut self, now: Instant) {
        self.answered = Some(now);
        match &mut self.open {
            Some(open) if open.rests_until > now => open.next = open.rests_until,
            _ => self.open = None,
        }
    }

    /// What hung has rested for long enough: the next call is to try again.
    pub(super) fn end_rest(&mut self, now: Instant) {
        if self.open.as_ref().is_some_and(|open| open.rests_until <= now) {
            self.open = None;
        }
    }

    /// A mount was made: the server is well.
    pub(super) fn work(&mut self) {
        *self = Self { answered: self.answered, ..Self::default() };
    }

    /// When the server is to be asked again; none while nothing is wrong.
    pub(super) fn next(&self) -> Option<Instant> {
        self.open.as_ref().map(|open| open.next)
    }
}

impl Open {
    fn new(now: Instant) -> Self {
        Self { since: now, reason: String::new(), wait: SHORTEST, next: now, rests_until: now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn silent(breaker: &mut Breaker, now: Instant) -> bool {
        breaker.fail(now, "silence".into())
    }

    #[test]
    fn calls_are_refused_from_the_first_failure_to_the_first_answer() {
        let (mut breaker, now) = (Breaker::default(), Instant::now());
        assert_eq!(breaker.refusal(now), None);
        breaker.answer(now);
        assert!(silent(&mut breaker, now));
        assert!(!silent(&mut breaker, now), "somebody asks it already");
        let refusal = breaker.refusal(now + SECOND).unwrap();
        assert_eq!((refusal.reason.as_str(), refusal.answered), ("silence", Some(SECOND)));
        breaker.answer(now + SECOND);
        assert_eq!(breaker.refusal(now), None);
        assert!(silent(&mut breaker, now), "a later failure is news again");
    }

    #[test]
    fn a_dead_server_is_asked_less_and_less_often_but_every_few_seconds() {
        let (mut breaker, now) = (Breaker::default(), Instant::now());
        let mut waits = Vec::new();
        for _ in 0..6 {
            silent(&mut breaker, now);
            waits.push(breaker.next().unwrap() - now);
        }
        assert_eq!(waits[..3], [SHORTEST, SHORTEST * 2, SHORTEST * 4]);
        assert_eq!(waits[3..], [LONGEST; 3]);
        let later = now + LATER + SECOND;
        let later: Vec<Duration> = std::iter::repeat_with(|| {
            silent(&mut breaker, later);
            breaker.next().unwrap() - later
        })
        .take(5)
        .collect();
        assert_eq!(later[..2], [LONGEST * 2, LONGEST * 4]);
        assert_eq!(later[3..], [LONGEST_LATER; 2]);
    }

    #[test]
    fn a_server_whose_mounts_hang_is_left_alone_although_it_answers() {
        let (mut breaker, now) = (Breaker::default(), Instant::now());
        let mut rests = Vec::new();
        for _ in 0..6 {
            assert!(breaker.hang(now, "hangs".into()));
            breaker.answer(now + SECOND);
            let refusal = breaker.refusal(now + SECOND).unwrap();
            assert_eq!(breaker.next(), Some(now + SECOND + refusal.next));
            rests.push(refusal.next + SECOND);
            breaker.answer(now + rests[rests.len() - 1]);
            assert!(!breaker.is_open());
        }
        assert_eq!(rests[..3], [SHORTEST_REST, SHORTEST_REST * 2, SHORTEST_REST * 4]);
        assert_eq!(rests[4..], [LONGEST_REST; 2]);
        breaker.work();
        breaker.hang(now, "hangs".into());
        assert_eq!(breaker.refusal(now).unwrap().next, SHORTEST_REST, "a mount that works makes good");
    }
}
