//! ListVolumes and ControllerGetVolume: what the records say, and whether the directory is there.
//!
//! A list has no way to say that it is not complete, and one without what cannot be read is of more use than none: what
//! is left out is logged.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use super::record_change::is_of;
use super::{Controller, IsStale};
use crate::export::catalog::Record;
use crate::export::limited::LimitState;
use crate::export::pages::{Entry, Keys, Listed, Room};
use crate::export::{Export, ExportError, Folder};
use crate::mount::options::Options;
use crate::volume::id::VolumeId;
use crate::volume::name::VolumeName;
use crate::volume::record_key::RecordKey;
use crate::volume::share::Share;

/// A volume and how it fares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its id.
    pub id: String,
    /// Its size in bytes, as recorded; 0: unknown.
    pub capacity_bytes: u64,
    /// Whether it can only be read, since it is a snapshot's tree.
    pub is_snapshot: bool,
    /// What is wrong with it; none: nothing.
    pub problem: Option<String>,
    /// How many bytes of it are used, where it has a limit that is in force.
    pub used: Option<u64>,
    /// Whether it has no limit, or another one, although one was asked for.
    pub is_unenforced: bool,
}

/// A part of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The volumes.
    pub volumes: Vec<Found>,
    /// Where the next part begins; none: this was the last.
    pub next: Option<String>,
}

/// Why a list was not given.
#[derive(Clone, Debug, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum ListError {
    #[error("the starting token {token} is not one that ListVolumes gave: begin again without a token")]
    Token { token: String },

    #[error(transparent)]
    Export(#[from] ExportError),
}

/// Why a volume was not found.
#[derive(Clone, Debug, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum GetError {
    #[error("there is no volume {id} on {share}: check the id, and whether its directory was removed by hand")]
    NotFound { id: String, share: String },

    #[error(transparent)]
    Export(#[from] ExportError),
}

impl IsStale for GetError {
    fn is_stale(&self) -> bool {
        matches!(self, Self::Export(error) if error.is_stale())
    }
}

/// Entries of a page at most, whatever is asked for, and entries that are read for one. An entry has less than 8,000
/// bytes (two ids of 4,096 and 3,400, or one and a message with a path of 1,023 on a share of 1,280), so an answer
/// stays below the 4 MiB that gRPC clients receive.
const LONGEST_PAGE: usize = 500;

/// Where a page begins: in which list, and behind what has this key on this share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    folder: Folder,
    listing: u64,
    share: Share,
    key: RecordKey,
}

impl Controller {
    /// A volume by its id.
    ///
    /// # Errors
    /// See [`GetError`].
    pub async fn get(&self, id: &VolumeId, options: &Options) -> Result<Found, GetError> {
        let wanted = id.clone();
        let work = move |export: &Export| get(export, &wanted);
        let found = self.look(id.share(), options, work).await?;
        self.unenforced.note(id.share(), &found.id, found.is_unenforced);
        Ok(found)
    }

    /// The volumes on all shares known, behind `token`: at most `most` of them (0: as many as one page has). What
    /// cannot be read, and a share that does not answer, is logged and left out.
    ///
    /// # Errors
    /// See [`ListError`]; where no share answers.
    pub async fn list(&self, token: Option<&str>, most: usize) -> Result<Page, ListError> {
        let token = match token {
            Some(text) => {
                Some(Token::parse(Folder::Volumes, text).ok_or_else(|| ListError::Token { token: text.into() })?)
            }
            None => None,
        };
        let is_listed = self.is_listed();
        let entry = move |export: &Export, record: Record| {
            if is_listed(record.owner.as_deref()) { entry(export, &record) } else { Ok(Entry::Filtered) }
        };
        let (volumes, next) = self.gather(token, most, &Options::default(), entry).await?;
        for found in &volumes {
            if let Ok(id) = VolumeId::parse(&found.id) {
                self.unenforced.note(id.share(), &found.id, found.is_unenforced);
            }
        }
        Ok(Page { volumes, next })
    }

