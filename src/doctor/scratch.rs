//! The directory on the export that the checks work in, and its end.
//!
//! It is in the driver's own folder where that is there and writable, else at the share's root, under a name that says
//! whose it is. What doctors left that were killed with their server is removed by a later one, by the server's clock.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{Mode, SFlag, fstatat, mkdirat};

use super::check::{Check, Planned};
use crate::beneath;
use crate::export::holder::nonce;
use crate::tree::effort::Effort;
use crate::tree::remove;
use crate::volume::path::RESERVED;

pub(super) const CLEANUP: Planned = Planned {
    name: "cleanup",
    if_late: "run the doctor again after an hour: it removes what an earlier one left in the share",
};

/// How the directory's name begins in the driver's own folder, and at the share's root.
const INSIDE: &str = "doctor-";
const OUTSIDE: &str = ".nfs-csi-doctor-";
/// So old is what no doctor uses any more.
const ABANDONED: Duration = Duration::from_hours(1);
/// Workers of a removal.
const WORKERS: usize = 4;

/// A part of the directory's name that no other doctor has.
pub(super) fn unique() -> String {
    nonce()
}

/// The directory.
#[derive(Debug)]
pub(super) struct Scratch {
    pub(super) directory: OwnedFd,
    /// Its path below the share.
    pub(super) path: String,
}

impl Scratch {
    /// Makes it.
    ///
    /// # Errors
    /// Where the share's root takes no directory.
    pub(super) fn make(root: impl AsFd, unique: &str) -> nix::Result<Self> {
        let make = |path: String| {
            // Where the folder on the way is not to be looked into, that is no worse than one that is not there.
            let (folder, name) = path.rsplit_once('/').unwrap_or((".", &path));
            let folder = beneath::open_dir(&root, folder)?;
            mkdirat(&folder, name, Mode::S_IRWXU)?;
            Ok(Self { directory: beneath::open_dir(&folder, name)?, path })
        };
        make(format!("{RESERVED}/{INSIDE}{unique}")).or_else(|_: Errno| make(format!("{OUTSIDE}{unique}")))
    }
}

/// Removes the directory of this name, and those that earlier doctors left.
pub(super) fn clean(root: impl AsFd, unique: &str, now: Duration) -> Check {
    match remove_all(root, unique, now) {
        Ok(0) => CLEANUP.pass("nothing is left on the export"),
        Ok(earlier) => CLEANUP
            .pass(format!("nothing is left on the export, and {earlier} directories of earlier doctors were removed")),
        Err((name, errno)) => {
            CLEANUP.warn(format!("{name} is left on the export: {errno}"), format!("remove {name} from the share"))
        }
    }
}

fn remove_all(root: impl AsFd, unique: &str, now: Duration) -> Result<usize, (String, Errno)> {
    let mut earlier = 0;
    let own = beneath::open_dir(&root, RESERVED).map(|own| (own, INSIDE, format!("{RESERVED}/")));
    let top = beneath::open_dir(&root, ".").map(|top| (top, OUTSIDE, String::new()));
    for (folder, prefix, path) in [own, top].into_iter().flatten() {
        let failed = |name: &str, errno| (format!("{path}{name}"), errno);
        let is_one =
            |name: &std::ffi::OsStr| Ok(name.to_str().filter(|name| name.starts_with(prefix)).map(str::to_owned));
        // A folder that may not be read holds none that could be made.
        let Ok(names) = beneath::collect_names(&folder, is_one) else { continue };
        for name in names {
            let is_own = name.strip_prefix(prefix).and_then(|rest| rest.split('.').next()) == Some(unique);
            if !is_own && !is_abandoned(&folder, &name, now) {
                continue;
            }
            let effort = Effort::new(WORKERS);
            remove::tree(&folder, &name, &effort).map_err(|(_, errno)| failed(&name, errno))?;
            earlier += usize::from(!is_own);
        }
    }
    Ok(earlier)
}

/// Whether a directory was last changed so long ago, by the server's clock.
fn is_abandoned(folder: &OwnedFd, name: &str, now: Duration) -> bool {
    let Ok(stat) = fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW) else { return false };
    let changed = Duration::from_secs(u64::try_from(stat.st_ctime).unwrap_or_default());
    SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFDIR
        && now.saturating_sub(changed) >= ABANDONED
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;
    use std::time::SystemTime;

    use super::*;

    fn names(path: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_directory_goes_and_so_do_those_of_doctors_that_were_killed_long_ago() {
        let share = tempfile::tempdir().unwrap();
        let root = File::open(share.path()).unwrap();
        let outside = Scratch::make(&root, "one").unwrap();
        assert_eq!(outside.path, ".nfs-csi-doctor-one");
        std::fs::create_dir(share.path().join(RESERVED)).unwrap();
        let inside = Scratch::make(&root, "two").unwrap();
        assert_eq!(inside.path, ".nfs-csi/doctor-two");
        std::fs::create_dir_all(share.path().join(".nfs-csi/doctor-two/full/of")).unwrap();
        std::fs::write(share.path().join(".nfs-csi-doctor-notes"), "somebody's file").unwrap();
        drop((outside, inside));

        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(remove_all(&root, "two", now), Ok(0));
        assert_eq!(names(&share.path().join(RESERVED)), Vec::<String>::new());
        assert!(share.path().join(".nfs-csi-doctor-one").is_dir(), "another doctor may work in it");
        assert_eq!(remove_all(&root, "two", now + ABANDONED + Duration::from_mins(1)), Ok(1));
        assert_eq!(names(share.path()), [".nfs-csi", ".nfs-csi-doctor-notes"]);
    }
}
