//! CreateVolume with a limit against the same without, and what the quota agent costs.

use std::os::unix::fs::symlink;
use std::time::Duration;

use nfs_csi::volume::quota_files::ProjectId;

use crate::floor::Operations;
use crate::kit::driver::Driver;
use crate::kit::http::{free_address, get};
use crate::kit::quota::{Agent, DEADLINE, Export, XFS, wanted};
use crate::kit::server::SERVER;
use crate::kit::{folder, wait_for};
use crate::report::Report;
use crate::volumes::{remove, settle, volumes};

/// The same disk behind a round trip of 1 ms (test/bench/job).
const FAR: &str = "10.0.10.1";
/// How many volumes are made in a round.
const COUNT: usize = 100;
/// How many directories the agent keeps ready.
const READY: usize = 256;
/// Rounds with a limit and without one, by turns.
const ROUNDS: usize = 3;
/// How many projects the agent has for its own figures.
const PROJECTS: usize = 10_000;
/// The limit of each, in bytes.
const LIMIT: u64 = 1 << 20;
/// Ticks of a processor's time in a second.
const TICKS: f64 = 100.0;

/// Measures on an XFS disk of the guest's own server.
pub async fn against_none(report: &mut Report) {
    created(report).await;
    agent_at_rest(report);
}

async fn created(report: &mut Report) {
    let export = Export::on(XFS);
    let agent = Agent::start(&export, &[&format!("--ready={READY}")]);
    let folder = folder();
    let driver = Driver::start_as("controller", folder.path(), &[]);
    let controller = driver.controller().await;
    let path = export.path().to_str().unwrap();
    let far = path.strip_prefix(XFS).unwrap();
    let classes = [("none", [("quota", "none")]), ("required", [("quota", "required")])];
    for (latency, place) in [("no latency", (SERVER, path)), ("1 ms", (FAR, far))] {
        for (name, class) in &classes {
            let warm_up = volumes(&controller, place, class, (10, 1), &format!("warm-{name}-{latency}")).await;
            remove(&controller, warm_up.ids, 1).await;
        }
        for concurrency in [1, 10] {
            let mut figures = [(0.0, 0.0); 2];
            let mut busy = 0.0;
            for round in 0..ROUNDS {
                for (at, (name, class)) in classes.iter().enumerate() {
                    wait_for("directories", DEADLINE, || (export.ready().len() == READY).then_some(()));
                    settle(&folder).await;
                    let (before, of_agent) = (Operations::so_far(folder.path()), ticks(agent.pid()));
                    let name = format!("{name}-{round}-{latency}");
                    let made = volumes(&controller, place, class, (COUNT, concurrency), &name).await;
                    settle(&folder).await;
                    let operations = Operations::so_far(folder.path()).since(&before);
                    Report::detail(&format!("{name}: {operations}"));
                    figures[at].0 += operations.sum() as f64 / (ROUNDS * COUNT) as f64;
                    figures[at].1 += 1e3 / made.rate / ROUNDS as f64;
                    busy += (ticks(agent.pid()) - of_agent) / TICKS * 1e3 / (ROUNDS * COUNT) as f64;
                    remove(&controller, made.ids, concurrency).await;
                }
            }
            Report::detail(&format!("the agent's processor: {busy:.2} ms a volume"));
            let [none, required] = figures;
            let at = format!("CreateVolume, quota: required, {concurrency} at once, {latency}");
            report.at_most(&format!("{at}: more than without"), "round trips", required.0 - none.0, 2.0);
            // Without latency the guest's one processor does the work of driver, server and agent, one after the other.
            let bound = if concurrency == 10 && latency == "1 ms" { 1.3 } else { f64::INFINITY };
            report.ratio(&format!("{at}: time"), "quota: none", "ms", required.1, none.1, bound);
        }
    }
}

fn agent_at_rest(report: &mut Report) {
    let export = Export::on_with(XFS, 20_000);
    let address = free_address();
    let agent = Agent::start(&export, &["--ready=256", &format!("--metrics-address={address}")]);
    let on_disk = |path: &str| export.on_disk(".nfs-csi/quota").join(path);
    let take = |id: ProjectId| {
        let to = export.on_disk(&format!("volume-{id}"));
        export.kernel(id).limit.bytes == LIMIT && std::fs::rename(on_disk(&format!("ready/{id}")), to).is_ok()
    };
    let mut claimed = Vec::new();
    let mut made = 0;
    while made + claimed.len() < PROJECTS {
        for id in export.projects("ready") {
            let text = serde_json::to_string(&wanted(&format!("pvc-{id}"), 1, LIMIT, 0)).unwrap();
            if symlink(text, on_disk(&format!("wanted/{id}"))).is_ok() {
                claimed.push(id);
            }
        }
        let waiting = claimed.len();
        claimed.retain(|id| !take(*id));
        made += waiting - claimed.len();
        std::thread::sleep(Duration::from_millis(2));
    }
    wait_for("all limits to be in force", DEADLINE, || {
        claimed.retain(|id| !take(*id));
        claimed.is_empty().then_some(())
    });
    // All that is due from time to time is in such a time.
    let rest = Duration::from_secs(70);
    std::thread::sleep(rest);
    let before = ticks(agent.pid());
    std::thread::sleep(rest);
    let busy = (ticks(agent.pid()) - before) / TICKS / rest.as_secs_f64();
    let what = format!("the quota agent, at rest, {PROJECTS} projects");
    report.at_most(&format!("{what}: processor"), "%", 100.0 * busy, 1.0);
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kilobytes: f64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    report.at_most(&format!("{what}: resident memory"), "MB", kilobytes * 1024.0 / 1e6, 10.0);
    let (_, metrics) = get(address, "/metrics").unwrap();
    let scan = metrics.lines().find_map(|line| line.strip_prefix("nfs_csi_quota_scan_milliseconds "));
    report.at_most(&format!("{what}: rescan"), "ms", scan.unwrap().parse().unwrap(), 1000.0);
    let ended = agent.stop();
    assert!(ended.success());
    let begun = std::time::Instant::now();
    let started = std::time::SystemTime::now();
    let _agent = Agent::spawn(&export, &["--ready=256"]);
    // Its state is written when it has found what the one before it left.
    wait_for("the agent's first sign of life", DEADLINE, || {
        let state = on_disk("agent.json").metadata().ok()?;
        (state.modified().ok()? > started).then_some(())
    });
    report.at_most(&format!("{what}: its start"), "ms", begun.elapsed().as_secs_f64() * 1e3, f64::INFINITY);
}

/// The processor's time that a process has had, in ticks.
fn ticks(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()
}
