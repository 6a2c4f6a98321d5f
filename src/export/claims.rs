//! Which volumes name which directory, for those whose StorageClass names one: several may share it, and one may be
//! inside another. The data goes with the last volume that names it.
//!
//! The folder `subdirs/` mirrors the volumes' paths: the volume with key K in `a/b` has the folder `d.a/d.b/v.K`, or
//! `v.K.<cluster>` where its cluster has a name. A volume in the directory of its own name needs no claim: no other has
//! that name, and its record stands for it. The claims on trees of snapshots are elsewhere (tree_claims.rs).
//!
//! A claim counts only with its record. So a claim that a crash leaves harms nobody, and whoever makes a volume makes
//! its claim first, then its directory, then its record, and then looks again whether claim and directory are still
//! there: a delete by another controller sees the record, or this look sees what the delete did.

use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, renameat};
use nix::sys::stat::{Mode, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::catalog::Record;
use super::directories::{despite_rivals, reach};
use super::holder::nonce;
use super::{Export, ExportError};
use crate::beneath;
use crate::tree::make::descend;
use crate::volume::record_key::RecordKey;
use crate::volume::subdir::SubDir;

/// Who else names a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claims {
    /// Nobody.
    None,
    /// Other volumes name the same directory: their records.
    Shared(Vec<Record>),
    /// Another volume is inside it: its record.
    Inside(Box<Record>),
}

/// A claim that was found.
#[derive(Debug)]
pub(super) struct Claim {
    /// The directory.
    pub(super) subdir: SubDir,
    /// The volume.
    pub(super) key: RecordKey,
    /// Its cluster.
    pub(super) owner: Option<String>,
    /// How old it is.
    pub(super) age: Duration,
}

/// How the names of claims, of folders, of claims that are being taken back, and of notes begin.
const CLAIM: &str = "v.";
const FOLDER: &str = "d.";
const TAKEN_BACK: &str = "x.";
const MADE: &str = "m.";

