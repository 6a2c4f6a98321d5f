//! That the clients are what they are for the other tests: hosts of their own.

use std::path::Path;

use nix::mount::{MntFlags, umount2};

use crate::kit::client::{A, B, C, Client, SERVER};
use crate::kit::driver::binary;
use crate::kit::folder;
use crate::kit::replica::Replica;
use crate::kit::share::Share;

/// Mounts a share as a client; one that caches what it looked for and did not find.
fn mount(client: Client, share: &Share, at: &Path) {
    std::fs::create_dir(at).unwrap();
    let mut command = client.enter();
    command.args(["mount", "-t", "nfs4", "-o", "vers=4.2,lookupcache=all"]).arg(share.export()).arg(at);
    assert!(command.status().unwrap().success());
}

#[test]
fn clients_share_no_mount_no_connection_and_no_cache() {
    let (folder, share) = (folder(), Share::new());
    let mounts = ["a", "b", "c"].map(|name| folder.path().join(name));
    for (client, at) in [A, B, C].into_iter().zip(&mounts) {
        mount(client, &share, at);
        assert_eq!(client.servers(), [SERVER]);
    }
    let devices = mounts.each_ref().map(|mount| nix::sys::stat::stat(mount).unwrap().st_dev);
    assert!(devices[0] != devices[1] && devices[1] != devices[2] && devices[0] != devices[2], "{devices:?}");
    let is_seen = |mount: usize| mounts[mount].join("late").exists();
    assert!(!is_seen(0));
    std::fs::create_dir(mounts[1].join("late")).unwrap();
    assert_eq!([0, 1, 2].map(is_seen), [false, true, true]);
    for mount in &mounts {
        umount2(mount, MntFlags::empty()).unwrap();
    }
}

#[tokio::test]
async fn a_driver_in_a_client_is_a_process_of_its_own_there() {
    let replica = Replica::start(A).await;
    let process = Path::new("/proc").join(replica.driver.pid().to_string());
    let link = |path: &Path| std::fs::read_link(path).unwrap();
    assert_eq!(link(&process.join("exe")), Path::new(&binary()));
    for kind in ["ns/net", "ns/uts"] {
        assert_ne!(link(&process.join(kind)), link(&Path::new("/proc/self").join(kind)));
    }
    assert_eq!(link(&process.join("ns/mnt")), link(Path::new("/proc/self/ns/mnt")));
}
