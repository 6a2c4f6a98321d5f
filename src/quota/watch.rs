//! Waiting for wishes: the kernel reports the names that come and go in `wanted/`, also those that NFS clients make.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::Result;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

use super::folders::{Folder, Folders};
use crate::reason::errno_of;
use crate::volume::quota_files::ProjectId;

/// Bytes of events that are read at a time.
const BUFFER: usize = 16 * 1024;
/// How many events are taken before other work is done.
const MOST: usize = 512;

/// A watch on `wanted/` of some exports.
#[derive(Debug)]
pub struct Watch {
    inotify: OwnedFd,
    exports: BTreeMap<i32, usize>,
}

/// What has happened.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// The projects whose wish came or went, by export, in the order in which they did.
    pub projects: Vec<(usize, ProjectId)>,
    /// Whether some events were lost.
    pub lost: bool,
}

impl Watch {
    /// Watches the exports.
    ///
    /// # Errors
    /// What the kernel gives; ENOSPC or EMFILE where this host allows no more watches.
    pub fn start<'a>(exports: impl Iterator<Item = &'a Folders>) -> Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(errno_of)?;
        let flags = WatchFlags::CREATE | WatchFlags::MOVE | WatchFlags::DELETE | WatchFlags::ONLYDIR;
        let watched = exports.enumerate().map(|(at, folders)| {
            let watch = inotify::add_watch(&inotify, folders.proc_path(Folder::Wanted), flags).map_err(errno_of)?;
            Ok((watch, at))
        });
        let exports = watched.collect::<Result<_>>()?;
        Ok(Self { inotify, exports })
    }

    /// Waits for events for at most so long; gives those that there are.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn wait(&self, longest: Duration) -> Result<Events> {
        let mut ready = [PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(longest).unwrap_or(PollTimeout::MAX);
        match poll(&mut ready, timeout) {
            Ok(0) | Err(Errno::EINTR) => return Ok(Events::default()),
            polled => polled?,
        };
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        let mut events = Events::default();
        // What was read is taken before the kernel is asked for more: no event is left in the buffer.
        while events.projects.len() < MOST || !reader.is_buffer_empty() {
            let event = match reader.next().map_err(errno_of) {
                Err(Errno::EAGAIN) => break,
                event => event?,
            };
            events.lost |= event.events().contains(ReadFlags::QUEUE_OVERFLOW);
            let name = event.file_name().and_then(|name| name.to_str().ok());
            if let (Some(export), Some(id)) = (self.exports.get(&event.wd()), name.and_then(ProjectId::parse)) {
                events.projects.push((*export, id));
            }
        }
        events.projects.dedup();
        Ok(events)
    }
}
