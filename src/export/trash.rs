//! Deleted volumes and snapshots on their way out: a rename takes a directory out of sight at once, whatever is in it.
//!
//! A name in the trash says all that the reaper must know:
//!
//! ```text
//! v.<key>.<deleted>.<until>        a volume's directory; deleted: nanoseconds since 1970, in hexadecimal; until: the
//!                                  second since 1970 before which it is not freed, in hexadecimal; 0: free it now
//! v.<key>.<deleted>.<until>.json   its record, if it is kept: by that it can be brought back
//! s.<key>.<deleted>.0              a snapshot's folder, or another driver's archive
//! <any of these>.<number>          a directory that was below, while the rest is freed (tree/remove.rs)
//! ```

use std::fmt;
use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use super::catalog::Record;
use super::layout::TRASH;
use super::{Export, ExportError};
use crate::beneath;
use crate::tree::make::{DEFAULT_MODE, descend};
use crate::tree::remove;
use crate::volume::name::RecordKey;
use crate::volume::subdir::{RESERVED, SubDir};

/// What ends the name of a record.
const RECORD: &str = ".json";

/// Where a directory is moved to, and whether it was there to move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Moved {
    /// It was moved.
    Yes,
    /// There is none.
    Missing,
}

/// What a name in the trash stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A volume's directory.
    Volume,
    /// A snapshot.
    Snapshot,
    /// What was being made and nobody asked for again.
    Staged,
}

/// The name of something in the trash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrashName {
    /// What it was.
    pub kind: Kind,
    /// The key of its name.
    pub key: RecordKey,
    /// When it was deleted, in nanoseconds since 1970.
    pub deleted_at: u64,
    /// Before this second since 1970 it is not freed.
    pub keep_until: u64,
}

impl TrashName {
    /// A name that nothing has yet, for something that is deleted now and kept for so long.
    #[must_use]
    pub fn now(kind: Kind, key: RecordKey, kept: Duration) -> Self {
        let now = since_1970();
        let keep_until = if kept.is_zero() { 0 } else { (now + kept).as_secs().max(1) };
        Self { kind, key, deleted_at: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), keep_until }
    }

    /// Reads the name of a directory in the trash; none if it is not one.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let mut fields = name.split('.');
        let kind = match fields.next()? {
            "v" => Kind::Volume,
            "s" => Kind::Snapshot,
            "t" => Kind::Staged,
            _ => return None,
        };
        let key = fields.next()?.parse().ok()?;
        let mut number = || u64::from_str_radix(fields.next()?, 16).ok();
        let (deleted_at, keep_until) = (number()?, number()?);
        fields.next().is_none().then_some(Self { kind, key, deleted_at, keep_until })
    }

    /// Whether it is kept for now, so that it can be brought back.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.keep_until > since_1970().as_secs()
    }

    fn record(&self) -> String {
        format!("{self}{RECORD}")
    }
}

impl fmt::Display for TrashName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Volume => 'v',
            Kind::Snapshot => 's',
            Kind::Staged => 't',
        };
        write!(f, "{kind}.{}.{:x}.{:x}", self.key, self.deleted_at, self.keep_until)
    }
}

/// What is in the trash.
#[derive(Debug, Default)]
pub struct Trash {
    /// What is kept for now.
    pub kept: Vec<TrashName>,
    /// What can be freed, by its names.
    pub due: Vec<String>,
}

impl Export {
    /// Moves a volume's directory into the trash; says whether there was one.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn throw_away(&self, subdir: &SubDir, name: &TrashName) -> Result<Moved, ExportError> {
        let failed = |errno| self.failed("move to the trash", subdir.to_string(), errno);
        let trash = &self.layout()?.trash;
        let Some(parent) = self.parent(subdir).map_err(failed)? else { return Ok(Moved::Missing) };
        match renameat(&parent, subdir.file_name(), trash, name.to_string().as_str()) {
            Ok(()) => Ok(Moved::Yes),
            Err(Errno::ENOENT) => Ok(Moved::Missing),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Moves the record of a volume that is kept beside its directory in the trash.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn throw_away_record(&self, name: &TrashName) -> Result<(), ExportError> {
        self.move_record_to(&self.layout()?.trash, &name.key, &name.record())
    }

    /// A volume that is kept in the trash, and its record.
    ///
    /// # Errors
    /// Where the server fails; where its record cannot be read. ENOENT where it has none.
    pub fn kept_record(&self, name: &TrashName) -> Result<Record, ExportError> {
        self.read_record_in(&self.layout()?.trash, &name.record())?
            .ok_or_else(|| self.failed("open the record", format!("trash/{}", name.record()), Errno::ENOENT))
    }

    /// Writes the record of a volume that had none, to be kept with it in the trash.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn keep_record(&self, name: &TrashName, record: &Record) -> Result<(), ExportError> {
        self.write_record_to(&self.layout()?.trash, &name.record(), record)
    }

