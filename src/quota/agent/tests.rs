//! The agent with a kernel in memory: files and directories are those of a temporary folder, limits, projects and marks
//! are the fake's.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nix::Result;
use nix::errno::Errno;
use nix::sys::stat::fstat;

use super::*;
use crate::quota::quotactl::{Limit, Quota};
use crate::volume::quota_files::{AGENT, Applied, FORMAT, Refused, UNCLAIMED_AFTER, Wanted, parse_usage_line};
use crate::volume::record_key::RecordKey;

const BLOCK: u64 = 4096;
const CLOSED: Limit = limits::CLOSED;

/// A kernel in memory, which records what is changed.
#[derive(Default)]
struct Fake {
    root: PathBuf,
    limits: RefCell<BTreeMap<ProjectId, Limit>>,
    projects: RefCell<BTreeMap<u64, ProjectId>>,
    marks: RefCell<BTreeMap<u64, ProjectId>>,
    /// What is charged to projects besides directories of the folder.
    charged: RefCell<BTreeMap<ProjectId, u64>>,
    calls: RefCell<Vec<String>>,
    /// How many more calls change something; the agent is dead after them.
    left: RefCell<Option<usize>>,
}

impl Fake {
    fn change(&self, call: String) -> Result<()> {
        if let Some(left) = &mut *self.left.borrow_mut() {
            *left = left.checked_sub(1).ok_or(Errno::EPERM)?;
        }
        self.calls.borrow_mut().push(call);
        Ok(())
    }

    fn limit(&self, id: ProjectId) -> Limit {
        self.limits.borrow().get(&id).copied().unwrap_or_default()
    }

    /// The inodes that there are.
    fn inodes(folder: &Path, found: &mut BTreeSet<u64>) {
        for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
            found.insert(entry.metadata().unwrap().ino());
            if entry.file_type().unwrap().is_dir() {
                Self::inodes(&entry.path(), found);
            }
        }
    }
}

impl Kernel for Rc<Fake> {
    fn quota(&self, id: ProjectId) -> Result<Quota> {
        let mut there = BTreeSet::new();
        Fake::inodes(&self.root, &mut there);
        self.marks.borrow_mut().retain(|inode, _| there.contains(inode));
        self.projects.borrow_mut().retain(|inode, _| there.contains(inode));
        let own = self.projects.borrow().values().filter(|project| **project == id).count() as u64;
        let inodes = own + self.charged.borrow().get(&id).copied().unwrap_or_default();
        Ok(Quota { bytes: 0, inodes, limit: self.limit(id), has_others: false })
    }

    fn next_quota(&self, from: ProjectId) -> Result<Option<(ProjectId, Quota)>> {
        let mut known: BTreeSet<ProjectId> = self.projects.borrow().values().copied().collect();
        known.extend(self.limits.borrow().keys());
        known.extend(self.charged.borrow().keys());
        known.range(from..).next().map(|id| Ok((*id, self.quota(*id)?))).transpose()
    }

    fn set_limit(&self, id: ProjectId, limit: Limit) -> Result<()> {
        self.change(format!("limit {id} {} {}", limit.bytes, limit.inodes))?;
        self.limits.borrow_mut().insert(id, limit);
        Ok(())
    }

    fn assign(&self, directory: &OwnedFd, id: ProjectId) -> Result<()> {
        self.change(format!("assign {id}"))?;
        self.projects.borrow_mut().insert(fstat(directory)?.st_ino, id);
        Ok(())
    }

    fn project_of(&self, directory: &OwnedFd) -> Result<Option<ProjectId>> {
        Ok(self.projects.borrow().get(&fstat(directory)?.st_ino).copied())
    }

    fn mark(&self, file: &OwnedFd, id: ProjectId) -> Result<()> {
        self.change(format!("mark {id}"))?;
        self.marks.borrow_mut().insert(fstat(file)?.st_ino, id);
        Ok(())
    }

    fn marked(&self, file: &OwnedFd) -> Result<Option<ProjectId>> {
        Ok(self.marks.borrow().get(&fstat(file)?.st_ino).copied())
    }
}

