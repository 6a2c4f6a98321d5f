//! Whether a symbolic link that a tenant puts in the place of a directory leads a driver out of the volume.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nfs_csi::proto::CreateVolumeRequest;
use nfs_csi::proto::node_client::NodeClient;
use nfs_csi::proto::volume_capability::access_mode::Mode;
use tonic::transport::Channel;

use crate::candidate::{Candidate, Process, asked};
use crate::kit::requests::{by_hand, create, delete, publish, unpublish};
use crate::kit::server::{SHARE, on_server};
use crate::nodes::{detach, kind};
use crate::table::Table;
use crate::volumes::Running;

/// A directory on the controller's own host, with a file in it.
const HOST: &str = "/run/compare/host";

/// A link that a tenant makes, and the volume's directory that leads through it.
struct Link {
    what: &'static str,
    place: &'static str,
    leads_to: &'static str,
    sub_dir: &'static str,
}

/// The share is /run/export/tenants; `team` is a directory that a tenant can write to.
const PUBLISHED: [Link; 5] = [
    Link {
        what: "the volume's directory is a relative link out of the share",
        place: "team/volume",
        leads_to: "../../outside",
        sub_dir: "team/volume",
    },
    Link {
        what: "the volume's directory is an absolute link out of the share",
        place: "team/volume",
        leads_to: "/run/export/outside",
        sub_dir: "team/volume",
    },
    Link {
        what: "the volume's directory is a relative link to another tenant's",
        place: "team/volume",
        leads_to: "../other",
        sub_dir: "team/volume",
    },
    Link {
        what: "a directory above the volume's is a relative link out of the share",
        place: "team/link",
        leads_to: "../../outside",
        sub_dir: "team/link/volume",
    },
    Link {
        what: "a directory above the volume's is an absolute link out of the share",
        place: "team/link",
        leads_to: "/run/export/outside",
        sub_dir: "team/link/volume",
    },
];

pub async fn followed(table: &mut Table, candidates: &[Candidate; 2]) {
    for link in &PUBLISHED {
        let mut cells = Vec::new();
        for candidate in candidates {
            cells.push(published(candidate, link).await);
        }
        table.row(&format!("publish: {}", link.what), cells.try_into().unwrap());
    }
    let running = Running::both(candidates).await;
    for (what, leads_to) in [("the controller's own file system", HOST), ("another tenant's directory", "../other")] {
        let mut cells = [const { Vec::new() }; 2];
        for running in &running {
            cells[0].push(created(running, leads_to).await);
            cells[1].push(deleted(running, leads_to).await);
        }
        let [created, deleted] = cells;
        table.row(&format!("create a volume behind a link to {what}"), created.try_into().unwrap());
        table.row(&format!("delete a volume behind a link to {what}"), deleted.try_into().unwrap());
    }
}

/// The share with two tenants, what is outside of it, and the same on the controller's host.
fn fill() -> PathBuf {
    let tenants = on_server("tenants");
    for folder in [on_server("outside"), tenants.join("other"), PathBuf::from(HOST)] {
        std::fs::create_dir_all(folder.join("volume")).unwrap();
        std::fs::write(folder.join("secret"), "secret").unwrap();
        std::fs::write(folder.join("volume/secret"), "secret").unwrap();
    }
    std::fs::create_dir(tenants.join("team")).unwrap();
    tenants
}

/// Removes all of it but the records that the controller has on the share.
fn clear() {
    for folder in [on_server("outside"), on_server("tenants/team"), on_server("tenants/other"), PathBuf::from(HOST)] {
        std::fs::remove_dir_all(folder).unwrap();
    }
}

fn share() -> String {
    format!("{SHARE}/tenants")
}

/// What is mounted when the tenant's link is where the volume's directory was.
async fn published(candidate: &Candidate, link: &Link) -> String {
    let tenants = fill();
    symlink(link.leads_to, tenants.join(link.place)).unwrap();
    let process: Process = candidate.node();
    let mut client: NodeClient<Channel> = process.node().await;
    let target = candidate.target("linked");
    std::fs::create_dir_all(target.parent().unwrap()).unwrap();
    let volume = by_hand("linked", &[("share", &share()), ("subDir", link.sub_dir)]);
    let request = publish(&volume, &target, Mode::MultiNodeMultiWriter, &["nfsvers=4.2"]);
    let (_, answer) = asked(client.node_publish_volume(request)).await;
    let is_followed = target.join("secret").exists();
    if answer.is_ok() {
        let _ = asked(client.node_unpublish_volume(unpublish(&volume, &target))).await;
    }
    drop(process);
    detach(&target);
    clear();
    judged(candidate, is_followed, &answer.map(drop))
}

/// A new volume's directory, above which a tenant has a link.
async fn created(running: &Running<'_>, leads_to: &str) -> String {
    let tenants = fill();
    symlink(leads_to, tenants.join("team/link")).unwrap();
    let name = running.candidate.unique("linked");
    let (_, answer) = asked(running.client.clone().create_volume(request(&name))).await;
    let is_followed = [Path::new(HOST), &tenants.join("other")].into_iter().any(|at| at.join(&name).exists());
    if let Ok(answer) = &answer {
        let id = answer.volume.clone().unwrap().volume_id;
        let _ = asked(running.client.clone().delete_volume(delete(&id))).await;
    }
    clear();
    judged(running.candidate, is_followed, &answer.map(drop))
}

/// A volume's directory, above which a tenant makes a link after it was created.
async fn deleted(running: &Running<'_>, leads_to: &str) -> String {
    let tenants = fill();
    std::fs::create_dir(tenants.join("team/link")).unwrap();
    let name = running.candidate.unique("linked");
    let (_, made) = asked(running.client.clone().create_volume(request(&name))).await;
    let id = running.candidate.works(made).unwrap().volume.unwrap().volume_id;
    let elsewhere = if leads_to == HOST { PathBuf::from(HOST) } else { tenants.join("other") };
    std::fs::create_dir(elsewhere.join(&name)).unwrap();
    std::fs::write(elsewhere.join(&name).join("file"), "of another").unwrap();
    std::fs::rename(tenants.join("team/link"), tenants.join("team/was")).unwrap();
    symlink(leads_to, tenants.join("team/link")).unwrap();
    let (_, answer) = asked(running.client.clone().delete_volume(delete(&id))).await;
    let is_followed = !elsewhere.join(&name).join("file").exists();
    // The volume is there again, for a delete that leaves nothing.
    std::fs::remove_file(tenants.join("team/link")).unwrap();
    std::fs::rename(tenants.join("team/was"), tenants.join("team/link")).unwrap();
    let _ = asked(running.client.clone().delete_volume(delete(&id))).await;
    clear();
    judged(running.candidate, is_followed, &answer.map(drop))
}

fn request(name: &str) -> CreateVolumeRequest {
    create(name, &[("share", &share()), ("subDir", &format!("team/link/{name}"))])
}

fn judged(candidate: &Candidate, is_followed: bool, answer: &Result<(), String>) -> String {
    assert!(!(candidate.is_own() && is_followed), "nfs-csi followed a tenant's link");
    match (is_followed, answer) {
        (true, _) => "followed".into(),
        (false, Ok(())) => "not followed".into(),
        (false, Err(error)) => format!("refused: {}", kind(error)),
    }
}
