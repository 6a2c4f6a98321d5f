//! The invariants of an export: every record has its directory, every claim its record, and nothing is in staging or in
//! the trash without a reason. What does not hold is a finding; those that can be mended without any risk to data can
//! be repaired.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use nix::errno::Errno;
use serde::Serialize;

use super::catalog::Record;
use super::identity::{Found, IDENTITY};
use super::limited::LimitState;
use super::record_lock::RecordLock;
use super::snapshots::Manifest;
use super::trash::TrashName;
use super::trash_free::Needed;
use super::{Export, ExportError};
use crate::beneath;
use crate::volume::path::RESERVED;
use crate::volume::quota_files::ProjectId;
use crate::volume::record_key::RecordKey;
use crate::volume::shared_tree::SharedTree;
use crate::volume::subdir::SubDir;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the text of each says what it is")]
pub enum Problem {
    UnreadableRecord,
    RecordWithoutDirectory,
    OtherDirectory,
    LimitNotInForce,
    SharedLimit,
    RecordWithoutClaim,
    ClaimWithoutRecord,
    DirectoryWithoutRecord,
    UnreadableSnapshot,
    TreeWithoutReaders,
    Staging,
    TrashStuck,
    TrashDisplaced,
    TrashUnfinished,
    Unknown,
    CopiedExport,
}

impl Problem {
    /// What it means, and what to do.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Self::UnreadableRecord => "restore the record from a backup; without one, remove it by hand",
            Self::RecordWithoutDirectory => "restore the directory from a backup, or delete the volume",
            Self::OtherDirectory => "nothing, if the directory was restored or moved by hand",
            Self::LimitNotInForce => {
                "see the log of the server's quota agent; `nfs-csi quota convert` where there is none"
            }
            Self::SharedLimit => "convert one of the volumes again: lift its limit first (quota: none)",
            Self::RecordWithoutClaim => "another volume of the same directory would not see this one",
            Self::ClaimWithoutRecord => "a volume is being made, or was not made after all",
            Self::DirectoryWithoutRecord => {
                "nothing, if it is a volume of csi-driver-nfs, a retained or archived one, or your own data"
            }
            Self::UnreadableSnapshot => "delete the snapshot",
            Self::TreeWithoutReaders => "nothing: it is freed in the background",
            Self::Staging => "the retry takes it over; without one it is swept after --staging-retention",
            Self::TrashStuck => "remove what is in the way (see the reason), or export the share with no_root_squash",
            Self::TrashDisplaced => "look at both directories, and move one away by hand",
            Self::TrashUnfinished => "repeat the delete: it completes what was begun",
            Self::CopiedExport => "stop all work on the export, and repair it: until then controllers refuse it",
            Self::Unknown => "a later version of the driver put it there: it is left alone",
        }
    }

    /// Whether it says that something is wrong, and not only that something is there.
    #[must_use]
    pub fn is_wrong(self) -> bool {
        !matches!(self, Self::DirectoryWithoutRecord | Self::Unknown)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnreadableRecord => "record that cannot be read",
            Self::RecordWithoutDirectory => "record without directory",
            Self::OtherDirectory => "another directory than was made",
            Self::LimitNotInForce => "limit that is not in force",
            Self::SharedLimit => "limit of two volumes",
            Self::RecordWithoutClaim => "record without claim",
            Self::ClaimWithoutRecord => "claim without record",
            Self::DirectoryWithoutRecord => "directory without record",
            Self::UnreadableSnapshot => "snapshot that cannot be read",
            Self::TreeWithoutReaders => "deleted snapshot without readers",
            Self::Staging => "unfinished work",
            Self::TrashStuck => "cannot be freed",
            Self::TrashDisplaced => "deleted, and needed",
            Self::TrashUnfinished => "unfinished delete",
            Self::Unknown => "unknown name",
            Self::CopiedExport => "export that was copied file by file",
        })
    }
}

/// What is done about a finding by a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Repair {
    Claim(Box<Record>, RecordKey),
    TakeBack(SubDir, RecordKey, Option<String>),
    Adopt(Box<Record>, RecordKey, u64),
    PutBack(TrashName, SubDir),
    ThrowAway(SharedTree),
    Sweep(Duration),
    TakeCopy,
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim(record, _) => write!(f, "claim {} for volume {}", record.subdir, record.name),
            Self::TakeBack(subdir, _, _) => write!(f, "take back the claim on {subdir}"),
            Self::Adopt(record, _, inode) => {
                write!(f, "note the directory's number {inode} in {}'s record", record.name)
            }
            Self::PutBack(name, subdir) => write!(f, "move trash/{name} back to {subdir}"),
            Self::TakeCopy => f.write_str("note the numbers of the snapshots' trees and of the export itself"),
            Self::ThrowAway(_) | Self::Sweep(_) => f.write_str("move it to the trash"),
        }
    }
}

/// Something that does not hold.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// What kind of thing.
    pub problem: Problem,
    /// What it is about: a path below the share.
    pub path: String,
    /// What was seen.
    pub detail: String,
    /// What `--repair` does about it; none: nothing.
    pub repair: Option<String>,
    #[serde(skip)]
    action: Option<Repair>,
}

