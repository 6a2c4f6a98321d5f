//! ListVolumes and ControllerGetVolume: what the records say, and whether the directory is there.

use thiserror::Error;

use super::expand::is_of;
use super::{Controller, IsStale};
use crate::export::catalog::Record;
use crate::export::{Export, ExportError};
use crate::mount::options::Options;
use crate::volume::id::VolumeId;
use crate::volume::name::{RecordKey, VolumeName};
use crate::volume::share::Share;

/// A volume and how it fares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its id.
    pub id: String,
    /// Its size in bytes, as recorded; 0: unknown.
    pub capacity_bytes: u64,
    /// What is wrong with it; none: nothing.
    pub problem: Option<String>,
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

/// Where a page begins: behind what has this key on this share.
pub(super) struct Token {
    pub(super) share: String,
    pub(super) key: RecordKey,
}

impl Controller {
    /// A volume by its id.
    ///
    /// # Errors
    /// See [`GetError`].
    pub async fn get(&self, id: &VolumeId, options: &Options) -> Result<Found, GetError> {
        let wanted = id.clone();
        let work = move |export: &Export| get(export, &wanted);
        self.on(id.share(), options, work).await.map(|(found, _)| found)
    }

    /// The volumes on all shares known: those whose record stands behind `token`, at most `most` of them (0: all).
    ///
    /// # Errors
    /// See [`ListError`]. A share that does not answer is an error: without it the list would be wrong.
    pub async fn list(&self, token: Option<&str>, most: usize) -> Result<Page, ListError> {
        let token = match token {
            Some(text) => Some(Token::parse(text).ok_or_else(|| ListError::Token { token: text.into() })?),
            None => None,
        };
        let (volumes, next) = self.gather(token.as_ref(), most, &Options::default(), list).await?;
        Ok(Page { volumes, next })
    }

    /// What `part` gives of all shares known, at most `most` (0: all) of it and only what is behind `token`; and the token
    /// for what is left.
    pub(super) async fn gather<T, F>(
        &self,
        token: Option<&Token>,
        most: usize,
        options: &Options,
        part: F,
    ) -> Result<(Vec<T>, Option<String>), ExportError>
    where
        T: Send + 'static,
        F: Fn(&Export, Option<&RecordKey>, usize) -> Result<Part<T>, ExportError> + Clone + Send + 'static,
    {
        let most = if most == 0 { usize::MAX } else { most };
        let mut found = Vec::new();
        let mut end = None;
        for share in self.shares() {
            let name = share.to_string();
            let after = match token {
                Some(token) if name < token.share => continue,
                Some(token) if name == token.share => Some(token.key.clone()),
                _ => None,
            };
            let room = most - found.len();
            let part = part.clone();
            let work = move |export: &Export| part(export, after.as_ref(), room);
            let (part, _) = self.on(&share, options, work).await?;
            found.extend(part.found);
            end = part.last.map(|key| Token { share: name, key }).or(end);
            if part.is_cut {
                return Ok((found, end.as_ref().map(Token::format)));
            }
        }
        Ok((found, None))
    }
}

/// What one share has of a page.
pub(super) struct Part<T> {
    pub(super) found: Vec<T>,
    /// The key of the last that was looked at.
    pub(super) last: Option<RecordKey>,
    /// Whether there is more on this share.
    pub(super) is_cut: bool,
}

/// At most `room` volumes behind a key.
fn list(export: &Export, after: Option<&RecordKey>, room: usize) -> Result<Part<Found>, ExportError> {
    rest(export.record_keys()?, after, room, |key| match export.record(key)? {
        Some(record) => describe(export, &record).map(Some),
        // Deleted since the keys were read.
        None => Ok(None),
    })
}

/// At most `room` of what keys name, behind one of them.
pub(super) fn rest<T>(
    keys: Vec<RecordKey>,
    after: Option<&RecordKey>,
    room: usize,
    mut read: impl FnMut(&RecordKey) -> Result<Option<T>, ExportError>,
) -> Result<Part<T>, ExportError> {
    let mut rest = keys.into_iter().filter(|key| after.is_none_or(|after| key > after)).peekable();
    let mut found = Vec::new();
    let mut last = None;
    while found.len() < room {
        let Some(key) = rest.next() else { break };
        found.extend(read(&key)?);
        last = Some(key);
    }
    Ok(Part { found, last, is_cut: rest.peek().is_some() })
}

fn get(export: &Export, id: &VolumeId) -> Result<Found, GetError> {
    if let Some(record) = export.record(&id.key())?.filter(|record| is_of(record, id)) {
        return Ok(Found { id: id.to_string(), ..describe(export, &record)? });
    }
    // A volume that another driver made has no record, only its directory.
    match id.subdir() {
        Some(subdir) if export.has_directory(subdir)? => {
            Ok(Found { id: id.to_string(), capacity_bytes: 0, problem: None })
        }
        _ => Err(GetError::NotFound { id: id.to_string(), share: export.share().to_string() }),
    }
}

fn describe(export: &Export, record: &Record) -> Result<Found, ExportError> {
    let problem = (!export.has_directory(&record.subdir)?)
        .then(|| format!("the volume's directory {} is missing on {}", record.subdir, export.share()));
    Ok(Found { id: recorded_id(export.share(), record), capacity_bytes: record.capacity_bytes, problem })
}

/// The id of a volume on a share, as its record tells.
#[must_use]
pub fn recorded_id(share: &Share, record: &Record) -> String {
    record.id.clone().unwrap_or_else(|| {
        let name = VolumeName::recorded(&record.name);
        VolumeId::for_volume(share.clone(), &name, &record.subdir, record.subdir_given, record.on_delete).to_string()
    })
}

impl Token {
    /// Reads a token; none if it is not one.
    pub(super) fn parse(token: &str) -> Option<Self> {
        let (share, key) = token.rsplit_once('#')?;
        Some(Self { share: share.into(), key: key.parse().ok()? })
    }

    pub(super) fn format(&self) -> String {
        format!("{}#{}", self.share, self.key)
    }
}
