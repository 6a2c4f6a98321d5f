//! The trees of snapshots that volumes read without a copy.
//!
//! Such a tree is at `.nfs-csi/shared/<key>.<secret>` on its share: the snapshot's key, and 128 random bits. Where an
//! export squashes root, a node walks there as nobody. So everybody may search the folders above it, only root may list
//! them, and who does not know the name does not get in.

use super::path::RESERVED;
use super::record_key::RecordKey;
use super::secret::Secret;

/// The folder of these trees, in the driver's own.
pub const FOLDER: &str = "shared";

/// The tree of a snapshot that volumes read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedTree {
    key: RecordKey,
    secret: Secret,
}

impl SharedTree {
    /// That of the snapshot with this key and this secret.
    #[must_use]
    pub fn new(key: RecordKey, secret: Secret) -> Self {
        Self { key, secret }
    }

    /// Reads the name of one in its folder; none if it is something else.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let (key, secret) = name.split_once('.')?;
        Some(Self::new(key.parse().ok()?, Secret::parse(secret).ok()?))
    }

    /// Reads the path of one below its share; none if it leads elsewhere.
    #[must_use]
    pub(super) fn at_path(path: &str) -> Option<Self> {
        Self::named(path.strip_prefix(RESERVED)?.strip_prefix('/')?.strip_prefix(FOLDER)?.strip_prefix('/')?)
    }

    /// The key of its snapshot.
    #[must_use]
    pub fn key(&self) -> &RecordKey {
        &self.key
    }

    /// Whether the snapshot with this secret is its own, and not a later one of the same name.
    #[must_use]
    pub fn is_of(&self, secret: Option<&Secret>) -> bool {
        secret == Some(&self.secret)
    }

    /// Its name in its folder.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}.{}", self.key, self.secret)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_that_of_one_snapshot_and_not_of_a_later_one_of_its_name() {
        let (one, other) = (Secret::new().unwrap(), Secret::new().unwrap());
        let tree = SharedTree::new(RecordKey::of("snap"), one.clone());
        assert!(tree.is_of(Some(&one)) && !tree.is_of(Some(&other)) && !tree.is_of(None));
        assert_eq!(SharedTree::named(&tree.name()), Some(tree));
    }
}
