//! The server's clock. What is kept for a time on an export, and how long another controller has been silent, is judged
//! by it: each controller of each cluster has a clock of its own, and one that is wrong must not free what others keep.

use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{FileStat, Mode, UtimensatFlags, fstatat, utimensat};
use nix::sys::time::TimeSpec;

use super::{Export, ExportError};
use crate::beneath;

/// The file whose time of change is set to the server's, in the driver's own folder.
pub(super) const CLOCK: &str = "clock";
/// How long the server's time is reckoned from the last answer.
const KEPT: Duration = Duration::from_mins(10);
/// What this host's clock may differ from the server's before nothing is freed that is kept for a time.
const APART: Duration = Duration::from_mins(2);
/// More than this between this host's two clocks says that the host slept, or that its clock was set.
const JUMP: Duration = Duration::from_secs(5);

/// What is known of a server's time.
#[derive(Debug, Default)]
pub(super) struct Clock(Mutex<Option<Answer>>);

/// What the server said, and this host's clocks then.
#[derive(Clone, Copy, Debug)]
struct Answer {
    server: Duration,
    system: Duration,
    at: Instant,
}

impl Answer {
    /// The server's time now; none where that is not to be reckoned from this answer.
    fn now(&self) -> Option<Duration> {
        let elapsed = self.at.elapsed();
        let jump = system_time().abs_diff(self.system + elapsed);
        (elapsed < KEPT && jump < JUMP).then_some(self.server + elapsed)
    }
}

impl Export {
    /// The server's time, since 1970. Where the server does not let itself be asked, this host's.
    pub fn now(&self) -> Duration {
        let known = self.shared.clock.0.lock().unwrap_or_else(PoisonError::into_inner).and_then(|answer| answer.now());
        known.unwrap_or_else(|| self.ask_time().unwrap_or_else(|_| system_time()))
    }

    /// Asks the server for its time, and says whether this host's clock is minutes away from it.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn is_clock_apart(&self) -> Result<bool, ExportError> {
        let server = self.ask_time()?;
        let apart = server.abs_diff(system_time());
        if apart < APART {
            return Ok(false);
        }
        tracing::warn!(
            share = %self.share(),
            seconds = apart.as_secs(),
            "this host's clock and the server's differ: nothing that is kept for a time is freed here; set the clocks"
        );
        Ok(true)
    }

    fn ask_time(&self) -> Result<Duration, ExportError> {
        let top = self.layout()?.top.as_fd();
        let now = TimeSpec::UTIME_NOW;
        let touch = || utimensat(top, CLOCK, &now, &now, UtimensatFlags::NoFollowSymlink);
        let touched = match touch() {
            Err(Errno::ENOENT) => {
                let flags = OFlag::O_WRONLY | OFlag::O_CREAT;
                beneath::open(top, CLOCK, flags, Mode::S_IRUSR | Mode::S_IWUSR).and_then(|_| touch())
            }
            touched => touched,
        };
        let stat = touched.and_then(|()| fstatat(top, CLOCK, nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW));
        let stat = stat.map_err(|errno| self.failed("ask the server's time by the file", CLOCK, errno))?;
        let server = since_1970(stat.st_mtime, stat.st_mtime_nsec);
        let answer = Answer { server, system: system_time(), at: Instant::now() };
        *self.shared.clock.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        Ok(server)
    }

    /// How long ago an entry was changed, by the server's clock.
    pub(super) fn age(&self, entry: &FileStat) -> Duration {
        self.now().saturating_sub(changed_at(entry))
    }
}

/// When an entry was changed.
pub(super) fn changed_at(entry: &FileStat) -> Duration {
    since_1970(entry.st_ctime, entry.st_ctime_nsec)
}

/// A time as stat(2) has it.
fn since_1970(seconds: i64, nanoseconds: i64) -> Duration {
    Duration::new(u64::try_from(seconds).unwrap_or_default(), u32::try_from(nanoseconds).unwrap_or_default())
}

/// This host's time.
pub(super) fn system_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_time_is_reckoned_from_its_answer_until_this_hosts_clock_jumps() {
        let server = Duration::from_secs(1000);
        let answer = Answer { server, system: system_time(), at: Instant::now() };
        assert!(answer.now().is_some_and(|now| now >= server && now < server + Duration::from_mins(1)));
        let set = Answer { system: system_time() + Duration::from_mins(1), ..answer };
        assert_eq!(set.now(), None);
    }
}