    /// Whether what belongs to a cluster is listed.
    pub(super) fn is_listed(&self) -> impl Fn(Option<&str>) -> bool + Clone + Send + Sync + 'static {
        let only = self.settings.lists_own.then(|| self.settings.cluster.clone());
        move |owner| only.as_ref().is_none_or(|only| only.as_deref() == owner)
    }

    /// A page of what `entry` gives of all shares known, behind `token`, and the token for what is left.
    pub(super) async fn gather<R, T, F>(
        &self,
        token: Option<Token>,
        most: usize,
        options: &Options,
        entry: F,
    ) -> Result<(Vec<T>, Option<String>), ExportError>
    where
        R: Listed + 'static,
        T: Send + 'static,
        F: Fn(&Export, R) -> Result<Entry<T>, ExportError> + Clone + Send + Sync + 'static,
    {
        let listing = token.as_ref().map_or_else(|| self.listings.begin(), |token| token.listing);
        let most = if most == 0 { LONGEST_PAGE } else { most.min(LONGEST_PAGE) };
        let mut room = Room { entries: most, reads: LONGEST_PAGE };
        let (mut found, mut failures) = (Vec::new(), Vec::new());
        // Dropped with this future: the work ends then.
        let caller = Arc::new(());
        let (mut end, mut next, mut keys_at_end, mut has_answer) = (None, None, None, false);
        for share in self.shares() {
            if room.entries == 0 || room.reads == 0 {
                next = end;
                break;
            }
            let (kept, after) = match &token {
                Some(token) if share.to_string() < token.share.to_string() => continue,
                Some(token) if share == token.share => (self.listings.keys(listing, &share), Some(token.key.clone())),
                _ => (None, None),
            };
            let (entry, caller) = (entry.clone(), Arc::downgrade(&caller));
            let work = move |export: &Export| {
                let keys = match &kept {
                    Some(keys) => Arc::clone(keys),
                    None => Arc::new(Keys::read::<R>(export, &caller)?),
                };
                let part = keys.page(export, after.as_ref(), room, &caller, |read| entry(export, read))?;
                Ok::<_, ExportError>((part, keys))
            };
            let (part, keys) = match self.look(&share, options, work).await {
                Ok(answer) => answer,
                Err(error) => {
                    failures.push((share, error));
                    continue;
                }
            };
            has_answer = true;
            room = Room { entries: room.entries - part.found.len(), reads: room.reads - part.read };
            found.extend(part.found);
            if let Some(key) = part.last {
                end = Some(Token { folder: R::FOLDER, listing, share: share.clone(), key });
                keys_at_end = Some((share, keys));
            }
            if part.is_cut {
                next = end;
                break;
            }
        }
        if !has_answer && !failures.is_empty() {
            return Err(failures.swap_remove(0).1);
        }
        for (share, error) in failures {
            tracing::warn!(%share, %error, "a list is without what is on this export");
        }
        self.listings.keep(listing, keys_at_end.filter(|_| next.is_some()));
        Ok((found, next.as_ref().map(Token::to_string)))
    }
}

fn get(export: &Export, id: &VolumeId) -> Result<Found, GetError> {
    let refusal = match export.record(&id.key()) {
        Ok(Some(record)) if is_of(&record, id) => {
            return Ok(Found { id: id.to_string(), ..describe(export, &record)? });
        }
        Ok(_) => None,
        // The driver's folder may be another's than this host's root, and the volume's directory open to all.
        Err(error) if error.is_refusal() => Some(error),
        Err(error) => return Err(error.into()),
    };
    // A volume that another driver made has no record, only its directory.
    match id.subdir() {
        Some(subdir) if export.has_directory(subdir)? => Ok(Found {
            id: id.to_string(),
            capacity_bytes: 0,
            is_snapshot: false,
            problem: None,
            used: None,
            is_unenforced: false,
        }),
        _ => Err(refusal.map_or_else(
            || GetError::NotFound { id: id.to_string(), share: export.share().to_string() },
            GetError::from,
        )),
    }
}

fn entry(export: &Export, record: &Record) -> Result<Entry<Found>, ExportError> {
    match record.id.as_deref().map(VolumeId::parse) {
        Some(Err(error)) => Ok(Entry::LeftOut(ExportError::Record {
            path: format!("of volume {}", record.name),
            share: export.share().to_string(),
            reason: error.to_string(),
        })),
        _ => describe(export, record).map(Entry::Listed),
    }
}

fn describe(export: &Export, record: &Record) -> Result<Found, ExportError> {
    let found = Found {
        id: recorded_id(export.share(), record),
        capacity_bytes: record.capacity_bytes,
        is_snapshot: record.subdir.shared_tree().is_some(),
        problem: None,
        used: None,
        is_unenforced: false,
    };
    let missing = || Some(format!("the volume's directory {} is missing on {}", record.subdir, export.share()));
    let looked = export.limit_state(record).and_then(|state| match state {
        LimitState::Unlimited | LimitState::NotHad => Ok((state, export.has_directory(&record.subdir)?)),
        state => Ok((state, state != LimitState::NoDirectory)),
    });
    let (state, has_directory) = match looked {
        Ok(looked) => looked,
        Err(error) => {
            let problem = Some(export.of_entry_alone(export.root(), error)?.to_string());
            return Ok(Found { problem, ..found });
        }
    };
    Ok(match state {
        _ if !has_directory => Found { problem: missing(), ..found },
        LimitState::Unlimited | LimitState::NoDirectory => found,
        LimitState::InForce { used } => Found { used: Some(used), ..found },
        LimitState::Differs { recorded, shown } => {
            let problem = Some(format!(
                "the volume's limit is not in force: {recorded} bytes are recorded, and the server shows {shown}; see \
                 the log of its quota agent"
            ));
            Found { problem, is_unenforced: true, ..found }
        }
        LimitState::NotHad => {
            let problem = "the volume has no limit of its size: there was none to be had when it was made; `nfs-csi quota \
                           convert` on the server gives it one";
            Found { problem: Some(problem.into()), is_unenforced: true, ..found }
        }
    })
}

