//! Tests of pages over records.

use super::*;
use crate::export::catalog::Record;
use crate::volume::subdir::SubDir;

const NAMES: usize = 100;

/// An export with some records; and the caller of its lists.
fn export() -> (tempfile::TempDir, Arc<Export>, Arc<()>) {
    let folder = tempfile::tempdir().unwrap();
    let export = Export::local(folder.path());
    for number in 0..NAMES {
        let record = Record::new(number.to_string(), SubDir::parse("v").unwrap());
        export.create_record(&RecordKey::of(&record.name), &record).unwrap();
    }
    (folder, export, Arc::new(()))
}

fn room(entries: usize, reads: usize) -> Room {
    Room { entries, reads }
}

/// The names in all pages of this much room, and how many entries each page has.
fn pages(
    export: &Export,
    caller: &Caller,
    room: Room,
    is_listed: impl Fn(usize) -> bool + Sync,
) -> (Vec<String>, Vec<usize>) {
    let keys = Keys::read::<Record>(export, caller).unwrap();
    let (mut names, mut sizes, mut after) = (Vec::new(), Vec::new(), None);
    loop {
        let page = keys.page(export, after.as_ref(), room, caller, |record: Record| {
            let is_listed = is_listed(record.name.parse().unwrap());
            Ok(if is_listed { Entry::Listed(record.name) } else { Entry::Filtered })
        });
        let page = page.unwrap();
        assert!(page.found.len() <= room.entries && page.read <= room.reads);
        sizes.push(page.found.len());
        names.extend(page.found);
        after = page.last;
        if !page.is_cut {
            return (names, sizes);
        }
    }
}

fn in_order(is_listed: impl Fn(usize) -> bool) -> Vec<String> {
    let mut names: Vec<String> = (0..NAMES).filter(|&number| is_listed(number)).map(|n| n.to_string()).collect();
    names.sort_by_key(|name| RecordKey::of(name));
    names
}

#[test]
fn pages_have_each_entry_once_and_in_the_order_of_the_keys() {
    let (_folder, export, caller) = export();
    for entries in [1, 7, 50, NAMES, 2 * NAMES] {
        let (names, sizes) = pages(&export, &Arc::downgrade(&caller), room(entries, 500), |_| true);
        assert_eq!(names, in_order(|_| true));
        assert_eq!(sizes.len(), NAMES.div_ceil(entries));
    }
}

#[test]
fn a_page_of_which_most_is_filtered_out_reads_no_more_than_it_may_and_misses_nothing() {
    let (_folder, export, caller) = export();
    for reads in [3, 40, 500] {
        let is_listed = |number| number % 9 == 0;
        let (names, sizes) = pages(&export, &Arc::downgrade(&caller), room(2, reads), is_listed);
        assert_eq!(names, in_order(is_listed), "{reads}");
        assert!(sizes.len() >= NAMES.div_ceil(reads), "{sizes:?}");
    }
}

#[test]
fn what_cannot_be_read_is_left_out_and_what_is_deleted_meanwhile_too() {
    let (folder, export, caller) = export();
    let caller = Arc::downgrade(&caller);
    let keys = Keys::read::<Record>(&export, &caller).unwrap();
    let file = |name: &str| folder.path().join(format!(".nfs-csi/volumes/{}.json", RecordKey::of(name)));
    std::fs::write(file("0"), "").unwrap();
    std::fs::write(file("1"), "{\"format\":1,\"name\":\"1").unwrap();
    std::fs::write(file("2"), "{\"format\":999}").unwrap();
    std::fs::remove_file(file("3")).unwrap();
    std::fs::create_dir(file("3")).unwrap();
    std::fs::remove_file(file("4")).unwrap();
    std::os::unix::fs::symlink("/dev/null", file("4")).unwrap();
    std::fs::remove_file(file("5")).unwrap();
    nix::unistd::mkfifo(&file("6").with_extension("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::fs::rename(file("6").with_extension("fifo"), file("6")).unwrap();
    let page = keys.page(&export, None, room(500, 500), &caller, |record: Record| Ok(Entry::Listed(record.name)));
    let page = page.unwrap();
    assert_eq!(page.found, in_order(|number| number >= 7));
    assert_eq!((page.read, page.is_cut), (NAMES, false));
    assert_eq!(keys.left_out.into_inner(), 6);
}

#[test]
fn a_list_ends_at_the_next_entry_when_its_caller_is_gone() {
    let (_folder, export, caller) = export();
    let weak = Arc::downgrade(&caller);
    let keys = Keys::read::<Record>(&export, &weak).unwrap();
    let (caller, read) = (Mutex::new(Some(caller)), AtomicUsize::new(0));
    let ended = keys.page(&export, None, room(500, 500), &weak, |_: Record| {
        read.fetch_add(1, Ordering::Relaxed);
        caller.lock().unwrap().take();
        Ok(Entry::<()>::Filtered)
    });
    assert!(matches!(ended, Err(ExportError::Io { errno: Errno::ECANCELED, .. })), "{ended:?}");
    assert!(read.into_inner() <= READERS);
    assert!(Keys::read::<Record>(&export, &weak).is_err());
}

#[test]
fn an_export_without_the_driver_s_folder_has_no_keys_and_is_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let export = Export::local(folder.path());
    let caller = Arc::new(());
    let keys = Keys::read::<Record>(&export, &Arc::downgrade(&caller)).unwrap();
    assert!(keys.keys.is_empty());
    assert_eq!(export.record(&RecordKey::of("v")).unwrap(), None);
    assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none());
}

#[test]
fn the_keys_of_a_few_lists_are_kept_for_minutes() {
    let listings = Listings::default();
    let share: Share = "nas:/export".parse().unwrap();
    let keep = |listing| {
        let keys = Keys { keys: Vec::new(), left_out: AtomicUsize::new(0) };
        listings.keep(listing, Some((share.clone(), Arc::new(keys))));
    };
    let numbers: Vec<u64> = (0..=KEPT).map(|_| listings.begin()).collect();
    for number in &numbers[..KEPT] {
        keep(*number);
    }
    // The one that is used stays; of the others the oldest goes.
    keep(numbers[0]);
    keep(numbers[KEPT]);
    let are_kept: Vec<bool> = numbers.iter().map(|number| listings.keys(*number, &share).is_some()).collect();
    assert_eq!(are_kept, [true, false, true, true, true]);
    assert!(listings.keys(numbers[0], &"nas:/other".parse().unwrap()).is_none());
    listings.keep(numbers[0], None);
    assert!(listings.keys(numbers[0], &share).is_none());
    assert!(listings.keys_at(numbers[2], &share, Instant::now() + KEPT_FOR).is_none());
}
