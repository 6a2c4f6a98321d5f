//! The server map: what the operator says of NFS servers by their names, in one file that is read again when it
//! changes. A server may have moved: volumes, ids and classes go on naming it as they always did.
//!
//! ```json
//! {"servers": {"nas1": {
//!     "address": ["nfs-a.example.com", "10.1.0.5"],
//!     "was": ["10.0.0.5", "old-nas"],
//!     "mountOptions": ["nfsvers=4.2"],
//!     "exports": {"/export": {"id": "6f1c…"}}}}}
//! ```
//!
//! A server is known by its name and by all that is in `was`. It is asked at the first `address` that answers; without
//! any, its name is the address. Addresses are not looked up in the map again, so two servers can change places.

mod file;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

pub use self::file::MapError;
use self::file::Seen;
use crate::mount::options::Options;
use crate::volume::export_id::ExportId;
use crate::volume::share::{Server, Share, SharePath};

/// What the map says of one server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MappedServer {
    name: Server,
    /// At least one.
    addresses: Vec<String>,
    options: Options,
    exports: BTreeMap<String, ExportId>,
}

impl MappedServer {
    /// Where it may be, in the order in which it is looked for: host names or addresses.
    #[must_use]
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// The id that the export of this path must have; none: the map does not say.
    #[must_use]
    pub fn export_id(&self, path: &SharePath) -> Option<&ExportId> {
        self.exports.get(path.as_str())
    }
}

/// All that a file says, by each name that a server is known by.
#[derive(Debug, Default)]
struct Entries(HashMap<String, Arc<MappedServer>>);

/// The map as it is now.
#[derive(Debug, Default)]
pub struct ServerMap {
    /// None: there is no map, and never will be.
    file: Option<PathBuf>,
    current: RwLock<Arc<Entries>>,
    /// By this the file is known that was read last.
    seen: Seen,
    /// Whether the file on disk is refused, and an earlier one in force.
    is_refused: AtomicBool,
}

impl ServerMap {
    /// A map without any server.
    #[must_use]
    pub fn none() -> Arc<Self> {
        Arc::default()
    }

    /// The map in a file. One that is not there is empty, until it is.
    ///
    /// # Errors
    /// Where the file cannot be read, or says something that a map cannot.
    pub fn open(file: &Path) -> Result<Arc<Self>, MapError> {
        // Before it is read: a change since is seen.
        let seen = Seen::at(file);
        let entries = Entries::read(file)?.unwrap_or_default();
        let current = RwLock::new(Arc::new(entries));
        Ok(Arc::new(Self { file: Some(file.to_owned()), current, seen, is_refused: AtomicBool::default() }))
    }

    /// What is said of a server that is called so now, or was.
    #[must_use]
    pub fn find(&self, server: &str) -> Option<Arc<MappedServer>> {
        let current = self.current();
        if current.0.is_empty() { None } else { current.0.get(&known_as(server)).cloned() }
    }

    /// Where a server may be: what the map says, or what it is called.
    #[must_use]
    pub fn addresses(&self, server: &str) -> Vec<String> {
        self.find(server).map_or_else(|| vec![server.to_owned()], |mapped| mapped.addresses.clone())
    }

    /// The share by the name that its server has in the map: all its other names mean the same.
    #[must_use]
    pub fn canonical(&self, share: &Share) -> Share {
        match self.find(share.server().as_str()) {
            Some(mapped) => Share::new(mapped.name.clone(), share.path().clone()),
            None => share.clone(),
        }
    }

    /// Mount options with those of the server over them: a volume's own cannot be changed when its server is.
    #[must_use]
    pub fn options_over(&self, options: Options, server: &str) -> Options {
        match self.find(server) {
            Some(mapped) => options.merged(mapped.options.clone()),
            None => options,
        }
    }

    /// All names that mean the same server, its own among them; none where the map does not have it.
    #[must_use]
    pub fn names(&self, server: &str) -> Vec<String> {
        let Some(wanted) = self.find(server) else { return Vec::new() };
        let mut names: Vec<String> =
            self.current().0.iter().filter(|(_, mapped)| **mapped == wanted).map(|(name, _)| name.clone()).collect();
        names.sort_unstable();
        names
    }

    /// The names of all servers that the map has.
    #[must_use]
    pub fn servers(&self) -> Vec<String> {
        let mut names: Vec<String> = self.current().0.values().map(|mapped| mapped.name.to_string()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Whether a server of the map is at this address (or host name).
    #[must_use]
    pub fn is_address(&self, address: &str) -> bool {
        let known = known_as(address);
        self.current().0.values().any(|mapped| mapped.addresses.iter().any(|address| known_as(address) == known))
    }

    /// Whether the file on disk is refused, and what it said before is in force.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    fn current(&self) -> Arc<Entries> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The one form of a name or an address: it may be written in several.
fn known_as(server: &str) -> String {
    match server.parse::<IpAddr>() {
        Ok(address) => address.to_string(),
        Err(_) => server.trim_end_matches('.').to_ascii_lowercase(),
    }
}
