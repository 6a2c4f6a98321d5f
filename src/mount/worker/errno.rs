//! What the kernel's errors mean.
//!
//! The meaning of an errno of mount(2) for NFS is measured, not documented: each case of [`of_mount`] was seen with a
//! kernel client and a kernel server.

use nix::errno::Errno;

use crate::mount::options;
use crate::mount::protocol::MountRequest;
use crate::mount::protocol::error::MountError;

/// What mount(2)'s errno means for this request.
pub(super) fn of_mount(request: &MountRequest, fs_type: &str, errno: Errno) -> MountError {
    let share = request.source();
    let server = request.server.clone();
    match errno {
        Errno::ENOENT => MountError::NoSuchShare { share },
        Errno::EACCES => MountError::Denied { share },
        Errno::EPERM => MountError::NotPermitted { share },
        Errno::EINVAL => {
            MountError::BadOptions { share, options: request.options.to_string(), known: options::known_words() }
        }
        Errno::ENODEV => MountError::NoKernelSupport { fs_type: fs_type.into() },
        Errno::ECONNREFUSED | Errno::ETIMEDOUT | Errno::EHOSTUNREACH | Errno::ENETUNREACH | Errno::ECONNRESET => {
            MountError::Unreachable {
                server,
                address: format!("port {}", request.options.port()),
                reason: errno.desc().into(),
            }
        }
        Errno::ELOOP => MountError::Symlink { share, found: "more links".into() },
        _ => MountError::system(format!("cannot mount {share} on {}", request.target), errno),
    }
}
