//! The files by which the driver and the quota agent on the NFS server speak with each other: their names and texts.
//!
//! ```text
//! .nfs-csi/quota/      0700, made by the agent
//!   agent.json           the agent's state; its time of change says when the agent was last alive
//!   ready/<id>/          an empty directory of project <id>, 0755, with a limit that leaves no room for files
//!   wanted/<id>          a symbolic link made by the driver, whose text is a [`Wanted`]: the limit of project <id>
//!   applied/<id>         a symbolic link made by the agent, whose text is an [`Applied`]: the limit that is in force
//!   refused/<id>         a symbolic link made by the agent, whose text is a [`Refused`]: why a wish is not granted
//!   usage                what each project uses ([`usage_line`])
//! ```
//!
//! Links, because one call to the server makes one with its text, and fails where the name is taken: so an id is
//! claimed by making `wanted/<id>`, and nobody ever reads half a text. Their texts lead nowhere, and nobody follows them.
//!
//! A volume's life: the driver links `wanted/<id>` for an id that has a directory in `ready/`. The agent gives the
//! directory its mode, links `applied/<id>`, and sets the limit in the kernel, in this order: so when the server shows the
//! limit as the directory's size, all of it is done. The driver asks for that (statfs), and moves the directory to where it
//! is filled. It does not move it before, and the agent changes nothing in `ready/` for a claim: so what the driver's
//! kernel knows of that folder stays true. A new limit is a `wanted/<id>` of a higher generation; it is in force when
//! `applied/<id>` has that generation. Nobody gives an id back: when nothing is charged to a project any more, the agent
//! removes its limit and all of its files, and uses the id again. A directory with its limit that nobody moved out of
//! `ready/` for [`UNCLAIMED_AFTER`] is removed.
//!
//! What a driver can meet, beside the answers:
//! - `wanted/<id>` and `applied/<id>` are gone: nothing was charged to the project any more (its directory was removed), or
//!   nobody took it. The driver claims another one.
//! - `refused/<id>` with the generation that it asked for, or with 0: its wish will not be granted. For a claim, it takes
//!   another id. The reason goes when a wish for the id is granted.
//! - `ready/` is empty: the agent makes new directories when it has set the limits that were asked for; the driver looks
//!   again.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::record_key::RecordKey;

/// The folder in the driver's own.
pub const QUOTA: &str = "quota";
/// The agent's state.
pub const AGENT: &str = "agent.json";
/// What each project uses.
pub const USAGE: &str = "usage";
/// The folders in [`QUOTA`].
pub const READY: &str = "ready";
/// See the module.
pub const WANTED: &str = "wanted";
/// See the module.
pub const APPLIED: &str = "applied";
/// See the module.
pub const REFUSED: &str = "refused";

/// The format of all texts.
pub const FORMAT: u32 = 1;
/// How often the agent writes its state.
pub const BEAT: Duration = Duration::from_secs(5);
/// An agent that has written nothing for so long is silent.
pub const SILENT_AFTER: Duration = Duration::from_secs(20);
/// A directory with its limit that nobody moves out of `ready/` for so long is removed.
pub const UNCLAIMED_AFTER: Duration = Duration::from_mins(10);
/// No limit is larger, in bytes or in files: file systems count in 63 bits, and round up. One of so many bytes is none.
pub const LARGEST: u64 = 1 << 60;
/// The limit of a directory in `ready/` that nobody has claimed, in bytes; it has one of a single file too, which is the
/// directory itself, so nothing can be made in it. Its one block may be as large as file systems have them.
pub const CLOSED_BYTES: u64 = 64 << 10;
/// The longest text of a link, in bytes: XFS has no longer ones.
pub const LONGEST: usize = 1023;

/// A project: one volume's number in the file system's quotas. It is one of the agent's range (31 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "u32", try_from = "u32")]
pub struct ProjectId(u32);

/// Why a number is no project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{0} is no project: those are 1 to {most}", most = i32::MAX)]
pub struct ProjectError(u32);

impl TryFrom<u32> for ProjectId {
    type Error = ProjectError;

    fn try_from(number: u32) -> Result<Self, ProjectError> {
        Self::new(number).ok_or(ProjectError(number))
    }
}

impl From<ProjectId> for u32 {
    fn from(project: ProjectId) -> Self {
        project.0
    }
}

impl ProjectId {
    /// A number; none if it is 0 or has more than 31 bits.
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        (1..=i32::MAX.unsigned_abs()).contains(&number).then_some(Self(number))
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }

    /// Reads the name of a file: the number in decimal, without zeroes before it.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let id = Self::new(name.parse().ok()?)?;
        (id.to_string() == name).then_some(id)
    }
}

impl std::fmt::Display for ProjectId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The limit that the driver wants for a project: the text of `wanted/<id>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    /// [`FORMAT`].
    pub format: u32,
    /// 1 at first, and one more with each change.
    pub generation: u64,
    /// The limit in bytes; never 0.
    pub bytes: u64,
    /// The limit in files and directories; 0: none.
    pub inodes: u64,
    /// The permissions that the directory gets with its first limit, at most 0o7777; none: those that it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// The volume's key ([`RecordKey`]).
    pub volume: RecordKey,
    /// Which attempt claimed it: a text that no other claim has.
    pub claim: String,
}

/// The limit that is in force for a project: the text of `applied/<id>`. It is what was wanted.
pub type Applied = Wanted;

/// Why the agent does not do what is wanted: the text of `refused/<id>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// [`FORMAT`].
    pub format: u32,
    /// The generation of what was wanted; 0 where that cannot be read.
    pub generation: u64,
    /// The reason, for a person.
    pub reason: String,
}

/// What the agent says of itself: the text of [`AGENT`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Agent {
    /// [`FORMAT`].
    pub format: u32,
    /// The program's version.
    pub version: String,
    /// The server's host name.
    pub host: String,
    /// `xfs` or `ext4`.
    pub file_system: String,
    /// Whether limits hold for root too, when it writes through an export with `no_root_squash`.
    pub limits_root: bool,
    /// The first number of its range.
    pub first_id: u32,
    /// The last one.
    pub last_id: u32,
    /// How many directories are in `ready/`.
    pub ready: u64,
    /// How many projects have a limit that was wanted.
    pub volumes: u64,
    /// The sum of these limits in bytes.
    pub promised_bytes: u64,
}

/// One line of [`USAGE`]: the project, the bytes and the files and directories that it uses.
#[must_use]
pub fn usage_line(project: ProjectId, bytes: u64, inodes: u64) -> String {
    format!("{project} {bytes} {inodes}\n")
}

/// Reads one line of [`USAGE`].
#[must_use]
pub fn parse_usage_line(line: &str) -> Option<(ProjectId, u64, u64)> {
    let mut fields = line.split(' ');
    let project = ProjectId::parse(fields.next()?)?;
    let (bytes, inodes) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    fields.next().is_none().then_some((project, bytes, inodes))
}
