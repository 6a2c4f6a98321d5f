//! The directories of an export that volumes may be in: those at the share's top, and those in directories that lead to
//! volumes (`team` of the subDir `team/data`). Nobody looks into a volume.

use std::collections::{HashMap, HashSet};

use crate::export::contents::Listed;
use crate::export::{Export, ExportError};
use crate::volume::path::RESERVED;

/// What file systems and servers put at a share's top besides hidden entries.
const OF_FILE_SYSTEM: &str = "lost+found";
/// How the names of archived volumes begin.
const ARCHIVED: &str = "archived-";

/// The paths that volumes name, below the share.
#[derive(Debug, Default)]
pub(super) struct Named(HashSet<String>);

impl Named {
    pub(super) fn add(&mut self, path: &str) {
        if !path.is_empty() && !is_in(path, RESERVED) {
            self.0.insert(path.to_owned());
        }
    }

    /// The directories that lead to volumes and are in none.
    fn parents(&self) -> Vec<String> {
        let mut parents = HashSet::from([String::new()]);
        for path in &self.0 {
            for (slash, _) in path.match_indices('/') {
                let parent = &path[..slash];
                if self.0.contains(parent) {
                    break;
                }
                if !parents.contains(parent) {
                    parents.insert(parent.to_owned());
                }
            }
        }
        parents.into_iter().collect()
    }
}

/// Whether a path is that of a directory or of something in it.
fn is_in(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// What was found.
#[derive(Debug)]
pub(super) struct Directories(HashMap<String, HashMap<String, Listed>>);

/// A directory that no volume names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Unnamed {
    /// A deleted volume's (`onDelete: archive`).
    Archive(String),
    /// A folder with nothing but an archive in it, as csi-driver-nfs keeps a snapshot.
    Snapshot(String),
    /// Any other.
    Other(String),
}

impl Directories {
    /// Lists them; what was removed meanwhile is left out.
    pub(super) fn list(export: &Export, named: &Named) -> Result<Self, ExportError> {
        let listed = export.for_each(&named.parents(), |parent| {
            let entries = export.entries_of(parent)?;
            Ok(entries.map(|entries| (parent.clone(), entries)))
        })?;
        Ok(Self(listed.into_iter().collect()))
    }

    /// Whether there is a directory at a path. The server is asked where the lists do not say it for sure: a directory
    /// that has the inode number which is recorded needs no question.
    pub(super) fn has(&self, export: &Export, path: &str, inode: Option<u64>) -> Result<bool, ExportError> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        match self.0.get(parent).and_then(|entries| entries.get(name)) {
            Some(listed) if listed.is_directory == Some(true) => Ok(true),
            Some(listed) if listed.is_directory.is_none() && inode == Some(listed.inode) => Ok(true),
            _ => export.is_directory(path),
        }
    }

    /// The directories that no volume names and that lead to none.
    pub(super) fn unnamed(&self, export: &Export, named: &Named) -> Result<Vec<Unnamed>, ExportError> {
        let mut candidates = Vec::new();
        for (parent, entries) in &self.0 {
            for (name, listed) in entries {
                let path = if parent.is_empty() { name.clone() } else { format!("{parent}/{name}") };
                let is_ours = name.starts_with('.') || name == OF_FILE_SYSTEM;
                let is_known = named.0.contains(&path) || self.0.contains_key(&path);
                if !is_ours && !is_known && listed.is_directory != Some(false) {
                    candidates.push((path, *listed));
                }
            }
        }
        let mut unnamed = export.for_each(&candidates, |(path, listed)| {
            if !export.is_listed_directory(path, *listed)? {
                return Ok(None);
            }
            Ok(Some(if path.starts_with(ARCHIVED) && !path.contains('/') {
                Unnamed::Archive(path.clone())
            } else if is_foreign_snapshot(export, path)? {
                Unnamed::Snapshot(path.clone())
            } else {
                Unnamed::Other(path.clone())
            }))
        })?;
        unnamed.sort_unstable();
        Ok(unnamed)
    }
}

/// The snapshotter's names, and the archives of csi-driver-nfs.
fn is_foreign_snapshot(export: &Export, path: &str) -> Result<bool, ExportError> {
    if !path.starts_with("snapshot-") || path.contains('/') {
        return Ok(false);
    }
    let name = export.only_name_in(path)?;
    Ok(name.is_some_and(|name| [".tar", ".tar.gz"].iter().any(|ending| name.ends_with(ending))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_that_lead_to_volumes_are_looked_into() {
        let mut named = Named::default();
        for path in ["pvc-1", "a/b/c", "a/d", "volume", "volume/in/it", ".nfs-csi/shared/x", ""] {
            named.add(path);
        }
        let mut parents = named.parents();
        parents.sort_unstable();
        assert_eq!(parents, ["", "a", "a/b"]);
    }

    #[test]
    fn what_no_volume_names_is_found_beside_volumes_and_at_the_top() {
        let folder = tempfile::tempdir().unwrap();
        let paths = [
            "pvc-1/data",
            "a/b/c",
            "a/left",
            "a/b/.hidden",
            "stray/deep",
            "lost+found",
            ".snapshot/x",
            ".nfs-csi/volumes",
            "archived-pvc-2",
            "snapshot-1",
            "snapshot-2",
        ];
        for path in paths {
            std::fs::create_dir_all(folder.path().join(path)).unwrap();
        }
        std::fs::write(folder.path().join("snapshot-1/pvc-1.tar.gz"), "x").unwrap();
        std::fs::write(folder.path().join("file"), "x").unwrap();
        std::os::unix::fs::symlink("stray", folder.path().join("link")).unwrap();
        let export = Export::local(folder.path());
        let mut named = Named::default();
        for path in ["pvc-1", "a/b/c"] {
            named.add(path);
        }
        let directories = Directories::list(&export, &named).unwrap();
        let other = |path: &str| Unnamed::Other(path.into());
        let found = directories.unnamed(&export, &named).unwrap();
        assert_eq!(
            found,
            [
                Unnamed::Archive("archived-pvc-2".into()),
                Unnamed::Snapshot("snapshot-1".into()),
                other("a/left"),
                other("snapshot-2"),
                other("stray")
            ]
        );
        for (path, is_there) in [("pvc-1", true), ("a/b/c", true), ("pvc-1/data", true), ("link", false), ("no", false)]
        {
            assert_eq!(directories.has(&export, path, None).unwrap(), is_there, "{path}");
        }
    }
}
