//! Tests of what is found on an export.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::export::trash::Kind as TrashKind;
use crate::volume::quota_files::{ProjectId, QUOTA, USAGE};
use crate::volume::size_limit::{QuotaMode, RecordedQuota};
use crate::volume::subdir::SubDir;

const NOW: Duration = Duration::from_secs(2_000_000);

/// An export with nothing but the driver's folders.
fn export() -> (tempfile::TempDir, Arc<Export>) {
    let folder = tempfile::tempdir().unwrap();
    for own in ["volumes", "subdirs", "snapshots", "staging", "trash", "retained", "quota"] {
        std::fs::create_dir_all(folder.path().join(".nfs-csi").join(own)).unwrap();
    }
    let export = Export::local(folder.path());
    (folder, export)
}

fn record(name: &str, subdir: &str) -> Record {
    let subdir_given = name != subdir;
    Record { subdir_given, created_at: 1_000_000, ..Record::new(name.into(), SubDir::parse(subdir).unwrap()) }
}

fn write(top: &Path, record: &Record) {
    let file = format!(".nfs-csi/volumes/{}.json", RecordKey::of(&record.name));
    std::fs::write(top.join(file), serde_json::to_vec(record).unwrap()).unwrap();
}

fn plant(top: &Path, record: &Record) {
    std::fs::create_dir_all(top.join(record.subdir.as_str())).unwrap();
    write(top, record);
}

fn request(volumes: Option<serde_json::Value>) -> Request {
    let read = |items| PersistentVolume::read_list(json!({"kind": "List", "items": items}).to_string().as_bytes());
    Request {
        volumes: volumes.map(|items| read(items).unwrap()),
        driver: "nfs.csi.k8s.io".into(),
        aliases: Vec::new(),
        cluster: None,
        pace: None,
        now: NOW,
    }
}

fn pv(name: &str, handle: &str) -> serde_json::Value {
    json!({
        "metadata": {"name": name, "creationTimestamp": "1970-01-12T13:46:40Z"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "claimRef": {"namespace": "team", "name": format!("claim-of-{name}")},
            "csi": {"driver": "nfs.csi.k8s.io", "volumeHandle": handle}
        },
        "status": {"phase": "Bound"}
    })
}

/// The orphans, each with its name.
fn orphans(inventory: &Inventory) -> Vec<(Orphan, &str)> {
    let orphans = inventory.entries.iter().filter_map(|entry| Some((entry.orphan?, entry.name.as_str())));
    let mut orphans: Vec<_> = orphans.collect();
    orphans.sort_unstable();
    orphans
}

fn found<'a>(inventory: &'a Inventory, name: &str) -> &'a Entry {
    let mut named = inventory.entries.iter().filter(|entry| entry.name == name);
    let entry = named.next().unwrap_or_else(|| panic!("{name}: {:?}", inventory.entries));
    assert!(named.next().is_none(), "{name}");
    entry
}

