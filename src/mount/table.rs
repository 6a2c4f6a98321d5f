//! The mount table of this process, from `/proc/self/mountinfo`: the only place that tells what is mounted.
//!
//! Reading it never blocks, whatever state a server is in; a look at a mounted path may block for ever. The form of
//! its lines is that of proc(5): space, tab, newline and backslash are written in octal, and paths are bytes.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use thiserror::Error;

use super::options::Transport;

const MOUNTINFO: &str = "/proc/self/mountinfo";
/// How much is read at once: room for a few hundred mounts.
const CHUNK: usize = 64 * 1024;
/// Which field of a line the mount point is, counted from 0.
const MOUNT_POINT: usize = 4;
/// What the kernel appends to a mount point whose directory is gone. No living path holds two slashes.
const DELETED: &[u8] = b"//deleted";

/// Why the mount table is not known.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum TableError {
    #[error("cannot read {MOUNTINFO} ({reason}): mount /proc")]
    Unreadable { reason: String },

    #[error(
        "line {number} of {MOUNTINFO} is not of the form that proc(5) gives ({line:?}): report it with the version of \
         this host's kernel"
    )]
    Line { number: usize, line: String },
}

/// One mount, as one line of the table tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The mount's number; the kernel may use it again once the mount is gone.
    pub id: u64,
    /// The number of the mount that this one is mounted on.
    pub parent: u64,
    /// Major and minor device number: the same for all mounts of one superblock.
    pub device: (u32, u32),
    /// The directory of the file system that is mounted; always `/` for NFS.
    pub root: PathBuf,
    /// Where it is mounted. Ends in `//deleted` if that directory is gone.
    pub mount_point: PathBuf,
    /// The options of this mount, separated by commas, as the kernel wrote them.
    pub options: String,
    /// How mounts spread from and to here: `shared:1`, `master:2`, …, separated by spaces; empty if they don't.
    pub propagation: String,
    /// The file system type.
    pub fs_type: String,
    /// What is mounted: `server:/path` for NFS.
    pub source: OsString,
    /// The options of the superblock, separated by commas, as the kernel wrote them.
    pub super_options: String,
}

impl Mount {
    /// Whether this mount refuses writes, be its superblock writable or not.
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.options.split(',').any(|option| option == "ro")
    }

    /// Whether it is a mount of an NFS share, of whichever version.
    #[must_use]
    pub fn is_nfs(&self) -> bool {
        is_nfs(&self.fs_type)
    }

    /// The NFS server, as the source names it; empty where it names none.
    #[must_use]
    pub fn server(&self) -> &str {
        split_source(&self.source).map_or("", |(server, _)| server)
    }

    /// The port of an NFS server, where it is not the usual one.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        self.super_option("port")?.parse().ok()
    }

    /// What carries the calls to an NFS server.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.super_option("proto").map_or(Transport::Tcp, Transport::named)
    }

    /// The address of an NFS server at which the kernel has it, with this port.
    #[must_use]
    pub fn address(&self, port: u16) -> Option<SocketAddr> {
        let address = self.super_option("addr")?;
        // A link-local address has its zone behind it.
        if let Some((address, zone)) = address.split_once('%') {
            return Some(SocketAddrV6::new(address.parse().ok()?, port, 0, zone.parse().ok()?).into());
        }
        Some(SocketAddr::new(address.parse::<IpAddr>().ok()?, port))
    }

    /// The version of an NFS mount, as the server's RPC program knows it.
    #[must_use]
    pub fn major_version(&self) -> u32 {
        if self.super_option("vers").is_some_and(|version| version.starts_with('3')) { 3 } else { 4 }
    }

    fn super_option(&self, name: &str) -> Option<&str> {
        self.super_options.split(',').find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }

    /// Whether what is mounted below it appears in other mount namespaces too, and the other way round.
    #[must_use]
    pub fn shared(&self) -> bool {
        self.propagation.split(' ').any(|tag| tag.starts_with("shared:"))
    }

    /// Whether the directory that it is mounted on is gone; no path leads to it then.
    #[must_use]
    pub fn on_deleted(&self) -> bool {
        self.mount_point.as_os_str().as_bytes().ends_with(DELETED)
    }
}

