//! One thing on an export.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::persistent_volumes::PersistentVolume;
use crate::tree::count::Usage;

/// What it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A volume, or a PersistentVolume whose directory is missing.
    Volume,
    /// A snapshot.
    Snapshot,
    /// Something that was deleted, in the trash.
    Trash,
    /// A deleted volume under `onDelete: archive`.
    Archive,
    /// A deleted volume under `onDelete: retain`.
    Retained,
    /// A directory that nothing names.
    Directory,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Volume => "volume",
            Self::Snapshot => "snapshot",
            Self::Trash => "trash",
            Self::Archive => "archive",
            Self::Retained => "retained",
            Self::Directory => "directory",
        })
    }
}

/// What it lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Orphan {
    /// A directory that neither a record nor a PersistentVolume names.
    DirectoryWithoutRecord,
    /// A record whose directory is missing.
    RecordWithoutDirectory,
    /// A record of which the cluster has no PersistentVolume.
    RecordWithoutPv,
    /// A PersistentVolume without a record whose directory is missing.
    PvWithoutDirectory,
}

impl fmt::Display for Orphan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DirectoryWithoutRecord => "directory without record",
            Self::RecordWithoutDirectory => "record without directory",
            Self::RecordWithoutPv => "record without PV",
            Self::PvWithoutDirectory => "PV without directory",
        })
    }
}

/// Who found out what is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UsedBy {
    /// The quota agent.
    Quota,
    /// A walk through the tree, just now.
    Walk,
    /// The snapshot's manifest: a snapshot never changes.
    Snapshot,
}

/// What something uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Used {
    /// Bytes.
    pub bytes: u64,
    /// When that was so, in seconds since 1970; none where it does not change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
    /// Who found it out.
    pub by: UsedBy,
    /// Whether it is more, since something could not be read.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_partial: bool,
}

impl Used {
    pub(super) fn new(bytes: u64, by: UsedBy) -> Self {
        Self { bytes, at: None, by, is_partial: false }
    }

    /// What a walk that has just ended found.
    pub(super) fn walked(Usage { bytes, unread, .. }: Usage) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self { bytes, at: Some(now), by: UsedBy::Walk, is_partial: unread > 0 }
    }
}

/// Something on an export. What is not known is left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// What it is.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// The volume id, where it is not the one that follows from the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its directory below the share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// The PersistentVolume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pv: Option<String>,
    /// The claim that it was made for, `namespace/name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    /// Its size, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// What it uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<Used>,
    /// When it was made, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<u64>,
    /// When it was deleted, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<u64>,
    /// Until when it can be brought back, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_until: Option<u64>,
    /// The cluster whose driver made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// What else is to be said of it, for people.
    pub state: String,
    /// What it lacks; none: nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub orphan: Option<Orphan>,
}

impl Entry {
    pub(crate) fn new(kind: Kind, name: String) -> Self {
        Self {
            kind,
            name,
            id: None,
            directory: None,
            pv: None,
            claim: None,
            size_bytes: None,
            used: None,
            created_at: None,
            deleted_at: None,
            kept_until: None,
            owner: None,
            state: String::new(),
            orphan: None,
        }
    }

    /// With what its PersistentVolume says where nothing else does.
    pub(super) fn with_persistent_volume(self, volume: Option<&PersistentVolume>) -> Self {
        let Some(volume) = volume else { return self };
        Self {
            pv: Some(volume.name.clone()),
            claim: self.claim.or_else(|| volume.claim.clone()),
            size_bytes: self.size_bytes.or(volume.size_bytes),
            id: self.id.or_else(|| volume.id.as_ref().map(ToString::to_string)),
            ..self
        }
    }
}
