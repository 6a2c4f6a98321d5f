//! What the server map costs: creates and publications by a driver with a map of a hundred servers, by an old name of
//! one of them, against those of a driver without a map.

use std::fmt::Write;
use std::path::Path;
use std::time::Instant;

use nfs_csi::proto::Volume;
use nfs_csi::proto::controller_client::ControllerClient;
use nfs_csi::proto::node_client::NodeClient;
use nfs_csi::proto::volume_capability::access_mode::Mode;
use tonic::transport::Channel;

use crate::kit::driver::Driver;
use crate::kit::folder;
use crate::kit::requests::{create, delete, publish, unpublish};
use crate::milliseconds;
use crate::report::Report;

const RWX: Mode = Mode::MultiNodeMultiWriter;
const SERVERS: usize = 100;
const ROUNDS: usize = 100;
/// A name that only the map knows.
const OLD_NAME: &str = "old-nas.example.com";

/// A driver, and the name by which it is asked for the server.
struct Side {
    controller: ControllerClient<Channel>,
    node: NodeClient<Channel>,
    server: String,
    _driver: Driver,
}

impl Side {
    async fn start(folder: &Path, server: &str, map: &str) -> Self {
        std::fs::create_dir(folder).unwrap();
        let file = folder.join("servers.json");
        std::fs::write(&file, map).unwrap();
        let driver = Driver::start(folder, &[&format!("--servers={}", file.display())]);
        let (controller, node) = (driver.controller().await, driver.node().await);
        Self { controller, node, server: server.to_owned(), _driver: driver }
    }

    async fn create(&mut self, name: &str) -> Volume {
        let request = create(name, &[("server", &self.server), ("share", "/")]);
        self.controller.create_volume(request).await.unwrap().into_inner().volume.unwrap()
    }

    /// Milliseconds of a create and of a publication.
    async fn round(&mut self, kept: &Volume, target: &Path) -> [f64; 2] {
        let begun = Instant::now();
        let volume = self.create("pvc-bench-map").await;
        let created = begun.elapsed();
        self.controller.delete_volume(delete(&volume.volume_id)).await.unwrap();
        let begun = Instant::now();
        self.node.node_publish_volume(publish(kept, target, RWX, &["nfsvers=4.2"])).await.unwrap();
        let published = begun.elapsed();
        self.node.node_unpublish_volume(unpublish(kept, target)).await.unwrap();
        [created, published].map(milliseconds)
    }
}

pub async fn against_none(report: &mut Report) {
    let near = std::env::var("E2E_NEAR").expect("E2E_NEAR is server:/share");
    let address = near.trim_end_matches(":/");
    let mut map = format!(r#""nas": {{"address": "{address}", "was": ["{OLD_NAME}"]}}"#);
    for number in 1..SERVERS {
        let options = r#""mountOptions": ["nfsvers=4.2"]"#;
        write!(map, r#", "nas-{number}": {{"address": "10.9.0.{number}", "was": ["10.8.0.{number}"], {options}}}"#)
            .unwrap();
    }
    let folder = folder();
    let without = Side::start(&folder.path().join("without"), address, r#"{"servers": {}}"#).await;
    let with = Side::start(&folder.path().join("with"), OLD_NAME, &format!(r#"{{"servers": {{{map}}}}}"#)).await;
    let mut sides = [without, with];
    let (other, target) = (folder.path().join("other"), folder.path().join("target"));
    // The export and the server are known to both.
    let mut kept = Vec::new();
    for (number, side) in sides.iter_mut().enumerate() {
        let volume = side.create(&format!("pvc-bench-{number}")).await;
        let other = other.with_extension(number.to_string());
        side.node.node_publish_volume(publish(&volume, &other, RWX, &["nfsvers=4.2"])).await.unwrap();
        kept.push(volume);
    }
    let mut times = [const { [const { Vec::new() }; 2] }; 2];
    // In turns, and the first round is not counted.
    for round in 0..=ROUNDS {
        for (number, side) in sides.iter_mut().enumerate() {
            let [created, published] = side.round(&kept[number], &target).await;
            if round > 0 {
                times[number][0].push(created);
                times[number][1].push(published);
            }
        }
    }
    let [without, with] = times.map(|times| times.map(middle));
    for (what, index) in [("CreateVolume", 0), ("NodePublishVolume", 1)] {
        let what = format!("{what}, a map of {SERVERS} servers");
        report.ratio(&what, "without a map", "ms", with[index], without[index], 1.05);
    }
    for (number, (side, volume)) in sides.iter_mut().zip(&kept).enumerate() {
        let other = other.with_extension(number.to_string());
        side.node.node_unpublish_volume(unpublish(volume, &other)).await.unwrap();
        side.controller.delete_volume(delete(&volume.volume_id)).await.unwrap();
    }
}

fn middle(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