/// A disk with two exports.
struct World {
    folder: tempfile::TempDir,
    fake: Rc<Fake>,
    ids: IdRange,
    now: Instant,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fake = Rc::new(Fake { root: folder.path().to_owned(), ..Fake::default() });
        for name in ["a", "b"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self { folder, fake, ids: "100-199".parse().unwrap(), now: Instant::now() }
    }

    fn export(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A path below `.nfs-csi/quota/` of the first export.
    fn path(&self, path: &str) -> PathBuf {
        self.export("a/.nfs-csi/quota").join(path)
    }

    fn open(&self, name: &str) -> std::result::Result<Folders, QuotaError> {
        let path = self.export(name);
        Folders::open(&path, File::open(&path).unwrap().into())
    }

    fn agent_for(&self, names: &[&str]) -> Agent<Rc<Fake>> {
        let exports = names.iter().map(|name| self.open(name).unwrap()).collect();
        let rules = Rules { ids: self.ids, ready: 4, block: BLOCK };
        Agent::new(Rc::clone(&self.fake), rules, exports)
    }

    /// An agent for the first export, with all that it does at the start done.
    fn agent(&self) -> Agent<Rc<Fake>> {
        let mut agent = self.agent_for(&["a"]);
        agent.start(self.now).unwrap();
        assert!(!agent.refill(100, self.now).unwrap());
        agent
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.path(folder))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// The projects whose directory is in `ready/`, and whether they have a limit.
    fn ready(&self) -> impl Iterator<Item = (ProjectId, bool)> {
        let ids: Vec<_> = self.names("ready").iter().filter_map(|name| ProjectId::parse(name)).collect();
        ids.into_iter().map(|id| (id, self.text("applied", id).is_some()))
    }

    /// Those that can be claimed.
    fn free(&self) -> Vec<ProjectId> {
        self.ready().filter(|(_, is_limited)| !is_limited).map(|(id, _)| id).collect()
    }

    /// Those that no driver has taken yet.
    fn unclaimed(&self) -> Vec<ProjectId> {
        self.ready().filter(|(_, is_limited)| *is_limited).map(|(id, _)| id).collect()
    }

    fn want(&self, id: ProjectId, wanted: &Wanted) {
        let (new, name) = (self.path("new"), self.path("wanted").join(id.to_string()));
        symlink(serde_json::to_string(wanted).unwrap(), &new).unwrap();
        std::fs::rename(new, name).unwrap();
    }

    fn text(&self, folder: &str, id: ProjectId) -> Option<String> {
        let text = std::fs::read_link(self.path(folder).join(id.to_string())).ok()?;
        Some(text.into_os_string().into_string().unwrap())
    }

    fn applied(&self, id: ProjectId) -> Option<Applied> {
        self.text("applied", id).map(|text| serde_json::from_str(&text).unwrap())
    }

    fn refused(&self, id: ProjectId) -> Option<Refused> {
        self.text("refused", id).map(|text| serde_json::from_str(&text).unwrap())
    }
}

fn id(number: u32) -> ProjectId {
    ProjectId::new(number).unwrap()
}

fn wanted(volume: &str, generation: u64, bytes: u64) -> Wanted {
    Wanted {
        format: FORMAT,
        generation,
        bytes,
        inodes: 0,
        mode: None,
        volume: RecordKey::of(volume),
        claim: format!("claim of {volume}"),
    }
}

#[test]
fn a_directory_is_closed_until_its_limit_is_in_force() {
    let world = World::new();
    let mut agent = world.agent();
    assert_eq!(world.names("ready"), ["100", "101", "102", "103"]);
    assert_eq!(world.fake.limit(id(100)), CLOSED);
    world.fake.calls.borrow_mut().clear();
    let wish = wanted("a", 1, 10_000);
    world.want(id(100), &wish);
    agent.answer(0, id(100), world.now).unwrap();
    assert_eq!(*world.fake.calls.borrow(), ["mark 100", "limit 100 12288 0"]);
    assert_eq!((world.free(), world.unclaimed()), (vec![id(101), id(102), id(103)], vec![id(100)]));
    assert_eq!(world.applied(id(100)), Some(wish));
    // Not for each claim.
    assert!(!agent.refill(100, world.now).unwrap());
    assert_eq!(world.free(), [id(101), id(102), id(103)]);
    agent.scan(Look::Quick, world.now).unwrap();
    assert!(!agent.refill(100, world.now).unwrap());
    assert_eq!(world.free(), [101, 102, 103, 104].map(id));
    let figures: Vec<_> = agent.figures().collect();
    assert_eq!(figures, [Figures { ready: 4, volumes: 1, promised_bytes: 10_000, refused: 0 }]);
}

#[test]
fn a_limit_is_changed_by_a_later_generation_of_its_volume_only() {
    let world = World::new();
    let mut agent = world.agent();
    let mut ask = |wish: &Wanted| {
        world.want(id(100), wish);
        agent.answer(0, id(100), world.now).unwrap();
        (world.applied(id(100)).unwrap().bytes, world.fake.limit(id(100)).bytes, world.refused(id(100)))
    };
    assert_eq!(ask(&wanted("a", 1, 4096)), (4096, 4096, None));
    assert_eq!(ask(&wanted("a", 2, 8192)), (8192, 8192, None));
    for wrong in [wanted("a", 1, 1 << 40), wanted("a", 2, 1 << 40), wanted("b", 3, 1 << 40), wanted("a", 9, 0)] {
        let (applied, limit, refused) = ask(&wrong);
        assert_eq!((applied, limit), (8192, 8192), "{wrong:?}");
        assert_eq!(refused.unwrap().generation, wrong.generation);
    }
    // What is in force is wanted again: the reason goes.
    assert_eq!(ask(&wanted("a", 2, 8192)), (8192, 8192, None));
    assert_eq!(ask(&wanted("a", 3, 4096)), (4096, 4096, None));
}

#[test]
fn a_project_of_another_program_is_never_given_out_or_changed() {
    let world = World::new();
    world.fake.charged.borrow_mut().insert(id(100), 7);
    world.fake.limits.borrow_mut().insert(id(102), Limit { bytes: 4096, inodes: 0 });
    let mut agent = world.agent();
    assert_eq!(world.names("ready"), ["101", "103", "104", "105"]);
    for foreign in [id(100), id(102), id(150)] {
        world.want(foreign, &wanted("a", 1, 1 << 30));
        agent.answer(0, foreign, world.now).unwrap();
        assert!(world.refused(foreign).is_some() && world.applied(foreign).is_none());
    }
    agent.survey(world.now).unwrap();
    assert_eq!((world.fake.limit(id(100)), world.fake.limit(id(102)).bytes), (Limit::default(), 4096));
    let calls = world.fake.calls.borrow();
    assert!(
        !calls.iter().any(|call| call.contains(" 100") || call.contains(" 102") || call.contains(" 150")),
        "{calls:?}"
    );
}

#[test]
fn a_number_that_another_program_took_meanwhile_is_left_to_it() {
    let world = World::new();
    let mut agent = world.agent_for(&["a"]);
    agent.start(world.now).unwrap();
    // Charged after the agent looked, as it seems to it: its own directory is not alone.
    let directory = world.export("b/foreign");
    std::fs::create_dir(&directory).unwrap();
    world.fake.projects.borrow_mut().insert(std::fs::metadata(&directory).unwrap().ino(), id(100));
    assert!(!agent.refill(100, world.now).unwrap());
    assert_eq!(world.names("ready"), ["101", "102", "103", "104"]);
}

#[test]
fn an_id_is_used_again_only_when_nothing_is_charged_to_it() {
    let world = World::new();
    let mut agent = world.agent();
    world.want(id(100), &wanted("a", 1, 4096));
    agent.answer(0, id(100), world.now).unwrap();
    let volume = world.export("a/pvc-a");
    std::fs::rename(world.path("ready/100"), &volume).unwrap();
    world.fake.charged.borrow_mut().insert(id(100), 1);
    std::fs::remove_dir(volume).unwrap();
    agent.survey(world.now).unwrap();
    // A file of it is still open somewhere.
    assert!(world.applied(id(100)).is_some());
    assert_eq!(world.fake.limit(id(100)).bytes, 4096);
    world.fake.charged.borrow_mut().clear();
    agent.survey(world.now).unwrap();
    assert_eq!(world.fake.limit(id(100)), Limit::default());
    assert!(["wanted", "applied", "refused"].iter().all(|folder| world.names(folder).is_empty()));
    assert_eq!(std::fs::read_to_string(world.path("usage")).unwrap(), "");
}

#[test]
fn what_volumes_use_is_written() {
    let world = World::new();
    let mut agent = world.agent();
    world.want(id(101), &wanted("a", 1, 4096));
    agent.answer(0, id(101), world.now).unwrap();
    agent.survey(world.now).unwrap();
    let usage = std::fs::read_to_string(world.path("usage")).unwrap();
    assert_eq!(usage.lines().map(parse_usage_line).collect::<Vec<_>>(), [Some((id(101), 0, 1))]);
}

#[test]
fn a_directory_that_no_driver_takes_is_removed_unless_it_holds_something() {
    let world = World::new();
    let mut agent = world.agent();
    for project in [id(100), id(101)] {
        world.want(project, &wanted("a", 1, 4096));
        agent.answer(0, project, world.now).unwrap();
    }
    std::fs::write(world.path("ready/101/file"), "").unwrap();
    agent.scan(Look::Quick, world.now).unwrap();
    agent.scan(Look::Quick, world.now + UNCLAIMED_AFTER / 2).unwrap();
    assert_eq!(world.unclaimed(), [id(100), id(101)]);
    agent.scan(Look::Quick, world.now + UNCLAIMED_AFTER).unwrap();
    assert_eq!(world.unclaimed(), [id(101)]);
    agent.survey(world.now).unwrap();
    assert_eq!((world.names("wanted"), world.names("applied")), (vec!["101".into()], vec!["101".into()]));
}

#[test]
fn what_an_agent_before_it_gave_out_is_known_by_its_mark_alone() {
    let world = World::new();
    let mut agent = world.agent();
    world.want(id(100), &wanted("a", 1, 4096));
    agent.answer(0, id(100), world.now).unwrap();
    drop(agent);
    // An NFS client links and moves what it likes, but it cannot mark.
    let forged = serde_json::to_string(&wanted("evil", 7, 1 << 40)).unwrap();
    symlink(&forged, world.path("applied/150")).unwrap();
    std::fs::hard_link(world.path("applied/100"), world.path("applied/151")).unwrap();
    std::fs::create_dir(world.path("ready/152")).unwrap();
    std::fs::rename(world.path("ready/101"), world.path("ready/153")).unwrap();
    world.fake.charged.borrow_mut().insert(id(150), 3);
    let mut agent = world.agent();
    assert_eq!(world.names("applied"), ["100"]);
    for project in [id(150), id(151), id(152), id(153)] {
        world.want(project, &wanted("evil", 8, 1 << 40));
        agent.answer(0, project, world.now).unwrap();
        assert!(world.refused(project).is_some(), "{project}");
        assert_eq!(world.fake.limit(project), Limit::default());
    }
    world.want(id(100), &wanted("a", 2, 8192));
    agent.answer(0, id(100), world.now).unwrap();
    assert_eq!(world.fake.limit(id(100)).bytes, 8192);
}

#[test]
fn a_directory_in_ready_that_is_not_as_it_was_made_is_not_given_out() {
    let world = World::new();
    let mut agent = world.agent();
    world.fake.charged.borrow_mut().insert(id(100), 1);
    let other = world.export("a/other");
    std::fs::create_dir(&other).unwrap();
    std::fs::rename(other, world.path("ready/101")).unwrap();
    std::fs::rename(world.path("ready/102"), world.export("a/moved")).unwrap();
    for project in [id(100), id(101), id(102)] {
        world.want(project, &wanted("a", 1, 1 << 30));
        agent.answer(0, project, world.now).unwrap();
        assert!(world.refused(project).is_some(), "{project}");
        assert_eq!(world.fake.limit(project), CLOSED, "{project}");
    }
    assert!(world.names("applied").is_empty());
}

#[test]
fn a_limit_that_was_changed_in_the_kernel_is_set_again() {
    let world = World::new();
    let mut agent = world.agent();
    world.want(id(100), &wanted("a", 1, 4096));
    agent.answer(0, id(100), world.now).unwrap();
    for project in [id(100), id(101)] {
        world.fake.limits.borrow_mut().insert(project, Limit { bytes: 1 << 50, inodes: 0 });
    }
    agent.survey(world.now).unwrap();
    assert_eq!((world.fake.limit(id(100)).bytes, world.fake.limit(id(101))), (4096, CLOSED));
}

#[test]
fn whatever_is_in_the_agent_s_folders_it_goes_on() {
    let world = World::new();
    let mut agent = world.agent();
    let made = |path: &str| std::fs::create_dir_all(world.path(path)).unwrap();
    std::fs::write(world.path("wanted/100"), serde_json::to_string(&wanted("a", 1, 4096)).unwrap()).unwrap();
    nix::unistd::mkfifo(&world.path("wanted/101"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    made("wanted/102/full");
    symlink("x".repeat(1500), world.path("wanted/103")).unwrap();
    symlink("/etc/passwd", world.path("wanted/104")).unwrap();
    for name in ["0", "-1", "0100", "99999999999", "4294967295", "name", "\u{202e}"] {
        std::fs::write(world.path("wanted").join(name), "").unwrap();
    }
    made("refused/100/full");
    made("ready/.new/full");
    made("applied/.new/full");
    made("agent.json/full");
    std::fs::remove_file(world.path("usage")).unwrap();
    made("usage/full");
    agent.scan(Look::Thorough, world.now).unwrap();
    agent.survey(world.now).unwrap();
    for number in 100..=104 {
        assert!(world.refused(id(number)).is_some(), "{number}");
    }
    assert!(world.path("usage").is_file());
    agent.folders().next().unwrap().write(AGENT, b"{}").unwrap();
    // Another client puts directories where the agent puts its links.
    for number in 104..=110 {
        made(&format!("applied/{number}/full"));
    }
    std::fs::remove_dir_all(world.path("wanted/102")).unwrap();
    for name in world.names("wanted") {
        std::fs::remove_file(world.path("wanted").join(name)).unwrap();
    }
    assert!(!agent.refill(100, world.now).unwrap());
    let project = world.free()[0];
    world.want(project, &wanted("a", 1, 4096));
    // Its inode may have the number of what was refused before.
    agent.scan(Look::Thorough, world.now).unwrap();
    assert_eq!(world.applied(project), Some(wanted("a", 1, 4096)));
    assert_eq!(world.fake.limit(project).bytes, 4096);
}

#[test]
fn exports_of_one_file_system_share_no_number() {
    let world = World::new();
    let mut agent = world.agent_for(&["a", "b"]);
    agent.start(world.now).unwrap();
    assert!(agent.refill(3, world.now).unwrap());
    assert!(!agent.refill(100, world.now).unwrap());
    assert_eq!(world.names("ready"), ["100", "101", "102", "103"]);
    assert!(world.export("b/.nfs-csi/quota/ready/107").is_dir());
    // What belongs to one is not the other's, though a client moved it there.
    world.want(id(105), &wanted("a", 1, 4096));
    agent.answer(0, id(105), world.now).unwrap();
    assert!(world.refused(id(105)).is_some());
    drop(agent);
    std::fs::rename(world.export("b/.nfs-csi/quota/ready/105"), world.path("ready/105")).unwrap();
    let mut agent = world.agent_for(&["a", "b"]);
    agent.start(world.now).unwrap();
    agent.refill(100, world.now).unwrap();
    let all = [world.names("ready"), world.names("../../../b/.nfs-csi/quota/ready")].concat();
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
}

#[test]
fn a_second_agent_on_an_export_is_refused() {
    let world = World::new();
    let agent = world.agent();
    let refused = world.open("a").unwrap_err();
    assert!(matches!(refused, QuotaError::Locked { .. }), "{refused}");
    drop(agent);
    world.open("a").unwrap();
}

#[test]
fn an_agent_whose_folders_were_replaced_ends() {
    for replaced in ["a", "a/.nfs-csi/quota", "a/.nfs-csi/quota/wanted"] {
        let world = World::new();
        let agent = world.agent();
        let in_place = || agent.folders().try_for_each(Folders::are_in_place);
        in_place().unwrap();
        std::fs::rename(world.export(replaced), world.export("away")).unwrap();
        std::fs::create_dir(world.export(replaced)).unwrap();
        let error = in_place().unwrap_err().to_string();
        assert!(error.contains(replaced), "{error}");
    }
}

#[test]
fn a_wish_that_was_refused_leaves_its_number_to_others_after_a_while() {
    let world = World::new();
    let mut agent = world.agent();
    world.fake.charged.borrow_mut().insert(id(151), 1);
    for project in [id(100), id(150), id(151)] {
        world.want(project, &wanted("a", 1, 0));
        agent.answer(0, project, world.now).unwrap();
    }
    agent.scan(Look::Thorough, world.now + UNCLAIMED_AFTER / 2).unwrap();
    assert_eq!(world.names("wanted"), ["100", "150", "151"]);
    assert_eq!(agent.figures().next().unwrap().ready, 3);
    agent.scan(Look::Thorough, world.now + UNCLAIMED_AFTER).unwrap();
    assert_eq!((world.names("wanted"), world.names("refused")), (vec!["151".into()], vec!["151".into()]));
    world.want(id(100), &wanted("a", 1, 4096));
    agent.answer(0, id(100), world.now).unwrap();
    assert_eq!(world.unclaimed(), [id(100)]);
}

#[test]
fn a_range_that_is_used_up_gives_out_no_more() {
    let mut world = World::new();
    world.ids = "100-102".parse().unwrap();
    let mut agent = world.agent();
    assert_eq!(world.names("ready"), ["100", "101", "102"]);
    assert_eq!(agent.errors(), 1);
    std::fs::remove_dir(world.path("ready/101")).unwrap();
    agent.scan(Look::Quick, world.now).unwrap();
    agent.survey(world.now).unwrap();
    agent.refill(100, world.now).unwrap();
    assert_eq!(world.names("ready"), ["100", "101", "102"]);
}

#[test]
fn an_agent_that_ends_at_any_step_is_completed_by_the_next() {
    for left in 0.. {
        let world = World::new();
        *world.fake.left.borrow_mut() = Some(left);
        let life = || {
            let mut agent = world.agent_for(&["a"]);
            agent.start(world.now).unwrap();
            agent.refill(100, world.now).unwrap();
            if world.path("ready/100").exists() {
                world.want(id(100), &wanted("a", 1, 8192));
                agent.answer(0, id(100), world.now).unwrap();
            }
            // As a driver does, which asks for the limit that the server shows.
            if world.path("ready/100").exists() && world.fake.limit(id(100)).bytes == 8192 {
                world.want(id(100), &wanted("a", 2, 16384));
                agent.answer(0, id(100), world.now).unwrap();
                std::fs::remove_dir(world.path("ready/100")).unwrap();
                agent.survey(world.now).unwrap();
            }
        };
        life();
        let is_dead = world.fake.calls.borrow().len() == left;
        *world.fake.left.borrow_mut() = None;
        let mut agent = world.agent_for(&["a"]);
        agent.start(world.now).unwrap();
        agent.refill(100, world.now).unwrap();
        // A project is closed, or limited as is applied; none is anything else, and none is twice there.
        for number in 100..=199 {
            let (limit, quota) = (world.fake.limit(id(number)), world.fake.quota(id(number)).unwrap());
            assert!(quota.inodes <= 1, "{number} after {left} steps");
            match world.applied(id(number)) {
                Some(applied) => assert_eq!(limit.bytes, applied.bytes, "{number} after {left} steps"),
                None if quota.inodes == 1 => assert_eq!(limit, CLOSED, "{number} after {left} steps"),
                None => assert_eq!(limit, Limit::default(), "{number} after {left} steps"),
            }
        }
        assert_eq!(world.free().len(), 4, "after {left} steps");
        if !is_dead {
            return;
        }
    }
}