/// The id of a volume on a share, as its record tells.
#[must_use]
pub fn recorded_id(share: &Share, record: &Record) -> String {
    record.id.clone().unwrap_or_else(|| {
        let (share, name) = (share.named(record.server.as_deref()), VolumeName::recorded(&record.name));
        VolumeId::for_volume(share, &name, &record.subdir, record.subdir_given, record.on_delete).to_string()
    })
}

impl Token {
    /// Reads a token of a list of what is in this folder; none if it is not one.
    pub(super) fn parse(folder: Folder, text: &str) -> Option<Self> {
        let (listing, rest) = text.strip_prefix(folder.name())?.strip_prefix('#')?.split_once('#')?;
        let (share, key) = rest.rsplit_once('#')?;
        let listing = u64::from_str_radix(listing, 16).ok()?;
        let token = Self { folder, listing, share: share.parse().ok()?, key: key.parse().ok()? };
        // Each is written in one way only.
        (token.to_string() == text).then_some(token)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{:x}#{}#{}", self.folder.name(), self.listing, self.share, self.key)
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;
    use crate::volume::access::OnDelete;
    use crate::volume::snapshot_id::SnapshotId;
    use crate::volume::subdir::SubDir;

    #[test]
    fn a_token_is_read_in_the_form_that_it_was_given_in_and_in_no_other() {
        let share: Share = "[fd00::1]:/a#b c".parse().unwrap();
        let token = Token { folder: Folder::Volumes, listing: 0xab, share, key: RecordKey::of("pvc-1") };
        let text = token.to_string();
        assert_eq!(text, format!("volumes#ab#[fd00::1]:/a#b c#{}", token.key));
        assert_eq!(Token::parse(Folder::Volumes, &text), Some(token));
        assert_eq!(Token::parse(Folder::Snapshots, &text), None);
        let changes = [
            ("volumes#", ""),
            ("volumes", "volume"),
            ("#ab#", "#0ab#"),
            ("#ab#", "#AB#"),
            ("#ab#", "#+ab#"),
            ("#ab#", "##"),
            ("#ab#", "#11112222333344445#"),
            ("[fd00::1]:/", "[fd00::1]:"),
            ("[fd00::1]:/", "[fd00::1]://"),
            (" c#", " c/#"),
            (" c#", " c#x"),
        ];
        for (from, to) in changes {
            let other = text.replacen(from, to, 1);
            assert_ne!(other, text);
            assert_eq!(Token::parse(Folder::Volumes, &other), None, "{other}");
        }
        assert_eq!(Token::parse(Folder::Volumes, &format!("[fd00::1]:/a#b c#{}", RecordKey::of("pvc-1"))), None);
    }

    #[test]
    fn the_longest_page_is_below_4_mib_whatever_is_in_it() {
        // As long as names and paths may be, and with what ids have to escape.
        let path = format!("/{}", format!("{}/", "#".repeat(254)).repeat(4));
        let share: Share = format!("{}:{path}", "s".repeat(63) + &".s".repeat(95)).parse().unwrap();
        assert!(share.to_string().len() > 253 + 1020);
        let subdir = SubDir::parse(&format!("{}/", "d".repeat(254)).repeat(4)[..1019]).unwrap();
        let name = VolumeName::recorded("pvc-1");
        let volume = VolumeId::for_volume(share.clone(), &name, &subdir, true, OnDelete::Archive);
        let snapshot = SnapshotId::for_snapshot(share.clone(), &name, &volume).to_string();
        // An id that another driver gave, as long as one is read.
        let given = format!("nas#{}", "x".repeat(4096 - 4));
        let problems = Errno::ENOENT as i32..=Errno::EHWPOISON as i32;
        let problem = problems.map(|errno| {
            let errno = Errno::from_raw(errno);
            let error = ExportError::Io { what: "look for", path: subdir.to_string(), share: share.to_string(), errno };
            error.to_string().len()
        });
        // Numbers, and what stands before each field.
        let rest = 100;
        for entry in [given.len() + problem.max().unwrap(), given.len() + snapshot.len()] {
            assert!(LONGEST_PAGE * (entry + rest) + share.to_string().len() < 4 << 20, "{entry}");
        }
    }
}
