//! Whether what a driver keeps on a share fits together, as the server's disk shows it.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nfs_csi::volume::record_key::RecordKey;
use serde_json::Value;

use super::names_in;
use super::share::Share;

/// How long work in the background may take.
const DEADLINE: Duration = Duration::from_mins(1);

/// Waits until nothing is wrong on a share, and nothing is being made or freed; says what still is after a minute.
pub async fn is_well(share: &Share) -> Result<(), String> {
    let end = Instant::now() + DEADLINE;
    loop {
        match faults(share) {
            faults if faults.is_empty() => return Ok(()),
            faults if Instant::now() > end => return Err(format!("{} faults: {faults:#?}", faults.len())),
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// What is wrong on a share now, and what is not finished.
pub fn faults(share: &Share) -> Vec<String> {
    let mut faults = Vec::new();
    let claims = records(share, &mut faults);
    let mut claimed = claimed(&share.on_disk(".nfs-csi/subdirs"), Path::new(""), &mut faults);
    // Those on trees of snapshots, without the part of their names that no other has.
    let readers = share.names(".nfs-csi/readers");
    claimed.extend(readers.iter().filter_map(|name| {
        let (tree, key) = name.rsplit_once('.')?.0.rsplit_once('.')?;
        Some(Path::new(tree).join(key))
    }));
    faults.extend(claims.difference(&claimed).map(|claim| format!("no claim {}", claim.display())));
    faults.extend(claimed.difference(&claims).map(|claim| format!("a claim without a record: {}", claim.display())));
    for name in share.names(".nfs-csi/shared") {
        if !claimed.iter().any(|claim| claim.starts_with(&name)) && !has_snapshot(share, &name) {
            faults.push(format!("nobody's tree of a snapshot: {name}"));
        }
    }
    for folder in ["staging", "trash"] {
        let left = share.names(&format!(".nfs-csi/{folder}"));
        faults.extend(left.into_iter().map(|name| format!("left in {folder}: {name}")));
    }
    for key in share.names(".nfs-csi/snapshots") {
        let folder = share.on_disk(".nfs-csi/snapshots").join(&key);
        let shared = share.names(".nfs-csi/shared").iter().filter(|name| is_tree_of(name, share, &key)).count();
        let data = shared + ["data", "data.tar.zst"].iter().filter(|name| folder.join(name).exists()).count();
        match read(&folder.join("manifest.json")) {
            Ok(manifest) if !is_key(&key, &manifest) => faults.push(format!("snapshot {key} has another's manifest")),
            Ok(_) if data == 1 => {}
            Ok(_) => faults.push(format!("snapshot {key} has {data} kinds of data")),
            Err(reason) => faults.push(format!("snapshot {key}: {reason}")),
        }
    }
    faults
}

/// Looks through the records; gives the claims that should be there.
fn records(share: &Share, faults: &mut Vec<String>) -> BTreeSet<PathBuf> {
    let mut claims = BTreeSet::new();
    for name in share.names(".nfs-csi/volumes") {
        let record = read(&share.on_disk(".nfs-csi/volumes").join(&name));
        let (key, record) = match (name.strip_suffix(".json"), record) {
            (Some(key), Ok(record)) if is_key(key, &record) => (key, record),
            (_, record) => {
                faults.push(format!("{name} is no record: {record:?}"));
                continue;
            }
        };
        let subdir = record["subdir"].as_str().unwrap_or_default();
        match std::fs::symlink_metadata(share.on_disk(subdir)) {
            Ok(stat) if !stat.is_dir() => faults.push(format!("{subdir} of {} is no directory", record["name"])),
            Ok(stat) if record["inode"].as_u64().is_some_and(|inode| inode != stat.ino()) => {
                faults.push(format!("{subdir} of {} is another directory", record["name"]));
            }
            Ok(_) => {}
            Err(error) => faults.push(format!("{subdir} of {}: {error}", record["name"])),
        }
        if let Some(tree) = subdir.strip_prefix(".nfs-csi/shared/") {
            claims.insert(Path::new(tree).join(key));
        } else if record["subdir_given"] == true {
            let folders = subdir.split('/').map(|component| format!("d.{component}"));
            claims.insert(folders.collect::<PathBuf>().join(format!("v.{key}")));
        }
    }
    claims
}

/// The claims that are there, by their paths below `subdirs/`; a folder that holds none is a fault.
fn claimed(folder: &Path, path: &Path, faults: &mut Vec<String>) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for name in names_in(folder) {
        let path = path.join(&name);
        if name.starts_with("v.") {
            found.insert(path);
            continue;
        }
        if let Some(made) = name.strip_prefix("m.") {
            // A note that the driver made a directory on the way to a volume's.
            let parents = path.parent().into_iter().flatten().filter_map(|name| name.to_str()?.strip_prefix("d."));
            let directory: PathBuf = parents.chain([made]).collect();
            let export = folder.ancestors().find(|folder| folder.ends_with(".nfs-csi")).and_then(Path::parent);
            if !export.is_some_and(|export| export.join(&directory).is_dir()) {
                faults.push(format!("a note of a directory that is gone: {}", path.display()));
            }
            continue;
        }
        let below = claimed(&folder.join(&name), &path, faults);
        if below.is_empty() {
            faults.push(format!("no claim is in {}", path.display()));
        }
        found.extend(below);
    }
    found
}

/// Whether a tree that volumes read is that of a snapshot which exists.
fn has_snapshot(share: &Share, tree: &str) -> bool {
    tree.split_once('.').is_some_and(|(key, _)| is_tree_of(tree, share, key))
}

/// Whether a tree that volumes read is that of the snapshot with a key.
fn is_tree_of(tree: &str, share: &Share, key: &str) -> bool {
    let manifest = read(&share.on_disk(".nfs-csi/snapshots").join(key).join("manifest.json"));
    manifest.is_ok_and(|manifest| manifest["secret"].as_str().is_some_and(|secret| tree == format!("{key}.{secret}")))
}

fn read(path: &Path) -> Result<Value, String> {
    let text = std::fs::read(path).map_err(|error| error.to_string())?;
    serde_json::from_slice(&text).map_err(|error| error.to_string())
}

fn is_key(key: &str, of: &Value) -> bool {
    of["name"].as_str().is_some_and(|name| RecordKey::of(name).to_string() == key)
}
