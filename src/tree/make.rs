//! Making a volume's directory: each component below the share, its owner and its permissions.
//!
//! mkdir(2) never follows a link in its last component, and the components before it are opened beneath the share.
//! Nothing is changed that is right already: each chmod and chown is a round trip to the server.

use std::os::fd::{AsFd, OwnedFd};

use nix::Result;
use nix::errno::Errno;
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat, fstat, mkdirat};
use rustix::fs::{AtFlags, Gid, Uid};

use super::attributes::set_owner;
use crate::beneath;
use crate::reason::errno_of;

/// What a directory gets when nothing else is asked for.
pub const DEFAULT_MODE: u32 = 0o755;

/// The attributes that a directory shall have; what is not given stays as the server makes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Permission bits, at most 0o7777.
    pub mode: Option<u32>,
    /// The owner's number.
    pub uid: Option<u32>,
    /// The group's number.
    pub gid: Option<u32>,
}

/// Makes the directory that `components` lead to below `root`, and those on the way. One that exists is taken as it is.
/// Then sets what `attributes` ask for and the directory has not.
///
/// # Errors
/// The component that failed and its errno: ELOOP for a symbolic link, ENOTDIR for something else that is in the way,
/// EPERM where the server does not let this host's root own or change directories (`root_squash`).
pub fn directory(
    root: impl AsFd,
    components: &[&str],
    attributes: Attributes,
) -> std::result::Result<(), (String, Errno)> {
    let Some((last, parents)) = components.split_last() else { return Ok(()) };
    let parent = descend(root, parents, Some(Mode::from_bits_truncate(DEFAULT_MODE)))?;
    let wanted = attributes.mode.unwrap_or(DEFAULT_MODE);
    let made = match mkdirat(&parent, *last, Mode::from_bits_truncate(wanted)) {
        Ok(()) => true,
        Err(Errno::EEXIST) => false,
        Err(errno) => return Err(((*last).into(), errno)),
    };
    if made && attributes == Attributes::default() {
        return Ok(());
    }
    let set = || {
        let directory = beneath::open_dir(&parent, *last)?;
        set(&directory, attributes)
    };
    set().map_err(|errno| ((*last).into(), errno))
}

/// Opens the directory that `components` lead to; with `make`, those that are missing are made with that mode.
///
/// # Errors
/// The component that failed and its errno.
pub fn descend(
    root: impl AsFd,
    components: &[&str],
    make: Option<Mode>,
) -> std::result::Result<OwnedFd, (String, Errno)> {
    let mut at: OwnedFd = root.as_fd().try_clone_to_owned().map_err(|_| (String::from("."), Errno::last()))?;
    for component in components {
        let step = || match (beneath::open_dir(&at, *component), make) {
            (Err(Errno::ENOENT), Some(mode)) => {
                match mkdirat(&at, *component, mode) {
                    Ok(()) | Err(Errno::EEXIST) => {}
                    Err(errno) => return Err(errno),
                }
                beneath::open_dir(&at, *component)
            }
            (opened, _) => opened,
        };
        at = step().map_err(|errno| ((*component).to_owned(), errno))?;
    }
    Ok(at)
}

/// Gives an open directory what `wanted` asks for and it has not.
///
/// # Errors
/// EPERM where the server does not let this host's root do that.
pub fn set(directory: impl AsFd, wanted: Attributes) -> Result<()> {
    let directory = directory.as_fd();
    let has = fstat(directory)?;
    let uid = wanted.uid.filter(|&uid| uid != has.st_uid).map(Uid::from_raw);
    let gid = wanted.gid.filter(|&gid| gid != has.st_gid).map(Gid::from_raw);
    let owned = uid.is_some() || gid.is_some();
    if owned {
        set_owner(directory, c"", (uid, gid), AtFlags::EMPTY_PATH).map_err(errno_of)?;
    }
    // A server may drop setuid and setgid with a change of owner.
    if let Some(mode) = wanted.mode
        && (mode != has.st_mode & 0o7777 || (owned && mode & 0o6000 != 0))
    {
        fchmodat(directory, ".", Mode::from_bits_truncate(mode), FchmodatFlags::FollowSymlink)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn root() -> (tempfile::TempDir, OwnedFd) {
        let folder = tempfile::tempdir().unwrap();
        let root = OwnedFd::from(std::fs::File::open(folder.path()).unwrap());
        (folder, root)
    }

    #[test]
    fn a_nested_directory_gets_its_mode_and_its_parents_the_default() {
        let (folder, root) = root();
        let attributes = Attributes { mode: Some(0o2770), ..Attributes::default() };
        directory(&root, &["a", "b"], attributes).unwrap();
        let mode = |path: &str| std::fs::metadata(folder.path().join(path)).unwrap().mode() & 0o7777;
        assert_eq!(mode("a/b"), 0o2770);
        assert_eq!(mode("a") & 0o700, 0o700);
    }

    #[test]
    fn a_directory_that_exists_keeps_its_mode_unless_one_is_asked_for() {
        let (folder, root) = root();
        let path = folder.path().join("v");
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        directory(&root, &["v"], Attributes::default()).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o700);
        directory(&root, &["v"], Attributes { mode: Some(0o711), ..Attributes::default() }).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o711);
    }

    #[test]
    fn a_link_or_a_file_on_the_way_or_at_the_end_is_refused() {
        let (folder, root) = root();
        std::fs::create_dir(folder.path().join("real")).unwrap();
        symlink("real", folder.path().join("link")).unwrap();
        std::fs::write(folder.path().join("file"), "").unwrap();
        let failure = |components: &[&str]| directory(&root, components, Attributes::default()).unwrap_err();
        assert_eq!(failure(&["link", "v"]), ("link".into(), Errno::ELOOP));
        assert_eq!(failure(&["link"]).0, "link");
        assert_eq!(failure(&["file", "v"]), ("file".into(), Errno::ENOTDIR));
        assert_eq!(failure(&["file"]), ("file".into(), Errno::ENOTDIR));
        assert!(std::fs::read_dir(folder.path().join("real")).unwrap().next().is_none());
    }
}
