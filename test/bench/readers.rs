//! A claim of readers from a snapshot: nothing is copied, so its size does not matter.

use crate::kit::requests::of_snapshot;
use crate::report::Report;
use crate::trees::{READERS, Site, shape};

/// So many files are in the snapshot.
const FILES: usize = 200_000;

/// The first reader of a large snapshot, on file systems with reflinks and without.
pub async fn of_a_large_snapshot(report: &mut Report) {
    for place in READERS {
        let mut site = Site::open(place).await;
        site.is_cold = false;
        let source = site.volume("pvc-source").await;
        let (snapshot, _) = site.snapshot("snap-large", &source, "tree").await;
        // Its files are put there on the server: here they are not copied, and making the snapshot takes minutes.
        let folders = site.on_disk(".nfs-csi/snapshots");
        let trees = std::fs::read_dir(folders).unwrap().map(|folder| folder.unwrap().path().join("data"));
        let tree = trees.into_iter().find(|tree| tree.exists()).unwrap();
        shape::empty_files(&tree, FILES);
        // That took minutes too, after which the client asks for all of the driver's folders again: a controller at work
        // knows them.
        let (small, _) = site.snapshot("snap-small", &source, "tree").await;
        let (reader, _) = site.reader("pvc-small", of_snapshot(&small)).await;
        let at = format!("ReadOnlyMany claim of a snapshot, {FILES} files, {}", place.disk_name());
        let (large, run) = site.reader("pvc-large", of_snapshot(&snapshot)).await;
        report.at_most(&at, "ms", crate::milliseconds(run.time), 50.0);
        report.at_most(&at, "round trips", run.operations.sum() as f64, 12.0);
        Report::detail(&run.operations);
        let (next, run) = site.reader("pvc-next", of_snapshot(&snapshot)).await;
        report.at_most(&format!("{at}, another one"), "round trips", run.operations.sum() as f64, 12.0);
        Report::detail(&run.operations);
        for id in [&reader, &large, &next, &source] {
            site.delete(id).await;
        }
        for id in [&small, &snapshot] {
            site.delete_snapshot(id).await;
        }
        site.trim();
    }
}
