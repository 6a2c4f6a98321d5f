//! A mount that is made option by option (fsopen(2), fsconfig(2), fsmount(2)): the kernel names the option that it
//! refuses, and the mount is in no mount table. It is gone with its descriptor.
//!
//! Each call but [`FsContext::create`] answers at once. That one asks the server, and may block for as long as the
//! server is silent: only a process that can be killed makes it.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};
use thiserror::Error;

use crate::reason::errno_of;

/// The longest message that is read, in bytes.
const LONGEST: usize = 1024;

/// A mount in the making.
#[derive(Debug)]
pub struct FsContext(OwnedFd);

/// What the kernel refuses.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct Refused {
    /// Its number.
    pub errno: Errno,
    /// The kernel's message; the number's meaning where it gives none.
    pub message: String,
}

impl FsContext {
    /// Begins a mount of a type of file system, whose module the kernel loads if need be.
    ///
    /// # Errors
    /// ENODEV where the kernel does not have it, EPERM where this process may not mount.
    pub fn open(fs_type: &str) -> Result<Self, Refused> {
        let opened = fsopen(fs_type, FsOpenFlags::FSOPEN_CLOEXEC).map_err(errno_of);
        let context = Self(opened.map_err(|errno| Refused { errno, message: errno.desc().into() })?);
        // Its messages are read until there is none.
        fcntl(&context.0, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(|errno| context.refused(errno))?;
        Ok(context)
    }

    /// Sets an option, `name` or `name=value`.
    ///
    /// # Errors
    /// EINVAL where the kernel does not know it, or refuses its value.
    pub fn set(&self, option: &str) -> Result<(), Refused> {
        let set = match option.split_once('=') {
            // The quotes are mount(8)'s.
            Some((name, value)) => fsconfig_set_string(&self.0, name, value.trim_matches('"')),
            None => fsconfig_set_flag(&self.0, option),
        };
        set.map_err(|error| self.refused(errno_of(error)))
    }

    /// Mounts `source`, `server:/path`, without devices, set-user-ID programs and programs.
    ///
    /// # Errors
    /// What the kernel gives for a mount of this type.
    pub fn create(self, source: &str) -> Result<OwnedFd, Refused> {
        let attributes =
            MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        fsconfig_set_string(&self.0, "source", source)
            .and_then(|()| fsconfig_create(&self.0))
            .and_then(|()| fsmount(&self.0, FsMountFlags::FSMOUNT_CLOEXEC, attributes))
            .map_err(|error| self.refused(errno_of(error)))
    }

    fn refused(&self, errno: Errno) -> Refused {
        let mut messages = Vec::new();
        let mut buffer = [0; LONGEST];
        while let Ok(length @ 1..) = nix::unistd::read(&self.0, &mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..length]).trim().to_owned();
            // A letter says how bad it is: `e`, `w` or `i`.
            messages.push(text.get(2..).unwrap_or_default().to_owned());
        }
        let message = if messages.is_empty() { errno.desc().into() } else { messages.join("; ") };
        Refused { errno, message }
    }
}
