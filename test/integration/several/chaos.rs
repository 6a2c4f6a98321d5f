//! Three controllers that are frozen, woken and killed at random moments, and asked at random for one thing after the
//! other: in the end everything is as it was answered, and as the pods left it.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nfs_csi::proto::CreateVolumeRequest;
use tokio::task::JoinHandle;
use tonic::Status;

use super::work::files_below;
use crate::kit::check::is_well;
use crate::kit::client::{A, B, C};
use crate::kit::content::{Content, bytes, fill, random};
use crate::kit::replica::Replica;
use crate::kit::requests::{MIB, of_snapshot, of_volume, snapshot};
use crate::kit::retried::{Call, DEADLINE, is_final};
use crate::kit::share::Share;
use crate::kit::wait_until;

const ROUNDS: usize = 60;
/// The directory that several volumes share.
const SHARED: &str = "shared";
/// What broke off for good is swept before the end, and nothing is kept in the trash: also not what a call that was
/// answered late made anew, without a record, when the volume was deleted already.
const FLAGS: [&str; 2] = ["--staging-retention=10s", "--unrecorded-retention=0s"];
/// How long an answer is waited for before another controller is asked, too.
const TIMEOUT: Duration = Duration::from_millis(500);

struct Chaos {
    share: Share,
    replicas: [Replica; 3],
    is_frozen: [bool; 3],
    /// Whether nothing more happens to them.
    is_calm: bool,
    state: u64,
    /// Calls whose answers were not waited for.
    late: Vec<JoinHandle<Result<String, Status>>>,
    /// The volumes by their ids, with their directories and sizes.
    volumes: BTreeMap<String, (String, i64)>,
    /// What is to be in each directory.
    contents: BTreeMap<String, Content>,
    /// The snapshots by their ids.
    snapshots: BTreeMap<String, Content>,
    /// What deletes all that there ever was.
    deletes: Vec<Call>,
    faults: Vec<String>,
    done: BTreeMap<&'static str, usize>,
}

/// A directory that a pod has open: it writes there also while it is renamed.
struct Pod(File);

impl Pod {
    async fn at(directory: &Path) -> Self {
        Self(wait_until("the volume's directory", Duration::from_secs(30), || File::open(directory).ok()).await)
    }

    fn root(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/.", self.0.as_raw_fd()))
    }
}

impl Chaos {
    async fn new(seed: u64) -> Self {
        let replicas = [
            Replica::start_with(A, &FLAGS).await,
            Replica::start_with(B, &FLAGS).await,
            Replica::start_with(C, &FLAGS).await,
        ];
        Self {
            share: Share::new(),
            replicas,
            is_frozen: [false; 3],
            is_calm: false,
            state: seed,
            late: Vec::new(),
            volumes: BTreeMap::new(),
            contents: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            deletes: Vec::new(),
            faults: Vec::new(),
            done: BTreeMap::new(),
        }
    }

