//! `nfs-csi doctor` where the server answers some calls wrongly, the kernel lacks a system call, or the name servers lack a
//! record: exactly the check that is for it finds that, and reports its remedy.

use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;

use crate::doctor::{Seen, command, gssd, healthy, processes};
use crate::kit::client::{C, SERVER};
use crate::kit::driver::binary;
use crate::kit::faulty_server::{Change, Fault, any, letters, text, words};
use crate::kit::name_server::{A, NameServer, PTR, Record, answering};
use crate::kit::share::Share;
use crate::kit::system_calls::{SystemCall, failing};
use crate::kit::{folder, wait_for};
use crate::servers::server;

/// Operations of NFS 4 (RFC 8881, RFC 7862), and the kind of CREATE that makes a symbolic link.
const CREATE: u32 = 6;
const LINK: u32 = 11;
const LOCK: u32 = 12;
const REMOVE: u32 = 28;
const RENAME: u32 = 29;
const COPY: u32 = 60;
const SYMBOLIC: u32 = 5;
/// Its errors.
const PERM: u32 = 1;
const ACCESS: u32 = 13;
const XDEV: u32 = 18;
const NOTSUPP: u32 = 10004;
const GRACE: u32 = 10013;

/// What a doctor sees of a share on a server with a fault.
fn seen_with(share: &Share, fault: Fault) -> Seen {
    // On another host, which has no mount of the server before and after: a kernel sees that it is the same server as at
    // another port, and would use the connection that it has.
    let no_mount = || {
        wait_for("the host's mounts to be gone", Duration::from_mins(1), || {
            (!C.servers().iter().any(|server| server == SERVER)).then_some(())
        });
    };
    no_mount();
    let fault = Arc::new(fault);
    let serving = Arc::clone(&fault);
    let options = format!("--options=nfsvers=4.2,port={}", server(move |client| serving.serve(&client)));
    let [_, share_flag] = healthy(share);
    let mut elsewhere = C.enter();
    elsewhere.arg(binary()).args(["doctor", "--output=json", &format!("--server={SERVER}"), &share_flag, &options]);
    let seen = Seen::of(&mut elsewhere);
    assert!(fault.found() > 0, "{fault:?}: {:#?}", seen.checks);
    assert_eq!(processes(), Vec::<String>::new());
    // The kernel keeps a mount while it waits for the reply to a call, also when the process that made it is gone.
    fault.close();
    no_mount();
    seen
}

/// Makes sure that with a fault exactly this check finds something, and that the share is left empty.
fn finds(what: &str, fault: Fault, (check, outcome, word): (&str, &str, &str), shows: &str) {
    let share = Share::new();
    let seen = seen_with(&share, fault);
    seen.has_only(what, &[(check, outcome, word)]);
    assert!(seen.checks[check][1].contains(shows), "{what}: {:?}", seen.checks[check]);
    assert_eq!(seen.checks["cleanup"][0], "pass", "{what}: {:?}", seen.checks["cleanup"]);
    assert_eq!(share.names(""), Vec::<String>::new(), "{what}");
}

#[test]
fn what_a_check_that_hung_left_on_the_export_is_removed() {
    let fault = Fault::new(&[text("clone")], Change::Lose);
    finds("a server that stops to answer", fault, ("clone", "fail", "load"), "did not end");
}

#[test]
fn a_server_that_gives_a_file_to_another_user_or_group_is_found() {
    let expected = ("ids", "fail", "nfs4_disable_idmapping=Y");
    for (name, became) in [("54321", "54320:54322"), ("54322", "54321:54320")] {
        let other = letters("54320")[1].unwrap();
        finds(name, Fault::new(&[text(name)], Change::Put(2, other)), expected, became);
    }
}

#[test]
fn a_server_without_hard_links_symbolic_links_or_renames_is_found() {
    let expected = ("links", "fail", "hard and symbolic links");
    let link = [words(&[LINK]), text("link")];
    let symbolic = [words(&[CREATE, SYMBOLIC]), text("file"), text("symbolic")];
    let rename = [words(&[RENAME]), text("link"), text("renamed")];
    finds("no hard links", Fault::new(&link, Change::Refuse(PERM)), expected, "no hard link");
    finds("no symbolic links", Fault::new(&symbolic, Change::Refuse(PERM)), expected, "no symbolic link");
    finds("no renames", Fault::new(&rename, Change::Refuse(XDEV)), expected, "no rename");
}

