//! CreateVolume of a volume that is only read, from a snapshot: it is the snapshot's tree itself, and nothing is copied
//! (export/shared_trees.rs).

use super::create::{CreateError, Plan, Volume};
use crate::export::Export;
use crate::export::catalog::{Created, Record};
use crate::tree::make::Attributes;
use crate::volume::access::OnDelete;
use crate::volume::shared_tree::SharedTree;
use crate::volume::snapshot_id::SnapshotId;
use crate::volume::subdir::SubDir;

impl Plan {
    /// Makes the volume, or finds it. None where it must be a copy: the snapshot has no tree of its own, or the volume
    /// exists and is a copy.
    pub(super) fn read_snapshot(&self, export: &Export, snapshot: &SnapshotId) -> Result<Option<Volume>, CreateError> {
        if let Some(record) = export.record(&self.key)? {
            let Some(tree) = record.subdir.shared_tree() else { return Ok(None) };
            if let Some(volume) = self.of_tree(&tree).find_recorded(export, &record)? {
                // An earlier attempt may have been cut short before it did.
                export.confirm_record(&self.key)?;
                return Ok(Some(volume));
            }
            self.forget(export, &tree, &record)?;
        }
        let Some(manifest) = export.snapshot(&snapshot.key())? else { return Ok(None) };
        let Some(secret) = manifest.secret.clone() else { return Ok(None) };
        let capacity = self.capacity_for(manifest.size_bytes, snapshot)?;
        let tree = SharedTree::new(snapshot.key(), secret);
        self.of_tree(&tree).record_reader(export, &tree, capacity).map(Some)
    }

    /// The same volume in a snapshot's tree. What the class says of a volume's directory, it says of none here.
    fn of_tree(&self, tree: &SharedTree) -> Self {
        let mut plan = self.clone();
        (plan.subdir, plan.subdir_given, plan.is_claims_word) = (SubDir::of_shared_tree(tree), true, false);
        (plan.attributes, plan.class_mode) = (Attributes::default(), None);
        (plan.on_delete, plan.on_delete_given) = (OnDelete::Delete, false);
        plan
    }

    fn record_reader(&self, export: &Export, tree: &SharedTree, capacity: u64) -> Result<Volume, CreateError> {
        let contended = || CreateError::from(export.contended("make", self.name.to_string()));
        self.claim(export)?;
        let Some(inode) = export.share_tree(tree)? else {
            self.take_back_claim(export);
            return Err(contended());
        };
        let record = Record { capacity_bytes: capacity, inode: Some(inode), ..self.record() };
        let record = match export.create_record(&self.key, &record)? {
            Created::Now => record,
            Created::Before(record) => *record,
        };
        let volume = self.accept(&record)?;
        if !self.is_as_made(export, inode)? {
            // The snapshot was deleted meanwhile, and this came too late to keep the tree.
            self.forget(export, tree, &record)?;
            return Err(contended());
        }
        export.confirm_record(&self.key)?;
        Ok(volume)
    }

    /// Removes what was recorded of a volume that nobody has got, since its tree is gone.
    fn forget(&self, export: &Export, tree: &SharedTree, record: &Record) -> Result<(), CreateError> {
        self.remove_record(export, record)?;
        self.of_tree(tree).take_back_claim(export);
        if let Some(name) = export.throw_away_unused_tree(tree)? {
            export.leave_to_reaper(name);
        }
        Ok(())
    }
}
