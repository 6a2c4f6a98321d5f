//! The export's id: a file in the driver's own folder, made with it. By it an export is known again on another server,
//! and another export that answers under its name is told from it.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, renameat};
use nix::sys::stat::fstat;
use nix::unistd::linkat;
use serde::{Deserialize, Serialize};

use super::{Export, ExportError, catalog, small_file};
use crate::reason::errno_of;
use crate::tree::make::descend;
use crate::volume::export_id::ExportId;
use crate::volume::path::RESERVED;

/// Its name in the driver's own folder.
pub(crate) const IDENTITY: &str = "export.json";

/// What is in it.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) id: ExportId,
    /// The file's own inode number. With another one the export is a copy, made file by file: then the inode numbers in
    /// records and manifests are those of the original, and say nothing here.
    inode: u64,
}

/// An identity that was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    id: ExportId,
    /// The file's inode number as it was recorded, and as it is.
    inodes: [u64; 2],
}

impl Found {
    pub(super) fn inodes(&self) -> [u64; 2] {
        self.inodes
    }

    /// Whether the export is a copy that nobody has repaired yet.
    pub(super) fn is_copied(&self) -> bool {
        self.inodes[0] != self.inodes[1]
    }
}

impl Export {
    /// What is known of the export itself; none where no driver has worked on it yet.
    ///
    /// # Errors
    /// Where the server fails, and where the file is none that a driver has written.
    pub(super) fn identity(&self) -> Result<Option<Found>, ExportError> {
        match descend(self.root(), &[RESERVED], None) {
            Ok(top) => self.identity_in(&top),
            Err((_, Errno::ENOENT)) => Ok(None),
            Err((name, errno)) => Err(self.failed("open the folder", name, errno)),
        }
    }

    /// The export's id, which must be this one if one is `wanted`. A copy is taken only by who is to repair it.
    ///
    /// # Errors
    /// [`ExportError::Another`], [`ExportError::Copied`]; where the id is wanted, that it cannot be read.
    pub(super) fn identify(
        &self,
        wanted: Option<&ExportId>,
        takes_copies: bool,
    ) -> Result<Option<ExportId>, ExportError> {
        let found = match self.identity() {
            // Who may not read it can use the export still.
            Err(_) if wanted.is_none() => None,
            found => found?,
        };
        if let Some(wanted) = wanted
            && found.as_ref().is_none_or(|found| found.id != *wanted)
        {
            return Err(ExportError::Another {
                share: self.share().to_string(),
                wanted: wanted.to_string(),
                found: found.map_or_else(|| "none".into(), |found| found.id.to_string()),
            });
        }
        match found {
            Some(found) if found.is_copied() && !takes_copies => {
                Err(ExportError::Copied { share: self.share().to_string() })
            }
            found => Ok(found.map(|found| found.id)),
        }
    }

    /// Gives the export an id if it has none.
    pub(super) fn make_id(&self, top: &OwnedFd, volumes: &OwnedFd) -> Result<(), ExportError> {
        if self.identity_in(top)?.is_some() {
            return Ok(());
        }
        let id = ExportId::new().map_err(|error| self.unwritten(errno_of(error)))?;
        // Of two drivers that do this at once, one is too late.
        self.write_identity(volumes, id.clone(), |temporary| {
            match linkat(volumes, temporary, top, IDENTITY, AtFlags::empty()) {
                Ok(()) => tracing::info!(share = %self.share(), %id, "export gets its id"),
                Err(Errno::EEXIST) => {}
                Err(errno) => return Err(errno),
            }
            Ok(())
        })
    }

    /// Takes a copy for an export like any other, when all that it holds has been repaired.
    pub(super) fn take_copy(&self) -> Result<(), ExportError> {
        let Some(found) = self.identity()?.filter(Found::is_copied) else { return Ok(()) };
        let layout = self.layout()?;
        let (top, volumes) = (&layout.top, &layout.volumes);
        self.write_identity(volumes, found.id, |temporary| renameat(volumes, temporary, top, IDENTITY))
    }

    /// Writes the file under a name of its own first, which `put` gives its name. What a driver leaves in `volumes` that
    /// is killed meanwhile is swept ([`Export::sweep_prepared`]).
    fn write_identity(
        &self,
        volumes: &OwnedFd,
        id: ExportId,
        put: impl FnOnce(&str) -> nix::Result<()>,
    ) -> Result<(), ExportError> {
        let nonce = ExportId::new().map_err(|error| self.unwritten(errno_of(error)))?;
        let temporary = format!(".{nonce}.new");
        let written = write(volumes, &temporary, id).and_then(|()| put(&temporary));
        catalog::remove(volumes, &temporary).and(written).map_err(|errno| self.unwritten(errno))
    }

