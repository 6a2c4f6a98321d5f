//! Clones on servers that neither clone nor copy a file themselves, against cp: one large file, and many small ones.

use std::time::Duration;

use crate::kit::requests::of_volume;
use crate::report::Report;
use crate::trees::shape::{self, SMALL_TREE, Shape, TREE};
use crate::trees::site::OTHER_SERVERS;
use crate::trees::{self, LARGE, LARGE_SAMPLES, Site, bare};

/// At most so much of what `cp -a` takes.
const OF_LARGE: f64 = 1.0;
const OF_SMALL: f64 = 1.0 / 8.0;

pub async fn without_copies(report: &mut Report) {
    for place in trees::chosen(OTHER_SERVERS) {
        let site = Site::open(place).await;
        // The guest is a slow wire to what is outside.
        if !place.is_outside {
            large_file(report, &site).await;
        }
        if place.is_outside || (place.has_latency && place.is_kernel()) {
            small_files(report, &site).await;
        }
        site.close(report, "other servers");
    }
}

async fn large_file(report: &mut Report, site: &Site) {
    let id = site.volume("pvc-large").await;
    shape::large_file(&site.on_disk("pvc-large/file"), LARGE);
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..LARGE_SAMPLES {
        times[0].push(bare::copy(site.bare(), "pvc-large", "bench-copy"));
        bare::remove(site.bare(), "bench-copy");
        site.trim();
        let (clone, cloned) = site.volume_from("pvc-clone", of_volume(&id)).await;
        times[1].push(cloned.time);
        site.delete(&clone).await;
        site.trim();
    }
    let [copied, cloned] = times.map(|times| crate::milliseconds(crate::median(times)));
    let what = format!("clone, 512 MB, {}", site.name());
    report.ratio(&what, "cp -a", "ms", cloned, copied, OF_LARGE);
    site.delete(&id).await;
    site.trim();
}

/// What `cp -a` takes for each file of a smaller tree is what it would take for those of the tree that is cloned.
async fn small_files(report: &mut Report, site: &Site) {
    let id = site.volume("pvc-small").await;
    SMALL_TREE.make(&site.on_disk("pvc-small"));
    let copied = bare::copy(site.bare(), "pvc-small", "bench-copy");
    bare::remove(site.bare(), "bench-copy");
    site.delete(&id).await;
    let id = site.volume("pvc-source").await;
    TREE.make(&site.on_disk("pvc-source"));
    let (clone, cloned) = site.volume_from("pvc-clone", of_volume(&id)).await;
    let a_file = |time: Duration, shape: Shape| crate::milliseconds(time) / shape.files as f64;
    let (of_clone, of_copy) = (a_file(cloned.time, TREE), a_file(copied, SMALL_TREE));
    let what = format!("clone, {}, {}, a file", TREE.name, site.name());
    report.ratio(&what, "cp -a, 4,000 files", "ms", of_clone, of_copy, OF_SMALL);
    let of_each = cloned.operations.sum() as f64 / TREE.files as f64;
    report.at_most(&what, "round trips", of_each, f64::INFINITY);
    Report::detail(&cloned.operations);
    for volume in [&clone, &id] {
        site.delete(volume).await;
    }
    site.trim();
}
