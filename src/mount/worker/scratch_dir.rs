//! The scratch directories of inline volumes, as a worker process makes and removes them on a mounted share.
//!
//! A scratch directory is an inner directory, which the pod gets, in an outer one, which only root lists: what a
//! removal moves up stays inside, so that one that broke off is finished by the next.

use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::beneath;
use crate::mount::protocol::error::MountError;
use crate::mount::protocol::{Reply, ScratchRequest};
use crate::tree::effort::Effort;
use crate::tree::make::{self, Attributes};
use crate::tree::remove;

/// Servers that check the way to a file want every user to pass.
const OUTER_MODE: u32 = 0o711;
/// Workers of one removal.
const WORKERS: usize = 8;

/// Does it.
pub(super) fn answer(request: &ScratchRequest) -> Result<Reply, MountError> {
    let done = match request.make {
        Some(mode) => make(request, mode),
        None => remove(request),
    };
    done.map(|()| Reply::Done).map_err(|(path, errno)| {
        let work = if request.make.is_some() { "make" } else { "remove" };
        MountError::system(
            format!("cannot {work} the scratch directory {} of an inline volume ({path})", request.outer),
            errno,
        )
    })
}

type Failure = (String, Errno);

fn make(request: &ScratchRequest, mode: u32) -> Result<(), Failure> {
    let failed = |errno| (request.outer.clone(), errno);
    let outer = || {
        let place = place(request)?;
        match mkdirat(&place, request.outer.as_str(), Mode::from_bits_truncate(OUTER_MODE)) {
            // A try that broke off made it.
            Ok(()) | Err(Errno::EEXIST) => beneath::open_dir(&place, &request.outer),
            Err(errno) => Err(errno),
        }
    };
    make::directory(
        outer().map_err(failed)?,
        &[&request.inner],
        Attributes { mode: Some(mode), ..Attributes::default() },
    )
}

fn remove(request: &ScratchRequest) -> Result<(), Failure> {
    let failed = |errno| (request.outer.clone(), errno);
    let place = place(request).map_err(failed)?;
    let outer = match beneath::open(&place, &request.outer, OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty()) {
        Ok(outer) => outer,
        // What has the name now is not what was made.
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => return Ok(()),
        Err(errno) => return Err(failed(errno)),
    };
    let effort = Effort::new(WORKERS);
    for name in beneath::names(&outer).map_err(failed)? {
        let Some(name) = name.to_str() else { continue };
        remove::tree(&outer, name, &effort).map_err(|(path, errno)| (path.to_string_lossy().into_owned(), errno))?;
    }
    unlinkat(&place, request.outer.as_str(), UnlinkatFlags::RemoveDir).map_err(failed)
}

fn place(request: &ScratchRequest) -> nix::Result<std::os::fd::OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    open(Path::new(&request.place), flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn request(place: &Path, make: Option<u32>) -> ScratchRequest {
        let place = place.to_str().unwrap().to_owned();
        ScratchRequest { place, outer: "inline-1".into(), inner: "2".into(), make }
    }

    #[test]
    fn a_scratch_directory_is_made_once_keeps_its_data_and_is_removed_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inline-1/2");
        for _ in 0..2 {
            make(&request(folder.path(), Some(0o700)), 0o700).unwrap();
            std::fs::create_dir_all(inner.join("a/b/c")).unwrap();
            std::fs::write(inner.join("a/file"), "kept").unwrap();
        }
        assert_eq!(std::fs::metadata(&inner).unwrap().permissions().mode() & 0o7777, 0o700);
        for _ in 0..2 {
            remove(&request(folder.path(), None)).unwrap();
            assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none());
        }
    }

    #[test]
    fn what_a_removal_that_broke_off_left_goes_with_the_next() {
        let folder = tempfile::tempdir().unwrap();
        for left in ["inline-1/2.0/x", "inline-1/2.7/y/z"] {
            std::fs::create_dir_all(folder.path().join(left)).unwrap();
        }
        remove(&request(folder.path(), None)).unwrap();
        assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none());
    }

    #[test]
    fn a_link_in_its_place_or_inside_is_never_followed() {
        let folder = tempfile::tempdir().unwrap();
        let other = folder.path().join("other");
        std::fs::create_dir_all(other.join("2")).unwrap();
        std::fs::write(other.join("2/kept"), "").unwrap();
        symlink("other", folder.path().join("inline-1")).unwrap();
        assert_eq!(make(&request(folder.path(), Some(0o700)), 0o700).unwrap_err().1, Errno::ELOOP);
        remove(&request(folder.path(), None)).unwrap();
        assert!(other.join("2/kept").exists());
        std::fs::remove_file(folder.path().join("inline-1")).unwrap();
        std::fs::create_dir(folder.path().join("inline-1")).unwrap();
        symlink("../other/2", folder.path().join("inline-1/2")).unwrap();
        assert_eq!(make(&request(folder.path(), Some(0o700)), 0o700).unwrap_err().1, Errno::ELOOP);
        remove(&request(folder.path(), None)).unwrap();
        assert!(other.join("2/kept").exists() && !folder.path().join("inline-1").exists());
    }
}
