//! The map's file: what it may say, and how it is read again.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;

use super::{Entries, MappedServer, ServerMap, known_as};
use crate::mount::options::{OptionError, Options};
use crate::volume::export_id::ExportId;
use crate::volume::path::PathError;
use crate::volume::quote::quote;
use crate::volume::share::{Server, ServerError, SharePath};

/// How often the file is looked at. The kubelet itself takes up to a minute until a change of a ConfigMap is there.
const CHECK: Duration = Duration::from_secs(1);
/// More than a ConfigMap can hold.
const LONGEST: u64 = 2 << 20;

/// Why a file is no server map.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum MapError {
    #[error("cannot read the server map {file}: {error}")]
    Read { file: String, error: io::Error },

    #[error("the server map {file} is not JSON of the form that it must have: {error}")]
    Form { file: String, error: serde_json::Error },

    #[error("the server map {file}: {what} {error}")]
    Server { file: String, what: String, error: ServerError },

    #[error("the server map {file}: {name} stands twice in it: a name or an address can mean one server only")]
    Twice { file: String, name: String },

    #[error("the server map {file}: the list of addresses of {name} is empty: name one, or leave out the list")]
    NoAddress { file: String, name: String },

    #[error("the server map {file}: the mountOptions of {name}: {error}")]
    Options { file: String, name: String, error: OptionError },

    #[error("the server map {file}: an export of {name}: {error}")]
    Path { file: String, name: String, error: PathError },

    #[error("the server map {file}: the exports of {name} have {path} twice")]
    PathTwice { file: String, name: String, path: String },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    servers: BTreeMap<String, OneServer>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct OneServer {
    #[serde(default)]
    address: Option<OneOrMore>,
    #[serde(default)]
    was: Vec<String>,
    #[serde(default)]
    mount_options: Vec<String>,
    #[serde(default)]
    exports: BTreeMap<String, OneExport>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "address is a text or a list of texts")]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OneExport {
    id: ExportId,
}

impl Entries {
    /// What a file says; none if it is not there.
    pub(super) fn read(file: &Path) -> Result<Option<Self>, MapError> {
        let failed = |error| MapError::Read { file: file.display().to_string(), error };
        let text = match std::fs::metadata(file).and_then(|metadata| check_length(&metadata)) {
            Ok(()) => std::fs::read(file).map_err(failed)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        Self::parse(file, &text).map(Some)
    }

    pub(super) fn parse(file: &Path, text: &[u8]) -> Result<Self, MapError> {
        let file = file.display().to_string();
        let read: File = serde_json::from_slice(text).map_err(|error| MapError::Form { file: file.clone(), error })?;
        let mut entries = HashMap::new();
        for (name, server) in read.servers {
            let names: Vec<String> = [&name].into_iter().chain(&server.was).map(|name| known_as(bare(name))).collect();
            let mapped = Arc::new(mapped(&file, &name, server)?);
            for known in names {
                let shown = quote(&known);
                if entries.insert(known, Arc::clone(&mapped)).is_some() {
                    return Err(MapError::Twice { file, name: shown });
                }
            }
        }
        Ok(Self(entries))
    }
}

fn mapped(file: &str, name: &str, server: OneServer) -> Result<MappedServer, MapError> {
    let file = || file.to_owned();
    let parse = |what: &str, text: &str| {
        Server::parse(text).map_err(|error| MapError::Server { file: file(), what: what.to_owned(), error })
    };
    let own = parse("the name of a server:", name)?;
    let name = || quote(name);
    for was in &server.was {
        parse(&format!("was of {}:", name()), was)?;
    }
    let addresses = match server.address {
        None => vec![own.as_str().to_owned()],
        Some(OneOrMore::One(address)) => vec![address],
        Some(OneOrMore::More(addresses)) if addresses.is_empty() => {
            return Err(MapError::NoAddress { file: file(), name: name() });
        }
        Some(OneOrMore::More(addresses)) => addresses,
    };
    let what = format!("the address of {}:", name());
    let addresses: Result<Vec<String>, MapError> =
        addresses.iter().map(|address| Ok(parse(&what, address)?.as_str().to_owned())).collect();
    let options = Options::parse(&server.mount_options).map_err(|error| MapError::Options {
        file: file(),
        name: name(),
        error,
    })?;
    let mut exports = BTreeMap::new();
    for (path, export) in server.exports {
        let path =
            SharePath::parse(&path).map_err(|error| MapError::Path { file: file(), name: name(), error })?.to_string();
        if exports.insert(path.clone(), export.id).is_some() {
            return Err(MapError::PathTwice { file: file(), name: name(), path });
        }
    }
    Ok(MappedServer { name: own, addresses: addresses?, options, exports })
}

/// An IPv6 address without its brackets.
fn bare(name: &str) -> &str {
    name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name)
}

fn check_length(metadata: &std::fs::Metadata) -> io::Result<()> {
    if metadata.is_file() && metadata.len() <= LONGEST {
        return Ok(());
    }
    Err(io::Error::other(format!("it is no file of at most {LONGEST} bytes")))
}

/// By this a file is known to be the same still. A ConfigMap's file is another one after each change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen(Option<(u64, u64, u64, i64, i64)>);

impl Seen {
    pub(super) fn at(file: &Path) -> Self {
        let metadata = std::fs::metadata(file).ok();
        Self(metadata.map(|it| (it.dev(), it.ino(), it.len(), it.mtime(), it.mtime_nsec())))
    }
}

impl ServerMap {
    /// Reads the file again whenever it changes, for as long as the map is used.
    pub fn follow(self: &Arc<Self>) {
        if let Some(file) = self.file.clone() {
            if self.seen != Seen::default() {
                log_read(&file, &self.current());
            }
            tokio::spawn(follow(Arc::downgrade(self), file, self.seen));
        }
    }

    /// Reads the file again. One that is wrong, or gone, is not taken: what it said before holds.
    pub(super) fn read_again(&self, file: &Path) {
        let read = Entries::read(file).and_then(|entries| {
            let gone = || io::Error::from(io::ErrorKind::NotFound);
            entries.ok_or_else(|| MapError::Read { file: file.display().to_string(), error: gone() })
        });
        self.is_refused.store(read.is_err(), Ordering::Relaxed);
        match read {
            Ok(entries) => {
                log_read(file, &entries);
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(entries);
            }
            Err(error) => tracing::error!(%error, "the server map is refused: what it said before holds"),
        }
    }
}

fn log_read(file: &Path, entries: &Entries) {
    tracing::info!(file = %file.display(), names = entries.0.len(), "server map read");
}

async fn follow(map: Weak<ServerMap>, file: PathBuf, mut seen: Seen) {
    loop {
        let Some(map) = map.upgrade() else { return };
        let (path, before) = (file.clone(), seen);
        let looked = tokio::task::spawn_blocking(move || {
            let now = Seen::at(&path);
            if now != before {
                map.read_again(&path);
            }
            now
        });
        seen = looked.await.unwrap_or(seen);
        tokio::time::sleep(CHECK).await;
    }
}
