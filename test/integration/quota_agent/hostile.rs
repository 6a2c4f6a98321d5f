//! An NFS client with root puts what it likes into the agent's folders, and other programs have projects on the disk.

use std::os::unix::fs::symlink;
use std::time::Duration;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::kit::quota::{Agent, DEADLINE, EXT4, Export, XFS, wanted};
use crate::kit::wait_for;

const MIB: u64 = 1 << 20;

#[test]
fn whatever_a_client_puts_there_volumes_get_their_limits() {
    let export = Export::on(XFS);
    let mut agent = Agent::start(&export, &[]);
    let put = |path: &str| export.quota_path(path);
    let ready = export.ready();
    let text = serde_json::to_string(&wanted("a", 1, MIB, 0)).unwrap();
    std::fs::write(put(&format!("wanted/{}", ready[0])), &text).unwrap();
    mkfifo(&put(&format!("wanted/{}", ready[1])), Mode::S_IRWXU).unwrap();
    std::fs::create_dir_all(put(&format!("wanted/{}/full", ready[2]))).unwrap();
    symlink("/etc/passwd", put(&format!("wanted/{}", ready[3]))).unwrap();
    symlink(&text[..40], put(&format!("wanted/{}", ready[4]))).unwrap();
    for id in &ready[..5] {
        wait_for("the reason", DEADLINE, || export.refused(*id));
        assert!(export.kernel(*id).limit.inodes == 1, "{id}");
    }
    for name in ["x".repeat(255), "-1".into(), "4294967296".into(), "\u{202e}".into(), format!("0{}", ready[5])] {
        symlink(&text, put("wanted").join(name)).unwrap();
    }
    for number in 0..500 {
        symlink(&text, put("wanted").join(format!("junk-{number}"))).unwrap();
        symlink(&text, put("wanted").join(export.id(400 + number).to_string())).unwrap();
    }
    for folder in ["applied", "refused", "ready"] {
        for at in 20..40 {
            std::fs::create_dir_all(put(folder).join(export.id(at).to_string()).join("full")).unwrap();
        }
    }
    // The file of its state is replaced by a directory: that is moved aside.
    std::fs::remove_file(put("agent.json")).unwrap();
    std::fs::create_dir_all(put("agent.json/full")).unwrap();
    wait_for("the agent to write its state", DEADLINE, || put("agent.json").is_file().then_some(()));
    let id = export.claim("pvc-1", &wanted("pvc-1", 1, MIB, 0));
    assert_eq!(export.kernel(id).limit.bytes, MIB);
    assert!(agent.is_running());
    for at in 400..900 {
        assert!(export.kernel(export.id(at)).is_unused());
    }
    // It is the same to one that starts among all of that.
    agent.kill();
    let mut agent = Agent::start(&export, &[]);
    let id = export.claim("pvc-2", &wanted("pvc-2", 1, MIB, 0));
    assert_eq!(export.kernel(id).limit.bytes, MIB);
    assert!(agent.is_running());
}

#[test]
fn a_client_cannot_make_the_agent_believe_in_a_limit_or_an_id() {
    for disk in [XFS, EXT4] {
        let export = Export::on(disk);
        let agent = Agent::start(&export, &[]);
        let id = export.claim("pvc-1", &wanted("pvc-1", 1, MIB, 0));
        agent.kill();
        let (forged, linked, moved) = (export.id(100), export.id(101), export.id(102));
        let foreign = export.assigned("foreign", forged);
        export.set_limit(forged, 5 * MIB);
        symlink(
            serde_json::to_string(&wanted("evil", 3, 1 << 40, 0)).unwrap(),
            export.quota_path(&format!("applied/{forged}")),
        )
        .unwrap();
        std::fs::hard_link(
            export.quota_path(&format!("applied/{id}")),
            export.quota_path(&format!("applied/{linked}")),
        )
        .unwrap();
        std::fs::rename(export.over_nfs("foreign"), export.quota_path(&format!("ready/{forged}"))).unwrap();
        let ready = export.ready()[0];
        std::fs::rename(export.quota_path(&format!("ready/{ready}")), export.quota_path(&format!("ready/{moved}")))
            .unwrap();
        let agent = Agent::start(&export, &[]);
        for id in [forged, linked, moved] {
            export.want(id, &wanted("evil", 4, 1 << 40, 0));
            wait_for("the reason", DEADLINE, || export.refused(id));
            assert!(export.applied(id).is_none(), "{disk}");
        }
        assert_eq!(export.kernel(forged).limit.bytes, 5 * MIB, "{disk}");
        assert!(!foreign.exists() && agent.log().contains("is not believed"), "{}", agent.log());
        assert_eq!(export.applied(id).unwrap().bytes, MIB);
    }
}

#[test]
fn projects_of_other_programs_are_neither_given_out_nor_changed() {
    let export = Export::on(XFS);
    // One has a directory and no limit, one a limit and no directory.
    export.assigned("theirs", export.id(0));
    export.set_limit(export.id(2), 3 * MIB);
    let _agent = Agent::start(&export, &[]);
    wait_for("all directories", DEADLINE, || (export.ready().len() == 8).then_some(()));
    let ready = export.ready();
    assert!(!ready.contains(&export.id(0)) && !ready.contains(&export.id(2)), "{ready:?}");
    for id in [export.id(0), export.id(2)] {
        export.want(id, &wanted("a", 1, 1 << 40, 0));
        wait_for("the reason", DEADLINE, || export.refused(id));
    }
    // It asks the kernel for all projects, again and again.
    let volume = export.claim("pvc-1", &wanted("pvc-1", 1, MIB, 0));
    std::fs::remove_dir(export.over_nfs("pvc-1")).unwrap();
    wait_for("an id to be free", DEADLINE, || export.kernel(volume).is_unused().then_some(()));
    assert_eq!((export.kernel(export.id(0)).inodes, export.kernel(export.id(0)).limit.bytes), (1, 0));
    assert_eq!(export.kernel(export.id(2)).limit.bytes, 3 * MIB);
    export.set_limit(export.id(2), 0);
}

#[test]
fn an_agent_whose_folders_are_replaced_ends_and_says_so() {
    let export = Export::on(XFS);
    let mut agent = Agent::start(&export, &[]);
    std::fs::rename(export.quota_path("wanted"), export.quota_path("away")).unwrap();
    std::fs::create_dir(export.quota_path("wanted")).unwrap();
    assert_eq!(agent.wait().code(), Some(1));
    assert!(agent.log().contains("was replaced"), "{}", agent.log());
    let state = || export.on_disk(".nfs-csi/quota/agent.json").metadata().unwrap().modified().unwrap();
    let last = state();
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(state(), last);
    let _agent = Agent::start(&export, &[]);
    export.claim("pvc-1", &wanted("pvc-1", 1, MIB, 0));
}