#[test]
fn orphans_are_those_that_were_planted_and_no_others() {
    let (folder, export) = export();
    let top = folder.path();
    for (name, subdir) in [
        ("pvc-1", "pvc-1"),
        ("pvc-nested", "team/deep/data"),
        ("pvc-shared-1", "shared"),
        ("pvc-shared-2", "shared"),
        ("pvc-inside", "pvc-1/inside"),
        ("pvc-left", "pvc-left"),
        ("pvc-shared-left", "shared"),
        ("pvc-by-hand", "by-hand"),
    ] {
        plant(top, &record(name, subdir));
    }
    write(top, &record("pvc-lost", "pvc-lost"));
    write(top, &record("pvc-nested-lost", "team/lost"));
    for directory in ["go-volume", "go-legacy", "team/go", "stray", "team/stray", "in-tree", "archived-x", "kept"] {
        std::fs::create_dir_all(top.join(directory).join("data")).unwrap();
    }
    std::fs::create_dir(top.join("lost+found")).unwrap();
    let retained = serde_json::to_vec(&record("kept", "kept")).unwrap();
    std::fs::write(top.join(format!(".nfs-csi/retained/{}.json", RecordKey::of("kept"))), retained).unwrap();
    let without = take(&export, &request(None)).unwrap();
    assert_eq!(
        orphans(&without),
        [
            (Orphan::DirectoryWithoutRecord, "go-legacy"),
            (Orphan::DirectoryWithoutRecord, "go-volume"),
            (Orphan::DirectoryWithoutRecord, "in-tree"),
            (Orphan::DirectoryWithoutRecord, "stray"),
            (Orphan::DirectoryWithoutRecord, "team/go"),
            (Orphan::DirectoryWithoutRecord, "team/stray"),
            (Orphan::RecordWithoutDirectory, "pvc-lost"),
            (Orphan::RecordWithoutDirectory, "pvc-nested-lost"),
        ]
    );
    let volumes = json!([
        pv("pvc-1", "nas#export#pvc-1##"),
        pv("pvc-nested", "nas#export#team/deep/data#pvc-nested#"),
        pv("pvc-shared-1", "nas#export#shared#pvc-shared-1#"),
        pv("pvc-shared-2", "nas#export#shared#pvc-shared-2#retain"),
        pv("pvc-inside", "nas#export#pvc-1/inside#pvc-inside#"),
        pv("pvc-nested-lost", "nas#export#team/lost#pvc-nested-lost#"),
        pv("go-1", "nas#export#go-volume##"),
        pv("go-2", "nas/export/go-legacy"),
        pv("go-3", "nas#export#team/go#go-3#archive"),
        pv("hand", "nas#export#by-hand#hand#"),
        pv("gone", "nas#export#gone##"),
        pv("gone-record", "nas#export#.nfs-csi/abcdefghij234567##"),
        pv("elsewhere", "nas#other#elsewhere##"),
        {"metadata": {"name": "tree"}, "spec": {"nfs": {"server": "nas", "path": "/export/in-tree"}}},
        {"metadata": {"name": "disk"}, "spec": {"csi": {"driver": "other.example", "volumeHandle": "nas/export/none"}}},
    ]);
    let inventory = take(&export, &request(Some(volumes))).unwrap();
    assert_eq!(
        orphans(&inventory),
        [
            (Orphan::DirectoryWithoutRecord, "stray"),
            (Orphan::DirectoryWithoutRecord, "team/stray"),
            (Orphan::RecordWithoutDirectory, "pvc-lost"),
            (Orphan::RecordWithoutDirectory, "pvc-nested-lost"),
            (Orphan::RecordWithoutPv, "pvc-left"),
            (Orphan::RecordWithoutPv, "pvc-shared-left"),
            (Orphan::PvWithoutDirectory, "gone"),
            (Orphan::PvWithoutDirectory, "gone-record"),
        ]
    );
    assert_eq!(inventory.elsewhere, [("nas:/other".to_owned(), 1)].into());
    assert_eq!(found(&inventory, "go-2").directory.as_deref(), Some("go-legacy"));
    assert_eq!(found(&inventory, "kept").kind, Kind::Retained);
    assert_eq!(found(&inventory, "archived-x").kind, Kind::Archive);
    assert_eq!(found(&inventory, "pvc-by-hand").pv.as_deref(), Some("hand"));
    assert!(found(&inventory, "tree").state.contains("nfs"));
}

#[test]
fn each_entry_says_what_its_record_its_pv_and_the_quota_agent_say() {
    let (folder, export) = export();
    let project = ProjectId::new(7);
    let quota = RecordedQuota { mode: QuotaMode::Required, project, ..RecordedQuota::default() };
    let full = Record {
        capacity_bytes: 5 << 30,
        owner: Some("west".into()),
        claim: Some("a/data".into()),
        ..record("pvc-full", "pvc-full")
    };
    plant(folder.path(), &full.with_quota(quota));
    plant(folder.path(), &record("pvc-bare", "pvc-bare"));
    std::fs::write(folder.path().join(format!(".nfs-csi/{QUOTA}/{USAGE}")), "7 4096 2\n").unwrap();
    let torn = RecordKey::of("pvc-torn").to_string();
    std::fs::write(folder.path().join(format!(".nfs-csi/volumes/{torn}.json")), "{").unwrap();
    std::fs::create_dir(folder.path().join("pvc-torn")).unwrap();
    let mut released = pv("pvc-bare", "nas#export#pvc-bare##");
    released["status"]["phase"] = "Released".into();
    let inventory = take(&export, &request(Some(json!([pv("pvc-full", "nas#export#pvc-full##"), released])))).unwrap();
    let Entry { claim, size_bytes, used, created_at, owner, state, .. } = found(&inventory, "pvc-full").clone();
    assert_eq!((claim.as_deref(), size_bytes, created_at), (Some("a/data"), Some(5 << 30), Some(1_000_000)));
    assert_eq!((owner.as_deref(), state.as_str()), (Some("west"), "ok"));
    let used = used.unwrap();
    assert_eq!((used.bytes, used.by), (4096, UsedBy::Quota));
    assert!(used.at.is_some());
    let bare = found(&inventory, "pvc-bare");
    assert_eq!((bare.claim.as_deref(), bare.size_bytes), (Some("team/claim-of-pvc-bare"), Some(1 << 30)));
    assert_eq!((bare.state.as_str(), &bare.used), ("released", &None));
    assert!(found(&inventory, &torn).state.contains("cannot be read"));
    assert!(found(&inventory, "pvc-torn").state.contains("cannot be read"));
    assert_eq!(orphans(&inventory), []);
}

