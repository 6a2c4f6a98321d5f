//! Volumes with limits: the driver and the quota agent together, on disks of the kernel's server.

mod changing;
mod converting;
mod crashes;
mod filling;
mod listed;
mod living;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nfs_csi::export::catalog::Record;
use nfs_csi::proto::controller_client::ControllerClient;
use nfs_csi::proto::{ControllerGetVolumeRequest, CreateVolumeRequest, Volume, VolumeCondition};
use nix::sys::statvfs::statvfs;
use tonic::transport::Channel;

use crate::kit::driver::binary;
use crate::kit::quota::Export;
use crate::kit::{records, requests};

/// A size of volumes, in bytes.
pub const SIZE: u64 = 16 << 20;

type Controller = ControllerClient<Channel>;

/// A request for a volume of a size with a limit on an export.
fn create(export: &Export, name: &str, size: u64, more: &[(&str, &str)]) -> CreateVolumeRequest {
    with_size(requests::create(name, &class(export, more)), size)
}

/// The parameters of a class whose volumes have a limit.
fn class<'a>(export: &'a Export, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let share = export.path().to_str().unwrap();
    [&[("share", share), ("quota", "required")], more].concat()
}

fn with_size(request: CreateVolumeRequest, size: u64) -> CreateVolumeRequest {
    let required_bytes = i64::try_from(size).unwrap();
    let capacity_range = Some(nfs_csi::proto::CapacityRange { required_bytes, limit_bytes: 0 });
    CreateVolumeRequest { capacity_range, ..request }
}

async fn made(controller: &mut Controller, request: CreateVolumeRequest) -> Volume {
    controller.create_volume(request).await.unwrap().into_inner().volume.unwrap()
}

async fn condition(controller: &mut Controller, volume: &Volume) -> VolumeCondition {
    let request = ControllerGetVolumeRequest { volume_id: volume.volume_id.clone() };
    let found = controller.controller_get_volume(request).await.unwrap().into_inner();
    found.status.unwrap().volume_condition.unwrap()
}

/// A volume's directory on the server's disk.
fn on_disk(export: &Export, volume: &Volume) -> PathBuf {
    export.on_disk(&volume.volume_context["subDir"])
}

/// The size that is shown of a path, in bytes.
fn shown(path: &Path) -> u64 {
    let stat = statvfs(path).unwrap();
    stat.blocks() * stat.fragment_size()
}

fn record(export: &Export, name: &str) -> Record {
    serde_json::from_slice(&std::fs::read(records::file(export.path(), name)).unwrap()).unwrap()
}

/// Writes so much to a file, and gives whether it fit.
fn fits(path: &Path, bytes: u64) -> bool {
    let written = std::fs::File::create(path).and_then(|mut file| {
        std::io::copy(&mut std::io::Read::take(std::io::repeat(1), bytes), &mut file)?;
        file.sync_all()
    });
    written.is_ok()
}

/// Runs a command of the program on an export.
fn on_export(export: &str, arguments: &[&str]) -> Output {
    let output = Command::new(binary()).args(arguments).arg(format!("--export={export}")).output().unwrap();
    println!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    output
}

/// Nothing is wrong on an export, as `nfs-csi check` sees it.
fn assert_well(export: &Export) {
    let output = on_export(&format!("127.0.0.1:{}", export.path().display()), &["check"]);
    assert!(output.status.success());
}
