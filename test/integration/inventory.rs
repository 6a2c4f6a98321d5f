//! `nfs-csi list`: what it finds on an export beside healthy volumes of all kinds, and that it leaves everything as it is.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::cloning::{made, removed};
use crate::kit::driver::{Driver, binary};
use crate::kit::requests::{create, snapshot};
use crate::kit::server::on_server;
use crate::kit::{folder, records};
use crate::listing::Share;

/// What a list of this export has, as JSON.
fn list(export: &str, arguments: &[&str]) -> Value {
    let output = run(export, &[arguments, &["--output=json"]].concat());
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

fn run(export: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(["list", "--export", export]).args(arguments).stdin(Stdio::null());
    let output = command.output().unwrap();
    println!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    output
}

/// The orphans in a list, each as `kind of orphan: name`, sorted.
fn orphans(list: &Value) -> Vec<String> {
    let entries = list["entries"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut orphans: Vec<String> = entries
        .filter(|entry| !entry["orphan"].is_null())
        .map(|entry| format!("{}: {}", text(&entry["orphan"]), text(&entry["name"])))
        .collect();
    orphans.sort();
    orphans
}

fn entry<'a>(list: &'a Value, kind: &str, name: &str) -> &'a Value {
    let mut entries = list["entries"].as_array().unwrap().iter();
    let entry = entries.find(|entry| entry["kind"] == kind && entry["name"] == name);
    entry.unwrap_or_else(|| panic!("no {kind} {name}: {list:#}"))
}

pub fn pv(name: &str, handle: &str, attributes: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": name, "creationTimestamp": "2024-01-01T00:00:00Z"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "claimRef": {"namespace": "team", "name": format!("claim-of-{name}")},
            "csi": {"driver": "nfs.csi.k8s.io", "volumeHandle": handle, "volumeAttributes": attributes}
        },
        "status": {"phase": "Bound"}
    })
}

