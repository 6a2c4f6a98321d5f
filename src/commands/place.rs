//! The export that a command is for: mounted for it, or mounted on this host already.

use std::path::Path;
use std::sync::Arc;

use thiserror::Error;

use crate::cli::{ExportPlace, Reach};
use crate::export::holder::Holder;
use crate::export::pool::Exports;
use crate::export::{Export, ExportError};
use crate::metrics::MountTimes;
use crate::mount::daemon::mounter::{Limits, Mounter};
use crate::mount::daemon::private_dir::PrivateDir;
use crate::mount::daemon::tidy::tidy_up;
use crate::server_map::{MapError, ServerMap};
use crate::tree::effort::DEFAULT_WORKERS;
use crate::volume::share::Server;

/// Why an export cannot be worked on.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub(super) enum PlaceError {
    #[error("cannot use {place}: {error}")]
    Place { place: String, error: std::io::Error },

    #[error(transparent)]
    Map(#[from] MapError),

    #[error(transparent)]
    Export(#[from] ExportError),
}

/// The names that the server map has for the export's server.
pub(super) fn names(place: &ExportPlace, reach: &Reach) -> Result<Vec<Server>, PlaceError> {
    let ExportPlace::Share(share) = place else { return Ok(Vec::new()) };
    let names = ServerMap::open(&reach.servers)?.names(share.server().as_str());
    Ok(names.iter().filter_map(|name| Server::parse(name).ok()).collect())
}

/// Works on an export.
pub(super) async fn at<T, E, F>(place: ExportPlace, reach: &Reach, work: F) -> Result<T, E>
where
    T: Send + 'static,
    E: From<ExportError> + From<PlaceError> + Send + 'static,
    F: FnOnce(&Export) -> Result<T, E> + Send + 'static,
{
    with_access(place, reach, Access::Write, work).await
}

/// Looks at an export. Where it is mounted for this, the kernel refuses all that would write to it.
pub(super) async fn read_only<T, E, F>(place: ExportPlace, reach: &Reach, work: F) -> Result<T, E>
where
    T: Send + 'static,
    E: From<ExportError> + From<PlaceError> + Send + 'static,
    F: FnOnce(&Export) -> Result<T, E> + Send + 'static,
{
    with_access(place, reach, Access::Read, work).await
}

/// What a command does on an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

async fn with_access<T, E, F>(place: ExportPlace, reach: &Reach, access: Access, work: F) -> Result<T, E>
where
    T: Send + 'static,
    E: From<ExportError> + From<PlaceError> + Send + 'static,
    F: FnOnce(&Export) -> Result<T, E> + Send + 'static,
{
    let folder = std::env::temp_dir();
    let failed = |place: &Path| {
        let place = place.display().to_string();
        |error| PlaceError::Place { place, error }
    };
    let holder = Holder::open(&folder, None);
    match place {
        ExportPlace::Path(path) => {
            Arc::new(Export::mounted_at(&path, Arc::new(holder)).map_err(failed(&path))?).run(work).await
        }
        ExportPlace::Share(share) => {
            let private = PrivateDir::create(&folder).map_err(failed(&folder))?;
            let map = ServerMap::open(&reach.servers).map_err(PlaceError::from)?;
            let mounter =
                Mounter::start(Limits::default(), private, MountTimes::default(), map).map_err(failed(&folder))?;
            tidy_up(&folder, &mounter).await;
            let exports = match access {
                Access::Read => Exports::start_read_only(mounter, holder, DEFAULT_WORKERS),
                Access::Write => Exports::start_for_operator(mounter, holder, DEFAULT_WORKERS),
            };
            let done = match exports.open(&share, &reach.options).await {
                Ok(export) => export.run(work).await,
                Err(error) => Err(error.into()),
            };
            exports.close().await;
            done
        }
    }
}
