use super::*;
use std::os::unix::fs::symlink;
use std::path::Path;

fn place(path: &Path) -> OwnedFd {
    OwnedFd::from(std::fs::File::open(path).unwrap())
}

#[test]
fn a_tree_goes_with_all_kinds_of_entries_and_its_neighbours_stay() {
    let folder = tempfile::tempdir().unwrap();
    let tree_path = folder.path().join("t");
    std::fs::create_dir_all(tree_path.join("a/b/c")).unwrap();
    std::fs::write(tree_path.join("a/file"), "x").unwrap();
    std::fs::write(folder.path().join("outside"), "kept").unwrap();
    symlink("../outside", tree_path.join("link")).unwrap();
    symlink("/", tree_path.join("a/root")).unwrap();
    nix::unistd::mkfifo(&tree_path.join("a/fifo"), Mode::S_IRWXU).unwrap();
    let progress = Progress::default();
    tree_unless(place(folder.path()), "t", &Effort::default(), &progress, &|| false).unwrap();
    assert_eq!(progress.files(), 8);
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["outside"]);
}

#[test]
fn a_tree_far_deeper_than_a_path_may_be_long_goes() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("t")).unwrap();
    let mut at = place(&folder.path().join("t"));
    for _ in 0..3000 {
        nix::sys::stat::mkdirat(&at, "directory", Mode::S_IRWXU).unwrap();
        at = beneath::open_dir(&at, "directory").unwrap();
    }
    drop(at);
    tree(place(folder.path()), "t", &Effort::default()).unwrap();
    assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none());
}

#[test]
fn what_is_gone_already_and_what_is_no_directory_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    tree(place(folder.path()), "missing", &Effort::default()).unwrap();
    symlink("/", folder.path().join("link")).unwrap();
    tree(place(folder.path()), "link", &Effort::default()).unwrap();
    assert!(std::fs::symlink_metadata(folder.path().join("link")).is_err());
}

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A file that cannot be removed until it is dropped.
struct Immutable(std::fs::File);

impl Immutable {
    fn make(path: &Path) -> Self {
        let file = std::fs::File::create(path).unwrap();
        rustix::fs::ioctl_setflags(&file, rustix::fs::IFlags::IMMUTABLE).unwrap();
        Self(file)
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        rustix::fs::ioctl_setflags(&self.0, rustix::fs::IFlags::empty()).unwrap();
    }
}

#[test]
fn what_cannot_be_removed_is_told_with_its_path_and_all_else_goes() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..200 {
        std::fs::create_dir_all(folder.path().join(format!("t/a/b/{number}"))).unwrap();
        std::fs::write(folder.path().join(format!("t/a/b/{number}/file")), "x").unwrap();
    }
    let immutable = Immutable::make(&folder.path().join("t/a/b/7/kept"));
    let failed = tree(place(folder.path()), "t", &Effort::new(4)).unwrap_err();
    assert_eq!(failed, ("a/b/7/kept".into(), Errno::EPERM));
    let left = names(folder.path());
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(names(&folder.path().join(&left[0])), ["kept"]);
    drop(immutable);
    tree(place(folder.path()), &left[0], &Effort::default()).unwrap();
    assert!(names(folder.path()).is_empty());
}

#[test]
fn nothing_more_is_tried_when_the_rest_is_in_vain() {
    let folder = tempfile::tempdir().unwrap();
    let kept: Vec<_> = (0..20)
        .map(|number| {
            std::fs::create_dir_all(folder.path().join(format!("t/{number}"))).unwrap();
            Immutable::make(&folder.path().join(format!("t/{number}/kept")))
        })
        .collect();
    for (is_in_vain, tried) in [(true, 1..=4), (false, 20..=usize::MAX)] {
        let failures = AtomicUsize::new(0);
        let asked = || {
            failures.fetch_add(1, Ordering::Relaxed);
            is_in_vain
        };
        let place = place(folder.path());
        let failed = tree_unless(place, "t", &Effort::new(1), &Progress::default(), &asked).unwrap_err();
        assert_eq!(failed.1, Errno::EPERM);
        let failures = failures.into_inner();
        assert!(tried.contains(&failures), "{failures} of 20 in vain: {is_in_vain}");
    }
    drop(kept);
    tree(place(folder.path()), "t", &Effort::default()).unwrap();
}

#[test]
fn as_many_workers_are_called_as_the_server_s_answers_keep_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let place = place(folder.path());
    let progress = Progress::default();
    let mut removal = Removal::new(place.as_fd(), "t", &progress, &|| false);
    assert_eq!(removal.most_workers(), 1, "nothing is known yet");
    removal.timed = AtomicUsize::new(TIMED);
    for (answer, workers) in [(0, 2), (90_000, 2), (300_000, 5), (1_200_000, 18), (60_000_000_000, 900_000)] {
        removal.quickest = AtomicU64::new(answer);
        assert_eq!(removal.most_workers(), workers, "{answer} ns");
    }
}

#[test]
fn directories_that_wait_for_those_in_them_go_last() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..2 * PARENTS {
        std::fs::create_dir_all(folder.path().join(format!("t/{number}/a/b/c"))).unwrap();
        std::fs::write(folder.path().join(format!("t/{number}/a/file")), "x").unwrap();
    }
    let place = place(folder.path());
    let progress = Progress::default();
    let removal = Removal::new(place.as_fd(), "t", &progress, &|| false);
    Effort::default().run(&removal, Tree { at: At::Top, origin: Node::root(()), again: false });
    assert!(removal.failed.into_inner().unwrap().is_none());
    assert_eq!(removal.parents.into_inner(), 0);
    assert!(names(folder.path()).is_empty());
}

#[test]
fn what_an_earlier_run_left_is_in_no_ones_way() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["t.0/full", "t.1", "t/a/b", "t/c"] {
        std::fs::create_dir_all(folder.path().join(name)).unwrap();
    }
    std::fs::write(folder.path().join("t.2"), "x").unwrap();
    tree(place(folder.path()), "t", &Effort::default()).unwrap();
    // An empty one is replaced by what takes its name.
    assert_eq!(names(folder.path()), ["t.0", "t.2"]);
    for name in ["t.0", "t.2"] {
        tree(place(folder.path()), name, &Effort::default()).unwrap();
    }
    assert!(names(folder.path()).is_empty());
}

#[test]
fn more_directories_than_may_wait_go_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..2 * MANY_WAITING {
        std::fs::create_dir_all(folder.path().join(format!("t/{number}"))).unwrap();
    }
    tree(place(folder.path()), "t", &Effort::new(2)).unwrap();
    assert!(names(folder.path()).is_empty());
}

#[test]
fn a_directory_that_fills_up_meanwhile_goes_when_that_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t");
    std::fs::create_dir(&path).unwrap();
    for number in 0..5000 {
        std::fs::write(path.join(format!("old {number}")), "").unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..200 {
                if std::fs::write(path.join(format!("new {number}")), "").is_err() {
                    break;
                }
            }
        });
        let ended = tree(place(folder.path()), "t", &Effort::default());
        assert!(matches!(&ended, Ok(()) | Err((_, Errno::ENOTEMPTY))), "{ended:?}");
    });
    tree(place(folder.path()), "t", &Effort::default()).unwrap();
    assert!(names(folder.path()).is_empty());
}
