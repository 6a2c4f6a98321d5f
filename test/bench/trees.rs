//! Clone, snapshot, restore and delete of whole trees against cp, tar and rm on the same server.

pub mod bare;
pub mod shape;
pub mod site;

use std::time::Duration;

use nfs_csi::tree::effort::DEFAULT_WORKERS;

use crate::kit::requests::{of_snapshot, of_volume};
use crate::report::Report;
use shape::{FLAT, SMALL_FLAT, SMALL_TREE, Shape, TREE};
use site::{PLACES, Place, Run};
pub use site::{READERS, Site};

/// The size of the large file, in bytes.
pub const LARGE: usize = 512 << 20;
/// How often a thing is measured, in turn with what it is compared to; the median counts.
const SAMPLES: usize = 3;
/// The same for one large file: a server that writes so much is now and then ten times slower.
pub const LARGE_SAMPLES: usize = 7;
/// The same for deletes, which do what `rm` does: what there is between them is less than one time differs from the
/// next.
const MANY_SAMPLES: usize = 15;
/// Numbers of workers that are compared.
const CREWS: [usize; 6] = [8, 16, DEFAULT_WORKERS, 32, 48, 64];
const NONE: f64 = f64::INFINITY;

/// These servers; with E2E_BENCH_SERVER only the one with this address.
pub fn chosen(places: impl IntoIterator<Item = Place>) -> impl Iterator<Item = Place> {
    let only = std::env::var("E2E_BENCH_SERVER").ok();
    places.into_iter().filter(move |place| only.as_ref().is_none_or(|only| only == place.server))
}

/// One large file on each server.
pub async fn one_file(report: &mut Report) {
    for place in chosen(PLACES) {
        let mut site = Site::open(place).await;
        large(report, &mut site).await;
        site.close(report, "512 MB");
    }
}

/// Trees of small files on each server.
pub async fn many_files(report: &mut Report) {
    for place in chosen(PLACES) {
        let site = Site::open(place).await;
        let tree = if place.has_latency { SMALL_TREE } else { TREE };
        let bare = files(report, &site, tree).await;
        if place.has_latency && place.has_reflinks {
            own(report, &site, TREE, &bare).await;
        }
        site.close(report, "files in directories");

        if place.has_reflinks {
            let site = Site::open(place).await;
            files(report, &site, if place.has_latency { SMALL_FLAT } else { FLAT }).await;
            site.close(report, "files in one directory");
        }
    }
}

/// Whether another number of workers would have been better, where it matters most.
pub async fn crews(report: &mut Report) {
    let place = PLACES[2];
    let mut of_crews = [(f64::INFINITY, f64::INFINITY); CREWS.len()];
    for _ in 0..SAMPLES {
        for (workers, (cloned, deleted)) in CREWS.into_iter().zip(&mut of_crews) {
            let site = Site::open_with(place, &[&format!("--tree-workers={workers}")]).await;
            let id = site.volume("pvc-source").await;
            SMALL_TREE.make(&site.on_disk("pvc-source"));
            for _ in 0..2 {
                let (clone, run) = site.volume_from("pvc-clone", of_volume(&id)).await;
                *cloned = cloned.min(seconds(run.time));
                *deleted = deleted.min(seconds(site.delete(&clone).await.freed.time));
            }
            site.delete(&id).await;
        }
    }
    for (workers, (cloned, deleted)) in CREWS.into_iter().zip(of_crews) {
        println!("    {workers} workers: clone {cloned:.3} s, delete {deleted:.3} s");
    }
    let best = |time: fn(&(f64, f64)) -> f64| of_crews.iter().map(time).fold(f64::INFINITY, f64::min);
    let own = CREWS.iter().position(|&workers| workers == DEFAULT_WORKERS).expect("the default is measured");
    let at = format!("{}, 1 ms, {DEFAULT_WORKERS} workers", SMALL_TREE.name);
    let against = "the best of 8 to 64 workers";
    report.ratio(&format!("clone, {at}"), against, "s", of_crews[own].0, best(|crew| crew.0), 1.2);
    report.ratio(&format!("delete, {at}"), against, "s", of_crews[own].1, best(|crew| crew.1), 1.2);
}

