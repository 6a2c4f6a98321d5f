//! Which volumes read the tree of a snapshot (shared_trees.rs): their claims on it.
//!
//! A claim is a file `.nfs-csi/readers/<tree>.<volume's key>.<nonce>`. It is written as the volume's record, and linked
//! to the record's name when the tree is where volumes read it: so claim and record cost the calls of one. Afterwards
//! nobody reads it again: the record may have been replaced.
//!
//! As with other claims (claims.rs), one without a record counts for nothing. A name is used by one call only. What a
//! crash leaves is removed when it is old; who makes a volume and sleeps for long does not rely on its claim any more.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{Mode, fstatat};

use super::catalog::{self, Created, Record};
use super::claims::{Claim, Claims};
use super::holder::{is_nonce, nonce};
use super::{Export, ExportError};
use crate::beneath;
use crate::volume::record_key::RecordKey;
use crate::volume::shared_tree::SharedTree;
use crate::volume::subdir::SubDir;

/// A claim without a record is removed when it is that old, or older.
const ABANDONED: Duration = Duration::from_mins(10);
/// Who has made a claim relies on it for so long. (Of two clocks the server's may be the slower one.)
const RELIABLE: Duration = Duration::from_mins(1);

/// A claim that was made for a volume without a record.
#[derive(Debug)]
pub struct NewClaim {
    key: RecordKey,
    name: String,
    file: OwnedFd,
    begun: Instant,
}

impl NewClaim {
    /// Whether it is sure to be there still.
    #[must_use]
    pub fn is_reliable(&self) -> bool {
        self.begun.elapsed() < RELIABLE
    }
}

impl Export {
    /// Claims a tree for a volume, and writes the volume's record, which is not in place yet.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn claim_tree(&self, tree: &SharedTree, key: &RecordKey, record: &Record) -> Result<NewClaim, ExportError> {
        let begun = Instant::now();
        let name = claim_name(tree, key);
        let file = self.write_file(&self.tree_folders()?.readers, &name, record, OFlag::empty())?;
        Ok(NewClaim { key: key.clone(), name, file, begun })
    }

    /// Puts the record of a volume in place that was written with its claim, if there is none.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn record_claimed(&self, claim: &NewClaim) -> Result<Created, ExportError> {
        self.link_record(&claim.file, &claim.key)
    }

    /// Removes a claim whose volume has another one, or was not made.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn drop_claim(&self, claim: NewClaim) -> Result<(), ExportError> {
        // Closed before its name goes, or the client keeps it as `.nfs…` until then.
        drop(claim.file);
        self.remove_tree_claim(&claim.name)
    }

    /// The same as [`Export::claim`] for a tree.
    pub(super) fn claim_tree_again(&self, tree: &SharedTree, key: &RecordKey) -> Result<(), ExportError> {
        if self.has_tree_claim(tree, key)? {
            return Ok(());
        }
        let (name, flags) = (claim_name(tree, key), OFlag::O_WRONLY | OFlag::O_CREAT);
        beneath::open(&self.tree_folders()?.readers, name.as_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR)
            .map(drop)
            .map_err(|errno| self.failed("claim", tree.name(), errno))
    }

    pub(super) fn has_tree_claim(&self, tree: &SharedTree, key: &RecordKey) -> Result<bool, ExportError> {
        Ok(!self.tree_claims(|name| name.is_on(tree) && name.key == *key)?.is_empty())
    }

    /// The same as [`Export::claims_but`] for a tree. One of its readers is enough: all of them have the same tree.
    pub(super) fn readers_but(&self, tree: &SharedTree, key: Option<&RecordKey>) -> Result<Claims, ExportError> {
        let subdir = SubDir::of_shared_tree(tree);
        for name in self.tree_claims(|name| name.is_on(tree) && Some(&name.key) != key)? {
            if let Some(record) = self.record(&name.key)?.filter(|record| record.subdir == subdir) {
                return Ok(Claims::Shared(vec![record]));
            }
        }
        Ok(Claims::None)
    }

    /// Removes a volume's claims on a tree.
    pub(super) fn release_tree(&self, tree: &SharedTree, key: &RecordKey) -> Result<(), ExportError> {
        for name in self.tree_claims(|name| name.is_on(tree) && name.key == *key)? {
            self.remove_tree_claim(&name.text)?;
        }
        Ok(())
    }

    /// Removes claims whose volumes were not made: all, or those of one volume on one tree.
    pub(super) fn sweep_tree_claims(&self, of: Option<(&SharedTree, &RecordKey)>) -> Result<(), ExportError> {
        let is_asked = |name: &ClaimName| of.is_none_or(|(tree, key)| name.is_on(tree) && name.key == *key);
        for name in self.tree_claims(is_asked)? {
            let is_old = self.age_of(&name)?.is_some_and(|age| age >= ABANDONED);
            if is_old && !self.record(&name.key)?.is_some_and(|record| record.subdir == name.subdir()) {
                self.remove_tree_claim(&name.text)?;
            }
        }
        Ok(())
    }

    /// All claims on trees that there are.
    pub(super) fn all_tree_claims(&self) -> Result<Vec<Claim>, ExportError> {
        let mut claims = Vec::new();
        for name in self.tree_claims(|_| true)? {
            if let Some(age) = self.age_of(&name)? {
                claims.push(Claim { subdir: name.subdir(), key: name.key, owner: None, age });
            }
        }
        Ok(claims)
    }

    fn age_of(&self, name: &ClaimName) -> Result<Option<Duration>, ExportError> {
        match fstatat(&self.tree_folders()?.readers, name.text.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(self.age(&stat))),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.failed("look at the claim", &name.text, errno)),
        }
    }

    fn tree_claims(&self, is_wanted: impl Fn(&ClaimName) -> bool) -> Result<Vec<ClaimName>, ExportError> {
        if !self.has_tree_folders()? {
            return Ok(Vec::new());
        }
        let read = |name: &OsStr| Ok(name.to_str().and_then(ClaimName::parse).filter(&is_wanted));
        beneath::collect_names(&self.tree_folders()?.readers, read)
            .map_err(|errno| self.failed("look who reads", "snapshots", errno))
    }

    fn remove_tree_claim(&self, name: &str) -> Result<(), ExportError> {
        catalog::remove(&self.tree_folders()?.readers, name)
            .map_err(|errno| self.failed("remove the claim", name, errno))
    }
}

