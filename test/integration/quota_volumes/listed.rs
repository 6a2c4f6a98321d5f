//! What `nfs-csi list` says of a volume with a limit.

use serde_json::Value;

use super::{SIZE, create, fits, made, on_disk, on_export};
use crate::kit::driver::Driver;
use crate::kit::quota::{Agent, DEADLINE, Export, XFS};
use crate::kit::{folder, wait_for};

#[tokio::test]
async fn a_list_has_what_the_agent_reported_with_its_age() {
    let export = Export::on(XFS);
    let _agent = Agent::start(&export, &[]);
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let volume = made(&mut driver.controller().await, create(&export, "pvc-1", SIZE, &[])).await;
    assert!(fits(&on_disk(&export, &volume).join("file"), 1 << 20));
    let share = format!("127.0.0.1:{}", export.path().display());
    let used = wait_for("the agent's report", DEADLINE, || {
        // A walk is not needed.
        let list = on_export(&share, &["list", "--du", "--output=json"]);
        let list: Value = serde_json::from_slice(&list.stdout).unwrap();
        let [entry] = &list["entries"].as_array().unwrap()[..] else { panic!("{list}") };
        assert_eq!((entry["sizeBytes"].as_u64(), &entry["name"]), (Some(SIZE), &"pvc-1".into()));
        Some(entry["used"].clone()).filter(|used| used["bytes"].as_u64() >= Some(1 << 20) && used["by"] == "quota")
    });
    assert!(used["at"].as_u64().is_some() && used["bytes"].as_u64() < Some(SIZE), "{used}");
}
