//! The two file systems of a copy: what the version of NFS, with which each is mounted, lets a copy do.

use nix::fcntl::OFlag;

use super::acl::FileSystem;

/// The source's file system and the target's.
#[derive(Clone, Copy, Debug)]
pub struct FileSystems<'a> {
    /// Where the tree is.
    pub source: &'a FileSystem,
    /// Where its copy is made.
    pub target: &'a FileSystem,
}

impl FileSystems<'_> {
    /// Flags for the open of a file of the source. Since NFS 4.1, a client that will not cache asks for no delegation,
    /// whose return is a round trip more for each file; before, there is nothing to decline.
    pub(super) fn of_files(self) -> OFlag {
        if self.source.nfs() >= Some((4, 1)) { OFlag::O_DIRECT } else { OFlag::empty() }
    }

    /// Whether a server may copy from one to the other, and tell where the holes of a file are: as far as is known,
    /// both have at least NFS 4.2, or are no NFS.
    pub(super) fn may_copy(self) -> bool {
        [self.source, self.target].iter().all(|one| one.nfs().is_none_or(|version| version >= (4, 2)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_versions_of_nfs_cannot_copy_and_only_newer_ones_can_decline_delegations() {
        let [old, first, second, third] = ["3", "4.0", "4.1", "4.2"].map(FileSystem::mounted_with);
        let local = FileSystem::mounted_with("");
        let direct = |source| FileSystems { source, target: &local }.of_files() == OFlag::O_DIRECT;
        assert_eq!([&local, &old, &first, &second, &third].map(direct), [false, false, false, true, true]);
        let may_copy = |source, target| FileSystems { source, target }.may_copy();
        assert!(may_copy(&third, &third) && may_copy(&local, &local));
        for older in [&old, &first, &second] {
            assert!(!may_copy(older, older) && !may_copy(older, &third) && !may_copy(&third, older));
        }
    }
}