/// All names below a folder, each with the time at which it was changed.
fn times(folder: &Path) -> BTreeMap<String, i64> {
    use std::os::unix::fs::MetadataExt;
    let mut times = BTreeMap::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(path) = waiting.pop() {
        let stat = std::fs::symlink_metadata(&path).unwrap();
        times.insert(path.to_string_lossy().into_owned(), stat.ctime() * 1_000_000_000 + stat.ctime_nsec());
        if stat.is_dir() {
            waiting.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    times
}

#[tokio::test]
async fn the_orphans_among_volumes_of_all_kinds_are_found_and_no_others() {
    let share = Share::new();
    let (folder, state) = (folder(), folder());
    let driver = Driver::start(state.path(), &["--cluster-id=west"]);
    let class = |more: &[(&'static str, &'static str)]| [&share.parameters()[..], more].concat();
    let mut volumes = BTreeMap::new();
    for (name, more) in [
        ("pvc-own", &[][..]),
        ("pvc-nested", &[("subDir", "team/deep/data")]),
        ("pvc-shared-1", &[("subDir", "shared")]),
        ("pvc-shared-2", &[("subDir", "shared")]),
        ("pvc-hash", &[("subDir", "a#b")]),
        ("pvc-retained", &[("onDelete", "retain"), ("subDir", "retained")]),
        ("pvc-archived", &[("onDelete", "archive")]),
        ("pvc-trashed", &[("trashRetention", "72h")]),
        ("pvc-lost", &[("subDir", "team/lost")]),
        ("pvc-left", &[]),
    ] {
        volumes.insert(name, made(&driver, create(name, &class(more))).await);
    }
    let taken = snapshot("snap-1", &volumes["pvc-own"].volume_id, &[]);
    driver.controller().await.create_snapshot(taken).await.unwrap();
    for name in ["pvc-retained", "pvc-archived", "pvc-trashed"] {
        removed(&driver, &volumes[name]).await;
    }
    assert!(driver.stop().await.success());
    // Volumes and a snapshot of csi-driver-nfs, and what no volume is.
    for directory in ["pvc-go", "legacy", "team/go", "snapshot-go", "lost+found", ".snapshot", "in-tree"] {
        std::fs::create_dir_all(share.disk().join(directory)).unwrap();
    }
    std::fs::write(share.disk().join("snapshot-go/pvc-go.tar.gz"), "x").unwrap();
    std::fs::write(share.disk().join("a-file"), "x").unwrap();
    std::os::unix::fs::symlink("pvc-own", share.disk().join("a-link")).unwrap();
    // The orphans.
    std::fs::remove_dir(share.disk().join("team/lost")).unwrap();
    for stray in ["stray/data", "team/stray"] {
        std::fs::create_dir_all(share.disk().join(stray)).unwrap();
    }
    let path = share.disk().to_str().unwrap().trim_start_matches('/');
    let none = json!({});
    let go = |name: &str, rest: &str| pv(name, &format!("127.0.0.1#{path}#{rest}"), &none);
    let own = |name: &str| {
        let volume = &volumes[name];
        pv(name, &volume.volume_id, &json!(volume.volume_context))
    };
    let pvs = json!({"kind": "List", "items": [
        own("pvc-own"), own("pvc-nested"), own("pvc-shared-1"), own("pvc-shared-2"), own("pvc-hash"),
        go("pvc-go", "pvc-go##"),
        pv("go-legacy", &format!("127.0.0.1/{path}/legacy"), &none),
        go("go-nested", "team/go#go-nested#archive"),
        go("pv-gone", "gone##"),
        pv("elsewhere", "127.0.0.1#run/other#elsewhere##", &none),
        {"metadata": {"name": "nfs"}, "spec": {"nfs": {"server": "127.0.0.1", "path": format!("/{path}/in-tree")}}},
    ]});
    let file = folder.path().join("pvs.json");
    std::fs::write(&file, pvs.to_string()).unwrap();
    let before = times(share.disk());

    let given = format!("--pvs={}", file.display());
    let all = list(&share.name(), &[&given]);
    let expected = [
        "directory-without-record: stray",
        "directory-without-record: team/stray",
        "pv-without-directory: pv-gone",
        "record-without-directory: pvc-lost",
        "record-without-pv: pvc-left",
    ];
    assert_eq!(orphans(&all), expected);
    let only = list(&share.name(), &[&given, "--orphans"]);
    assert_eq!((orphans(&only), only["entries"].as_array().unwrap().len()), (orphans(&all), expected.len()));
    for (kind, name) in [
        ("volume", "pvc-own"),
        ("volume", "pvc-hash"),
        ("volume", "pvc-go"),
        ("volume", "go-nested"),
        ("volume", "nfs"),
        ("snapshot", "snap-1"),
        ("snapshot", "snapshot-go"),
        ("archive", "archived-pvc-archived"),
        ("retained", "pvc-retained"),
        ("trash", "pvc-trashed"),
    ] {
        entry(&all, kind, name);
    }
    assert_eq!(entry(&all, "volume", "pvc-own")["owner"], "west");
    assert_eq!(entry(&all, "volume", "pvc-own")["claim"], "team/claim-of-pvc-own");
    assert_eq!(entry(&all, "volume", "pvc-go")["sizeBytes"], 1 << 30);
    assert_eq!(all["elsewhere"]["127.0.0.1:/run/other"], 1);
    assert!(entry(&all, "trash", "pvc-trashed")["keptUntil"].as_u64() > all["takenAt"].as_u64());

    let without = list(&share.name(), &["--orphans"]);
    let known = |orphan: &&String| !orphan.starts_with("directory-without-record");
    assert_eq!(orphans(&without).iter().filter(known).collect::<Vec<_>>(), ["record-without-directory: pvc-lost"]);

    let text = String::from_utf8(run(&share.name(), &[&given]).stdout).unwrap();
    assert!(text.starts_with("KIND ") && text.contains("ORPHAN: PV without directory"), "{text}");
    assert_eq!(times(share.disk()), before);
}

#[tokio::test]
async fn a_list_with_du_says_what_is_used_and_follows_no_link() {
    let share = Share::new();
    for name in ["pvc-full", "pvc-link"] {
        records::volume(share.disk(), name);
    }
    for number in 0..300 {
        let directory = share.disk().join(format!("pvc-full/{number}"));
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join("file"), vec![1; 20_000]).unwrap();
    }
    std::os::unix::fs::symlink("../pvc-full", share.disk().join("pvc-link/link")).unwrap();
    let listed = list(&share.name(), &["--du", "--du-rate=0"]);
    let bytes = |name: &str| entry(&listed, "volume", name)["used"]["bytes"].as_u64().unwrap();
    assert!((300 * 20_000..300 * 40_000).contains(&bytes("pvc-full")), "{}", bytes("pvc-full"));
    assert!(bytes("pvc-link") < 20_000, "{}", bytes("pvc-link"));
    let used = &entry(&listed, "volume", "pvc-full")["used"];
    assert!(used["by"] == "walk" && used["at"].as_u64() >= listed["takenAt"].as_u64(), "{used}");
    assert_eq!(entry(&list(&share.name(), &[]), "volume", "pvc-full")["used"], Value::Null);
    let text = String::from_utf8(run(&share.name(), &["--du"]).stdout).unwrap();
    assert!(text.lines().any(|line| line.contains("pvc-full") && line.contains("s ago)")), "{text}");
}

#[test]
fn an_export_that_is_read_only_is_listed_and_one_that_is_not_there_is_an_error() {
    let disk = on_server("../exports/readonly");
    records::folders(&disk);
    records::volume(&disk, "pvc-listed");
    let listed = list("127.0.0.1:/run/exports/readonly", &[]);
    entry(&listed, "volume", "pvc-listed");
    std::fs::remove_dir(disk.join("pvc-listed")).unwrap();
    std::fs::remove_dir_all(disk.join(".nfs-csi")).unwrap();
    let failed = run("127.0.0.1:/run/not-exported", &[]);
    assert_eq!(failed.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("/run/not-exported"));
    let failed = run("127.0.0.1:/run/export", &["--pvs=/no/such/file"]);
    assert_eq!(failed.status.code(), Some(2));
}

/// A kubectl that knows one pod and one PersistentVolume, notes how it is called, and runs what is to run in the pod here.
const KUBECTL: &str = r#"#!/bin/sh
echo "$*" >> "$STUB/calls"
context=
case $1 in --context) context="$1 $2"; shift 2;; esac
case "$1 $2" in
"get pods") cat "$STUB/pods.json";;
"get persistentvolumes") cat "$STUB/pvs.json";;
exec*)
	while [ "$1" != -- ]; do shift; done
	shift
	[ "$1" = /nfs-csi ] || exit 9
	shift
	exec "$E2E_DRIVER" "$@";;
