//! What is being made: a tree is here until it is complete, and is then renamed to its place in one step.
//!
//! Each attempt makes a tree of its own, under a name that no other attempt has, so that nobody else ever writes to it,
//! however late he wakes. The name says what is made, from what, and by whom:
//!
//! ```text
//! <kind>2.<key>.<request>.<instance>.<nonce>.<cluster>.<host>   a tree; kind: v for a volume, s for a snapshot; cluster: 0
//!                                                               where it has no name
//! <the same>.links      second names of its hard links (tree/copy/links.rs)
//! <the same>.beat       touched every few seconds while work goes on
//! <the same>.asked      touched when another controller is asked for the same work meanwhile
//! <the same>.json       the volume's record: the tree is about to be renamed to the volume's directory, or was
//! <the same>.full       there was no space for it: what there is of it is kept for minutes only
//! <the same>.old        the tree of an earlier attempt that was given up, from which this one takes what is complete
//! x2.<key>              held by who changes the record of this key (record_lock.rs)
//! r2.<key>.<instance>   a record that is about to be put in place, or was, and its directory has not been seen
//!                       since (catalog.rs)
//! ```
//!
//! An attempt whose holder shows no sign of life is taken over: its tree is renamed, so that it can never be put in
//! place. Its holder may be alive all the same; nothing depends on that, for nothing of his tree is used but complete
//! files, and those are moved away first. What nobody asks for again goes into the trash after a while. Version 0.1.0
//! had names without the 2: those are swept too.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{FileStat, Mode, UtimensatFlags, fstat, fstatat, mkdirat, utimensat};
use nix::sys::time::TimeSpec;

use super::attempt_name::{ASKED, BEAT, COMPANIONS, FULL, LINKS, OLD, RECORD, RECORDS};
pub use super::attempt_name::{AttemptName, StagingName};
use super::catalog::{self, Created, Record};
use super::clock::changed_at;
use super::limited::LimitedDirectory;
use super::trash::{Kind, TrashName};
use super::{Export, ExportError};
use crate::beneath;
use crate::volume::record_key::RecordKey;

/// An attempt that was found in staging, and what there is of it.
#[derive(Debug)]
struct Found {
    name: AttemptName,
    parts: Vec<&'static str>,
    has_tree: bool,
}

impl Found {
    fn has(&self, companion: &str) -> bool {
        self.parts.contains(&companion)
    }
}

/// The earlier attempts at one piece of work.
#[derive(Debug)]
pub struct Attempts(Vec<Found>);

/// The tree of an attempt, which is being filled.
#[derive(Debug)]
pub struct Staged {
    name: AttemptName,
    directory: OwnedFd,
    links: CString,
    old: Option<OwnedFd>,
}

/// An attempt that is worked on.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// How long ago another controller was asked for the same.
    pub asked: Option<Duration>,
}

impl AsFd for Staged {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

impl Staged {
    /// The attempt.
    #[must_use]
    pub fn name(&self) -> &AttemptName {
        &self.name
    }

    /// The name of the folder for its hard links, in [`Export::staging`].
    #[must_use]
    pub fn links(&self) -> &CString {
        &self.links
    }

    /// The tree of an earlier attempt.
    #[must_use]
    pub fn old(&self) -> Option<BorrowedFd<'_>> {
        self.old.as_ref().map(AsFd::as_fd)
    }

    fn is_volume(&self) -> bool {
        self.name.work.starts_with('v')
    }

    /// The number by which the directory is known again after it was renamed.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn inode(&self) -> nix::Result<u64> {
        fstat(&self.directory).map(|stat| stat.st_ino)
    }
}