/// All mounts of this process's mount namespace below its root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table(Vec<Mount>);

impl Table {
    /// Reads the table as it is now. A mount that comes or goes meanwhile may or may not be in it.
    pub fn read() -> Result<Self, TableError> {
        with_text(Self::parse)
    }

    /// Reads of the table only what is mounted on these paths.
    pub fn read_on(paths: &[&Path]) -> Result<Self, TableError> {
        with_text(|text| Self::parse_those(text, |line| is_on(line, |on| paths.contains(&on))))
    }

    /// Reads of the table only the mounts on this path and its parents, and those of NFS shares.
    pub fn read_near(path: &Path) -> Result<Self, TableError> {
        let nfs = b" - nfs";
        with_text(|text| {
            Self::parse_those(text, |line| {
                is_on(line, |on| path.starts_with(on)) || line.windows(nfs.len()).any(|part| part == nfs)
            })
        })
    }

    /// Reads a table in the form of `/proc/self/mountinfo`.
    pub fn parse(text: &[u8]) -> Result<Self, TableError> {
        Self::parse_those(text, |_| true)
    }

    fn parse_those(text: &[u8], wanted: impl Fn(&[u8]) -> bool) -> Result<Self, TableError> {
        let malformed = |index: usize, line: &[u8]| TableError::Line {
            number: index + 1,
            line: String::from_utf8_lossy(&line[..line.len().min(200)]).into_owned(),
        };
        let lines = text.split(|&byte| byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty() && wanted(line));
        lines.map(|(index, line)| mount(line).ok_or_else(|| malformed(index, line))).collect::<Result<_, _>>().map(Self)
    }

    /// The topmost mount on exactly this path: the one that a walk to it ends in, and that an unmount takes away.
    #[must_use]
    pub fn at(&self, path: &Path) -> Option<&Mount> {
        self.stack(path).next_back()
    }

    /// The mount that a path lies on, which is absolute and without links: the topmost one on it or on its nearest
    /// parent that has one.
    #[must_use]
    pub fn holding(&self, path: &Path) -> Option<&Mount> {
        // The nearest one first by one look at each mount: the table may be long, and this is asked at each publish.
        let holding = self.iter().filter(|mount| path.starts_with(&mount.mount_point) && !mount.on_deleted());
        let nearest = holding.map(|mount| mount.mount_point.as_path()).max_by_key(|point| point.as_os_str().len())?;
        self.at(nearest)
    }

    /// All mounts on exactly this path, the lowest first.
    ///
    /// Each but the lowest is mounted on the one before it. Where several such piles share a path (a mount on a parent
    /// directory hides the older ones), the one that was begun last comes last.
    #[must_use]
    pub fn stack(&self, path: &Path) -> impl DoubleEndedIterator<Item = &Mount> {
        let mut here: Vec<&Mount> =
            self.iter().filter(|mount| mount.mount_point == path && !mount.on_deleted()).collect();
        if here.len() > 1 {
            sort_upwards(&mut here);
        }
        here.into_iter()
    }

    /// The mounts at or below a path, in the table's order: mostly, a mount stands behind what it is mounted on.
    #[must_use]
    pub fn below(&self, path: &Path) -> impl DoubleEndedIterator<Item = &Mount> {
        self.iter().filter(move |mount| mount.mount_point.starts_with(path) && !mount.on_deleted())
    }

    /// All mounts, in the table's order.
    #[must_use]
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Mount> {
        self.0.iter()
    }
}

/// Does something with the kernel's text.
fn with_text<T>(parse: impl FnOnce(&[u8]) -> Result<T, TableError>) -> Result<T, TableError> {
    // One reader at a time: the kernel goes on line by line only where the last read of the file ended.
    static KEPT: Mutex<Option<Reader>> = Mutex::new(None);
    let unreadable = |error: io::Error| TableError::Unreadable { reason: error.to_string() };
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let reader = match &mut *kept {
        Some(reader) => reader,
        none => none.insert(Reader::new().map_err(unreadable)?),
    };
    parse(reader.read().map_err(unreadable)?)
}

/// The kernel's text. File and memory are kept: it is asked for at every mount.
struct Reader {
    file: File,
    text: Vec<u8>,
}