    /// A number below another.
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(random(&mut self.state) % bound as u64).unwrap()
    }

    fn one_of<T>(&mut self, map: &BTreeMap<String, T>) -> String {
        let number = self.below(map.len());
        map.keys().nth(number).unwrap().clone()
    }

    fn count(&mut self, what: &'static str) {
        *self.done.entry(what).or_default() += 1;
    }

    fn wake(&mut self, number: usize) {
        if std::mem::take(&mut self.is_frozen[number]) {
            self.replicas[number].wake();
            self.count("wakes");
        }
    }

    /// Something happens to a controller, or nothing; two at most are frozen.
    async fn disturb(&mut self, number: usize) {
        match self.below(6) {
            0 | 1 if !self.is_frozen[number] && self.is_frozen.iter().filter(|is_frozen| **is_frozen).count() < 2 => {
                self.replicas[number].freeze();
                self.is_frozen[number] = true;
                self.count("freezes");
            }
            2 => {
                self.is_frozen[number] = false;
                self.replicas[number].restart().await;
                self.count("kills");
            }
            _ => {}
        }
    }

    /// Asks one controller after the other until one of them succeeds; none where the answer is a final error.
    async fn asked(&mut self, what: &'static str, call: Call) -> Option<String> {
        self.count(what);
        let end = Instant::now() + DEADLINE;
        let mut is_first = true;
        loop {
            let number = self.below(3);
            let (again, calls) = (call.clone(), self.replicas[number].calls.clone());
            let mut answer = tokio::spawn(async move { again.once(&calls, DEADLINE).await });
            if std::mem::take(&mut is_first) && !self.is_calm {
                tokio::time::sleep(Duration::from_millis(self.below(80) as u64)).await;
                let whom = if self.below(3) == 0 { self.below(3) } else { number };
                self.disturb(whom).await;
            }
            match tokio::time::timeout(TIMEOUT, &mut answer).await {
                Ok(answer) => match answer.unwrap() {
                    Ok(id) => return Some(id),
                    Err(status) if is_final(&status) || Instant::now() > end => {
                        self.faults.push(format!("{what}: {:?}: {}", status.code(), status.message()));
                        return None;
                    }
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                },
                Err(_) => self.late.push(answer),
            }
        }
    }

    async fn create(&mut self, number: usize) {
        let name = format!("pvc-{number}");
        let Some(id) = self.asked("create", Call::Create(self.share.create(&name, &[]))).await else { return };
        fill(&Pod::at(&self.share.on_disk(&name)).await.root(), 3, 6);
        self.has(id, name);
    }

    /// A volume that shares its directory with others; the first takes what it finds.
    async fn create_shared(&mut self, number: usize) {
        let call = Call::Create(self.share.create(&format!("pvc-{number}"), &[("subDir", SHARED)]));
        let Some(id) = self.asked("create shared", call).await else { return };
        let pod = Pod::at(&self.share.on_disk(SHARED)).await;
        let own = pod.root().join(format!("of-{number}"));
        std::fs::create_dir(&own).unwrap();
        fill(&own, 2, 6);
        self.has(id, SHARED.into());
    }

    async fn copy(&mut self, number: usize) {
        let (source, content) = if self.snapshots.is_empty() || self.below(2) == 0 {
            let id = self.one_of(&self.volumes.clone());
            (of_volume(&id), self.contents[&self.volumes[&id].0].clone())
        } else {
            let id = self.one_of(&self.snapshots.clone());
            (of_snapshot(&id), self.snapshots[&id].clone())
        };
        let name = format!("pvc-{number}");
        // As large as its source is by now.
        let request = CreateVolumeRequest { capacity_range: None, ..self.share.create_from(&name, source, &[]) };
        let Some(id) = self.asked("copy", Call::Create(request)).await else { return };
        let pod = Pod::at(&self.share.on_disk(&name)).await;
        self.faults.extend(content.is_at(&pod.root(), &format!("copy {name}")).err());
        for (number, file) in files_below(&pod.root()).into_iter().enumerate() {
            match number % 5 {
                0 => std::fs::write(file, bytes(number + 7)).unwrap(),
                1 => std::fs::remove_file(file).unwrap(),
                _ => {}
            }
        }
        self.has(id, name);
    }

    async fn snapshot(&mut self, number: usize) {
        let volume = self.one_of(&self.volumes.clone());
        let content = self.contents[&self.volumes[&volume].0].clone();
        let format = [("snapshotFormat", if self.below(2) == 0 { "tree" } else { "tar.zst" })];
        let request = snapshot(&format!("snap-{number}"), &volume, &format);
        let Some(id) = self.asked("snapshot", Call::Snapshot(request)).await else { return };
        self.deletes.push(Call::DeleteSnapshot(id.clone()));
        self.snapshots.insert(id, content);
    }

    async fn delete(&mut self) {
        let id = self.one_of(&self.volumes.clone());
        let (directory, _) = self.volumes.remove(&id).unwrap();
        if !self.volumes.values().any(|(other, _)| *other == directory) {
            self.contents.remove(&directory);
        }
        self.asked("delete", Call::Delete(id)).await;
    }

    async fn delete_snapshot(&mut self) {
        let id = self.one_of(&self.snapshots.clone());
        self.snapshots.remove(&id);
        self.asked("delete snapshot", Call::DeleteSnapshot(id)).await;
    }

    async fn expand(&mut self) {
        let id = self.one_of(&self.volumes.clone());
        let bytes = self.volumes[&id].1 + MIB;
        self.asked("expand", Call::Expand(id.clone(), bytes)).await;
        self.volumes.get_mut(&id).unwrap().1 = bytes;
    }

    /// A volume is there, and its directory is to stay as it is now.
    fn has(&mut self, id: String, directory: String) {
        self.contents.insert(directory.clone(), Content::of(&self.share.on_disk(&directory)));
        self.deletes.push(Call::Delete(id.clone()));
        self.volumes.insert(id, (directory, 10 * MIB));
    }

    async fn round(&mut self, number: usize) {
        for replica in 0..3 {
            if self.below(3) == 0 {
                self.wake(replica);
            }
        }
        let (volumes, snapshots) = (self.volumes.len(), self.snapshots.len());
        match self.below(9) {
            0 if volumes < 8 => self.create(number).await,
            1 if volumes < 8 => self.create_shared(number).await,
            2 | 3 if (1..8).contains(&volumes) => self.copy(number).await,
            4 if volumes > 0 && snapshots < 5 => self.snapshot(number).await,
            5 if volumes > 0 => self.expand().await,
            6 if snapshots > 0 => self.delete_snapshot().await,
            _ if volumes > 0 => self.delete().await,
            _ => self.create(number).await,
        }
        self.compare(&format!("after round {number}")).await;
    }

    /// All is as the pods left it; what is not yet has some time to become so.
    async fn compare(&mut self, when: &str) {
        let end = Instant::now() + Duration::from_secs(5);
        for (directory, content) in &mut self.contents {
            let root = self.share.on_disk(directory);
            while let Err(fault) = content.is_at(&root, &format!("{when}: {directory}")) {
                if Instant::now() > end {
                    self.faults.push(fault);
                    *content = Content::of(&root);
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// Wakes all and waits until nothing is under way.
    async fn end(&mut self) {
        self.is_calm = true;
        for replica in 0..3 {
            self.wake(replica);
        }
        for answer in std::mem::take(&mut self.late) {
            // Whatever it is: another controller has answered before.
            let _ = answer.await.unwrap();
        }
        self.compare("at the end").await;
        for (id, (_, bytes)) in self.volumes.clone() {
            match self.asked("look at the size", Call::Expand(id.clone(), MIB)).await {
                Some(is) if is.parse::<i64>().unwrap() < bytes => self.faults.push(format!("{id}: {is}, not {bytes}")),
                _ => {}
            }
        }
    }
}

#[tokio::test]
async fn three_controllers_that_are_frozen_woken_and_killed_keep_all_that_they_answered() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let seed = std::env::var("E2E_SEED").map_or(now, |seed| seed.parse().unwrap());
    println!("E2E_SEED={seed}");
    let mut chaos = Chaos::new(seed).await;
    let far = [A, B, C].map(|client| client.move_away(1));
    for number in 0..ROUNDS {
        chaos.round(number).await;
    }
    drop(far);
    chaos.end().await;
    println!("{:?}", chaos.done);
    assert!(chaos.faults.is_empty(), "seed {seed}: {} faults: {:#?}", chaos.faults.len(), chaos.faults);
    is_well(&chaos.share).await.unwrap();
    for call in &chaos.deletes {
        call.retried(&chaos.replicas[0].calls).await.unwrap();
    }
    is_well(&chaos.share).await.unwrap();
    assert_eq!(chaos.share.names(""), [".nfs-csi"]);
}
