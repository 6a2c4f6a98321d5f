//! `nfs-csi quota convert`.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::{Command, Stdio};

use super::{SIZE, assert_well, class, condition, create, fits, made, on_disk, on_export, record, shown};
use crate::kit::driver::{Driver, binary};
use crate::kit::quota::{Agent, DEADLINE, Export, XFS};
use crate::kit::requests::expand;
use crate::kit::{folder, names_in, wait_for};
use crate::trees::{assert_same, entries, fill};

#[tokio::test]
async fn a_volume_with_files_gets_a_limit_and_all_of_it_is_charged() {
    let export = Export::on(XFS);
    let _agent = Agent::start(&export, &[]);
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let volume = made(&mut controller, create(&export, "pvc-1", SIZE, &[("quota", "none")])).await;
    let directory = on_disk(&export, &volume);
    fill(&directory);
    symlink("nowhere", directory.join("a link")).unwrap();
    nix::sys::stat::mknod(
        &directory.join("pipe"),
        nix::sys::stat::SFlag::S_IFIFO,
        nix::sys::stat::Mode::from_bits_truncate(0o640),
        0,
    )
    .unwrap();
    std::os::unix::fs::chown(directory.join("pipe"), Some(1000), Some(100)).unwrap();
    let before = entries(&directory);
    let inode = directory.metadata().unwrap().ino();
    let path = export.path().to_str().unwrap();
    for _ in 0..2 {
        assert!(on_export(path, &["quota", "convert", "pvc-1"]).status.success());
    }
    assert_same(&before, &directory, &directory);
    assert_eq!(directory.metadata().unwrap().ino(), inode);
    assert_eq!(directory.join("pipe").metadata().unwrap().permissions().mode() & 0o7777, 0o640);
    let project = record(&export, "pvc-1").project().unwrap();
    let mut entries = std::collections::HashSet::new();
    walk(&directory, &mut entries);
    assert_eq!(export.kernel(project).inodes, entries.len() as u64);
    assert_eq!(shown(&directory), SIZE);
    assert!(!fits(&directory.join("large"), SIZE));
    std::fs::remove_file(directory.join("large")).unwrap();
    // Everything in it can be renamed as before.
    std::fs::create_dir(directory.join("to")).unwrap();
    for name in names_in(&directory).into_iter().filter(|name| name != "to") {
        std::fs::rename(directory.join(&name), directory.join("to").join(&name)).unwrap();
    }
    let size = i64::try_from(2 * SIZE).unwrap();
    controller.controller_expand_volume(expand(&volume.volume_id, size, 0)).await.unwrap();
    assert_eq!(shown(&directory), 2 * SIZE);
    assert!(!condition(&mut controller, &volume).await.abnormal);
    assert!(export.unclaimed().is_empty());
    assert_well(&export);
}

#[tokio::test]
async fn a_conversion_that_is_killed_again_and_again_is_completed_by_the_next() {
    const FILES: u32 = 1500;
    const KILLS: u32 = 12;
    let export = Export::on(XFS);
    let _agent = Agent::start(&export, &[]);
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let volume = made(&mut controller, create(&export, "pvc-1", SIZE, &[("quota", "none")])).await;
    let directory = on_disk(&export, &volume);
    for file in 0..FILES {
        let within = directory.join(format!("{}/{}", file % 10, file % 7));
        std::fs::create_dir_all(&within).unwrap();
        std::fs::write(within.join(file.to_string()), "kept").unwrap();
    }
    let before = entries(&directory);
    let convert = || {
        let mut command = Command::new(binary());
        command.args(["quota", "convert", "pvc-1", &format!("--export={}", export.path().display())]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let charged = || export.projects("applied").iter().map(|id| export.kernel(*id).inodes).sum::<u64>();
    let mut midway = 0;
    for kill in 1..=KILLS {
        // Each gets a little further than the one before it, which is seen on the disk.
        let mut running = convert();
        wait_for("a part to be converted", DEADLINE, || {
            let has_ended = running.try_wait().unwrap().is_some();
            (has_ended || charged() > u64::from(FILES * kill / (2 * KILLS))).then_some(())
        });
        midway += u32::from(running.try_wait().unwrap().is_none());
        running.kill().unwrap();
        running.wait().unwrap();
        assert!(record(&export, "pvc-1").project().is_none() || charged() >= u64::from(FILES));
    }
    assert!(midway > 0, "none was killed midway");
    assert!(convert().wait().unwrap().success());
    assert_same(&before, &directory, &directory);
    let project = record(&export, "pvc-1").project().unwrap();
    let mut entries = std::collections::HashSet::new();
    walk(&directory, &mut entries);
    wait_for("the directory that was claimed to go", DEADLINE, || export.unclaimed().is_empty().then_some(()));
    assert_eq!((export.kernel(project).inodes, shown(&directory)), (entries.len() as u64, SIZE));
    assert_eq!(export.projects("applied"), [project]);
    assert!(!condition(&mut controller, &volume).await.abnormal);
    assert_well(&export);
}

fn walk(directory: &std::path::Path, entries: &mut std::collections::HashSet<u64>) {
    entries.insert(directory.metadata().unwrap().ino());
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        entries.insert(entry.metadata().unwrap().ino());
        if entry.file_type().unwrap().is_dir() {
            walk(&entry.path(), entries);
        }
    }
}

#[tokio::test]
async fn what_cannot_be_converted_is_refused_with_the_reason_and_stays_as_it_is() {
    let export = Export::on(XFS);
    let _agent = Agent::start(&export, &[]);
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let plain = [("quota", "none")];
    let refused = |volume: &str, reason: &str| {
        let output = on_export(export.path().to_str().unwrap(), &["quota", "convert", volume]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(reason), "{volume}: {text}");
    };
    refused("pvc-none", "pvc-none");
    let large = made(&mut controller, create(&export, "pvc-large", SIZE, &plain)).await;
    assert!(fits(&on_disk(&export, &large).join("file"), 2 * SIZE));
    refused("pvc-large", "expand its claim");
    let shared = [("quota", "none"), ("subDir", "shared")];
    made(&mut controller, create(&export, "pvc-a", SIZE, &shared)).await;
    made(&mut controller, create(&export, "pvc-b", SIZE, &shared)).await;
    refused("pvc-a", "1 volumes");
    let inside = class(&export, &[("quota", "none"), ("subDir", "shared/inside")]);
    made(&mut controller, crate::kit::requests::create("pvc-c", &inside)).await;
    refused("pvc-c", "2 volumes");
    assert!(["pvc-large", "pvc-a", "pvc-c"].iter().all(|name| record(&export, name).project().is_none()));
    assert_well(&export);
}