/// What is on an export.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Volumes with a record.
    pub volumes: usize,
    /// Snapshots.
    pub snapshots: usize,
    /// Deleted volumes and snapshots that are kept.
    pub kept: usize,
    /// Those that are about to be freed.
    pub due: usize,
    /// What does not hold.
    pub findings: Vec<Finding>,
    /// What was repaired.
    pub repaired: Vec<Finding>,
}

impl Report {
    fn add(&mut self, problem: Problem, path: impl Into<String>, detail: impl Into<String>, action: Option<Repair>) {
        let repair = action.as_ref().map(ToString::to_string);
        self.findings.push(Finding { problem, path: path.into(), detail: detail.into(), repair, action });
    }
}

impl Export {
    /// Looks through all that the driver keeps on the export. Work that shows no sign of life for `retention` is over.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn check(&self, retention: Duration) -> Result<Report, ExportError> {
        let mut report = Report::default();
        let mut named: HashSet<String> = HashSet::new();
        let mut limits: HashMap<ProjectId, String> = HashMap::new();
        for key in self.keys::<Record>()? {
            match self.record(&key) {
                Ok(Some(record)) => {
                    report.volumes += 1;
                    named.extend(record.subdir.components().next().map(str::to_owned));
                    self.check_limit(&record, &mut limits, &mut report)?;
                    self.check_record(&key, record, &mut report)?;
                }
                Ok(None) => {}
                Err(error @ (ExportError::Record { .. } | ExportError::NewerRecord { .. })) => {
                    let path = format!("{RESERVED}/volumes/{key}.json");
                    report.add(Problem::UnreadableRecord, path, error.to_string(), None);
                }
                Err(error) => return Err(error),
            }
        }
        for key in self.keys::<Manifest>()? {
            report.snapshots += 1;
            if let Err(error) = self.check_snapshot(&key) {
                let path = format!("{RESERVED}/snapshots/{key}");
                report.add(Problem::UnreadableSnapshot, path, error.to_string(), None);
            }
        }
        self.check_shared_trees(&mut report)?;
        self.check_claims(retention, &mut report)?;
        self.check_staging(retention, &mut report)?;
        self.check_trash(&mut report)?;
        self.check_top(&named, &mut report)?;
        if let Some(found) = self.identity()?.filter(Found::is_copied) {
            let [noted, inode] = found.inodes();
            let detail = format!("the number of the file was {noted}, and is {inode}");
            let path = format!("{RESERVED}/{IDENTITY}");
            report.add(Problem::CopiedExport, path, detail, Some(Repair::TakeCopy));
        }
        report.findings.sort_by(|one, other| (one.problem, &one.path).cmp(&(other.problem, &other.path)));
        Ok(report)
    }

    fn check_record(&self, key: &RecordKey, record: Record, report: &mut Report) -> Result<(), ExportError> {
        let path = record.subdir.to_string();
        match self.inode_of(&record.subdir) {
            Ok(Some(inode)) if record.inode.is_none_or(|noted| noted == inode) => {}
            Ok(Some(inode)) => {
                let detail = format!("volume {} was made with another directory", record.name);
                let action = Repair::Adopt(Box::new(record.clone()), key.clone(), inode);
                report.add(Problem::OtherDirectory, &path, detail, Some(action));
            }
            Ok(None) => {
                let detail = format!("volume {} has no directory", record.name);
                report.add(Problem::RecordWithoutDirectory, &path, detail, None);
            }
            Err(error) => report.add(Problem::RecordWithoutDirectory, &path, error.to_string(), None),
        }
        if record.subdir_given && !self.has_claim(&record.subdir, key, record.owner.as_deref())? {
            let detail = format!("volume {} does not claim its directory", record.name);
            let action = Repair::Claim(Box::new(record), key.clone());
            report.add(Problem::RecordWithoutClaim, path, detail, Some(action));
        }
        Ok(())
    }

    fn check_limit(
        &self,
        record: &Record,
        limits: &mut HashMap<ProjectId, String>,
        report: &mut Report,
    ) -> Result<(), ExportError> {
        let path = record.subdir.to_string();
        let detail = match self.limit_state(record)? {
            // Where it has no directory, that is a finding of its own.
            LimitState::Unlimited | LimitState::InForce { .. } | LimitState::NoDirectory => None,
            LimitState::NotHad => Some("there was none to be had when the volume was made".into()),
            LimitState::Differs { recorded, shown } => {
                Some(format!("{recorded} bytes are recorded, and the server shows {shown}"))
            }
        };
        if let Some(detail) = detail {
            report.add(Problem::LimitNotInForce, &path, detail, None);
        }
        if let Some(project) = record.project()
            && let Some(other) = limits.insert(project, record.name.clone())
        {
            let detail = format!("project {project} is that of volume {other} too");
            report.add(Problem::SharedLimit, path, detail, None);
        }
        Ok(())
    }

    fn check_snapshot(&self, key: &RecordKey) -> Result<(), ExportError> {
        let Some(manifest) = self.snapshot(key)? else {
            return Err(self.failed("open the manifest of snapshot", key.to_string(), Errno::ENOENT));
        };
        self.snapshot_data(key, &manifest).map(drop)
    }

    fn check_shared_trees(&self, report: &mut Report) -> Result<(), ExportError> {
        for tree in self.shared_trees()? {
            if self.is_unused(&tree)? {
                let detail = format!("snapshot {} is deleted, and no volume reads it", tree.key());
                let action = Repair::ThrowAway(tree.clone());
                report.add(
                    Problem::TreeWithoutReaders,
                    SubDir::of_shared_tree(&tree).to_string(),
                    detail,
                    Some(action),
                );
            }
        }
        Ok(())
    }

    fn check_claims(&self, retention: Duration, report: &mut Report) -> Result<(), ExportError> {
        for claim in self.all_claims()? {
            if self.record(&claim.key).is_ok_and(|record| record.is_none()) {
                let detail = format!("a claim of {} that is {} s old", claim.key, claim.age.as_secs());
                let action = Repair::TakeBack(claim.subdir.clone(), claim.key, claim.owner);
                let action = (claim.age >= retention).then_some(action);
                report.add(Problem::ClaimWithoutRecord, claim.subdir.to_string(), detail, action);
            }
        }
        Ok(())
    }

    fn check_staging(&self, retention: Duration, report: &mut Report) -> Result<(), ExportError> {
        for (staged, silent) in self.staged()? {
            let path = format!("{RESERVED}/staging/{}", staged.name());
            let Some(silent) = silent else {
                report.add(Problem::Unknown, path, "", None);
                continue;
            };
            let detail = format!("no sign of life for {} s", silent.as_secs());
            let action = (silent >= retention).then_some(Repair::Sweep(retention));
            report.add(Problem::Staging, path, detail, action);
        }
        Ok(())
    }

    fn check_trash(&self, report: &mut Report) -> Result<(), ExportError> {
        let trash = self.trash()?.unwrap_or_default();
        (report.kept, report.due) = (trash.kept.len(), trash.due.len());
        for name in trash.kept.iter().chain(&trash.due) {
            let path = format!("{RESERVED}/trash/{name}");
            match self.is_needed(name)? {
                Needed::No => {}
                Needed::By(subdir) => {
                    let action = Some(Repair::PutBack(name.clone(), subdir.clone()));
                    report.add(Problem::TrashDisplaced, path, format!("the volume in {subdir} needs it"), action);
                    continue;
                }
                Needed::Displaced(subdir) => {
                    let detail = format!("it is the directory of the volume in {subdir}, where something else is");
                    report.add(Problem::TrashDisplaced, path, detail, None);
                    continue;
                }
                Needed::Unfinished => {
                    report.add(Problem::TrashUnfinished, path, "its volume has its record still", None);
                    continue;
                }
            }
            if let Some(failure) = self.failure(name) {
                let detail = format!("tried {} times: {}", failure.tries, failure.reason);
                report.add(Problem::TrashStuck, path, detail, None);
            }
        }
        for name in trash.unknown {
            report.add(Problem::Unknown, format!("{RESERVED}/trash/{name}"), "", None);
        }
        Ok(())
    }

    /// The share's top: what no volume is in.
    fn check_top(&self, known: &HashSet<String>, report: &mut Report) -> Result<(), ExportError> {
        let names = beneath::names(self.root()).map_err(|errno| self.failed("list", ".", errno))?;
        for name in names.iter().filter_map(|name| name.to_str()) {
            if name == RESERVED || known.contains(name) {
                continue;
            }
            if beneath::open_dir(self.root(), name).is_ok() {
                report.add(Problem::DirectoryWithoutRecord, name, "", None);
            }
        }
        Ok(())
    }

    /// Does what a finding says under `repair`. Nothing is removed but what holds no data.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn repair(&self, finding: &Finding) -> Result<(), ExportError> {
        match &finding.action {
            None => Ok(()),
            Some(Repair::Claim(record, key)) => self.claim(&record.subdir, key, record.owner.as_deref()),
            Some(Repair::TakeBack(subdir, key, owner)) => self.take_back_claim(subdir, key, owner.as_deref()),
            Some(Repair::Adopt(record, key, inode)) => {
                let adopted = Record { inode: Some(*inode), ..(**record).clone() };
                let adopt = |lock: &RecordLock<'_>| Ok(lock.is_still(record)? && lock.replace(&adopted)?);
                let adopted = self.with_record_locked(key, Duration::MAX, adopt)?;
                adopted.map(drop).ok_or_else(|| self.contended("repair", record.subdir.to_string()))
            }
            Some(Repair::PutBack(name, subdir)) => self.put_back(name, subdir).map(drop),
            Some(Repair::ThrowAway(tree)) => self.throw_away_unused_tree(tree).map(drop),
            Some(Repair::TakeCopy) => {
                for key in self.keys::<Manifest>()? {
                    self.renumber_snapshot(&key)?;
                }
                self.take_copy()
            }
            Some(Repair::Sweep(retention)) => self.sweep_staging(*retention).map(drop),
        }
    }
}