*) echo "unexpected: $*" >&2; exit 9;;
esac
"#;

#[tokio::test]
async fn kubectl_s_plugin_runs_commands_in_the_controller_s_pod_with_the_cluster_s_volumes() {
    use std::os::unix::fs::PermissionsExt;
    let (share, folder) = (Share::new(), folder());
    for name in ["pvc-known", "pvc-left"] {
        records::volume(share.disk(), name);
    }
    let path = share.disk().to_str().unwrap().trim_start_matches('/');
    let known = pv("pvc-known", &format!("127.0.0.1#{path}#pvc-known##"), &json!({}));
    let pod = |name: &str, ready: bool, phase: &str| {
        json!({
            "metadata": {"name": name, "namespace": "storage"},
            "spec": {"containers": [{"name": "csi-provisioner"}, {"name": "nfs", "args": ["controller", "--metrics-address=127.0.0.1:9"]}]},
            "status": {"phase": phase, "containerStatuses": [{"name": "nfs", "ready": ready}]}
        })
    };
    let pods = json!({"items": [pod("starting", false, "Running"), pod("ended", true, "Succeeded"), pod("leader", true, "Running")]});
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("pods.json", &pods.to_string());
    write("pvs.json", &json!({"kind": "List", "items": [known]}).to_string());
    write("kubectl", KUBECTL);
    std::fs::set_permissions(folder.path().join("kubectl"), PermissionsExt::from_mode(0o755)).unwrap();
    let plugin = folder.path().join("kubectl-nfs_csi");
    std::os::unix::fs::symlink(binary(), &plugin).unwrap();
    let run = |arguments: &[&str]| {
        let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
        let output = Command::new(&plugin)
            .args(arguments)
            .env("PATH", path)
            .env("STUB", folder.path())
            .stdin(Stdio::null())
            .output();
        let output = output.unwrap();
        println!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, text, _) = run(&["list", "--export", &share.name(), "--orphans", "--output=json", "--context=east"]);
    assert_eq!(status, Some(0));
    assert_eq!(orphans(&serde_json::from_str(&text).unwrap()), ["record-without-pv: pvc-left"]);
    let calls = std::fs::read_to_string(folder.path().join("calls")).unwrap();
    let selector = "--selector app=csi-nfs-controller --output json";
    let expected = [
        format!("--context east get pods --all-namespaces {selector}"),
        "--context east get persistentvolumes --output json".into(),
        format!(
            "--context east exec --namespace storage leader --container nfs --stdin -- /nfs-csi list --export {} --orphans \
             --output=json --pvs -",
            share.name()
        ),
    ];
    assert_eq!(calls.lines().collect::<Vec<_>>(), expected);

    // A list of volumes that is at hand, other commands, and their status.
    let file = folder.path().join("none.json");
    std::fs::write(&file, r#"{"kind": "List", "items": []}"#).unwrap();
    let (_, text, _) =
        run(&["list", "-n", "storage", "--pvs", file.to_str().unwrap(), "--export", &share.name(), "--output=json"]);
    assert_eq!(orphans(&serde_json::from_str(&text).unwrap()).len(), 2);
    std::fs::remove_dir(share.disk().join("pvc-left")).unwrap();
    let (status, text, _) = run(&["check", "--export", &share.name()]);
    assert!(status == Some(1) && text.contains("record without directory: pvc-left"), "{text}");
    let (status, _, error) = run(&["controller"]);
    assert!(status == Some(2) && error.contains("controller is no command"), "{error}");
    assert!(run(&["--help"]).1.contains("kubectl nfs-csi"));
    // Every controller is asked where it answers; none does here.
    let (status, text, _) = run(&["jobs"]);
    assert!(status == Some(2) && text.contains("storage/leader:") && text.contains("storage/starting:"), "{text}");
    let calls = std::fs::read_to_string(folder.path().join("calls")).unwrap();
    let asked = |pod: &str| {
        format!("exec --namespace storage {pod} --container nfs -- /nfs-csi jobs --metrics-address 127.0.0.1:9")
    };
    assert!([asked("leader"), asked("starting")].iter().all(|call| calls.lines().any(|line| line == call)), "{calls}");
    write("pods.json", r#"{"items": []}"#);
    let (status, _, error) = run(&["check", "--export", &share.name()]);
    assert!(status == Some(2) && error.contains("app=csi-nfs-controller"), "{error}");
}