impl Export {
    /// The attempts at a piece of work that were begun and not finished.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn attempts(&self, work: &StagingName) -> Result<Attempts, ExportError> {
        let mut found: Vec<Found> = Vec::new();
        for (name, companion) in self.staged_names()?.iter().filter_map(|name| AttemptName::parse(name)) {
            if name.work == work.0 {
                note(&mut found, name, companion);
            }
        }
        Ok(Attempts(found))
    }

    /// The same, if nothing is in the place of what is to be made: then an attempt that is not finished has a tree in
    /// staging, and where that has none, nobody has begun one.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn attempts_before_place(&self, work: &StagingName) -> Result<Attempts, ExportError> {
        let layout = self.layout()?;
        let failed = |errno| self.failed("look at", "staging", errno);
        if layout.has_no_directory(&layout.staging).map_err(failed)? {
            return Ok(Attempts(Vec::new()));
        }
        self.attempts(work)
    }

    pub(super) fn staged_names(&self) -> Result<Vec<String>, ExportError> {
        let names = beneath::names(&self.layout()?.staging).map_err(|errno| self.failed("list", "staging", errno))?;
        Ok(names.into_iter().filter_map(|name| name.into_string().ok()).collect())
    }

    /// The record of an attempt whose tree was renamed to its place and that was cut short before it was recorded: puts
    /// it in place now. None if there is no such attempt.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn complete_placed(&self, attempts: &Attempts, key: &RecordKey) -> Result<Option<Record>, ExportError> {
        let staging = &self.layout()?.staging;
        for found in attempts.0.iter().filter(|found| found.has(RECORD) && !found.has_tree) {
            let name = found.name.companion(RECORD);
            let record = match self.read_record_in(staging, &name) {
                // Its writer died while it wrote: then it did not rename the tree either.
                Err(ExportError::Record { .. }) => continue,
                record => record?.filter(|record| record.inode.is_some()),
            };
            let Some(record) = record else { continue };
            if self.inode_of(&record.subdir)? != record.inode {
                continue;
            }
            let file = match beneath::open(staging, name.as_str(), OFlag::O_RDONLY, Mode::empty()) {
                Err(Errno::ENOENT) => continue,
                file => file.map_err(|errno| self.failed("open the record", &name, errno))?,
            };
            if record.subdir_given {
                self.claim(&record.subdir, key, record.owner.as_deref())?;
            }
            let linked = self.link_record(&file, key)?;
            drop(file);
            // A delete may have moved it away just before.
            if matches!(linked, Created::Now) && self.inode_of(&record.subdir)? != record.inode {
                return Err(self.contended("make", record.subdir.to_string()));
            }
            self.finish_attempt(&found.name, true)?;
            return Ok(Some(match linked {
                Created::Now => record,
                Created::Before(record) => *record,
            }));
        }
        Ok(None)
    }

    /// A name that no attempt had before, for one at this work.
    #[must_use]
    pub fn name_attempt(&self, work: &StagingName) -> AttemptName {
        AttemptName::new(work, &self.shared.holder)
    }

    /// Begins an attempt: an empty directory with these permissions (and the owner's), or the limited one, which nobody
    /// else writes to. What earlier attempts left is taken over.
    ///
    /// # Errors
    /// [`ExportError::Held`] where the holder of one has shown a sign of life within `silence`; where the server fails.
    pub fn begin(
        &self,
        name: AttemptName,
        attempts: &Attempts,
        silence: Duration,
        mode: u32,
        limited: Option<&LimitedDirectory>,
    ) -> Result<Staged, ExportError> {
        for found in &attempts.0 {
            self.check_abandoned(found, silence)?;
        }
        let (own, old) = (name.to_string(), name.companion(OLD));
        let failed = |errno| self.failed("make in staging", &own, errno);
        let failed_old = |errno| self.failed("open in staging", &old, errno);
        let staging = self.staging()?;
        // First, for it is a sign of life.
        match limited {
            Some(limited) => self.stage_limited(limited, &own)?,
            None => mkdirat(staging, own.as_str(), Mode::from_bits_truncate(mode) | Mode::S_IRWXU).map_err(failed)?,
        }
        let mut has_old = false;
        for found in &attempts.0 {
            has_old |= self.take_over(found, &name)?;
        }
        let old = if has_old { Some(beneath::open_dir(staging, &old).map_err(failed_old)?) } else { None };
        let directory = beneath::open_dir(staging, &own).map_err(failed)?;
        let links = CString::new(name.companion(LINKS)).unwrap_or_default();
        Ok(Staged { name, directory, links, old })
    }

    /// Fails if the holder of an attempt may be at work.
    fn check_abandoned(&self, found: &Found, silence: Duration) -> Result<(), ExportError> {
        if found.name.instance == self.shared.holder.instance {
            // This process's own attempts are one after the other; others of this name were an earlier process's.
            return Ok(());
        }
        let now = self.now();
        let Some(last) = self.last_sign(&found.name)? else { return Ok(()) };
        match now.checked_sub(last) {
            Some(silent) if silent >= silence => Ok(()),
            silent => {
                // Its holder is to know that it is wanted, although it is not asked itself.
                self.ask_for(found)?;
                Err(ExportError::Held {
                    share: self.share().to_string(),
                    holder: found.name.holder(),
                    silent: silent.unwrap_or_default().as_secs(),
                    wait: silence.as_secs(),
                })
            }
        }
    }

    /// Notes that an attempt which has been at work for a while is wanted.
    fn ask_for(&self, found: &Found) -> Result<(), ExportError> {
        if !found.has(BEAT) {
            return Ok(());
        }
        let asked = found.name.companion(ASKED);
        self.touch_staged(&asked)?;
        // Where it has come to its end meanwhile, nobody else removes the note.
        if self.is_staged(&found.name)? { Ok(()) } else { self.discard(&asked) }
    }

    /// When the holder of an attempt last showed a sign of life, by the server's clock; none if nothing is left of it.
    pub(super) fn last_sign(&self, name: &AttemptName) -> Result<Option<Duration>, ExportError> {
        let mut last = None;
        // Others touch the last, which counts where nothing else is left.
        for part in ["", BEAT, RECORD, OLD, LINKS, FULL, ASKED] {
            if part == ASKED && last.is_some() {
                break;
            }
            if let Some(stat) = self.look_in_staging(&name.companion(part))? {
                last = last.max(Some(changed_at(&stat)));
            }
        }
        Ok(last)
    }

    /// Takes an attempt's tree away from its holder, for the attempt `own`. Whether there is one.
    fn take_over(&self, found: &Found, own: &AttemptName) -> Result<bool, ExportError> {
        let staging = &self.layout()?.staging;
        let (tree, old) = (found.name.to_string(), own.companion(OLD));
        let is_taken = match beneath::rename(staging, tree.as_str(), staging, old.as_str()) {
            Ok(()) => true,
            Err(Errno::ENOENT) => false,
            // There is one already.
            Err(Errno::EEXIST | Errno::ENOTEMPTY) => self.discard(&tree).map(|()| false)?,
            Err(errno) => return Err(self.failed("take over", tree, errno)),
        };
        for part in &found.parts {
            self.discard(&found.name.companion(part))?;
        }
        if is_taken {
            tracing::info!(share = %self.share(), earlier = %found.name, "an attempt that was given up is taken over");
        }
        Ok(is_taken)
    }

    /// The folder of all that is being made, in the mount for trees.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn staging(&self) -> Result<BorrowedFd<'_>, ExportError> {
        Ok(self.tree_layout()?.staging.as_fd())
    }

    /// The inode number of the driver's own folder.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn own_inode(&self) -> Result<u64, ExportError> {
        Ok(self.layout()?.inode)
    }

    /// Shows that an attempt is worked on. Gives how long ago another controller was asked for the same, if one was;
    /// none if its tree is gone: another controller has taken it over.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn keep_staged(&self, name: &AttemptName) -> Result<Option<Kept>, ExportError> {
        if !self.is_staged(name)? {
            return Ok(None);
        }
        let beat = name.companion(BEAT);
        self.touch_staged(&beat)?;
        // Who slept in between has made it anew, and nobody else removes it.
        if !self.is_staged(name)? {
            self.discard(&beat)?;
            return Ok(None);
        }
        let asked = self.look_in_staging(&name.companion(ASKED))?;
        Ok(Some(Kept { asked: asked.map(|stat| self.age(&stat)) }))
    }

    /// Notes that there was no space for an attempt, so that it is kept for its retry for minutes only.
    ///
    /// # Errors
    /// Where the server fails, or has not even the space for this.
    pub fn note_full(&self, name: &AttemptName) -> Result<(), ExportError> {
        self.touch_staged(&name.companion(FULL))
    }

    /// Whether there was no space for an attempt.
    pub(super) fn was_full(&self, name: &AttemptName) -> Result<bool, ExportError> {
        Ok(self.look_in_staging(&name.companion(FULL))?.is_some())
    }

    /// Whether an attempt has its tree: no other controller has taken it over, and it is not in its place yet.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn is_staged(&self, name: &AttemptName) -> Result<bool, ExportError> {
        Ok(self.look_in_staging(&name.to_string())?.is_some())
    }

    pub(super) fn look_in_staging(&self, name: &str) -> Result<Option<FileStat>, ExportError> {
        match fstatat(&self.layout()?.staging, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.failed("look at", name, errno)),
        }
    }

    /// Sets a file's times to the server's, and makes it if it is missing.
    fn touch_staged(&self, name: &str) -> Result<(), ExportError> {
        let staging = &self.layout()?.staging;
        let now = TimeSpec::UTIME_NOW;
        match utimensat(staging, name, &now, &now, UtimensatFlags::NoFollowSymlink) {
            Err(Errno::ENOENT) => {
                let flags = OFlag::O_WRONLY | OFlag::O_CREAT;
                beneath::open(staging, name, flags, Mode::S_IRUSR | Mode::S_IWUSR).map(drop)
            }
            touched => touched,
        }
        .map_err(|errno| self.failed("touch", name, errno))
    }

    /// Renames what was made to a volume's directory, and records the volume. Nothing but an empty directory may be in
    /// its place.
    ///
    /// # Errors
    /// EEXIST where something is there; [`ExportError::Contended`] where another controller has taken the attempt over;
    /// where the server fails.
    pub fn place_volume(&self, staged: &Staged, key: &RecordKey, record: &Record) -> Result<Created, ExportError> {
        let subdir = &record.subdir;
        let place = self.place_of_new(subdir)?;
        // It says, after a crash, whose directory that is which was just put in place.
        let own = staged.name.companion(RECORD);
        let file = self.write_file(&self.tree_layout()?.staging, &own, record, OFlag::empty())?;
        self.place(staged, &place, subdir.file_name(), &subdir.to_string())?;
        self.publish_record(&file, &own, key)
    }

    /// Renames what was made to a snapshot's folder.
    ///
    /// # Errors
    /// EEXIST where another was faster; as [`Export::place_volume`] otherwise.
    pub fn place_snapshot(&self, staged: &Staged, key: &RecordKey) -> Result<(), ExportError> {
        let key = key.to_string();
        self.place(staged, &self.tree_layout()?.snapshots, &key, &key)
    }

    /// In the mount for trees, which has the tree open: it knows then where that is.
    fn place(&self, staged: &Staged, place: impl AsFd, name: &str, what: &str) -> Result<(), ExportError> {
        match beneath::rename(&self.tree_layout()?.staging, &staged.name.to_string(), place, name) {
            Ok(()) => Ok(()),
            // What NFS says of a directory that is not empty, and of a file.
            Err(Errno::ENOTEMPTY | Errno::ENOTDIR) => Err(self.failed("put in place", what, Errno::EEXIST)),
            Err(Errno::ENOENT | Errno::ESTALE) => Err(self.contended("put in place", what)),
            Err(errno) => Err(self.failed("put in place", what, errno)),
        }
    }

    /// Removes what stands beside the tree of this driver's own attempt, which is in its place. `has_beat`: whether it
    /// was kept by [`Export::keep_staged`].
    ///
    /// # Errors
    /// Where the server fails.
    pub fn finish_placed(&self, staged: &Staged, has_beat: bool) -> Result<(), ExportError> {
        let parts = [(has_beat, BEAT), (has_beat, ASKED), (staged.old.is_some(), OLD), (staged.is_volume(), RECORD)];
        for (_, part) in parts.iter().filter(|(is_there, _)| *is_there) {
            let name = staged.name.companion(part);
            if *part == RECORD {
                let removed = catalog::remove_known(&self.tree_layout()?.staging, &self.layout()?.staging, &name);
                removed.map_err(|errno| self.failed("remove", name, errno))?;
            } else {
                self.discard(&name)?;
            }
        }
        Ok(())
    }

    /// Removes what stands beside the tree of an attempt that is over; without `is_placed` its tree goes too.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn finish_attempt(&self, name: &AttemptName, is_placed: bool) -> Result<(), ExportError> {
        let staging = &self.layout()?.staging;
        let names = beneath::names(staging).map_err(|errno| self.failed("list", "staging", errno))?;
        for left in names.iter().filter_map(|left| left.to_str()) {
            match AttemptName::parse(left) {
                Some((other, part)) if other == *name && !(is_placed && part.is_empty()) => self.discard(left)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Takes something out of staging: a file goes at once, a folder into the trash, to be freed behind this call.
    pub(super) fn discard(&self, name: &str) -> Result<(), ExportError> {
        let layout = self.layout()?;
        if [BEAT, ASKED, FULL, RECORD].iter().any(|part| name.ends_with(part)) || name.starts_with(RECORDS) {
            return catalog::remove(&layout.staging, name).map_err(|errno| self.failed("remove", name, errno));
        }
        let trashed = TrashName::new(Kind::Staged, RecordKey::of(name), self.now(), Duration::ZERO);
        match beneath::rename(&layout.staging, name, &layout.trash, trashed.to_string().as_str()) {
            Ok(()) => self.leave_to_reaper(trashed),
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(self.failed("move to the trash", name, errno)),
        }
        Ok(())
    }
}

/// Notes a part of an attempt.
fn note(found: &mut Vec<Found>, name: AttemptName, companion: &str) {
    let at = found.iter().position(|found| found.name == name).unwrap_or_else(|| {
        found.push(Found { name, parts: Vec::new(), has_tree: false });
        found.len() - 1
    });
    match COMPANIONS.iter().find(|known| **known == companion) {
        Some(part) => found[at].parts.push(part),
        None => found[at].has_tree = true,
    }
}
