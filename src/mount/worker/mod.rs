//! A worker: a process of this same binary that makes the calls which may block, one at a time.
//!
//! A blocked NFS call ends only when its process dies, so it must not be the daemon's. It reads
//! requests from standard input and writes replies to standard output, and ends when the daemon ends.

mod attempt;
mod errno;
mod kernel;
mod scratch_dir;
pub(crate) mod statd;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::getppid;
use rustix::fs::{AtFlags, StatxFlags, statx};

use super::protocol::error::MountError;
use super::protocol::{Reply, Request, framed};
use crate::reason::errno_of;

/// The word on the command line that makes a process a worker.
pub const COMMAND: &str = "worker";

/// Serves requests from standard input until the daemon, which is the process `daemon`, closes it.
#[must_use]
pub fn run(daemon: Option<&OsStr>) -> ExitCode {
    match serve(daemon) {
        Ok(()) => ExitCode::SUCCESS,
        // The daemon sees the pipes closed, and says so where it waits for an answer.
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve(daemon: Option<&OsStr>) -> io::Result<()> {
    // A worker that is blocked in the kernel does not see its pipes closed.
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    // A daemon that was killed before that sends no signal, and what it asked for is in the pipe: to carry that out
    // would be to disturb its successor.
    if daemon != Some(OsStr::new(&getppid().to_string())) {
        return Err(io::Error::from(ErrorKind::NotConnected));
    }
    nix::sys::stat::umask(Mode::empty());
    let mut requests = BufReader::new(File::from(io::stdin().as_fd().try_clone_to_owned()?));
    let mut replies = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    while let Some(message) = receive(&mut requests)? {
        let request: Request = serde_json::from_slice(&message).map_err(io::Error::from)?;
        let reply = answer(&request).unwrap_or_else(Reply::Failed);
        replies.write_all(&framed(&serde_json::to_vec(&reply)?))?;
    }
    Ok(())
}

fn answer(request: &Request) -> Result<Reply, MountError> {
    match request {
        Request::Resolve { server, port } => resolve(server, *port),
        Request::Mount { request, server, workplace } => attempt::mount(request, server, workplace),
        Request::Unmount { target, remove } => unmount(target, *remove),
        Request::Abort { target } => abort(target),
        Request::Remove { target } => remove(target),
        Request::Scratch(request) => scratch_dir::answer(request),
        Request::Usage { target } => usage(target),
    }
}

/// The system's resolver may wait for a name server that is dead, for longer than anybody here.
fn resolve(server: &str, port: u16) -> Result<Reply, MountError> {
    let unresolved = |reason: String| MountError::Unresolved { server: server.into(), reason };
    let addresses = (server, port).to_socket_addrs().map_err(|error| unresolved(error.to_string()))?;
    let addresses: Vec<SocketAddr> = addresses.collect();
    if addresses.is_empty() { Err(unresolved("it has no address".into())) } else { Ok(Reply::Addresses(addresses)) }
}

fn unmount(target: &str, and_remove: bool) -> Result<Reply, MountError> {
    match kernel::unmount(Path::new(target)) {
        Ok(()) => Ok(Reply::Unmounted { removed: and_remove && matches!(remove(target)?, Reply::Removed) }),
        // The kernel's words for "nothing is mounted there" and "there is no such path".
        Err(Errno::EINVAL | Errno::ENOENT) => Ok(Reply::NotMounted),
        Err(errno) => Err(MountError::system(format!("cannot unmount {target}"), errno)),
    }
}

fn abort(target: &str) -> Result<Reply, MountError> {
    match kernel::abort(Path::new(target)) {
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => Ok(Reply::Done),
        Err(errno) => Err(MountError::system(format!("cannot end the calls on {target}"), errno)),
    }
}

/// Removes the mount point: rmdir only, never what is in it, and never through a mount.
fn remove(target: &str) -> Result<Reply, MountError> {
    let failed = |reason: String| Err(MountError::Target { target: target.into(), reason });
    match std::fs::remove_dir(target) {
        Ok(()) => Ok(Reply::Removed),
        Err(error) => match error.kind() {
            ErrorKind::NotFound => Ok(Reply::Removed),
            ErrorKind::ResourceBusy => Ok(Reply::StillMounted),
            ErrorKind::NotADirectory => failed("it is not a directory: remove it by hand".into()),
            ErrorKind::DirectoryNotEmpty => failed(
                "nothing is mounted on it, but the directory on this host's own disk holds files; move them away by hand"
                    .into(),
            ),
            _ => failed(error.to_string()),
        },
    }
}

fn usage(target: &str) -> Result<Reply, MountError> {
    let look = || -> io::Result<_> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = nix::fcntl::open(target, flags, Mode::empty())?;
        // What the client has cached would do for the rest, also where the server has lost the export.
        statx(&directory, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC, StatxFlags::TYPE)?;
        kernel::usage(directory)
    };
    look().map(Reply::Usage).map_err(|error| match errno_of(&error) {
        Errno::ESTALE => MountError::Stale { target: target.into() },
        errno => MountError::system(format!("cannot tell how full the volume on {target} is"), errno),
    })
}

/// Reads one message; none at the end of the stream.
fn receive(requests: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    match requests.read_exact(&mut length) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let mut message = vec![0; u32::from_be_bytes(length) as usize];
    requests.read_exact(&mut message)?;
    Ok(Some(message))
}