impl Export {
    /// Notes that a volume names a directory. Noting it twice is noting it once.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn claim(&self, subdir: &SubDir, key: &RecordKey, owner: Option<&str>) -> Result<(), ExportError> {
        if let Some(tree) = subdir.shared_tree() {
            return self.claim_tree_again(&tree, key);
        }
        let folders = folders(subdir);
        let (top, claim) = (&self.layout()?.subdirs, claim_name(key, owner));
        let claimed = despite_rivals(|| {
            let folder = descend(top, &names(&folders), Some(Mode::S_IRWXU))?;
            mkdirat(&folder, claim.as_str(), Mode::S_IRWXU).map_err(|errno| (claim.clone(), errno))
        });
        match claimed {
            Ok(()) | Err((_, Errno::EEXIST)) => Ok(()),
            Err((_, Errno::ENOENT | Errno::ESTALE)) => Err(self.contended("claim", subdir.to_string())),
            Err((_, errno)) => Err(self.failed("claim", subdir.to_string(), errno)),
        }
    }

    /// Whether a volume's claim is there.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn has_claim(&self, subdir: &SubDir, key: &RecordKey, owner: Option<&str>) -> Result<bool, ExportError> {
        if let Some(tree) = subdir.shared_tree() {
            return self.has_tree_claim(&tree, key);
        }
        let Some(folder) = self.folder_of(subdir)? else { return Ok(false) };
        match fstatat(folder, claim_name(key, owner).as_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::ENOENT | Errno::ESTALE) => Ok(false),
            Err(errno) => Err(self.failed("look who claims", subdir.to_string(), errno)),
        }
    }

    fn folder_of(&self, subdir: &SubDir) -> Result<Option<OwnedFd>, ExportError> {
        reach(&self.layout()?.subdirs, &names(&folders(subdir)))
            .map_err(|errno| self.failed("look who claims", subdir.to_string(), errno))
    }

    /// Who besides the volume `key` names the directory or one inside it. Only volumes with a record count.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn claims(&self, subdir: &SubDir, key: &RecordKey) -> Result<Claims, ExportError> {
        self.claims_but(subdir, Some(key))
    }

    /// Who names the directory or one inside it, as [`Export::claims`], but for one volume at most.
    pub(super) fn claims_but(&self, subdir: &SubDir, key: Option<&RecordKey>) -> Result<Claims, ExportError> {
        if let Some(tree) = subdir.shared_tree() {
            return self.readers_but(&tree, key);
        }
        let Some(folder) = self.folder_of(subdir)? else { return Ok(Claims::None) };
        let failed = |errno| self.failed("look who claims", subdir.to_string(), errno);
        let (mut sharing, mut inside) = (Vec::new(), Vec::new());
        for name in listed(&folder).map_err(failed)? {
            if let Some((claimant, _)) = claimant(&name).filter(|(claimant, _)| Some(claimant) != key) {
                sharing.extend(self.claiming(&claimant, |record| record.subdir == *subdir)?);
            }
            inside.extend(name.starts_with(FOLDER).then(|| vec![name]));
        }
        if !sharing.is_empty() {
            return Ok(Claims::Shared(sharing));
        }
        // What is inside, folder by folder: most often there is none.
        let above = folders(subdir);
        while let Some(path) = inside.pop() {
            let whole: Vec<&str> = above.iter().chain(&path).map(String::as_str).collect();
            let Some(below) = reach(&self.layout()?.subdirs, &whole).map_err(failed)? else { continue };
            for name in listed(&below).map_err(failed)? {
                if let Some((claimant, _)) = claimant(&name)
                    && let Some(record) = self.claiming(&claimant, |record| record.subdir.is_below(subdir))?
                {
                    return Ok(Claims::Inside(Box::new(record)));
                }
                if name.starts_with(FOLDER) {
                    inside.push(path.iter().cloned().chain([name]).collect());
                }
            }
        }
        Ok(Claims::None)
    }

    /// The record of a volume that claims a directory, if it has one and that is what it names.
    fn claiming(&self, key: &RecordKey, is_named: impl Fn(&Record) -> bool) -> Result<Option<Record>, ExportError> {
        Ok(self.record(key)?.filter(|record| record.subdir_given && is_named(record)))
    }

    /// Removes a volume's claim, if it has one, and the folders that become empty; then the directories for which there
    /// is a note that the driver made them, if they are empty too.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn release(&self, subdir: &SubDir, key: &RecordKey, owner: Option<&str>) -> Result<(), ExportError> {
        if let Some(tree) = subdir.shared_tree() {
            return self.release_tree(&tree, key);
        }
        self.remove_upwards(&folders(subdir), &claim_name(key, owner))
            .map_err(|errno| self.failed("release", subdir.to_string(), errno))
    }

    /// Removes `name` from the folder that `folders` lead to, and those above it as far as nobody else is there.
    fn remove_upwards(&self, folders: &[String], name: &str) -> nix::Result<()> {
        let top = &self.layout().map_err(|_| Errno::EIO)?.subdirs;
        let mut name = name;
        for depth in (0..=folders.len()).rev() {
            // A release that was cut short may have removed the lower folders already.
            if let Some(folder) = reach(top, &names(&folders[..depth]))? {
                match unlinkat(&folder, name, UnlinkatFlags::RemoveDir) {
                    Ok(()) | Err(Errno::ENOENT | Errno::ESTALE) => {}
                    Err(Errno::ENOTEMPTY | Errno::EEXIST) => return Ok(()),
                    Err(errno) => return Err(errno),
                }
            }
            let Some(above) = depth.checked_sub(1) else { break };
            name = &folders[above];
        }
        Ok(())
    }

    /// Takes a claim back whose volume was not made after all. Where the volume has a record meanwhile, made by another
    /// controller, the claim stays.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn take_back_claim(&self, subdir: &SubDir, key: &RecordKey, owner: Option<&str>) -> Result<(), ExportError> {
        if let Some(tree) = subdir.shared_tree() {
            return self.sweep_tree_claims(Some((&tree, key)));
        }
        let folders = folders(subdir);
        self.take_back(&folders, &claim_name(key, owner), key)
            .map_err(|errno| self.failed("take back the claim on", subdir.to_string(), errno))
    }

    /// First the claim is out of the way, then the record is looked for: whoever made one before that has it back, and
    /// whoever makes one after it sees that the claim is missing.
    fn take_back(&self, folders: &[String], claim: &str, key: &RecordKey) -> nix::Result<()> {
        let top = &self.layout().map_err(|_| Errno::EIO)?.subdirs;
        let Some(folder) = reach(top, &names(folders))? else { return Ok(()) };
        let aside = format!("{TAKEN_BACK}{}.{}", nonce(), real_claim(claim));
        match renameat(&folder, claim, &folder, aside.as_str()) {
            Ok(()) => {}
            Err(Errno::ENOENT | Errno::ESTALE) => return Ok(()),
            Err(errno) => return Err(errno),
        }
        if matches!(self.record(key), Ok(None)) {
            return self.remove_upwards(folders, &aside);
        }
        restore_claim(&folder, &aside)
    }

    /// Takes back the claims of volumes that have had no record for so long, and removes folders that nobody needs.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn sweep_claims(&self, retention: Duration) -> Result<(), ExportError> {
        let failed = |errno| self.failed("sweep", "subdirs", errno);
        self.sweep_tree_claims(None)?;
        self.each_of_subdirs(|path, folder, found| {
            for name in found {
                let is_old = || self.age_in(folder, name) >= Some(retention);
                if let Some((key, _)) = claimant(name) {
                    match self.record(&key) {
                        Ok(None) if is_old() => self.take_back(path, name, &key).map_err(failed)?,
                        Ok(Some(_)) if name.starts_with(TAKEN_BACK) => restore_claim(folder, name).map_err(failed)?,
                        _ => {}
                    }
                } else if is_old()
                    && (name.starts_with(TAKEN_BACK) || (name.starts_with(MADE) && !self.is_noted_there(path, name)?))
                {
                    self.remove_upwards(path, name).map_err(failed)?;
                }
            }
            // A claim that was cut short leaves empty folders. rmdir(2) removes none that is used again meanwhile.
            match path.split_last() {
                Some((last, above)) if found.is_empty() => self.remove_upwards(above, last).map_err(failed),
                _ => Ok(()),
            }
        })
    }

    /// All claims that there are.
    ///
    /// # Errors
    /// Where the server fails.
    pub(super) fn all_claims(&self) -> Result<Vec<Claim>, ExportError> {
        let mut claims = self.all_tree_claims()?;
        self.each_of_subdirs(|path, folder, found| {
            for name in found {
                let Some((key, owner)) = claimant(name) else { continue };
                // A folder of another name a hand must have made.
                let Some(subdir) = claimed_by(path) else { continue };
                let age = self.age_in(folder, name).unwrap_or_default();
                claims.push(Claim { subdir, key, owner, age });
            }
            Ok(())
        })?;
        Ok(claims)
    }

    /// How long ago something in a folder was changed, by the server's clock; none if it is gone.
    fn age_in(&self, folder: &OwnedFd, name: &str) -> Option<Duration> {
        let stat = fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
        Some(self.age(&stat))
    }

    /// Shows every folder in `subdirs/`, with its path, open, and what is in it.
    fn each_of_subdirs(
        &self,
        mut see: impl FnMut(&[String], &OwnedFd, &[String]) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        let failed = |errno| self.failed("look through", "subdirs", errno);
        let top = &self.layout()?.subdirs;
        let mut waiting: Vec<Vec<String>> = vec![Vec::new()];
        while let Some(path) = waiting.pop() {
            let Some(folder) = reach(top, &names(&path)).map_err(failed)? else { continue };
            let found = listed(&folder).map_err(failed)?;
            let folders = found.iter().filter(|name| name.starts_with(FOLDER));
            waiting.extend(folders.map(|name| path.iter().cloned().chain([name.clone()]).collect()));
            see(&path, &folder, &found)?;
        }
        Ok(())
    }

    /// Whether there is a directory for a note that the driver made it.
    fn is_noted_there(&self, path: &[String], note: &str) -> Result<bool, ExportError> {
        let above = path.iter().map(|folder| folder.strip_prefix(FOLDER).unwrap_or(folder));
        let components: Vec<&str> = above.chain([note.strip_prefix(MADE).unwrap_or(note)]).collect();
        match SubDir::parse(&components.join("/")) {
            Ok(subdir) => self.has_directory(&subdir),
            Err(_) => Ok(true),
        }
    }

    /// Notes that the driver itself made the directory that `components` lead to, on the way to a volume's.
    ///
    /// # Errors
    /// Where the server fails.
    pub(super) fn note_made(&self, components: &[&str]) -> nix::Result<()> {
        let Some((last, above)) = components.split_last() else { return Ok(()) };
        let above: Vec<String> = above.iter().map(|component| folder_name(component)).collect();
        let folder = descend(&self.layout().map_err(|_| Errno::EIO)?.subdirs, &names(&above), Some(Mode::S_IRWXU))
            .map_err(|(_, errno)| errno)?;
        match mkdirat(&folder, made_name(last).as_str(), Mode::S_IRWXU) {
            Ok(()) | Err(Errno::EEXIST) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Removes the directories above a volume's that the driver made and that are empty now.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn remove_made_parents(&self, subdir: &SubDir) -> Result<(), ExportError> {
        if subdir.shared_tree().is_some() {
            return Ok(());
        }
        let components: Vec<&str> = subdir.components().collect();
        let folders = folders(subdir);
        let failed = |errno| self.failed("remove the empty directories above", subdir.to_string(), errno);
        let top = &self.layout()?.subdirs;
        for depth in (1..components.len()).rev() {
            let note = made_name(components[depth - 1]);
            let Some(folder) = reach(top, &names(&folders[..depth - 1])).map_err(failed)? else { return Ok(()) };
            match fstatat(&folder, note.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
                Ok(_) => {}
                Err(Errno::ENOENT) => return Ok(()),
                Err(errno) => return Err(failed(errno)),
            }
            match self.remove_empty(&components[..depth]) {
                Ok(()) => self.remove_upwards(&folders[..depth - 1], &note).map_err(failed)?,
                Err(Errno::ENOTEMPTY | Errno::EEXIST) => return Ok(()),
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(())
    }
}

/// The names in a folder of `subdirs/` that are text; all that the driver puts there are.
fn listed(folder: &OwnedFd) -> nix::Result<Vec<String>> {
    match beneath::names(folder) {
        Ok(names) => Ok(names.into_iter().filter_map(|name| name.into_string().ok()).collect()),
        Err(Errno::ENOENT | Errno::ESTALE) => Ok(Vec::new()),
        Err(errno) => Err(errno),
    }
}

/// The claim that is being taken back under a name, or the name itself.
fn real_claim(name: &str) -> &str {
    name.strip_prefix(TAKEN_BACK).and_then(|rest| rest.split_once('.')).map_or(name, |(_, claim)| claim)
}

/// Makes a claim that was being taken back one again.
fn restore_claim(folder: &OwnedFd, aside: &str) -> nix::Result<()> {
    match renameat(folder, aside, folder, real_claim(aside)) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// The key and the cluster of the volume whose claim has this name, also while it is being taken back; none if it is no
/// claim.
fn claimant(name: &str) -> Option<(RecordKey, Option<String>)> {
    let rest = real_claim(name).strip_prefix(CLAIM)?;
    let (key, owner) = rest.split_once('.').map_or((rest, None), |(key, owner)| (key, Some(owner.to_owned())));
    Some((key.parse().ok()?, owner))
}

/// The folder for each component of a path.
fn folders(subdir: &SubDir) -> Vec<String> {
    subdir.components().map(folder_name).collect()
}

/// The directory that the claims in a folder are on; none if it is not the driver's folder.
fn claimed_by(path: &[String]) -> Option<SubDir> {
    let components: Vec<&str> = path.iter().map(|folder| folder.strip_prefix(FOLDER).unwrap_or(folder)).collect();
    SubDir::parse(&components.join("/")).ok()
}

fn folder_name(component: &str) -> String {
    prefixed(FOLDER, component)
}

fn made_name(component: &str) -> String {
    prefixed(MADE, component)
}

/// A name behind a prefix. One that would be too long is hashed.
fn prefixed(prefix: &str, component: &str) -> String {
    match format!("{prefix}{component}") {
        name if name.len() <= 255 => name,
        _ => format!("{prefix}{}", RecordKey::of(component)),
    }
}

fn names(folders: &[String]) -> Vec<&str> {
    folders.iter().map(String::as_str).collect()
}

fn claim_name(key: &RecordKey, owner: Option<&str>) -> String {
    match owner {
        Some(owner) => format!("{CLAIM}{key}.{owner}"),
        None => format!("{CLAIM}{key}"),
    }
}
