//! Where the agent starts and where it does not, how it ends, and what it shows.

use std::process::Command;

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::kit::driver::{binary, run};
use crate::kit::http::{free_address, get};
use crate::kit::quota::{Agent, DEADLINE, EXT4, Export, READY, XFS, wanted};
use crate::kit::{folder, wait_for};

const MIB: u64 = 1 << 20;

#[test]
fn a_file_system_without_enforced_limits_is_refused_with_what_to_do() {
    let folder = folder();
    let missing = folder.path().join("missing");
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    for (path, named) in [
        ("/run/export", "prjquota"),
        ("/run/exports/without-lists", "tune2fs"),
        (folder.path().to_str().unwrap(), "tmpfs"),
        (missing.to_str().unwrap(), "cannot open"),
        (file.to_str().unwrap(), "cannot open"),
    ] {
        let (status, text) = run(&["quota", &format!("--export={path}")]);
        assert_eq!(status.code(), Some(1), "{text}");
        assert!(text.contains(path) && text.contains(named), "{text}");
        assert_eq!(text.trim_end().lines().count(), 1, "{text}");
    }
    for (arguments, named) in [
        (&["quota"][..], "--export"),
        (&["quota", "--export=relative"], "relative"),
        (&["quota", "--export=/x", "--ids=5"], "FIRST-LAST"),
        (&["quota", "status"], "--export"),
    ] {
        let (status, text) = run(arguments);
        assert_eq!(status.code(), Some(2), "{text}");
        assert!(text.contains(named), "{text}");
    }
}

#[test]
fn a_second_agent_is_refused_and_the_first_ends_at_once_when_it_is_told_to() {
    let export = Export::on(XFS);
    let agent = Agent::start(&export, &[]);
    let path = format!("--export={}", export.path().display());
    let (status, text) = run(&["quota", &path]);
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(text.contains("another agent"), "{text}");
    assert!(agent.stop().success());
    let (status, text) = run(&["quota", &path, &path]);
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(text.contains("given twice"), "{text}");
}

#[test]
fn an_agent_whose_export_is_unmounted_ends_and_says_so() {
    let export = Export::on(XFS);
    let folder = folder();
    let place = folder.path().join("place");
    std::fs::create_dir(&place).unwrap();
    mount(Some(export.path()), &place, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let mut agent = Agent::run(&[&format!("--export={}", place.display()), "--ready=4"]);
    wait_for("the agent's state", DEADLINE, || export.on_disk(".nfs-csi/quota/agent.json").is_file().then_some(()));
    umount2(&place, MntFlags::MNT_DETACH).unwrap();
    assert_eq!(agent.wait().code(), Some(1));
    assert!(agent.log().contains("unmounted"), "{}", agent.log());
}

#[test]
fn the_status_shows_each_volume_on_the_server_and_to_a_client() {
    let export = Export::on(EXT4);
    let _agent = Agent::start(&export, &[]);
    let id = export.claim("team-a", &wanted("pvc-1", 1, 5 * MIB, 100));
    let volumes = export.on_disk(".nfs-csi/volumes");
    std::fs::create_dir(&volumes).unwrap();
    let record = format!("{}.json", wanted("pvc-1", 1, 1, 0).volume);
    std::fs::write(volumes.join(record), r#"{"format":1,"name":"pvc-1","subdir":"team-a","claim":"team/data"}"#)
        .unwrap();
    let unclaimed = wait_for("a directory", DEADLINE, || export.try_claim(&wanted("pvc-2", 1, MIB, 0)));
    wait_for("its limit", DEADLINE, || export.unclaimed().contains(&unclaimed).then_some(()));
    wait_for("the use to be written", DEADLINE, || {
        let usage = std::fs::read_to_string(export.quota_path("usage")).ok()?;
        (usage.lines().count() == 2).then_some(())
    });
    wait_for("other directories to be ready", DEADLINE, || (export.ready().len() == READY).then_some(()));
    for path in [export.path().to_owned(), export.over_nfs("")] {
        let status = |output: &str| {
            let mut command = Command::new(binary());
            command.args(["quota", "status", &format!("--export={}", path.display()), output]);
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        let table = status("--output=table");
        let line = |id: &str| table.lines().find(|line| line.starts_with(id)).unwrap_or_default().to_owned();
        let line_1 = line(&id.to_string());
        for word in ["pvc-1", "team/data", "5 MiB", "1/100", "in force"] {
            assert!(line_1.contains(word), "{word}: {table}");
        }
        assert!(line(&unclaimed.to_string()).contains("not taken yet"), "{table}");
        let overview: serde_json::Value = serde_json::from_str(&status("--output=json")).unwrap();
        assert_eq!((&overview[0]["alive"], &overview[0]["ready"]), (&true.into(), &READY.into()));
        let volume = &overview[0]["volumes"][0];
        assert_eq!((&volume["name"], &volume["directory"]), (&"pvc-1".into(), &"team-a".into()));
        assert_eq!((&volume["limitBytes"], &volume["usedInodes"]), (&(5 * MIB).into(), &1.into()));
        assert_eq!(volume["state"], "in-force");
    }
    let (status, text) = run(&["quota", "status", "--export=/run/export/none"]);
    assert_eq!(status.code(), Some(2), "{text}");
}

#[test]
fn metrics_show_what_was_given_out() {
    let export = Export::on(XFS);
    let address = free_address();
    let _agent = Agent::start(&export, &[&format!("--metrics-address={address}")]);
    export.claim("pvc-1", &wanted("pvc-1", 1, 5 * MIB, 0));
    export.want(export.id(500), &wanted("pvc-2", 1, MIB, 0));
    let path = export.path().display();
    for line in [
        format!("nfs_csi_quota_projects{{export=\"{path}\"}} 1"),
        format!("nfs_csi_quota_promised_bytes{{export=\"{path}\"}} {}", 5 * MIB),
        format!("nfs_csi_quota_ready_directories{{export=\"{path}\"}} 8"),
        format!("nfs_csi_quota_refused_total{{export=\"{path}\"}} 1"),
        "nfs_csi_quota_errors_total 0".to_owned(),
    ] {
        wait_for(&line, DEADLINE, || {
            let (_, found) = get(address, "/metrics")?;
            found.lines().any(|found| found == line).then_some(())
        });
    }
}