#[test]
fn a_walk_measures_what_nobody_reported_and_says_when() {
    let (folder, export) = export();
    for (name, subdir) in [("pvc-1", "pvc-1"), ("pvc-a", "both"), ("pvc-b", "both")] {
        plant(folder.path(), &record(name, subdir));
    }
    std::fs::write(folder.path().join("both/data"), vec![1; 1 << 20]).unwrap();
    std::os::unix::fs::symlink("../both", folder.path().join("pvc-1/link")).unwrap();
    let request = Request { pace: Some(Pace::new(0)), ..request(None) };
    let inventory = take(&export, &request).unwrap();
    for name in ["pvc-a", "pvc-b"] {
        let used = found(&inventory, name).used.as_ref().unwrap();
        assert!(used.bytes >= 1 << 20 && used.at.is_some() && used.by == UsedBy::Walk, "{used:?}");
    }
    assert!(found(&inventory, "pvc-1").used.as_ref().unwrap().bytes < 1 << 20);
}

#[test]
fn records_of_other_clusters_are_no_orphans_unless_their_cluster_is_meant() {
    let (folder, export) = export();
    for (name, owner) in [("pvc-west", Some("west")), ("pvc-left", Some("west")), ("pvc-east", Some("east"))] {
        plant(folder.path(), &Record { owner: owner.map(str::to_owned), ..record(name, name) });
    }
    let volumes = json!([pv("pvc-west", "nas#export#pvc-west##")]);
    let inventory = take(&export, &request(Some(volumes.clone()))).unwrap();
    assert_eq!(orphans(&inventory), [(Orphan::RecordWithoutPv, "pvc-left")]);
    assert_eq!(found(&inventory, "pvc-east").state, "of cluster east");
    let east = Request { cluster: Some("east".into()), ..request(Some(volumes)) };
    assert_eq!(orphans(&take(&export, &east).unwrap()), [(Orphan::RecordWithoutPv, "pvc-east")]);
}

#[test]
fn what_was_deleted_is_listed_with_its_time_and_nothing_is_written() {
    let (folder, export) = export();
    let trash = folder.path().join(".nfs-csi/trash");
    let deleted = |name: &str, kept| {
        let name =
            TrashName::new(TrashKind::Volume, RecordKey::of(name), NOW.saturating_sub(Duration::from_mins(1)), kept);
        std::fs::create_dir(trash.join(name.to_string())).unwrap();
        name
    };
    let kept = deleted("pvc-kept", Duration::from_hours(1));
    std::fs::write(trash.join(format!("{kept}.json")), serde_json::to_vec(&record("pvc-kept", "a/b")).unwrap())
        .unwrap();
    let due = deleted("pvc-due", Duration::ZERO).to_string();
    let before = std::fs::read_dir(folder.path().join(".nfs-csi")).unwrap().count();
    let inventory = take(&export, &request(None)).unwrap();
    let entry = found(&inventory, "pvc-kept");
    assert_eq!((entry.kind, entry.deleted_at, entry.state.as_str()), (Kind::Trash, Some(1_999_940), "kept"));
    assert_eq!(entry.kept_until, Some(kept.keep_until));
    assert_eq!(found(&inventory, &due).state, "being freed");
    assert_eq!(orphans(&inventory), []);
    assert_eq!(std::fs::read_dir(folder.path().join(".nfs-csi")).unwrap().count(), before);
}

#[test]
fn an_export_without_the_driver_s_folder_is_listed_and_gets_none() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("data")).unwrap();
    let inventory = take(&Export::local(folder.path()), &request(Some(json!([])))).unwrap();
    assert_eq!(orphans(&inventory), [(Orphan::DirectoryWithoutRecord, "data")]);
    assert!(!folder.path().join(".nfs-csi").exists());
}