    /// Brings a volume back that is kept in the trash: its directory, then its record.
    ///
    /// # Errors
    /// EEXIST where another volume has its name or something is in its place; where the server fails. A second try
    /// goes on where the first stood.
    pub fn bring_back(&self, name: &TrashName, record: &Record) -> Result<(), ExportError> {
        let trash = &self.layout()?.trash;
        if self.record(&name.key)?.is_some() {
            return Err(self.failed("bring back", record.subdir.to_string(), Errno::EEXIST));
        }
        if record.subdir_given {
            self.claim(&record.subdir, &name.key)?;
        }
        let directory = name.to_string();
        match self.move_to(trash, &directory, &record.subdir) {
            Ok(Moved::Yes) => {}
            // An earlier try had come as far.
            Ok(Moved::Missing) if self.has_directory(&record.subdir)? => {}
            Ok(Moved::Missing) => return Err(self.failed("bring back", directory, Errno::ENOENT)),
            Err(errno) => return Err(self.failed("bring back", record.subdir.to_string(), errno)),
        }
        let (kept, place) = (name.record(), super::catalog::file_name(&name.key));
        let volumes = &self.layout()?.volumes;
        let failed = |errno| self.failed("bring back the record", &kept, errno);
        linkat(trash, kept.as_str(), volumes, place.as_str(), AtFlags::empty()).map_err(failed)?;
        unlinkat(trash, kept.as_str(), UnlinkatFlags::NoRemoveDir).map_err(failed)
    }

    /// Moves a volume's directory to another name on the share, where nothing may be.
    ///
    /// # Errors
    /// EEXIST where something is there; where the server fails.
    pub fn move_directory(&self, from: &SubDir, to: &SubDir) -> Result<Moved, ExportError> {
        let failed = |errno| self.failed("rename", format!("{from} to {to}"), errno);
        let Some(source) = self.parent(from).map_err(failed)? else { return Ok(Moved::Missing) };
        self.move_to(&source, from.file_name(), to).map_err(failed)
    }

    fn move_to(&self, source: &OwnedFd, name: &str, to: &SubDir) -> nix::Result<Moved> {
        let components: Vec<&str> = to.components().collect();
        let (last, parents) = components.split_last().ok_or(Errno::EINVAL)?;
        let mode = Mode::from_bits_truncate(DEFAULT_MODE);
        let place = descend(self.root(), parents, Some(mode)).map_err(|(_, errno)| errno)?;
        // rename(2) replaces an empty directory, and NFS has no RENAME_NOREPLACE.
        match beneath::open(&place, last, OFlag::O_PATH, Mode::empty()) {
            Err(Errno::ENOENT) => {}
            Ok(_) | Err(Errno::ELOOP) => {
                // Where there is nothing to move, nothing is in the way.
                return match beneath::open(source, name, OFlag::O_PATH, Mode::empty()) {
                    Err(Errno::ENOENT) => Ok(Moved::Missing),
                    _ => Err(Errno::EEXIST),
                };
            }
            Err(errno) => return Err(errno),
        }
        match renameat(source, name, &place, *last) {
            Ok(()) => Ok(Moved::Yes),
            Err(Errno::ENOENT) => Ok(Moved::Missing),
            Err(errno) => Err(errno),
        }
    }

