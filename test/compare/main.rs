//! The same work by this driver and by another one of the same interface, csi-driver-nfs, as a table: `make compare`.
//!
//! usage: compare [PART...]
//!
//! Without a part all are measured. `E2E_PEER` is the other driver's binary. docs/comparison.md explains the rows.
#![allow(missing_docs, unreachable_pub, reason = "a program of its own")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]
#![allow(clippy::cast_precision_loss, clippy::must_use_candidate, reason = "figures for people, and no library")]

#[path = "../kit/mod.rs"]
mod kit;
#[allow(dead_code, reason = "the benchmark has more of them")]
#[path = "../bench/trees/shape.rs"]
mod shape;
#[allow(dead_code, reason = "the tests use more of it")]
#[path = "../integration/trees.rs"]
mod trees;

mod candidate;
mod copies;
mod deleted;
mod kept;
mod links;
mod nodes;
mod repeated;
mod table;
mod volumes;

use candidate::Candidate;
use table::Table;

const PARTS: [&str; 9] = ["process", "volumes", "trees", "copies", "publish", "dead", "kept", "links", "repeated"];

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let only: Vec<String> = std::env::args().skip(1).collect();
    assert!(only.iter().all(|part| PARTS.contains(&part.as_str())), "the parts are {}", PARTS.join(", "));
    let candidates = Candidate::both();
    let versions = [candidates[0].version().await, candidates[1].version().await];
    let columns = [format!("peer {}", versions[0]), format!("nfs-csi {}", versions[1])];
    let path = std::env::var("E2E_COMPARE_TABLE").expect("E2E_COMPARE_TABLE names the file for the table");
    let mut table = Table::default();
    for part in PARTS.into_iter().filter(|part| only.is_empty() || only.iter().any(|only| only == part)) {
        match part {
            "process" => nodes::process(&mut table, &candidates),
            "volumes" => volumes::many(&mut table, &candidates).await,
            "trees" => volumes::tree(&mut table, &candidates).await,
            "copies" => copies::large(&mut table, &candidates).await,
            "publish" => nodes::healthy(&mut table, &candidates).await,
            "dead" => nodes::dead(&mut table, &candidates).await,
            "kept" => kept::attributes(&mut table, &candidates).await,
            "links" => links::followed(&mut table, &candidates).await,
            _ => {
                repeated::calls(&mut table, &candidates).await;
                repeated::killed(&mut table, &candidates).await;
                deleted::by_mistake(&mut table, &candidates).await;
            }
        }
        // What is measured is kept, whatever the next part does.
        std::fs::write(&path, format!("{}\n{}", conditions(&candidates), table.markdown(&columns))).unwrap();
    }
    println!("\n{}", std::fs::read_to_string(&path).unwrap());
}

/// When and where it was measured, and how both were started.
fn conditions(candidates: &[Candidate; 2]) -> String {
    let date = std::process::Command::new("date").args(["--utc", "+%Y-%m-%d %H:%M UTC"]).output().unwrap();
    let date = String::from_utf8_lossy(&date.stdout).trim().to_owned();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let [peer, own] = candidates
        .each_ref()
        .map(|candidate| [candidate.controller_flags(), candidate.node_flags()].map(|flags| flags.join(" ")));
    format!(
        "Measured {date} on Linux {} (user-mode-linux, one processor), by kernel NFS servers in the same guest.\n\n\
         - peer, controller: `{}`\n\
         - peer, node: `{}`\n\
         - nfs-csi, controller: `{}`\n\
         - nfs-csi, node: `{}`\n\
         - all: `--endpoint=unix://…`, `--working-mount-dir=…`\n",
        kernel.trim(),
        peer[0],
        peer[1],
        own[0],
        own[1]
    )
}
