//! The export's id: a file in the driver's own folder, made with it. By it an export is known again on another server,
//! and another export that answers under its name is told from it.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::Mode;
use nix::unistd::linkat;
use serde::{Deserialize, Serialize};

use super::{Export, ExportError, catalog, small_file};
use crate::beneath;
use crate::reason::errno_of;
use crate::tree::make::descend;
use crate::volume::export_id::ExportId;
use crate::volume::path::RESERVED;

/// Its name in the driver's own folder.
const IDENTITY: &str = "export.json";

#[derive(Serialize, Deserialize)]
struct Identity {
    id: ExportId,
}

impl Export {
    /// The export's id; none where no driver has worked on it yet.
    ///
    /// # Errors
    /// Where the server fails, and where the file is none that a driver has written.
    pub fn id(&self) -> Result<Option<ExportId>, ExportError> {
        match descend(self.root(), &[RESERVED], None) {
            Ok(top) => self.id_in(&top),
            Err((_, Errno::ENOENT)) => Ok(None),
            Err((name, errno)) => Err(self.failed("open the folder", name, errno)),
        }
    }

    /// An error where the export is not the one of this id.
    ///
    /// # Errors
    /// [`ExportError::Another`], and as [`Export::id`].
    pub(super) fn check_id(&self, wanted: &ExportId) -> Result<(), ExportError> {
        match self.id()? {
            Some(found) if found == *wanted => Ok(()),
            found => Err(ExportError::Another {
                share: self.share().to_string(),
                wanted: wanted.to_string(),
                found: found.map_or_else(|| "none".into(), |id| id.to_string()),
            }),
        }
    }

    /// Gives the export an id if it has none. What a driver leaves in `volumes` that is killed meanwhile is swept
    /// ([`Export::sweep_prepared`]).
    pub(super) fn make_id(&self, top: &OwnedFd, volumes: &OwnedFd) -> Result<(), ExportError> {
        if self.id_in(top)?.is_some() {
            return Ok(());
        }
        let failed = |errno| self.failed("write the export's id", IDENTITY, errno);
        let id = ExportId::new().map_err(|error| failed(errno_of(error)))?;
        // Complete under a name of its own first. Of two drivers that do this at once, one is too late.
        let temporary = format!(".{id}.new");
        let text = serde_json::to_vec(&Identity { id }).map_err(|_| failed(Errno::EINVAL))?;
        write(volumes, &temporary, &text).map_err(failed)?;
        let linked = linkat(volumes, temporary.as_str(), top, IDENTITY, AtFlags::empty());
        catalog::remove(volumes, &temporary).map_err(failed)?;
        match linked {
            Ok(()) | Err(Errno::EEXIST) => Ok(()),
            Err(errno) => Err(failed(errno)),
        }
    }

    fn id_in(&self, top: &OwnedFd) -> Result<Option<ExportId>, ExportError> {
        let path = || format!("{RESERVED}/{IDENTITY}");
        let file = small_file::open(top, IDENTITY).map_err(|errno| self.failed("open", path(), errno))?;
        let Some(file) = file else { return Ok(None) };
        let text = small_file::read(&file).map_err(|errno| self.failed("read", path(), errno))?;
        let read: Result<Identity, _> = serde_json::from_slice(&text);
        let identity = read.map_err(|error| ExportError::Record {
            path: path(),
            share: self.share().to_string(),
            reason: error.to_string(),
        })?;
        Ok(Some(identity.id))
    }
}

/// Writes a new file; it is on the server's disk then.
fn write(folder: &OwnedFd, name: &str, text: &[u8]) -> nix::Result<()> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
    let mut file = File::from(beneath::open(folder, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
    file.write_all(text).and_then(|()| file.sync_data()).map_err(errno_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_has_the_id_that_the_first_driver_gave_it() {
        let folder = tempfile::tempdir().unwrap();
        let export = Export::local(folder.path());
        assert_eq!(export.id().unwrap(), None);
        let unnamed = ExportId::new().unwrap();
        assert!(matches!(export.check_id(&unnamed), Err(ExportError::Another { found, .. }) if found == "none"));
        export.layout().unwrap();
        let id = export.id().unwrap().unwrap();
        let again = Export::local(folder.path());
        again.layout().unwrap();
        assert_eq!(again.id().unwrap(), Some(id.clone()));
        again.check_id(&id).unwrap();
        let error = again.check_id(&unnamed).unwrap_err().to_string();
        assert!(error.contains(&id.to_string()) && error.contains(&unnamed.to_string()), "{error}");
        assert_eq!(std::fs::read_dir(folder.path().join(".nfs-csi/volumes")).unwrap().count(), 0);
    }

    #[test]
    fn of_two_drivers_that_give_an_id_at_once_one_is_too_late() {
        let folder = tempfile::tempdir().unwrap();
        let ids: Vec<ExportId> = std::thread::scope(|scope| {
            let give = || {
                let export = Export::local(folder.path());
                export.layout().unwrap();
                export.id().unwrap().unwrap()
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
            assert!(matches!(export.id(), Err(ExportError::Record { path, .. }) if path.contains(IDENTITY)), "{text}");
        }
    }
}
