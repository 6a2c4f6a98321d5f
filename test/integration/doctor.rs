//! `nfs-csi doctor`: on a healthy node and export everything passes and nothing is left; for each fault that is injected
//! here exactly the check that is for it says so, with its remedy.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, SystemTime};

use nfs_csi::proto::volume_capability::access_mode::Mode;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::Value;

use crate::kit::client::A;
use crate::kit::clock::Clock;
use crate::kit::driver::{Driver, binary};
use crate::kit::http::free_address;
use crate::kit::mortal::MORTAL;
use crate::kit::name_server::{NameServer, no_such_name};
use crate::kit::requests::{by_hand, publish};
use crate::kit::share::Share;
use crate::kit::{Folder, folder, names_in, wait_for};
use crate::servers::{hanging, server, silent};

const NONE: Option<&str> = None;
/// The driver as `cargo test` builds it, linked dynamically: its clock can be changed.
const DYNAMIC: &str = env!("CARGO_BIN_EXE_nfs-csi");

/// What a doctor printed and exited with.
pub struct Seen {
    status: i32,
    /// By the check's name: outcome, what was seen, remedy.
    pub checks: BTreeMap<String, [String; 3]>,
}

impl Seen {
    pub fn of(command: &mut Command) -> Self {
        // A server that has just started grants no locks.
        wait_for("the end of the server's grace period", Duration::from_mins(1), || {
            std::fs::read_to_string("/proc/fs/nfsd/v4_end_grace").unwrap().starts_with('Y').then_some(())
        });
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let report: Value =
            serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)));
        let checks = report["checks"].as_array().unwrap().iter().map(|check| {
            let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
            (text("name"), ["outcome", "seen", "remedy"].map(text))
        });
        Self { status: output.status.code().unwrap(), checks: checks.collect() }
    }

    /// The checks that found something, with their outcomes.
    fn found(&self) -> BTreeMap<&str, &str> {
        let found = self.checks.iter().map(|(name, [outcome, ..])| (name.as_str(), outcome.as_str()));
        found.filter(|(_, outcome)| ["warn", "fail"].contains(outcome)).collect()
    }

    /// Makes sure that these checks found something, with these outcomes and a word of each remedy, and no others.
    pub fn has_only(&self, fault: &str, expected: &[(&str, &str, &str)]) {
        let outcomes: BTreeMap<&str, &str> = expected.iter().map(|(name, outcome, _)| (*name, *outcome)).collect();
        assert_eq!(self.found(), outcomes, "{fault}: {:#?}", self.checks);
        for (name, _, word) in expected {
            let remedy = &self.checks[*name][2];
            assert!(remedy.contains(word), "{fault}: {name}: {word}: {remedy}");
        }
        let worst = expected.iter().map(|(_, outcome, _)| if *outcome == "fail" { 2 } else { 1 }).max();
        assert_eq!(self.status, worst.unwrap_or(0), "{fault}");
    }
}

fn doctor<S: AsRef<std::ffi::OsStr>>(flags: impl IntoIterator<Item = S>) -> Seen {
    Seen::of(command(binary()).args(flags))
}

pub fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.args(["doctor", "--output=json"]);
    command
}

/// A share of the guest's healthy export.
pub fn healthy(share: &Share) -> [String; 2] {
    let export = share.export();
    let (_, path) = export.split_once(':').unwrap();
    ["--server=127.0.0.1".into(), format!("--share={path}")]
}

/// The guest's server, with a share and options.
fn at(share: &str, options: &str) -> [String; 3] {
    ["--server=127.0.0.1".into(), format!("--share={share}"), format!("--options={options}")]
}

/// A kubelet's directory with a pod, on a file system of its own that is mounted shared.
fn kubelet(folder: &Folder) -> PathBuf {
    let path = folder.path().join("kubelet");
    std::fs::create_dir(&path).unwrap();
    mount(Some("disk"), &path, Some("tmpfs"), MsFlags::empty(), NONE).unwrap();
    mount(NONE, &path, NONE, MsFlags::MS_SHARED, NONE).unwrap();
    std::fs::create_dir_all(path.join("pods/pod-1/volumes")).unwrap();
    path
}

/// The doctor's processes that there are.
pub fn processes() -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.contains("\0doctor-worker\0")).collect()
}

