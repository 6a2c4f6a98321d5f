//! A server with a disk for trees, a controller that works there, and a bare mount of the same share.

use std::future::Future;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nfs_csi::proto::controller_client::ControllerClient;
use nfs_csi::proto::volume_content_source::Type;
use rustix::fs::inotify;
use tonic::transport::Channel;

use super::bare::{forget, warm_up};
use crate::floor::{Operations, Share};
use crate::kit::client::{self, Client, Far};
use crate::kit::driver::Driver;
use crate::kit::requests::{create, create_from, delete, delete_snapshot, read_from, snapshot};
use crate::kit::server::SHARE;
use crate::kit::{Folder, folder, wait_until};
use crate::report::Report;
use crate::volumes::{Peak, settle};

/// The largest resident memory of a controller with its workers, in bytes.
const MEMORY: f64 = 64e6;

/// A server of test/bench/job.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// What it is, for the name of a row.
    label: &'static str,
    pub server: &'static str,
    share: &'static str,
    /// The share's root on the server's side.
    disk: &'static str,
    /// The version of NFS, and the client whose server this is; none: 4.2, and this process itself.
    by: Option<(&'static str, Client)>,
    pub has_reflinks: bool,
    pub has_latency: bool,
    /// Whether it is outside of the guest (test/bench/with-ganesha).
    pub is_outside: bool,
}

impl Place {
    const fn new(server: &'static str, disk: &'static str, has_reflinks: bool, has_latency: bool) -> Self {
        let label = if has_reflinks { "reflinks" } else { "no reflinks" };
        Self { label, server, share: "/", disk, by: None, has_reflinks, has_latency, is_outside: false }
    }
}

pub const PLACES: [Place; 4] = [
    Place::new("10.0.3.1", "/run/disks/reflinks", true, false),
    Place::new("10.0.5.1", "/run/disks/plain", false, false),
    Place::new("10.0.4.1", "/run/disks/reflinks", true, true),
    Place::new("10.0.6.1", "/run/disks/plain", false, true),
];

/// Where snapshots are read without a copy.
pub const READERS: [Place; 2] = [PLACES[0], Place::new("10.0.7.1", "/run/disks/ext4", false, false)];

/// This guest's own server, by an older version of NFS: version 3 needs a port mapper, which no other server has. Its
/// disk has reflinks, of which that version knows nothing.
const NFS_3: Place = Place {
    label: "NFS 3",
    server: client::SERVER,
    share: SHARE,
    disk: SHARE,
    by: Some(("3", client::A)),
    has_reflinks: false,
    has_latency: false,
    is_outside: false,
};

/// Another kind of server, in a process.
const GANESHA: Place = Place { label: "nfs-ganesha", ..Place::new("10.0.8.1", "/run/disks/ganesha", false, false) };

/// Servers that do not copy files.
pub const OTHER_SERVERS: [Place; 5] = [
    NFS_3,
    Place { has_latency: true, ..NFS_3 },
    GANESHA,
    Place { server: "10.0.9.1", has_latency: true, ..GANESHA },
    Place { server: "10.0.250.1", disk: "/run/out/ganesha", has_latency: true, is_outside: true, ..GANESHA },
];

/// What one call took.
pub struct Run {
    pub time: Duration,
    pub operations: Operations,
}

/// What a delete took.
pub struct Deleted {
    /// Until DeleteVolume answered; some of the freeing may be among the operations.
    pub answered: Run,
    /// Until the trash was empty.
    pub freed: Run,
}

impl Place {
    /// Whether its server is the kernel's: one in a process does nothing but wait for its system calls in the guest.
    pub fn is_kernel(self) -> bool {
        self.label != GANESHA.label
    }

    /// The disk, for the name of a row.
    pub fn disk_name(self) -> &'static str {
        self.disk.rsplit_once('/').map_or(self.disk, |(_, name)| name)
    }
}

pub struct Site {
    pub place: Place,
    /// Whether each measurement begins with nothing cached, as on a mount that was not used for a while.
    pub is_cold: bool,
    controller: ControllerClient<Channel>,
    bare: Share,
    peak: Peak,
    _driver: Driver,
    _far: Option<Far>,
    folder: Folder,
}

impl Site {
    pub async fn open(place: Place) -> Self {
        Self::open_with(place, &[]).await
    }

    /// With a controller that has further flags.
    pub async fn open_with(place: Place, flags: &[&str]) -> Self {
        let folder = folder();
        let bare = folder.path().with_extension("bare");
        let (driver, bare, far) = match place.by {
            None => {
                let driver = Driver::start_as("controller", folder.path(), flags);
                let far = place.is_outside.then(|| client::move_outside_away(1));
                (driver, Share::mount(place.server, place.share, bare), far)
            }
            Some((version, client)) => {
                let option = format!("--mount-options=nfsvers={version}");
                let driver = Driver::start_in(client, folder.path(), &[flags, &[&option]].concat());
                let bare = Share::mount_in(client, place.server, place.share, bare, version);
                (driver, bare, place.has_latency.then(|| client.move_away(1)))
            }
        };
        let site = Self {
            place,
            is_cold: true,
            controller: driver.controller().await,
            bare,
            peak: Peak::watch(&driver),
            _driver: driver,
            _far: far,
            folder,
        };
        // The first call mounts the export, and has it looked through for what others left.
        let id = site.volume("pvc-warm").await;
        site.delete(&id).await;
        site
    }

