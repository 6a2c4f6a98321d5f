//! Small files that are read and written whole: records and manifests.
//!
//! They are read past this client's cache (`O_DIRECT`). An NFS 4 server would otherwise delegate each file to this
//! client: one more round trip a file when it is returned, and whoever replaces or removes the file waits for that.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::Result;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

use crate::beneath;
use crate::reason::errno_of;

/// No file of these is longer.
const LONGEST: usize = 64 * 1024;
/// Other file systems than NFS read directly to memory that is aligned to this only.
const ALIGNED: usize = 4096;

/// Opens a file below `folder`; none if there is none.
///
/// # Errors
/// As [`beneath::open`].
pub(super) fn open(folder: impl AsFd, path: impl AsRef<Path>) -> Result<Option<OwnedFd>> {
    // What is no file must not block.
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK;
    let open = |flags| beneath::open(folder.as_fd(), path.as_ref(), flags, Mode::empty());
    let opened = match open(flags | OFlag::O_DIRECT) {
        // What has no such reads: a file system other than NFS, a directory.
        Err(Errno::EINVAL) => open(flags),
        opened => opened,
    };
    match opened {
        Err(Errno::ENOENT) => Ok(None),
        opened => opened.map(Some),
    }
}

/// What is in it, in one round trip; cut off where it is too long.
///
/// # Errors
/// Where the server fails.
pub(super) fn read(file: impl AsFd) -> Result<Vec<u8>> {
    let mut buffer = vec![0; LONGEST + ALIGNED];
    let start = buffer.as_ptr().align_offset(ALIGNED);
    let length = loop {
        match nix::unistd::read(file.as_fd(), &mut buffer[start..start + LONGEST]) {
            Err(Errno::EINTR) => {}
            read => break read?,
        }
    };
    Ok(buffer[start..start + length].to_vec())
}

/// Makes a file that is not there yet.
///
/// # Errors
/// As [`beneath::open`]; EEXIST where it is there.
pub(super) fn create(folder: impl AsFd, name: &str) -> Result<File> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
    beneath::open(folder, name, flags, Mode::S_IRUSR | Mode::S_IWUSR).map(File::from)
}

/// Writes all that is to be in it; it is on the server's disk then.
///
/// # Errors
/// Where the server fails.
pub(super) fn write(mut file: &File, text: &[u8]) -> Result<()> {
    file.write_all(text).and_then(|()| file.sync_data()).map_err(errno_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_whole_as_far_as_it_may_be_long() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::File::open(folder.path()).unwrap();
        assert!(open(&root, "file").unwrap().is_none());
        for length in [0, 1, 511, 4096, LONGEST, LONGEST + 1] {
            let text: Vec<u8> = (0..length).map(|at| b'a' + u8::try_from(at % 26).unwrap()).collect();
            std::fs::write(folder.path().join("file"), &text).unwrap();
            let file = open(&root, "file").unwrap().unwrap();
            assert!(read(&file).unwrap() == text[..length.min(LONGEST)], "{length}");
        }
    }
}