    fn unwritten(&self, errno: Errno) -> ExportError {
        self.failed("write the export's id", format!("{RESERVED}/{IDENTITY}"), errno)
    }

    fn identity_in(&self, top: &OwnedFd) -> Result<Option<Found>, ExportError> {
        let path = || format!("{RESERVED}/{IDENTITY}");
        let file = small_file::open(top, IDENTITY).map_err(|errno| self.failed("open", path(), errno))?;
        let Some(file) = file else { return Ok(None) };
        let failed = |errno| self.failed("read", path(), errno);
        let (text, stat) = (small_file::read(&file).map_err(failed)?, fstat(&file).map_err(failed)?);
        let read: Result<Identity, _> = serde_json::from_slice(&text);
        let identity = read.map_err(|error| ExportError::Record {
            path: path(),
            share: self.share().to_string(),
            reason: error.to_string(),
        })?;
        Ok(Some(Found { id: identity.id, inodes: [identity.inode, stat.st_ino] }))
    }
}

/// Writes the file under this name.
fn write(folder: &OwnedFd, name: &str, id: ExportId) -> nix::Result<()> {
    let file = small_file::create(folder, name)?;
    let text = serde_json::to_vec(&Identity { id, inode: fstat(&file)?.st_ino }).map_err(|_| Errno::EINVAL)?;
    small_file::write(&file, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_has_the_id_that_the_first_driver_gave_it() {
        let folder = tempfile::tempdir().unwrap();
        let export = Export::local(folder.path());
        assert_eq!(export.identify(None, false).unwrap(), None);
        let unnamed = ExportId::new().unwrap();
        let another = export.identify(Some(&unnamed), true);
        assert!(matches!(another, Err(ExportError::Another { found, .. }) if found == "none"));
        export.layout().unwrap();
        let id = export.identify(None, false).unwrap().unwrap();
        let again = Export::local(folder.path());
        again.layout().unwrap();
        assert_eq!(again.identify(Some(&id), false).unwrap(), Some(id.clone()));
        let error = again.identify(Some(&unnamed), true).unwrap_err().to_string();
        assert!(error.contains(&id.to_string()) && error.contains(&unnamed.to_string()), "{error}");
        assert_eq!(std::fs::read_dir(folder.path().join(".nfs-csi/volumes")).unwrap().count(), 0);
    }

    #[test]
    fn a_copy_is_told_from_its_original_until_it_is_repaired() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        Export::local(folder.path()).layout().unwrap();
        let id = Export::local(folder.path()).identify(None, false).unwrap();
        std::fs::create_dir(other.path().join(RESERVED)).unwrap();
        let [from, to] = [&folder, &other].map(|folder| folder.path().join(RESERVED).join(IDENTITY));
        std::fs::copy(from, to).unwrap();
        let copy = Export::local(other.path());
        assert!(matches!(copy.identify(None, false), Err(ExportError::Copied { .. })));
        assert_eq!(copy.identify(None, true).unwrap(), id);
        copy.take_copy().unwrap();
        assert_eq!(copy.identify(None, false).unwrap(), id);
        assert_eq!(std::fs::read_dir(other.path().join(".nfs-csi/volumes")).unwrap().count(), 0);
    }

    #[test]
    fn of_two_drivers_that_give_an_id_at_once_one_is_too_late() {
        let folder = tempfile::tempdir().unwrap();
        let ids: Vec<ExportId> = std::thread::scope(|scope| {
            let give = || {
                let export = Export::local(folder.path());
                export.layout().unwrap();
                export.identify(None, false).unwrap().unwrap()
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(give)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    }

    #[test]
    fn a_file_that_is_no_id_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join(RESERVED);
        std::fs::create_dir(&own).unwrap();
        for text in ["", "{}", "{\"id\": \"x\"}"] {
            std::fs::write(own.join(IDENTITY), text).unwrap();
            let export = Export::local(folder.path());
            assert!(
                matches!(export.identity(), Err(ExportError::Record { path, .. }) if path.contains(IDENTITY)),
                "{text}"
            );
        }
    }
}