    /// Where it is, for the name of a row.
    pub fn name(&self) -> String {
        let latency = if self.place.has_latency { "1 ms" } else { "no latency" };
        format!("{}, {latency}", self.place.label)
    }

    /// The share, mounted for other programs.
    pub fn bare(&self) -> &Path {
        self.bare.path()
    }

    /// A path on the server's own disk.
    pub fn on_disk(&self, path: &str) -> PathBuf {
        Path::new(self.place.disk).join(path)
    }

    /// An empty volume in the directory of its name; its id.
    pub async fn volume(&self, name: &str) -> String {
        let request = create(name, &self.parameters());
        let made = self.controller.clone().create_volume(request).await.unwrap();
        made.into_inner().volume.unwrap().volume_id
    }

    /// A volume with the data of a volume or a snapshot; its id.
    pub async fn volume_from(&self, name: &str, source: Type) -> (String, Run) {
        let request = create_from(name, source, &self.parameters());
        let mut controller = self.controller.clone();
        let (made, run) = self.measured(async move { controller.create_volume(request).await }).await;
        (made.unwrap().into_inner().volume.unwrap().volume_id, run)
    }

    /// A volume that is only read, with the data of a snapshot; its id.
    pub async fn reader(&self, name: &str, source: Type) -> (String, Run) {
        let request = read_from(name, source, &self.parameters());
        let mut controller = self.controller.clone();
        let (made, run) = self.measured(async move { controller.create_volume(request).await }).await;
        (made.unwrap().into_inner().volume.unwrap().volume_id, run)
    }

    /// A snapshot of a volume; its id.
    pub async fn snapshot(&self, name: &str, volume: &str, format: &str) -> (String, Run) {
        let request = snapshot(name, volume, &[("snapshotFormat", format)]);
        let mut controller = self.controller.clone();
        let (made, run) = self.measured(async move { controller.create_snapshot(request).await }).await;
        (made.unwrap().into_inner().snapshot.unwrap().snapshot_id, run)
    }

    /// Deletes a volume, and waits until all of it is freed.
    pub async fn delete(&self, id: &str) -> Deleted {
        self.calm_down().await;
        // The driver's own folders are in use all the time.
        let empty = self.volume("pvc-warm").await;
        self.controller.clone().delete_volume(delete(&empty)).await.unwrap();
        self.until_freed().await;
        settle(&self.folder).await;
        let before = Operations::so_far(self.folder.path());
        let mut controller = self.controller.clone();
        warm_up();
        let begun = Instant::now();
        controller.delete_volume(delete(id)).await.unwrap();
        let time = begun.elapsed();
        let answered = Run { time, operations: Operations::so_far(self.folder.path()).since(&before) };
        self.until_freed().await;
        let time = begun.elapsed();
        settle(&self.folder).await;
        let freed = Run { time, operations: Operations::so_far(self.folder.path()).since(&before) };
        Deleted { answered, freed }
    }

    pub async fn delete_snapshot(&self, id: &str) {
        self.controller.clone().delete_snapshot(delete_snapshot(id)).await.unwrap();
        self.until_freed().await;
    }

    /// Gives the memory of this guest back that the disk has no use for any more.
    pub fn trim(&self) {
        if self.place.is_outside {
            return;
        }
        rustix::fs::sync();
        let status = Command::new("fstrim").arg(self.place.disk).status().unwrap();
        assert!(status.success(), "fstrim {}: {status}", self.place.disk);
    }

    /// What memory the controller took at most, and no more.
    pub fn close(self, report: &mut Report, what: &str) {
        let what = format!("resident memory, controller, {what}, {}", self.name());
        report.at_most(&what, "MB", self.peak.bytes() as f64 / 1e6, MEMORY / 1e6);
    }

    fn parameters(&self) -> [(&str, &str); 2] {
        [("server", self.place.server), ("share", self.place.share)]
    }

    async fn calm_down(&self) {
        if self.is_cold {
            forget();
        }
        settle(&self.folder).await;
    }

    async fn measured<T>(&self, call: impl Future<Output = T>) -> (T, Run) {
        self.calm_down().await;
        let before = Operations::so_far(self.folder.path());
        warm_up();
        let begun = Instant::now();
        let outcome = call.await;
        let time = begun.elapsed();
        settle(&self.folder).await;
        (outcome, Run { time, operations: Operations::so_far(self.folder.path()).since(&before) })
    }

    /// Sleeps until the trash is empty. A look now and then would cost the driver a tenth of its time, on a guest with
    /// one processor.
    async fn until_freed(&self) {
        let trash = self.on_disk(".nfs-csi/trash");
        if self.place.is_outside {
            // Nobody is told of what changes there.
            let is_empty = || std::fs::read_dir(&trash).unwrap().next().is_none().then_some(());
            return wait_until("the trash to be empty", Duration::from_mins(10), is_empty).await;
        }
        let changes = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&changes, &trash, inotify::WatchFlags::DELETE).unwrap();
        // What is in it are directories.
        while std::fs::metadata(&trash).unwrap().nlink() > 2 {
            let changes = changes.try_clone().unwrap();
            tokio::task::spawn_blocking(move || rustix::io::read(changes, &mut [0; 4096])).await.unwrap().unwrap();
        }
    }
}
