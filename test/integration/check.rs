//! `nfs-csi check`: what it finds on an export that was damaged on purpose, what it repairs, and what it leaves alone.

use std::process::{Command, Output};

use nfs_csi::volume::record_key::RecordKey;

use crate::cloning::{made, no_litter, removed};
use crate::kit::driver::{Driver, binary};
use crate::kit::folder;
use crate::kit::requests::create;
use crate::kit::server::{names, on_server};

fn check(arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } =
        Command::new(binary()).args(["check", "--export=127.0.0.1:/run/export"]).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[tokio::test]
async fn what_was_planted_is_found_and_only_what_holds_no_data_is_repaired() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let given = [("subDir", "team/claimed")];
    let volumes = [
        made(&driver, create("pvc-well", &[])).await,
        made(&driver, create("pvc-claimed", &given)).await,
        made(&driver, create("pvc-lost", &[])).await,
        made(&driver, create("pvc-moved", &[])).await,
    ];
    let (status, text, _) = check(&[]);
    assert_eq!((status, text.contains("4 volumes") && text.contains("nothing is wrong")), (0, true), "{text}");

    let key = |name: &str| RecordKey::of(name).to_string();
    std::fs::remove_dir(on_server("pvc-lost")).unwrap();
    std::fs::rename(on_server("pvc-moved"), on_server("pvc-moved-away")).unwrap();
    std::fs::create_dir(on_server("pvc-moved")).unwrap();
    std::fs::remove_dir(on_server(&format!(".nfs-csi/subdirs/d.team/d.claimed/v.{}", key("pvc-claimed")))).unwrap();
    let claim = format!(".nfs-csi/subdirs/d.nobody/v.{}", key("pvc-nobody"));
    std::fs::create_dir_all(on_server(&claim)).unwrap();
    let unreadable = on_server(&format!(".nfs-csi/volumes/{}.json", key("pvc-torn")));
    std::fs::write(&unreadable, "{").unwrap();
    std::fs::create_dir(on_server(".nfs-csi/trash/z9.of-a-later-version")).unwrap();
    std::fs::create_dir(on_server("somebody-s-own")).unwrap();
    std::fs::write(on_server("somebody-s-own/file"), "data").unwrap();

    let (status, text, _) = check(&["--output=json"]);
    assert_eq!(status, 1, "{text}");
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let found = |problem: &str| -> Vec<&str> {
        let findings = report["findings"].as_array().unwrap().iter();
        findings
            .filter(|finding| finding["problem"] == problem)
            .map(|finding| finding["path"].as_str().unwrap())
            .collect()
    };
    assert_eq!(found("record-without-directory"), ["pvc-lost"]);
    assert_eq!(found("other-directory"), ["pvc-moved"]);
    assert_eq!(found("record-without-claim"), ["team/claimed"]);
    assert_eq!(found("claim-without-record"), ["nobody"]);
    assert_eq!(found("unreadable-record"), [format!(".nfs-csi/volumes/{}.json", key("pvc-torn"))]);
    assert_eq!(found("unknown"), [".nfs-csi/trash/z9.of-a-later-version"]);
    assert_eq!(found("directory-without-record"), ["pvc-moved-away", "somebody-s-own"]);

    let (status, text, plan) = check(&["--repair", "--staging-retention=1ms"]);
    assert_eq!(status, 1, "{text}");
    for repaired in ["team/claimed", "nobody", "pvc-moved"] {
        assert!(plan.lines().any(|line| line.starts_with(&format!("repairing {repaired}: "))), "{plan}");
    }
    assert!(!on_server(&claim).exists());
    assert!(text.contains("pvc-lost") && text.contains("2 findings are left"), "{text}");
    // What may be data stays as it is.
    assert_eq!(std::fs::read_to_string(on_server("somebody-s-own/file")).unwrap(), "data");
    assert!(unreadable.exists() && on_server("pvc-moved-away").exists());
    assert_eq!(names(".nfs-csi/trash"), ["z9.of-a-later-version"]);

    std::fs::remove_file(unreadable).unwrap();
    for volume in &volumes {
        removed(&driver, volume).await;
    }
    std::fs::remove_dir_all(on_server("somebody-s-own")).unwrap();
    std::fs::remove_dir(on_server("pvc-moved-away")).unwrap();
    assert_eq!(names(".nfs-csi/trash").last().map(String::as_str), Some("z9.of-a-later-version"), "a later version's");
    std::fs::remove_dir(on_server(".nfs-csi/trash/z9.of-a-later-version")).unwrap();
    let (status, text, _) = check(&[]);
    assert_eq!(status, 0, "{text}");
    no_litter();
}

#[test]
fn a_check_that_cannot_be_made_says_why_and_has_its_own_status() {
    let output = Command::new(binary()).args(["check", "--export=127.0.0.1:/run/not-exported"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/run/not-exported"));
}
