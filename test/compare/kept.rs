//! How much of a tree with entries of every kind and attribute a copy has.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nfs_csi::proto::volume_content_source::Type;

use crate::candidate::{Answer, Candidate};
use crate::kit::requests::{of_snapshot, of_volume};
use crate::kit::server::on_server;
use crate::table::Table;
use crate::trees::{Entry, entries, fill};
use crate::volumes::Running;

/// How the copy is made.
#[derive(Clone, Copy)]
enum Copied {
    Cloned,
    Restored,
}

/// Clones, and restored snapshots, of both; with the peer's other way to make a snapshot too.
pub async fn attributes(table: &mut Table, candidates: &[Candidate; 2]) {
    let flag = "--use-tar-command-in-snapshot=true";
    let [peer, own] = Running::both(candidates).await;
    for (what, with_socket) in [("every kind", true), ("every kind but a socket", false)] {
        let what = |copy: &str| format!("{copy} of entries of {what}: attributes");
        for (copy, how) in [("clone", Copied::Cloned), ("snapshot and restore", Copied::Restored)] {
            let cells = [cell(&peer, how, with_socket).await, cell(&own, how, with_socket).await];
            table.row(&what(copy), cells);
        }
        let other = Running::start(&candidates[0], &[flag]).await;
        let cells = [cell(&other, Copied::Restored, with_socket).await, "–".into()];
        table.row(&format!("{}, peer with {flag}", what("snapshot and restore")), cells);
    }
}

async fn cell(running: &Running<'_>, how: Copied, with_socket: bool) -> String {
    match differences(running, how, with_socket).await {
        Ok(differences) => differences.to_string(),
        Err(error) => error,
    }
}

/// Makes a tree and a copy of it, compares them, and deletes both.
async fn differences(running: &Running<'_>, how: Copied, with_socket: bool) -> Answer<Differences> {
    let name = running.candidate.unique("kept");
    let source = running.volume(&name, &[]).await?;
    let path = on_server(&name);
    fill(&path);
    if !with_socket {
        std::fs::remove_file(path.join("socket")).unwrap();
    }
    let result = match how {
        Copied::Cloned => compared(running, &path, of_volume(&source.volume_id)).await,
        Copied::Restored => {
            match running.snapshot(&running.candidate.unique("snapshot"), &source.volume_id, &[]).await {
                Ok((snapshot, _)) => {
                    let result = compared(running, &path, of_snapshot(&snapshot)).await;
                    running.delete_snapshot(&snapshot).await?;
                    result
                }
                Err(error) => Err(error),
            }
        }
    };
    running.delete(&source.volume_id).await?;
    result
}

async fn compared(running: &Running<'_>, source: &Path, content: Type) -> Answer<Differences> {
    let name = running.candidate.unique("copy");
    let (copy, _) = running.copied(&name, content).await?;
    let differences = Differences::between(source, &on_server(&name));
    running.delete(&copy.volume_id).await?;
    assert!(!running.candidate.is_own() || differences.count == 0, "nfs-csi: {differences}");
    Ok(differences)
}

/// Which attributes of a copy are otherwise, by what they are.
struct Differences {
    of: usize,
    count: usize,
    kinds: BTreeMap<&'static str, usize>,
    missing: BTreeSet<PathBuf>,
}

impl Differences {
    fn between(source: &Path, copy: &Path) -> Self {
        let (before, after) = (attributes_of(source), attributes_of(copy));
        let mut found = Self { of: 0, count: 0, kinds: BTreeMap::new(), missing: BTreeSet::new() };
        for (path, attributes) in &before {
            found.of += attributes.len();
            let Some(copied) = after.get(path) else {
                found.missing.insert(path.clone());
                found.count += attributes.len();
                continue;
            };
            for kind in attributes.keys().filter(|kind| copied.get(*kind) != attributes.get(*kind)) {
                *found.kinds.entry(kind).or_default() += 1;
                found.count += 1;
            }
        }
        found
    }
}

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.count == 0 {
            return write!(f, "all {} as in the source", self.of);
        }
        let mut parts: Vec<String> = self.kinds.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        if !self.missing.is_empty() {
            let paths: Vec<_> = self.missing.iter().map(|path| path.display().to_string()).collect();
            parts.push(format!("missing: {}", paths.join(" ")));
        }
        write!(f, "{} of {} differ: {}", self.count, self.of, parts.join(", "))
    }
}

type Attributes = BTreeMap<&'static str, Vec<u8>>;

/// What can be said of each entry, by the name that it has in the table.
fn attributes_of(root: &Path) -> BTreeMap<PathBuf, Attributes> {
    let entries = entries(root);
    let mut names: BTreeMap<u64, Vec<PathBuf>> = BTreeMap::new();
    for path in entries.keys() {
        let inode = std::fs::symlink_metadata(root.join(path)).unwrap().ino();
        names.entry(inode).or_default().push(path.clone());
    }
    entries.iter().map(|(path, entry)| (path.clone(), of_entry(&root.join(path), entry, &names))).collect()
}

/// `names` are all names of each inode.
fn of_entry(path: &Path, entry: &Entry, names: &BTreeMap<u64, Vec<PathBuf>>) -> Attributes {
    let stat = std::fs::symlink_metadata(path).unwrap();
    let kind = stat.file_type();
    let mut attributes = BTreeMap::from([
        ("owner", format!("{}:{}", stat.uid(), stat.gid()).into_bytes()),
        ("mode", stat.mode().to_be_bytes().to_vec()),
        ("time of modification", format!("{}.{:09}", stat.mtime(), stat.mtime_nsec()).into_bytes()),
    ]);
    if kind.is_file() {
        attributes.insert("content", std::fs::read(path).unwrap());
    } else if kind.is_symlink() {
        attributes.insert("link", std::fs::read_link(path).unwrap().into_os_string().into_encoded_bytes());
    } else if kind.is_block_device() || kind.is_char_device() {
        attributes.insert("device", stat.rdev().to_be_bytes().to_vec());
    }
    if kind.is_file() && stat.nlink() > 1 {
        attributes.insert("hard links", format!("{:?}", names[&stat.ino()]).into_bytes());
    }
    // The server may keep more blocks than a file needs, for what may come behind its end.
    if kind.is_file() && stat.size() > 1 << 20 {
        attributes.insert("holes", vec![u8::from(stat.blocks() * 512 < stat.size() / 2)]);
    }
    for (name, value) in &entry.xattrs {
        let kind = if name.starts_with(b"system.posix_acl") { "access list" } else { "extended attributes" };
        let all = attributes.entry(kind).or_default();
        all.extend_from_slice(name);
        all.extend_from_slice(value);
    }
    attributes
}