/// A directory with a million names.
pub async fn million(report: &mut Report) {
    let site = Site::open(PLACES[0]).await;
    let id = site.volume("pvc-million").await;
    shape::empty_files(&site.on_disk("pvc-million"), 1_000_000);
    let (clone, cloned) = site.volume_from("pvc-clone", of_volume(&id)).await;
    report.at_most("clone, 1,000,000 empty files in one directory", "s", cloned.time.as_secs_f64(), NONE);
    let deleted = site.delete(&clone).await;
    report.at_most("delete, 1,000,000 empty files in one directory", "s", deleted.freed.time.as_secs_f64(), NONE);
    answer(report, &site, "1,000,000 empty files in one directory", &deleted.answered, &deleted.answered);
    site.delete(&id).await;
    site.close(report, "1,000,000 names");
}

/// Files with two names, and so many of them that an archive remembers the names of some only: what that takes is what
/// any number of them takes.
pub async fn links(report: &mut Report) {
    const WHAT: &str = "100,000 files with two long names each";
    let site = Site::open(PLACES[0]).await;
    let id = site.volume("pvc-source").await;
    shape::linked_files(&site.on_disk("pvc-source"), 100_000);
    let (clone, cloned) = site.volume_from("pvc-clone", of_volume(&id)).await;
    site.delete(&clone).await;
    let (snapshot, taken) = site.snapshot("snap", &id, "tar.zst").await;
    let (restored_id, restored) = site.volume_from("pvc-restored", of_snapshot(&snapshot)).await;
    for (what, run) in [("clone", cloned), ("snapshot as tar.zst", taken), ("restore of tar.zst", restored)] {
        report.at_most(&format!("{what}, {WHAT}"), "s", seconds(run.time), NONE);
    }
    site.delete(&restored_id).await;
    site.delete_snapshot(&snapshot).await;
    site.delete(&id).await;
    site.close(report, "files with two names");
}

/// One large file.
async fn large(report: &mut Report, site: &mut Site) {
    let at = format!("512 MB, {}", site.name());
    let id = site.volume("pvc-large").await;
    shape::large_file(&site.on_disk("pvc-large/file"), LARGE);
    let mut times = [const { Vec::new() }; 7];
    let mut cold = None;
    for _ in 0..LARGE_SAMPLES {
        let range = bare::copy_range(&site.bare().join("pvc-large/file"), &site.bare().join("bench-range"));
        std::fs::remove_file(site.bare().join("bench-range")).unwrap();
        let (clone, cloned) = site.volume_from("pvc-clone", of_volume(&id)).await;
        let deleted = site.delete(&clone).await;
        let copied = bare::copy(site.bare(), "pvc-large", "bench-copy");
        let removed = bare::remove(site.bare(), "bench-copy");
        let (snapshot, taken) = site.snapshot("snap", &id, "tree").await;
        let (restored_id, restored) = site.volume_from("pvc-restored", of_snapshot(&snapshot)).await;
        site.delete(&restored_id).await;
        site.delete_snapshot(&snapshot).await;
        site.trim();
        let round = [range, copied, removed, cloned.time, taken.time, restored.time, deleted.freed.time];
        for (times, time) in times.iter_mut().zip(round) {
            times.push(time);
        }
        cold = Some([cloned, taken, restored, deleted.answered]);
    }
    let cold = cold.expect("there are samples");
    let warm = counts(site, &id).await;
    let [range, copied, removed, cloned, taken, restored, deleted] = times.map(crate::median).map(milliseconds);
    for (index, (what, time)) in [("clone", cloned), ("snapshot", taken), ("restore", restored)].into_iter().enumerate()
    {
        let what = format!("{what}, {at}");
        let is_bounded = site.place.has_reflinks && !what.starts_with("restore");
        if !site.place.has_reflinks {
            report.ratio(&what, "copy_file_range + fsync", "ms", time, range, 1.1);
        } else if is_bounded && !site.place.has_latency {
            report.at_most(&what, "ms", time, 50.0);
        }
        report.ratio(&what, "cp -a --reflink=auto", "ms", time, copied, NONE);
        let others = |run: &Run| (run.operations.sum() - run.operations.of("CLONE")) as f64;
        // A driver alone would need 20. The others are for other controllers, and are asked of the server each time: is
        // there such a volume, is something in its place, is one at it, is the source still there, is the volume.
        let bound = if is_bounded { 26.0 } else { NONE };
        report.at_most(&format!("{what}, but for CLONE"), "round trips", others(&warm[index]), bound);
        Report::detail(&warm[index].operations);
        report.at_most(&format!("{what}, but for CLONE, nothing cached"), "round trips", others(&cold[index]), NONE);
        Report::detail(&cold[index].operations);
    }
    report.ratio(&format!("delete, {at}"), "rm -rf", "ms", deleted, removed, NONE);
    answer(report, site, "512 MB", &cold[3], &warm[3]);
    archives(report, site, "512 MB", "pvc-large", &id).await;
    site.delete(&id).await;
    site.trim();
}

