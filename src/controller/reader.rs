//! CreateVolume of a volume that is only read, from a snapshot: it is the snapshot's tree itself, and nothing is copied
//! (export/shared_trees.rs).

use super::create::{CreateError, Plan, Volume};
use crate::export::Export;
use crate::export::catalog::{Created, Record};
use crate::export::snapshots::Manifest;
use crate::tree::make::Attributes;
use crate::volume::access::OnDelete;
use crate::volume::shared_tree::SharedTree;
use crate::volume::snapshot_id::SnapshotId;
use crate::volume::subdir::SubDir;

impl Plan {
    /// Makes the volume, or finds it. None where it must be a copy: the snapshot has no tree of its own, or the volume
    /// exists and is a copy.
    pub(super) fn read_snapshot(&self, export: &Export, snapshot: &SnapshotId) -> Result<Option<Volume>, CreateError> {
        let key = snapshot.key();
        let found = export.open_snapshot(&key)?.and_then(|(folder, manifest)| {
            let Manifest { secret, inode, size_bytes, .. } = manifest;
            Some((folder, SharedTree::new(key, secret?), inode?, size_bytes))
        });
        let Some((folder, tree, inode, size)) = found else {
            return match export.record(&self.key)? {
                Some(record) => self.find_reader(export, &record),
                None => Ok(None),
            };
        };
        let capacity_bytes = self.capacity_for(size, snapshot)?;
        export.share_tree(&folder, &tree)?;
        let record = Record { capacity_bytes, inode: Some(inode), ..self.of_tree(&tree).record() };
        let claim = export.claim_tree(&tree, &self.key, &record)?;
        // Where this fails, the claim stays: an answer that was lost may have been a success.
        if let Created::Before(record) = export.record_claimed(&claim)? {
            export.drop_claim(claim)?;
            return self.find_reader(export, &record);
        }
        if !claim.is_reliable() || !export.is_shared(&tree, inode)? {
            // The snapshot was deleted meanwhile, and this came too late to keep the tree.
            self.forget(export, &tree, &record)?;
            return Err(export.contended("make", self.name.to_string()).into());
        }
        self.of_tree(&tree).accept(&record).map(Some)
    }

    /// The volume that has this record; none if that is a copy.
    fn find_reader(&self, export: &Export, record: &Record) -> Result<Option<Volume>, CreateError> {
        let Some(tree) = record.subdir.shared_tree() else { return Ok(None) };
        if let Some(volume) = self.of_tree(&tree).find_recorded(export, record)? {
            return Ok(Some(volume));
        }
        self.forget(export, &tree, record)?;
        Err(export.contended("make", self.name.to_string()).into())
    }

    /// The same volume in a snapshot's tree. What the class says of a volume's directory, it says of none here.
    fn of_tree(&self, tree: &SharedTree) -> Self {
        let mut plan = self.clone();
        (plan.subdir, plan.subdir_given, plan.is_claims_word) = (SubDir::of_shared_tree(tree), true, false);
        (plan.attributes, plan.class_mode) = (Attributes::default(), None);
        (plan.on_delete, plan.on_delete_given) = (OnDelete::Delete, false);
        plan
    }

    /// Removes what was recorded of a volume that nobody has got, since its tree is gone.
    fn forget(&self, export: &Export, tree: &SharedTree, record: &Record) -> Result<(), CreateError> {
        self.remove_record(export, record)?;
        export.release(&SubDir::of_shared_tree(tree), &self.key, None)?;
        if let Some(name) = export.throw_away_unused_tree(tree)? {
            export.leave_to_reaper(name);
        }
        Ok(())
    }
}