/// The name of a claim, read.
#[derive(Debug)]
struct ClaimName {
    text: String,
    tree: SharedTree,
    key: RecordKey,
}

impl ClaimName {
    fn parse(text: &str) -> Option<Self> {
        let (rest, own) = text.rsplit_once('.')?;
        let (tree, key) = rest.rsplit_once('.')?;
        let (tree, key) = (SharedTree::named(tree)?, key.parse().ok()?);
        is_nonce(own).then(|| Self { text: text.to_owned(), tree, key })
    }

    fn is_on(&self, tree: &SharedTree) -> bool {
        self.tree == *tree
    }

    fn subdir(&self) -> SubDir {
        SubDir::of_shared_tree(&self.tree)
    }
}

fn claim_name(tree: &SharedTree, key: &RecordKey) -> String {
    format!("{}.{key}.{}", tree.name(), nonce())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::secret::Secret;

    #[test]
    fn a_claim_tells_its_tree_and_its_volume() {
        let (tree, key) = (SharedTree::new(RecordKey::of("snap"), Secret::new().unwrap()), RecordKey::of("pvc-1"));
        let text = claim_name(&tree, &key);
        let name = ClaimName::parse(&text).unwrap();
        assert_eq!((name.tree, name.key, name.text), (tree.clone(), key.clone(), text.clone()));
        assert!(text.len() <= 255, "{text}");
        assert_ne!(claim_name(&tree, &key), text);
        for other in [tree.name(), format!("{}.{key}", tree.name()), format!("{key}.{}", nonce()), format!("{text}x")] {
            assert!(ClaimName::parse(&other).is_none(), "{other}");
        }
    }
}