    /// Whether a volume's directory is there.
    ///
    /// # Errors
    /// Where the server fails, or a link is in the way.
    pub fn has_directory(&self, subdir: &SubDir) -> Result<bool, ExportError> {
        let components: Vec<&str> = subdir.components().collect();
        match descend(self.root(), &components, None) {
            Ok(_) => Ok(true),
            Err((_, Errno::ENOENT)) => Ok(false),
            Err((_, errno)) => Err(self.failed("look for", subdir.to_string(), errno)),
        }
    }

    /// What is in the trash; none where this driver has no folder yet.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn trash(&self) -> Result<Option<Trash>, ExportError> {
        let failed = |errno| self.failed("list", "the trash", errno);
        let names = match descend(self.root(), &[RESERVED, TRASH], None) {
            Ok(trash) => beneath::names(&trash).map_err(failed)?,
            Err((_, Errno::ENOENT)) => return Ok(None),
            Err((_, errno)) => return Err(failed(errno)),
        };
        let mut trash = Trash::default();
        // Whatever else is there is nobody's: this folder is the driver's own.
        for name in names.into_iter().filter_map(|name| name.into_string().ok()) {
            match TrashName::parse(name.strip_suffix(RECORD).unwrap_or(&name)) {
                Some(kept) if kept.is_kept() => trash.kept.extend((!name.ends_with(RECORD)).then_some(kept)),
                _ => trash.due.push(name),
            }
        }
        trash.kept.sort_unstable_by_key(|name| name.deleted_at);
        Ok(Some(trash))
    }

    /// Ends the time for which something is kept; gives the name that it has in the trash from now on.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn let_go(&self, name: &str) -> Result<String, ExportError> {
        let Some(kept) = TrashName::parse(name).filter(TrashName::is_kept) else { return Ok(name.to_owned()) };
        let due = TrashName { keep_until: 0, ..kept.clone() }.to_string();
        let trash = &self.layout()?.trash;
        // What is half freed must not be brought back: so its record goes first.
        for (from, to) in [(kept.record(), format!("{due}{RECORD}")), (kept.to_string(), due.clone())] {
            match renameat(trash, from.as_str(), trash, to.as_str()) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(errno) => return Err(self.failed("rename in the trash", from, errno)),
            }
        }
        self.free(&format!("{due}{RECORD}"))?;
        Ok(due)
    }

    /// Frees what has this name in the trash.
    ///
    /// # Errors
    /// The entry that could not be removed; all that could be is gone.
    pub fn free(&self, name: &str) -> Result<(), ExportError> {
        remove::tree(&self.tree_layout()?.trash, name, self.effort()).map_err(|(entry, errno)| {
            self.failed("remove", format!("trash/{name}: {}", entry.to_string_lossy()), errno)
        })
    }

    /// The directory that holds a volume's directory; none if it is not there.
    fn parent(&self, subdir: &SubDir) -> nix::Result<Option<OwnedFd>> {
        let components: Vec<&str> = subdir.components().collect();
        let parents = components.split_last().map_or(&[][..], |(_, parents)| parents);
        match descend(self.root(), parents, None) {
            Ok(parent) => Ok(Some(parent)),
            Err((_, Errno::ENOENT)) => Ok(None),
            Err((_, errno)) => Err(errno),
        }
    }
}

/// The time now.
fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_tells_what_it_was_when_it_went_and_how_long_it_stays() {
        let key = RecordKey::of("pvc-1");
        let kept = TrashName::now(Kind::Volume, key.clone(), Duration::from_hours(1));
        let free = TrashName::now(Kind::Snapshot, key, Duration::ZERO);
        assert!(kept.is_kept() && !free.is_kept());
        for name in [kept, free] {
            assert_eq!(TrashName::parse(&name.to_string()), Some(name));
        }
    }

    #[test]
    fn what_was_below_and_what_somebody_put_there_has_no_name() {
        let name = TrashName::now(Kind::Volume, RecordKey::of("pvc-1"), Duration::ZERO).to_string();
        for other in [format!("{name}.0"), format!("{name}.json"), "x".into(), "v.short.1.0".into(), String::new()] {
            assert_eq!(TrashName::parse(&other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "[vst]?\\.?[a-z2-7.]{0,30}|\\PC{0,40}") {
            let _ = TrashName::parse(&text);
        }
    }
}