impl Reader {
    fn new() -> io::Result<Self> {
        Ok(Self { file: File::open(MOUNTINFO)?, text: Vec::new() })
    }

    fn read(&mut self) -> io::Result<&[u8]> {
        let mut end = 0;
        loop {
            if self.text.len() - end < CHUNK / 2 {
                self.text.resize(end + CHUNK, 0);
            }
            match self.file.read_at(&mut self.text[end..], end as u64)? {
                0 => return Ok(&self.text[..end]),
                count => end += count,
            }
        }
    }
}

/// Sorts mounts on one path so that each stands behind the one that it is mounted on. The order of the table's lines
/// does not tell: a mount that was made elsewhere and moved here keeps its place in the table.
fn sort_upwards(mounts: &mut [&Mount]) {
    let places: HashMap<u64, (usize, u64)> =
        mounts.iter().enumerate().map(|(place, mount)| (mount.id, (place, mount.parent))).collect();
    mounts.sort_by_cached_key(|mount| {
        let (mut lowest, mut height, mut id) = (usize::MAX, 0, mount.id);
        // The bound is for tables that no kernel writes, with mounts that are mounted on each other.
        while height <= places.len()
            && let Some(&(place, parent)) = places.get(&id)
        {
            (lowest, height, id) = (place, height + 1, parent);
        }
        (lowest, height)
    });
}

/// Whether a type of file system is NFS, of whichever version.
#[must_use]
pub fn is_nfs(fs_type: &str) -> bool {
    matches!(fs_type, "nfs" | "nfs4")
}

/// Splits the source of an NFS mount, `server:/path` or `[address]:/path`, into host (without brackets) and path.
///
/// Only the path can be compared with what was asked for: two addresses of one NFS 4.1 server are one server to the
/// kernel, which shows the one that it saw first.
#[must_use]
pub fn split_source(source: &OsStr) -> Option<(&str, &str)> {
    let source = source.to_str()?;
    let (host, path) = match source.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once("]:")?,
        None => source.split_once(':')?,
    };
    (!host.is_empty() && path.starts_with('/')).then_some((host, path))
}

/// Whether a line's mount point is one that is looked for. A line without one passes, and is then reported as malformed.
fn is_on(line: &[u8], wanted: impl FnOnce(&Path) -> bool) -> bool {
    let on = line.split(|&byte| byte == b' ').nth(MOUNT_POINT);
    on.is_none_or(|on| wanted(Path::new(OsStr::from_bytes(&decoded(on)))))
}

/// One line of the table; none if it does not have the form.
fn mount(line: &[u8]) -> Option<Mount> {
    let mut fields = Fields(Some(line));
    let id = number(fields.next()?)?;
    let parent = number(fields.next()?)?;
    let device = fields.next()?;
    let colon = device.iter().position(|&byte| byte == b':')?;
    let device = (number(&device[..colon])?, number(&device[colon + 1..])?);
    let root = path(fields.next()?);
    let mount_point = path(fields.next()?);
    let options = text(fields.next()?);
    let mut propagation = String::new();
    loop {
        match fields.next()? {
            b"-" => break,
            tag if propagation.is_empty() => propagation = text(tag),
            tag => propagation.extend([" ", &String::from_utf8_lossy(tag)]),
        }
    }
    let fs_type = String::from_utf8_lossy(&decoded(fields.next()?)).into_owned();
    let source = OsString::from_vec(decoded(fields.next()?).into_owned());
    let super_options = text(fields.0?);
    Some(Mount { id, parent, device, root, mount_point, options, propagation, fs_type, source, super_options })
}

/// The fields of a line, each behind exactly one space (a source may be empty), and what is left of it.
struct Fields<'a>(Option<&'a [u8]>);

impl<'a> Iterator for Fields<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let line = self.0?;
        if let Some(space) = line.iter().position(|&byte| byte == b' ') {
            self.0 = Some(&line[space + 1..]);
            Some(&line[..space])
        } else {
            self.0.take()
        }
    }
}

fn number<N: std::str::FromStr>(field: &[u8]) -> Option<N> {
    str::from_utf8(field).ok()?.parse().ok()
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field).into_owned()
}

pub(super) fn path(field: &[u8]) -> PathBuf {
    OsString::from_vec(decoded(field).into_owned()).into()
}