/// Clone, snapshot, restore and delete on a mount that is in use: what is asked for the second time.
async fn counts(site: &mut Site, id: &str) -> [Run; 4] {
    site.is_cold = false;
    let mut runs = None;
    for _ in 0..2 {
        let (clone, cloned) = site.volume_from("pvc-clone", of_volume(id)).await;
        let deleted = site.delete(&clone).await;
        let (snapshot, taken) = site.snapshot("snap", id, "tree").await;
        let (restored_id, restored) = site.volume_from("pvc-restored", of_snapshot(&snapshot)).await;
        site.delete(&restored_id).await;
        site.delete_snapshot(&snapshot).await;
        runs = Some([cloned, taken, restored, deleted.answered]);
    }
    site.is_cold = true;
    runs.expect("there are runs")
}

/// What bare programs take for a tree, for each of its files.
struct Bare {
    copied: Duration,
    removed: Duration,
}

/// Many small files.
async fn files(report: &mut Report, site: &Site, shape: Shape) -> Bare {
    let id = site.volume("pvc-source").await;
    shape.make(&site.on_disk("pvc-source"));
    let is_tree_far_away = site.place.has_latency && shape.directories > 0;
    let rounds = if site.place.has_latency { 1 } else { SAMPLES };
    let pairs = if is_tree_far_away { 1 } else { MANY_SAMPLES };
    let mut times = [const { Vec::new() }; 4];
    let mut last = None;
    for _ in 0..rounds {
        let copied = bare::copy(site.bare(), "pvc-source", "bench-copy");
        bare::remove(site.bare(), "bench-copy");
        let (clone, cloned) = site.volume_from("pvc-clone", of_volume(&id)).await;
        let deleted = site.delete(&clone).await;
        let (snapshot, taken) = site.snapshot("snap", &id, "tree").await;
        let (restored_id, restored) = site.volume_from("pvc-restored", of_snapshot(&snapshot)).await;
        site.delete(&restored_id).await;
        site.delete_snapshot(&snapshot).await;
        let round = [copied, cloned.time, taken.time, restored.time];
        for (times, time) in times.iter_mut().zip(round) {
            times.push(time);
        }
        last = Some((cloned, deleted));
    }
    let (cloned, deleted) = last.expect("there are samples");
    let [copied, clone, snapshot, restore] = times.map(crate::median);
    let [removed, delete] = removals(site, shape, pairs).await;
    let slower = share_of_slower(&delete, &removed);
    let [removed, delete] = [removed, delete].map(crate::median);

    let at = format!("{}, {}", shape.name, site.name());
    let [of_copy, of_delete] = if is_tree_far_away { [0.1, 0.2] } else { [1.0, 1.0] };
    for (what, time) in [("clone", clone), ("snapshot", snapshot), ("restore", restore)] {
        report.ratio(&format!("{what}, {at}"), "cp -a", "s", seconds(time), seconds(copied), of_copy);
    }
    // The times of each have to be set. And delegations, which nobody asked for, the kernel gives back when it likes.
    let apart = ["SETATTR", "DELEGRETURN"].map(|name| cloned.operations.of(name));
    let others = cloned.operations.sum() - apart.iter().sum::<u64>();
    let of_each = others as f64 / shape.files as f64;
    report.at_most(&format!("clone but for SETATTR, {at}, a file"), "round trips", of_each, 8.0);
    Report::detail(&cloned.operations);
    report.ratio(&format!("delete, {at}"), "rm -rf", "s", seconds(delete), seconds(removed), of_delete);
    Report::detail(&format!("of all pairs of a delete and an rm, in {:.0} % the delete took longer", slower * 100.0));
    let of_each = deleted.freed.operations.sum() as f64 / shape.files as f64;
    report.at_most(&format!("delete, {at}, a file"), "round trips", of_each, 1.1);
    Report::detail(&deleted.freed.operations);
    answer(report, site, shape.name, &deleted.answered, &deleted.answered);
    if shape.directories > 0 && site.place.has_reflinks {
        archives(report, site, shape.name, "pvc-source", &id).await;
    }
    site.delete(&id).await;
    site.trim();
    let files = u32::try_from(shape.files).expect("not that many");
    Bare { copied: copied / files, removed: removed / files }
}