#[test]
fn a_server_that_keeps_other_permissions_or_times_is_found() {
    let expected = ("attributes", "fail", "permissions and times");
    let (mode, moment) = (words(&[2, 4, 0o750]), words(&[1, 0, 1_000_000_000, 0, 1, 0, 1_000_000_000, 0]));
    finds("a mode", Fault::new(&[mode], Change::Put(2, 0o700)), expected, "0750 became 0700");
    finds("a time", Fault::new(&[moment], Change::Put(6, 1_000_000_002)), expected, "a time");
}

#[test]
fn a_server_that_does_not_copy_by_itself_is_found() {
    // Two states, two offsets of 0, and the file's length.
    let copy = [words(&[COPY]), any(8), words(&[0, 0, 0, 0, 0, 64 * 1024])];
    let expected = ("copy", "warn", "with COPY");
    finds("no COPY", Fault::new(&copy, Change::Refuse(NOTSUPP)), expected, "does not copy by itself");
}

#[test]
fn a_server_that_refuses_locks_or_grants_none_yet_or_does_not_answer_is_found() {
    // For writing, not reclaimed, the whole file.
    let lock = [words(&[LOCK, 2, 0, 0, 0, u32::MAX, u32::MAX])];
    let refused = ("locks", "fail", "start the lock manager");
    finds("refused", Fault::new(&lock, Change::Refuse(ACCESS)), refused, "no lock");
    let late = ("locks", "fail", "again in two minutes");
    finds("a grace period", Fault::new(&lock, Change::Refuse(GRACE)), late, "did not end");
    finds("no answer", Fault::new(&lock, Change::Lose), late, "did not end");
}

#[test]
fn a_directory_that_cannot_be_removed_is_named() {
    let share = Share::new();
    let remove = [words(&[REMOVE]), any(1), letters(".nfs-csi-doctor-")];
    let seen = seen_with(&share, Fault::new(&remove, Change::Refuse(ACCESS)));
    let left = share.names("");
    assert_eq!(left.len(), 1, "{left:?}");
    seen.has_only("nothing can be removed", &[("cleanup", "warn", &format!("remove {} from the share", left[0]))]);
}

#[test]
fn a_kernel_without_a_system_call_or_without_nfs_is_found() {
    let share = Share::new();
    let without =
        |call, error| Seen::of(failing(call, error, binary()).args(["doctor", "--output=json"]).args(healthy(&share)));
    for (call, name) in
        [(SystemCall::Openat2, "openat2"), (SystemCall::OpenTree, "open_tree"), (SystemCall::MoveMount, "move_mount")]
    {
        let seen = without(call, Errno::ENOSYS);
        seen.has_only(name, &[("system-calls", "fail", "Linux 5.6")]);
        assert!(seen.checks["system-calls"][1].contains(name), "{:?}", seen.checks["system-calls"]);
    }
    // As the kernel answers for a file system that it does not have, and a container's filter for what it does not allow.
    for (error, remedy) in [(Errno::ENODEV, "modprobe -a nfs"), (Errno::EPERM, "seccomp profile")] {
        without(SystemCall::Fsopen, error).has_only(error.desc(), &[("nfs-client", "fail", remedy)]);
    }
}

#[test]
fn with_kerberos_an_address_that_does_not_lead_back_to_the_server_s_name_is_found() {
    let folder = folder();
    let keytab = folder.path().join("keytab");
    std::fs::write(&keytab, "keys").unwrap();
    let _gssd = gssd(&folder);
    let flags = ["--server=nas.example.org", "--options=sec=krb5"];
    let seen = || Seen::of(command(binary()).env("KRB5_KTNAME", &keytab).args(flags));
    let none = [("reverse-lookup", "warn", "add a PTR record for 10.0.99.1")];
    let cases: [(&str, &'static [Record], &[_]); 3] = [
        ("127.0.0.57", &[(A, &[10, 0, 99, 1]), (PTR, b"\x03nas\x07example\x03org\0")], &[]),
        ("127.0.0.58", &[(A, &[10, 0, 99, 1])], &none),
        ("127.0.0.59", &[(A, &[10, 0, 99, 1]), (PTR, b"\x05other\x07example\x03org\0")], &none),
    ];
    for (address, records, expected) in cases {
        answering(&format!("{address}:53"), records);
        let _asking = NameServer::set(address);
        seen().has_only(address, expected);
    }
}
