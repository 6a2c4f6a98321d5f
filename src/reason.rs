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

/// The same in rustix's type. The kernel gives numbers that are none of the C library's where calls on a dead server are
/// ended (ERESTARTSYS, say); nix has no number for those, and rustix takes none that is not one.
pub(crate) fn rustix_errno(errno: Errno) -> rustix::io::Errno {
    match errno {
        Errno::UnknownErrno => rustix::io::Errno::IO,
        errno => rustix::io::Errno::from_raw_os_error(errno as i32),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_only_the_kernel_knows_is_an_error_of_the_server() {
        const ERESTARTSYS: i32 = 512;
        for raw in [ERESTARTSYS, ENOTSUPP, 0] {
            assert_eq!(rustix_errno(Errno::from_raw(raw)), rustix::io::Errno::IO);
        }
        assert_eq!(rustix_errno(Errno::ESTALE), rustix::io::Errno::STALE);
        assert_eq!(errno_of(rustix_errno(Errno::ESTALE)), Errno::ESTALE);
    }
}