/// Another process; it is killed when this goes.
pub struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn all_passes_on_a_healthy_node_and_export_and_nothing_is_left() {
    let (folder, share) = (folder(), Share::new());
    let kubelet = format!("--kubelet-dir={}", kubelet(&folder).display());
    let mounts = || std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let before = mounts();
    let all = [
        "system-calls",
        "capability",
        "nfs-client",
        "mount-options",
        "name-lookup",
        "tcp",
        "rpc",
        "nfs-version",
        "mount",
        "free-space",
        "records",
        "writable",
        "owner",
        "ids",
        "links",
        "attributes",
        "clock",
        "clone",
        "copy",
        "xattrs",
        "acls",
        "locks",
        "cleanup",
        "kubelet-dir",
        "foreign-mounts",
        "stuck-mounts",
    ];
    let skipped = ["reverse-lookup", "statd", "gssd", "keytab", "quota-agent", "breakers", "export-id", "server-map"];
    for own_folder in [false, true] {
        let seen = doctor(healthy(&share).iter().chain([&kubelet, &"--options=nfsvers=4.2,nconnect=2".into()]));
        seen.has_only("none", &[]);
        for (names, outcome) in [(&all[..], "pass"), (&skipped, "skip")] {
            for name in names {
                assert_eq!(seen.checks[*name][0], outcome, "{name}: {:?}", seen.checks[*name]);
            }
        }
        // Servers of newer kernels offer TLS.
        assert!(["pass", "skip"].contains(&seen.checks["starttls"][0].as_str()), "{:?}", seen.checks["starttls"]);
        assert_eq!(seen.checks.len(), all.len() + skipped.len() + 1);
        // Where the driver has a folder of its own, that is where the doctor works.
        assert_eq!(seen.checks["writable"][1].contains(".nfs-csi/doctor-"), own_folder);
        assert_eq!(share.names(""), if own_folder { vec![".nfs-csi"] } else { Vec::new() });
        assert_eq!(share.names(".nfs-csi"), Vec::<String>::new());
        let _ = std::fs::create_dir(share.on_disk(".nfs-csi"));
    }
    assert_eq!(processes(), Vec::<String>::new());
    assert_eq!(mounts(), before);
    // Of older versions less is looked at, and all that is passes.
    for options in ["nfsvers=4.1", "nfsvers=4.0", "nfsvers=3,nolock", "ro"] {
        doctor(healthy(&share).iter().chain([&format!("--options={options}")])).has_only(options, &[]);
    }
    // Without a server the node alone is looked at, and without a share no share.
    for (flags, skipped) in [(&["--server=127.0.0.1"][..], "--share"), (&[], "--server")] {
        let seen = doctor(flags);
        seen.has_only("none", &[]);
        assert!(seen.checks["mount"][1].contains(skipped), "{:?}", seen.checks["mount"]);
    }
    let text = Command::new(binary()).arg("doctor").args(healthy(&share)).output().unwrap().stdout;
    let text = String::from_utf8(text).unwrap();
    assert!(text.lines().last().unwrap().contains(" 0 warned, 0 failed, "), "{text}");
}

#[test]
fn an_option_a_name_and_a_server_that_are_wrong_are_found_before_anything_is_mounted() {
    let export = "/run/export";
    let unknown = doctor(at(export, "nfsvers=4.2,nosuchoption"));
    unknown.has_only("an unknown option", &[("mount-options", "fail", "nosuchoption")]);
    assert!(unknown.checks["mount-options"][1].contains("Unknown parameter"), "{:?}", unknown.checks["mount-options"]);
    let named = ["--server=nas.example.org", "--share=/run/export"];
    let asking = NameServer::set("127.0.0.55");
    no_such_name("127.0.0.55:53");
    doctor(named).has_only("an unknown name", &[("name-lookup", "fail", "correct the name")]);
    drop(asking);
    let asking = NameServer::set("127.0.0.56");
    let remedy = "/etc/resolv.conf answer (127.0.0.56)";
    doctor(named).has_only("no name server", &[("name-lookup", "fail", remedy)]);
    let silent_server = UdpSocket::bind("127.0.0.56:53").unwrap();
    doctor(named).has_only("a silent name server", &[("name-lookup", "fail", remedy)]);
    drop((asking, silent_server));
    doctor(at(export, "port=1")).has_only("a closed port", &[("tcp", "fail", "start the NFS server")]);
    let port = format!("port={}", server(silent));
    doctor(at(export, &port)).has_only("a silent server", &[("rpc", "fail", "restart the NFS service")]);
    let mortal = [format!("--server={}", MORTAL.address), "--share=/".into()];
    let too_old = doctor(mortal.iter().chain([&"--options=nfsvers=3".into()]));
    too_old.has_only("a version that is not served", &[("nfs-version", "fail", "nfsvers=4")]);
    let died = MORTAL.die();
    doctor(&mortal).has_only("a dead server", &[("tcp", "fail", "firewalls")]);
    drop(died);
}