/// In how many of all pairs the first one is the longer one: in half of them where both are of the same thing, and with
/// [`MANY_SAMPLES`] of each in one case of twenty in more than 68 % by chance (the test of Mann and Whitney).
fn share_of_slower(first: &[Duration], second: &[Duration]) -> f64 {
    let slower: usize = first.iter().map(|time| second.iter().filter(|other| time > other).count()).sum();
    slower as f64 / (first.len() * second.len()) as f64
}

/// What `rm -rf` and deletes take for trees that are all the same, in turn.
async fn removals(site: &Site, shape: Shape, pairs: usize) -> [Vec<Duration>; 2] {
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..pairs {
        let tree = site.on_disk("bench-tree");
        std::fs::create_dir(&tree).unwrap();
        shape.make(&tree);
        times[0].push(bare::remove(site.bare(), "bench-tree"));
        let id = site.volume("pvc-tree").await;
        shape.make(&site.on_disk("pvc-tree"));
        times[1].push(site.delete(&id).await.freed.time);
    }
    site.trim();
    times
}

/// A tree that is too large here for the bare programs: against what they took for each file of a smaller one.
async fn own(report: &mut Report, site: &Site, shape: Shape, bare: &Bare) {
    let id = site.volume("pvc-source").await;
    shape.make(&site.on_disk("pvc-source"));
    let (clone, cloned) = site.volume_from("pvc-clone", of_volume(&id)).await;
    let deleted = site.delete(&clone).await;
    let at = format!("{}, {}, a file", shape.name, site.name());
    let a_file = |time: Duration| milliseconds(time) / shape.files as f64;
    let (copied, removed) = (milliseconds(bare.copied), milliseconds(bare.removed));
    report.ratio(&format!("clone, {at}"), "cp -a, 4,000 files", "ms", a_file(cloned.time), copied, 0.1);
    report.ratio(&format!("delete, {at}"), "rm -rf, 4,000 files", "ms", a_file(deleted.freed.time), removed, 0.2);
    answer(report, site, shape.name, &deleted.answered, &deleted.answered);
    site.delete(&id).await;
    site.trim();
}

/// A snapshot as an archive, and a volume made of it, against tar.
async fn archives(report: &mut Report, site: &Site, what: &str, directory: &str, id: &str) {
    let at = format!("{what}, {}", site.name());
    let packed = bare::archive(site.bare(), directory, "bench.tar", false);
    let unpacked = bare::unpack(site.bare(), "bench.tar", "bench-unpacked");
    bare::remove(site.bare(), "bench-unpacked");
    bare::remove(site.bare(), "bench.tar");
    site.trim();
    let compressed = bare::has_zstd().then(|| {
        let packed = bare::archive(site.bare(), directory, "bench.tar.zst", true);
        let unpacked = bare::unpack(site.bare(), "bench.tar.zst", "bench-unpacked");
        bare::remove(site.bare(), "bench-unpacked");
        bare::remove(site.bare(), "bench.tar.zst");
        site.trim();
        (packed, unpacked)
    });
    let (snapshot, taken) = site.snapshot("snap", id, "tar.zst").await;
    let (restored_id, restored) = site.volume_from("pvc-restored", of_snapshot(&snapshot)).await;
    site.delete(&restored_id).await;
    site.delete_snapshot(&snapshot).await;
    let (taken, restored) = (seconds(taken.time), seconds(restored.time));
    report.ratio(&format!("snapshot as tar.zst, {at}"), "tar -cf", "s", taken, seconds(packed), NONE);
    report.ratio(&format!("restore of tar.zst, {at}"), "tar -xf", "s", restored, seconds(unpacked), NONE);
    if let Some((packed, unpacked)) = compressed {
        report.ratio(&format!("snapshot as tar.zst, {at}"), "tar --zstd -cf", "s", taken, seconds(packed), NONE);
        report.ratio(&format!("restore of tar.zst, {at}"), "tar --zstd -xf", "s", restored, seconds(unpacked), NONE);
    }
    site.trim();
}

/// What DeleteVolume itself takes, while the tree waits in the trash.
fn answer(report: &mut Report, site: &Site, tree: &str, timed: &Run, counted: &Run) {
    let what = format!("DeleteVolume until its answer, {tree}, {}", site.name());
    let bound = if site.place.has_latency { NONE } else { 30.0 };
    report.at_most(&what, "ms", milliseconds(timed.time), bound);
    report.at_most(&what, "round trips", counted.operations.sum() as f64, 10.0);
    Report::detail(&counted.operations);
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

fn milliseconds(time: Duration) -> f64 {
    crate::milliseconds(time)
}