/// A field with `\ooo` read as the byte that it stands for; a backslash before anything else stands for itself.
fn decoded(field: &[u8]) -> Cow<'_, [u8]> {
    if !field.contains(&b'\\') {
        return field.into();
    }
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, behind)) = rest.split_first() {
        let (byte, length) = match behind {
            [high @ b'0'..=b'3', middle @ b'0'..=b'7', low @ b'0'..=b'7', ..] if byte == b'\\' => {
                ((high - b'0') * 64 + (middle - b'0') * 8 + (low - b'0'), 4)
            }
            _ => (byte, 1),
        };
        bytes.push(byte);
        rest = &rest[length..];
    }
    bytes.into()
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const TABLE: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
26 27 0:24 / /dev/pts rw,relatime - devpts devpts rw
29 26 0:26 / /dev/pts rw,relatime - devpts devpts rw,mode=600
40 27 0:38 / /pods/a\\040b rw,nosuid,relatime shared:9 master:3 - nfs4 10.0.0.1:/d\\0401 rw,vers=4.2,addr=10.0.0.1
41 27 0:38 / /pods/c ro,relatime - nfs [fd00::1]:/d/2 rw,vers=3
42 27 0:38 / /pods/gone//deleted rw,relatime - nfs4 server:/d rw
43 27 0:44 / /tmp rw -  tmpfs  rw
";

    fn table() -> Table {
        Table::parse(TABLE.as_bytes()).unwrap()
    }

    fn at<'a>(table: &'a Table, path: &str) -> &'a Mount {
        table.at(Path::new(path)).unwrap()
    }

    #[test]
    fn every_field_of_a_line_is_read() {
        let expected = Mount {
            id: 40,
            parent: 27,
            device: (0, 38),
            root: "/".into(),
            mount_point: "/pods/a b".into(),
            options: "rw,nosuid,relatime".into(),
            propagation: "shared:9 master:3".into(),
            fs_type: "nfs4".into(),
            source: "10.0.0.1:/d 1".into(),
            super_options: "rw,vers=4.2,addr=10.0.0.1".into(),
        };
        assert_eq!(*at(&table(), "/pods/a b"), expected);
    }

    #[test]
    fn a_part_of_the_table_is_read_alone() {
        let [proc, root, below] = ["/proc", "/", "/proc/self"].map(Path::new);
        let all = Table::read().unwrap();
        let on = Table::read_on(&[proc, below]).unwrap();
        assert_eq!((on.at(proc), on.at(root), on.at(below)), (all.at(proc), None, None));
        let near = Table::read_near(below).unwrap();
        assert_eq!((near.at(proc), near.at(root), near.holding(below)), (all.at(proc), all.at(root), all.at(proc)));
        assert!(
            all.at(root).is_some() && near.iter().all(|mount| below.starts_with(&mount.mount_point) || mount.is_nfs())
        );
    }

    #[test]
    fn a_mount_tells_whether_it_is_read_only_nfs_and_shared() {
        let table = table();
        let facts = |path| {
            let mount = at(&table, path);
            (mount.read_only(), mount.is_nfs(), mount.shared())
        };
        assert_eq!(facts("/pods/a b"), (false, true, true));
        assert_eq!(facts("/pods/c"), (true, true, false));
        assert_eq!(facts("/proc"), (false, false, false));
        assert_eq!(facts("/"), (false, false, true));
    }

    #[test]
    fn the_address_of_a_server_is_known_with_its_zone() {
        for (text, address) in [
            ("10.0.0.1", Some("10.0.0.1:2049")),
            ("fd00::1", Some("[fd00::1]:2049")),
            ("fe80::1%7", Some("[fe80::1%7]:2049")),
            ("fe80::1%", None),
            ("host", None),
        ] {
            let line = format!("40 27 0:38 / /a rw - nfs4 host:/d rw,vers=4.2,addr={text}\n");
            let table = Table::parse(line.as_bytes()).unwrap();
            assert_eq!(at(&table, "/a").address(2049), address.map(|address| address.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn a_path_lies_on_the_nearest_mount_above_it() {
        let table = table();
        for (path, mount_point) in
            [("/", "/"), ("/pods", "/"), ("/pods/a b/c", "/pods/a b"), ("/pods/cc", "/"), ("/proc", "/proc")]
        {
            assert_eq!(table.holding(Path::new(path)).unwrap().mount_point, Path::new(mount_point), "{path}");
        }
        assert_eq!(Table::default().holding(Path::new("/pods")), None);
    }

    #[test]
    fn only_the_very_path_matches() {
        let table = table();
        for path in ["/pods", "/pods/a", "/pods/a b/x", "/pods/a\\040b", "", "pods/c"] {
            assert_eq!(table.at(Path::new(path)), None, "{path}");
        }
        assert_eq!(at(&table, "/pods/c/").id, 41);
    }

    #[test]
    fn a_mount_on_a_deleted_directory_matches_no_path_but_stays_in_the_table() {
        let table = table();
        assert_eq!(table.at(Path::new("/pods/gone")), None);
        assert_eq!(table.at(Path::new("/pods/gone/deleted")), None);
        assert_eq!(table.at(Path::new("/pods/gone//deleted")), None);
        let raw = table.iter().find(|mount| mount.id == 42).unwrap();
        assert_eq!(raw.mount_point.as_os_str(), "/pods/gone//deleted");
    }

    #[test]
    fn an_empty_source_is_a_source() {
        let text = b"43 27 0:44 / /tmp rw - tmpfs  rw\n";
        let mount = &Table::parse(text).unwrap().0[0];
        assert_eq!((mount.source.as_os_str(), mount.super_options.as_str()), (OsStr::new(""), "rw"));
    }

    #[test]
    fn the_mounts_below_a_path_are_those_of_its_components() {
        let ids = |path: &str| table().below(Path::new(path)).map(|mount| mount.id).collect::<Vec<_>>();
        assert_eq!(ids("/pods"), [40, 41]);
        assert_eq!(ids("/pods/c"), [41]);
        assert!(ids("/po").is_empty());
        assert_eq!(ids("/").len(), 7);
    }

    #[test]
    fn the_topmost_of_stacked_mounts_is_the_one_that_carries_no_other() {
        assert_eq!(at(&table(), "/dev/pts").id, 29);
        // The mount made first was moved on top of the others.
        let moved = b"5 9 0:1 / /m rw - t t rw\n8 2 0:1 / /m rw - t t rw\n9 8 0:1 / /m rw - t t rw\n";
        let table = Table::parse(moved).unwrap();
        let ids: Vec<_> = table.stack(Path::new("/m")).map(|mount| mount.id).collect();
        assert_eq!(ids, [8, 9, 5]);
    }

    #[test]
    fn a_pile_begun_later_hides_the_one_before_it() {
        let text = b"5 2 0:1 / /m/a rw - t t rw\n6 5 0:1 / /m/a rw - t t rw\n\
            7 2 0:1 / /m rw - t t rw\n8 7 0:1 / /m/a rw - t t rw\n";
        let table = Table::parse(text).unwrap();
        assert_eq!(at(&table, "/m/a").id, 8);
    }

    #[test]
    fn mounts_that_are_mounted_on_each_other_are_sorted_somehow() {
        let text = b"5 6 0:1 / /m rw - t t rw\n6 5 0:1 / /m rw - t t rw\n7 7 0:1 / /m rw - t t rw\n";
        assert_eq!(Table::parse(text).unwrap().stack(Path::new("/m")).count(), 3);
    }

    #[test]
    fn a_line_of_another_form_is_an_error_that_names_it() {
        for line in
            ["x", "1 2 0:1 / /m rw", "1 2 01 / /m rw - t s rw", "1 b 0:1 / /m rw - t s rw", "1 2 0:1 / /m rw - t s"]
        {
            let text = format!("{TABLE}{line}\n");
            let error = Table::parse(text.as_bytes()).unwrap_err();
            assert_eq!(error, TableError::Line { number: 9, line: line.into() });
        }
    }

    #[test]
    fn an_escape_is_three_octal_digits_of_a_byte() {
        for (field, bytes) in [
            ("a\\040b\\011\\012\\134", &b"a b\t\n\\"[..]),
            ("\\377", b"\xff"),
            ("\\400\\08\\", b"\\400\\08\\"),
            ("\\134040", b"\\040"),
        ] {
            assert_eq!(decoded(field.as_bytes()), bytes, "{field}");
        }
    }

    #[test]
    fn a_source_is_split_at_the_colon_behind_the_host() {
        for (source, parts) in [
            ("server:/a/b", Some(("server", "/a/b"))),
            ("10.0.0.1:/", Some(("10.0.0.1", "/"))),
            ("[fd00::1]:/a:b", Some(("fd00::1", "/a:b"))),
            ("server:/a:/b]:/c", Some(("server", "/a:/b]:/c"))),
            ("server", None),
            ("server:a", None),
            (":/a", None),
            ("[]:/a", None),
            ("[fd00::1/a", None),
            ("/dev/vda", None),
        ] {
            assert_eq!(split_source(OsStr::new(source)), parts, "{source}");
        }
    }

    #[test]
    fn this_process_has_a_table_with_proc_in_it() {
        assert_eq!(at(&Table::read().unwrap(), "/proc").fs_type, "proc");
    }

    /// A field as the kernel writes it.
    fn encoded(field: &[u8], line: &mut Vec<u8>) {
        for &byte in field {
            match byte {
                b' ' | b'\t' | b'\n' | b'\\' | b'#' => line.extend(format!("\\{byte:03o}").bytes()),
                _ => line.push(byte),
            }
        }
    }

    fn written(table: &Table) -> Vec<u8> {
        let mut text = Vec::new();
        for mount in table.iter() {
            let mut head = String::new();
            write!(head, "{} {} {}:{} ", mount.id, mount.parent, mount.device.0, mount.device.1).unwrap();
            text.extend(head.bytes());
            encoded(mount.root.as_os_str().as_bytes(), &mut text);
            text.push(b' ');
            encoded(mount.mount_point.as_os_str().as_bytes(), &mut text);
            let propagation =
                if mount.propagation.is_empty() { String::new() } else { format!(" {}", mount.propagation) };
            text.extend(format!(" {}{propagation} - ", mount.options).bytes());
            encoded(mount.fs_type.as_bytes(), &mut text);
            text.push(b' ');
            encoded(mount.source.as_bytes(), &mut text);
            text.extend(format!(" {}\n", mount.super_options).bytes());
        }
        text
    }

    fn any_bytes() -> impl Strategy<Value = OsString> {
        vec(prop_oneof![1u8..=255, proptest::sample::select(&b" \t\n\\/0123#"[..])], 0..40).prop_map(OsString::from_vec)
    }

    fn any_mount() -> impl Strategy<Value = Mount> {
        let numbers = (any::<u64>(), any::<u64>(), any::<(u32, u32)>());
        let paths = (any_bytes(), any_bytes(), any_bytes());
        let words =
            ("[a-z0-9,=.:\\\\]{0,30}", "(shared:[0-9]{1,4}( master:[0-9]{1,4})?)?", "[a-z0-9.# ]{1,9}", "[!-~ ]{0,60}");
        (numbers, paths, words).prop_map(|((id, parent, device), (root, mount_point, source), words)| Mount {
            id,
            parent,
            device,
            root: root.into(),
            mount_point: mount_point.into(),
            options: words.0,
            propagation: words.1,
            fs_type: words.2,
            source,
            super_options: words.3,
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back_unchanged(mounts in vec(any_mount(), 0..8)) {
            let table = Table(mounts);
            prop_assert_eq!(Table::parse(&written(&table)), Ok(table));
        }

        #[test]
        fn no_bytes_make_the_parser_panic(
            bytes in vec(any::<u8>(), 0..400),
            noise in vec(proptest::sample::select(&b"0123456789 :/-\\\n"[..]), 0..400),
        ) {
            let _ = Table::parse(&bytes);
            let _ = Table::parse(&noise);
        }

        #[test]
        fn a_damaged_table_does_not_make_the_parser_panic(at in 0..TABLE.len(), byte in any::<u8>()) {
            let mut text = TABLE.as_bytes().to_vec();
            text[at] = byte;
            if let Ok(table) = Table::parse(&text) {
                let _ = (table.at(Path::new("/dev/pts")), table.below(Path::new("/")).count());
            }
        }
    }
}