/// Starts the server that dies again, with these versions.
fn restart(versions: &str) {
    MORTAL.run("rpc.nfsd 0");
    MORTAL.run(&format!("rpc.nfsd {versions} 4"));
    MORTAL.wait_for_end_of_grace();
}

#[test]
fn a_server_without_the_newest_version_is_told_and_one_without_the_version_that_is_asked_for_fails() {
    let mortal = [format!("--server={}", MORTAL.address), "--share=/".into()];
    MORTAL.wait_for_end_of_grace();
    let names = names_in(&MORTAL.on_disk(""));
    let before: Vec<String> = doctor(&mortal).found().into_keys().map(str::to_owned).collect();
    restart("-N 3 -N 4.2");
    let (any, newest) = (doctor(&mortal), doctor(mortal.iter().chain([&"--options=nfsvers=4.2".into()])));
    restart("-N 3 -V 4.2");
    let new: Vec<&str> = any.found().into_keys().filter(|name| !before.iter().any(|one| one == name)).collect();
    assert_eq!(new, ["mount"], "{:#?}", any.checks);
    assert_eq!((any.checks["mount"][0].as_str(), any.status), ("warn", 1), "{:?}", any.checks["mount"]);
    assert!(any.checks["mount"][2].contains("vers4.2=y"), "{:?}", any.checks["mount"]);
    newest.has_only("no NFS 4.2", &[("mount", "fail", "nfsvers=")]);
    assert_eq!(names_in(&MORTAL.on_disk("")), names);
}

#[test]
fn a_mount_that_fails_or_hangs_is_found_and_ends_with_its_process() {
    doctor(at("/run/not-exported", "")).has_only("no such export", &[("mount", "fail", "exportfs")]);
    let port = format!("port={}", server(hanging));
    let seen = doctor(at("/run/export", &format!("nfsvers=4.1,{port}")));
    seen.has_only("a server that hangs", &[("mount", "fail", "restart the NFS service")]);
    assert!(seen.checks["mount"][1].contains("did not end"), "{:?}", seen.checks["mount"]);
    assert_eq!(processes(), Vec::<String>::new());
}

#[test]
fn an_export_that_lacks_something_is_told_with_what_to_change() {
    for (fault, share, expected) in [
        ("root is squashed", "/run/exports/squash", ("writable", "fail", "no_root_squash")),
        ("read-only", "/run/exports/readonly", ("writable", "fail", "with rw")),
        ("no reflinks", "/run/exports/other", ("clone", "warn", "reflink")),
    ] {
        doctor(at(share, "")).has_only(fault, &[expected]);
    }
    // All may write there, and what root makes is another's.
    let open = Path::new("/run/export/doctor-open");
    std::fs::create_dir(open).unwrap();
    std::fs::set_permissions(open, std::fs::Permissions::from_mode(0o777)).unwrap();
    let squashed = doctor(at("/run/exports/squash-all-nodes/doctor-open", ""));
    assert_eq!(names_in(open), Vec::<String>::new());
    std::fs::remove_dir(open).unwrap();
    squashed.has_only("root is squashed and may write", &[("owner", "warn", "no_root_squash")]);

    let small = names_in(Path::new("/run/exports/small"));
    let filler = Path::new("/run/exports/small/filler");
    let full = std::io::copy(&mut std::io::repeat(7), &mut File::create(filler).unwrap()).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    let seen = doctor(at("/run/exports/small", ""));
    std::fs::remove_file(filler).unwrap();
    seen.has_only("full", &[("free-space", "fail", "enlarge")]);
    assert_eq!(names_in(Path::new("/run/exports/small")), small);

    let (clone, acls) = (("clone", "warn", "reflink"), ("acls", "warn", "acl"));
    doctor(at("/run/exports/without-lists", "")).has_only("no lists", &[clone, acls]);
    let remount = |option: Option<&str>| {
        mount(NONE, "/run/nfsroot/run/exports/without-lists", NONE, MsFlags::MS_REMOUNT, option).unwrap();
    };
    remount(Some("noacl,nouser_xattr"));
    let seen = doctor(at("/run/exports/without-lists", ""));
    remount(Some("noacl,user_xattr"));
    seen.has_only("no extended attributes", &[clone, acls, ("xattrs", "warn", "Linux 5.9")]);
}

