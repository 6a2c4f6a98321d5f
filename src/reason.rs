//! The kernel's reason for an error, whichever crate brings it: nix, rustix and the standard library each have a type
//! for the same numbers.

use std::io;

use nix::errno::Errno;

/// What the kernel means by "not supported" within itself. An NFS 4.2 client hands it on where the server's file system
/// takes no extended attributes; the C library does not know it.
pub(crate) const ENOTSUPP: i32 = 524;

/// An error that the kernel gave.
pub(crate) trait Reason {
    /// Its number; EIO where it has none.
    fn errno(self) -> Errno;
}

/// [`Reason::errno`], for `map_err`.
pub(crate) fn errno_of(error: impl Reason) -> Errno {
    error.errno()
}

impl Reason for Errno {
    fn errno(self) -> Errno {
        self
    }
}

impl Reason for rustix::io::Errno {
    fn errno(self) -> Errno {
        Errno::from_raw(self.raw_os_error())
    }
}

impl Reason for &io::Error {
    fn errno(self) -> Errno {
        self.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
    }
}

impl Reason for io::Error {
    fn errno(self) -> Errno {
        (&self).errno()
    }
}