#[test]
fn records_of_a_later_format_and_a_silent_quota_agent_are_found() {
    let share = Share::new();
    let note = |path: &str, text: &str| {
        let path = share.on_disk(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    };
    let id = "0123456789abcdef0123456789abcdef";
    note(".nfs-csi/export.json", &format!(r#"{{"id": "{id}", "inode": 1}}"#));
    let [address, path] = healthy(&share);
    let map = share.on_disk("servers.json");
    for (id, expected) in [(id, vec![]), (&id.replace('f', "0"), vec![("export-id", "fail", "correct exports")])] {
        let exports = format!(r#"{{"{}": {{"id": "{id}"}}}}"#, &path["--share=".len()..]);
        let nas = format!(r#""address": "{}", "exports": {exports}"#, &address["--server=".len()..]);
        std::fs::write(&map, format!(r#"{{"servers": {{"nas": {{{nas}}}}}}}"#)).unwrap();
        let flags = ["--server=nas".into(), path.clone(), format!("--servers={}", map.display())];
        doctor(&flags).has_only("another export", &expected);
    }
    let later = note(".nfs-csi/volumes/later.json", r#"{"format": 99}"#);
    doctor(healthy(&share)).has_only("a later record", &[("records", "fail", "update this driver")]);
    std::fs::remove_file(later).unwrap();
    let state = serde_json::json!({
        "format": 1, "version": "0.1.0", "host": "nas", "fileSystem": "xfs", "limitsRoot": true, "firstId": 1, "lastId": 9,
        "ready": 0, "volumes": 0, "promisedBytes": 0,
    });
    let agent = note(".nfs-csi/quota/agent.json", &state.to_string());
    doctor(healthy(&share)).has_only("a living agent", &[]);
    let long_ago = SystemTime::now() - Duration::from_mins(5);
    File::options().write(true).open(agent).unwrap().set_modified(long_ago).unwrap();
    doctor(healthy(&share)).has_only("a silent agent", &[("quota-agent", "fail", "start the quota agent on nas")]);
}

#[test]
fn what_a_node_lacks_is_found_without_a_server() {
    let folder = folder();
    let kubelet = kubelet(&folder);
    let flag = format!("--kubelet-dir={}", kubelet.display());
    doctor(["--kubelet-dir=/run/no-kubelet"]).has_only("no kubelet", &[("kubelet-dir", "fail", "--kubelet-dir")]);
    doctor([&flag]).has_only("none", &[]);
    mount(NONE, &kubelet, NONE, MsFlags::MS_PRIVATE, NONE).unwrap();
    doctor([&flag]).has_only("not shared", &[("kubelet-dir", "fail", "mountPropagation: Bidirectional")]);
    mount(NONE, &kubelet, NONE, MsFlags::MS_SHARED, NONE).unwrap();

    let mounted = |volume: &str, server: &str, share: &str| {
        let point = kubelet.join("pods/pod-1/volumes").join(volume);
        std::fs::create_dir_all(&point).unwrap();
        let (source, data) = (format!("{server}:{share}"), format!("vers=4.2,addr={server}"));
        mount(Some(source.as_str()), &point, Some("nfs4"), MsFlags::empty(), Some(data.as_str())).unwrap();
        point
    };
    let own = mounted("kubernetes.io~csi/pvc-1/mount", "127.0.0.1", "/run/export");
    doctor([&flag]).has_only("none", &[]);
    let map = folder.path().join("servers.json");
    let moved = r#"{"servers": {"nas": {"address": "10.0.99.1", "was": ["127.0.0.1"]}}}"#;
    for (fault, text, expected) in [
        ("an old address", moved, ("server-map", "warn", "delete the pods")),
        ("a broken map", "{", ("server-map", "fail", "correct the map")),
    ] {
        std::fs::write(&map, text).unwrap();
        doctor([&flag, &format!("--servers={}", map.display())]).has_only(fault, &[expected]);
    }
    let foreign = mounted("kubernetes.io~nfs/data", "127.0.0.1", "/run/export");
    let seen = doctor([&flag]);
    umount2(&foreign, MntFlags::empty()).unwrap();
    umount2(&own, MntFlags::empty()).unwrap();
    seen.has_only("a foreign mount", &[("foreign-mounts", "warn", "docs/migration.md")]);

    let stuck = mounted("kubernetes.io~csi/pvc-2/mount", MORTAL.address, "/");
    let died = MORTAL.die();
    let seen = doctor([&flag]);
    drop(died);
    umount2(&stuck, MntFlags::MNT_DETACH).unwrap();
    let remedy = format!("start the server {}", MORTAL.address);
    seen.has_only("a stuck mount", &[("stuck-mounts", "fail", &remedy)]);

    let mut bare = Command::new("setpriv");
    bare.arg("--bounding-set=-sys_admin").arg(binary()).args(["doctor", "--output=json"]);
    Seen::of(&mut bare).has_only("no capability", &[("capability", "fail", "privileged: true")]);
}

#[tokio::test]
async fn a_server_that_the_driver_refuses_is_named() {
    let (folder, address) = (folder(), free_address());
    let driver = Driver::start_as("node", folder.path(), &[&format!("--metrics-address={address}")]);
    let flag = format!("--metrics-address={address}");
    doctor([&flag]).has_only("none", &[]);
    let died = MORTAL.die();
    let volume = by_hand("mortal", &MORTAL.parameters());
    let target = folder.path().join("target");
    driver
        .node()
        .await
        .node_publish_volume(publish(&volume, &target, Mode::MultiNodeMultiWriter, &[]))
        .await
        .unwrap_err();
    let seen = doctor([&flag]);
    drop(died);
    seen.has_only("a breaker", &[("breakers", "warn", "start these servers")]);
    assert!(seen.checks["breakers"][1].contains(MORTAL.address), "{:?}", seen.checks["breakers"]);
}

/// A process with the name of the daemon that Kerberos needs, which is all that is looked for.
pub fn gssd(folder: &Folder) -> Running {
    let gssd = folder.path().join("rpc.gssd");
    std::fs::copy("/bin/sleep", &gssd).unwrap();
    let running = Running(Command::new(&gssd).arg("infinity").spawn().unwrap());
    wait_for("the process to have its name", Duration::from_mins(1), || {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", running.0.id())).unwrap();
        (name.trim() == "rpc.gssd").then_some(())
    });
    running
}

#[test]
fn what_kerberos_tls_and_version_3_need_is_found() {
    let folder = folder();
    let keytab = folder.path().join("keytab");
    std::fs::write(&keytab, "keys").unwrap();
    let kerberos =
        |keytab: &Path| Seen::of(command(binary()).env("KRB5_KTNAME", keytab).args(at("/run/export", "sec=krb5")));
    kerberos(&keytab).has_only("no rpc.gssd", &[("gssd", "fail", "start rpc.gssd")]);
    let running = gssd(&folder);
    kerberos(&folder.path().join("missing")).has_only("no keytab", &[("keytab", "fail", "/etc/krb5.keytab")]);
    drop(running);

    // This one answers as servers do that know nothing of TLS. (That of newer kernels offers it.)
    let seen = doctor(at("/run/export", &format!("xprtsec=tls,port={}", server(hanging))));
    assert!(seen.checks["starttls"][2].contains("ktls-utils"), "{:?}", seen.checks["starttls"]);
    // A kernel before 6.5 does not know the option either.
    let found: Vec<&str> = seen.found().into_keys().filter(|name| *name != "mount-options").collect();
    assert_eq!((found, seen.status), (vec!["starttls"], 2), "{:#?}", seen.checks);

    doctor(at("/run/export", "nfsvers=3")).has_only("no rpc.statd", &[("statd", "fail", "nolock")]);
}

#[test]
fn a_clock_that_is_apart_from_the_server_s_is_found() {
    let (folder, share) = (folder(), Share::new());
    let [_, share_flag] = healthy(&share);
    let mut ahead = Clock::ahead(600, folder.path()).enter(A, DYNAMIC);
    ahead.args(["doctor", "--output=json", "--server=10.0.99.1", &share_flag]);
    let seen = Seen::of(&mut ahead);
    seen.has_only("a clock", &[("clock", "warn", "time service")]);
    assert!(seen.checks["clock"][1].contains("behind this host's"), "{:?}", seen.checks["clock"]);
}
