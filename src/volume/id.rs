//! Volume ids: all that is needed to find a volume whose record is not at hand, in csi-driver-nfs's forms.
//!
//! | form | made by |
//! |---|---|
//! | `server#share#subDir#name#onDelete` | this driver, and csi-driver-nfs |
//! | `server#share#subDir#name`, `server#share#subDir` | csi-driver-nfs, older |
//! | `server/share/subDir` | csi-driver-nfs, oldest; the share may have slashes |
//! | `server#share#.nfs-csi/<key>##onDelete` | this driver, where the first form does not do |
//!
//! The share stands without slashes around it, so that of `/` is empty. `name` is the CSI name, left out where the
//! directory has it by default; `onDelete` is empty for delete.
//!
//! The last form, the compact one, names the volume's record, where the rest stands. It is taken for an id of more than
//! 128 bytes, the specification's bound for a string, for a field with a `#`, and for a volume that reads a snapshot's
//! tree; in its server and share, `%23` stands
//! for `#` and `%25` for `%`. No volume's directory is in `.nfs-csi`, so it cannot be taken for the first form.

use std::fmt;

use thiserror::Error;

use super::access::{OnDelete, OnDeleteError};
use super::name::{LONGEST, VolumeName, is_forbidden};
use super::path::PathError;
use super::path::RESERVED;
use super::quote::quote;
use super::record_key::{KeyError, RecordKey};
use super::share::{Server, ServerError, Share, SharePath};
use super::subdir::SubDir;

/// An id that is longer, in bytes, is nobody's.
const LONGEST_READ: usize = 4096;

/// The id of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VolumeId {
    text: String,
    share: Share,
    place: Place,
    on_delete: OnDelete,
}

/// What an id tells of the volume's place on its share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// The directory, and the volume's name where it is another.
    Directory { subdir: SubDir, name: Option<String> },
    /// The record that has all this.
    Record(RecordKey),
}

/// Why a text is no id of a volume, or of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum IdError {
    /// The id is well, but not one that a driver made: somebody chose it for a volume that was there before.
    #[error("id {id} is none that this driver gives: it does not tell a server, a share and a name")]
    Foreign { id: String },

    #[error("id {id} is too long: it has {length} bytes, at most {LONGEST_READ} are read")]
    TooLong { id: String, length: usize },

    #[error("id {id} holds a NUL byte")]
    Nul { id: String },

    #[error("id {id} is an absolute path: it begins with its server")]
    Absolute { id: String },

    #[error("id {id} has the component '..', which leads out of a directory")]
    DotDot { id: String },

    #[error("id {id} has {count} fields, at most 5 are known: one that holds a '#' cannot be told from two")]
    Fields { id: String, count: usize },

    #[error("id {id} has a slash at an end of its {field}, where no driver writes one")]
    OuterSlash { id: String, field: &'static str },

    #[error("id {id} has a '%' in its {field} that is neither %23 nor %25")]
    Escape { id: String, field: &'static str },

    #[error("id {id}: {error}")]
    Server { id: String, error: ServerError },

    #[error("id {id}: share {error}")]
    Share { id: String, error: PathError },

    #[error("id {id}: subDir {error}")]
    SubDir { id: String, error: PathError },

    #[error("id {id} has two names, {first} and {second}: a snapshot's id has one name twice")]
    TwoNames { id: String, first: String, second: String },

    #[error("id {id}: its key {error}")]
    Key { id: String, error: KeyError },

    #[error("id {id} has a control character in its name field")]
    Name { id: String },

    #[error("id {id}: onDelete {error}")]
    OnDelete { id: String, error: OnDeleteError },
}

impl VolumeId {
    /// The id of a volume: where it is, its name, whether the `StorageClass` told its directory, and what becomes of
    /// that when the volume is deleted.
    #[must_use]
    pub fn for_volume(
        share: Share,
        name: &VolumeName,
        subdir: &SubDir,
        subdir_given: bool,
        on_delete: OnDelete,
    ) -> Self {
        let name = Some(name.as_str()).filter(|name| subdir_given || *name != subdir.as_str());
        let policy = if on_delete == OnDelete::Delete { "" } else { on_delete.as_str() };
        let fields =
            [share.server().as_str(), share.path().relative(), subdir.as_str(), name.unwrap_or_default(), policy];
        let text = fields.join("#");
        let is_plain = !fields.iter().any(|field| field.contains('#')) && subdir.shared_tree().is_none();
        let (text, place) = if text.len() <= LONGEST && is_plain {
            (text, Place::Directory { subdir: subdir.clone(), name: name.map(str::to_owned) })
        } else {
            let key = RecordKey::of(name.unwrap_or(subdir.as_str()));
            let [server, path, ..] = fields.map(escaped);
            (format!("{server}#{path}#{RESERVED}/{key}##{policy}"), Place::Record(key))
        };
        Self { text, share, place, on_delete }
    }

    /// Reads an id of any of the forms.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let id = || quote(text);
        check_text(text)?;
        let fields = Fields::of(text)?;
        let on_delete = match fields.on_delete {
            "" => OnDelete::Delete,
            policy => OnDelete::parse(policy).map_err(|error| IdError::OnDelete { id: id(), error })?,
        };
        let (share, place) = match fields.key() {
            Some(key) => {
                let (share, key) = compact(text, fields.server, fields.share, key)?;
                (share, Place::Record(key))
            }
            None => (share(text, fields.server, fields.share)?, fields.directory(text)?),
        };
        Ok(Self { text: text.to_owned(), share, place, on_delete })
    }

    /// The share that the volume is on.
    #[must_use]
    pub fn share(&self) -> &Share {
        &self.share
    }

    /// The volume's directory; none if its record tells (a compact id).
    #[must_use]
    pub fn subdir(&self) -> Option<&SubDir> {
        match &self.place {
            Place::Directory { subdir, .. } => Some(subdir),
            Place::Record(_) => None,
        }
    }

    /// Whether the id has a name besides the directory: the `StorageClass` told the directory, or the volume's name is
    /// none that a directory can have. A compact id does not tell.
    #[must_use]
    pub fn subdir_was_given(&self) -> bool {
        matches!(&self.place, Place::Directory { name: Some(_), .. })
    }

    /// The volume's name; of a compact id, the key that was made of it.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.place {
            Place::Directory { subdir, name } => name.clone().unwrap_or_else(|| subdir.to_string()),
            Place::Record(key) => key.to_string(),
        }
    }

    /// The key of the volume's record.
    #[must_use]
    pub fn key(&self) -> RecordKey {
        match &self.place {
            Place::Directory { subdir, name } => RecordKey::of(name.as_deref().unwrap_or(subdir.as_str())),
            Place::Record(key) => key.clone(),
        }
    }

    /// What deleting the volume does with its directory.
    #[must_use]
    pub fn on_delete(&self) -> OnDelete {
        self.on_delete
    }
}

/// The id as it was made or read.
impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What holds for an id of any form.
pub(super) fn check_text(text: &str) -> Result<(), IdError> {
    let id = || quote(text);
    if text.len() > LONGEST_READ {
        return Err(IdError::TooLong { id: id(), length: text.len() });
    }
    if text.contains('\0') {
        return Err(IdError::Nul { id: id() });
    }
    if text.starts_with('/') {
        return Err(IdError::Absolute { id: id() });
    }
    Ok(())
}

/// The parts of an id as they are written.
struct Fields<'a> {
    server: &'a str,
    share: &'a str,
    subdir: &'a str,
    name: &'a str,
    on_delete: &'a str,
    is_whole: bool,
}

impl<'a> Fields<'a> {
    fn of(id: &'a str) -> Result<Self, IdError> {
        let all: Vec<&str> = id.split('#').collect();
        let (server, share, subdir, name, on_delete) = match all[..] {
            [] | [_] | [_, _] => legacy(id).ok_or_else(|| foreign(id))?,
            [server, share, subdir] => (server, share, subdir, "", ""),
            [server, share, subdir, name] => (server, share, subdir, name, ""),
            [server, share, subdir, name, on_delete] => (server, share, subdir, name, on_delete),
            _ => return Err(IdError::Fields { id: quote(id), count: all.len() }),
        };
        // csi-driver-nfs's manual has such ids (`server/share##`) for shares that are mounted whole.
        if subdir.is_empty() {
            return Err(foreign(id));
        }
        Ok(Self { server, share, subdir, name, on_delete, is_whole: all.len() == 5 })
    }

    /// The key, if the id is compact.
    fn key(&self) -> Option<&'a str> {
        let key = self.subdir.strip_prefix(RESERVED)?.strip_prefix('/')?;
        (self.is_whole && self.name.is_empty()).then_some(key)
    }

    fn directory(&self, id: &str) -> Result<Place, IdError> {
        let subdir = SubDir::parse(self.subdir).map_err(|error| IdError::SubDir { id: quote(id), error })?;
        if self.name.contains(is_forbidden) {
            return Err(IdError::Name { id: quote(id) });
        }
        Ok(Place::Directory { subdir, name: Some(self.name.to_owned()).filter(|name| !name.is_empty()) })
    }
}

/// The fields of `server/share/subDir`.
fn legacy(id: &str) -> Option<(&str, &str, &str, &str, &str)> {
    let (server, rest) = id.split_once('/')?;
    let (share, subdir) = rest.rsplit_once('/')?;
    Some((server, share, subdir, "", ""))
}

fn foreign(id: &str) -> IdError {
    let id_shown = quote(id);
    if id.split(['/', '#']).any(|component| component == "..") {
        IdError::DotDot { id: id_shown }
    } else {
        IdError::Foreign { id: id_shown }
    }
}

/// What a compact id tells.
pub(super) fn compact(id: &str, server: &str, path: &str, key: &str) -> Result<(Share, RecordKey), IdError> {
    let key = RecordKey::parse(key).map_err(|error| IdError::Key { id: quote(id), error })?;
    let unescape = |field, text| unescaped(text).ok_or_else(|| IdError::Escape { id: quote(id), field });
    Ok((share(id, &unescape("server", server)?, &unescape("share", path)?)?, key))
}

pub(super) fn share(id: &str, server: &str, path: &str) -> Result<Share, IdError> {
    for (field, text) in [("server", server), ("share", path)] {
        if text.starts_with('/') || text.ends_with('/') {
            return Err(IdError::OuterSlash { id: quote(id), field });
        }
    }
    let server = Server::parse(server).map_err(|error| IdError::Server { id: quote(id), error })?;
    let path = SharePath::parse(&format!("/{path}")).map_err(|error| IdError::Share { id: quote(id), error })?;
    Ok(Share::new(server, path))
}

pub(super) fn escaped(field: &str) -> String {
    field.replace('%', "%25").replace('#', "%23")
}

/// The field before it was escaped; none if it was not.
fn unescaped(field: &str) -> Option<String> {
    let mut parts = field.split('%');
    let mut text = parts.next()?.to_owned();
    for part in parts {
        let (character, rest) = match part.split_at_checked(2)? {
            ("23", rest) => ('#', rest),
            ("25", rest) => ('%', rest),
            _ => return None,
        };
        text.push(character);
        text.push_str(rest);
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: &str = "abcdefghij234567";

    fn made(share: &str, name: &str, subdir: Option<&str>, on_delete: OnDelete) -> VolumeId {
        let name = VolumeName::parse(name).unwrap();
        let directory = subdir.map_or_else(|| name.directory(), |subdir| SubDir::parse(subdir).unwrap());
        VolumeId::for_volume(Share::parse(share).unwrap(), &name, &directory, subdir.is_some(), on_delete)
    }

    fn read(text: &str) -> VolumeId {
        VolumeId::parse(text).unwrap()
    }

    #[test]
    fn an_id_is_made_in_csi_driver_nfs_s_form() {
        use OnDelete::{Archive, Delete, Retain};
        let cases = [
            (made("nas:/export", "pvc-1", None, Delete), "nas#export#pvc-1##"),
            (made("nas:/export/a", "pvc-1", None, Retain), "nas#export/a#pvc-1##retain"),
            (made("nas:/export", "pvc-1", Some("team/data"), Archive), "nas#export#team/data#pvc-1#archive"),
            (made("nas:/export", "pvc-1", Some("pvc-1"), Delete), "nas#export#pvc-1#pvc-1#"),
            (made("nas:/", "pvc-1", None, Delete), "nas##pvc-1##"),
            (made("[fe80::1%eth0]:/x", "pvc-1", None, Delete), "fe80::1%eth0#x#pvc-1##"),
            (made("nas:/export", "a/b c", None, Delete), "nas#export#a%2Fb c#a/b c#"),
            (made("nas:/export", "..", None, Delete), "nas#export#%2E.#..#"),
        ];
        for (id, text) in cases {
            assert_eq!(id.to_string(), text);
            assert_eq!(read(text), id);
        }
    }

    #[test]
    fn an_id_of_csi_driver_nfs_is_read_back_unchanged_with_its_parts() {
        let cases = [
            ("nas#export#pvc-1##", "nas:/export", "pvc-1", "pvc-1", OnDelete::Delete),
            ("nas#export#pvc-1#", "nas:/export", "pvc-1", "pvc-1", OnDelete::Delete),
            ("nas#export#pvc-1", "nas:/export", "pvc-1", "pvc-1", OnDelete::Delete),
            ("nas#a/b#team/data#pvc-1#", "nas:/a/b", "team/data", "pvc-1", OnDelete::Delete),
            ("nas#a/b#team/data#pvc-1", "nas:/a/b", "team/data", "pvc-1", OnDelete::Delete),
            ("nas#export#data#pvc-1#Retain", "nas:/export", "data", "pvc-1", OnDelete::Retain),
            ("nas#export#pvc-1##archive", "nas:/export", "pvc-1", "pvc-1", OnDelete::Archive),
            ("nas#export#data#pvc-1#delete", "nas:/export", "data", "pvc-1", OnDelete::Delete),
            ("nas##pvc-1##", "nas:/", "pvc-1", "pvc-1", OnDelete::Delete),
            ("nas#a//b#pvc-1##", "nas:/a/b", "pvc-1", "pvc-1", OnDelete::Delete),
            ("[fd00::1]#export#pvc-1##", "[fd00::1]:/export", "pvc-1", "pvc-1", OnDelete::Delete),
            ("fd00::1#export#pvc-1##", "[fd00::1]:/export", "pvc-1", "pvc-1", OnDelete::Delete),
            ("nas/export/pvc-1", "nas:/export", "pvc-1", "pvc-1", OnDelete::Delete),
            ("nas/a/b/pvc-1", "nas:/a/b", "pvc-1", "pvc-1", OnDelete::Delete),
            ("nas//pvc-1", "nas:/", "pvc-1", "pvc-1", OnDelete::Delete),
            ("nas/a#b/pvc-1", "nas:/a#b", "pvc-1", "pvc-1", OnDelete::Delete),
            ("nas#export#${pv.metadata.name}#pvc-1#", "nas:/export", "${pv.metadata.name}", "pvc-1", OnDelete::Delete),
        ];
        for (text, share, subdir, name, on_delete) in cases {
            let id = read(text);
            assert_eq!(id.to_string(), text);
            assert_eq!(id.share().to_string(), share, "{text}");
            assert_eq!(id.subdir().map(SubDir::as_str), Some(subdir), "{text}");
            assert_eq!(id.name(), name, "{text}");
            assert_eq!(id.key(), RecordKey::of(name), "{text}");
            assert_eq!(id.subdir_was_given(), name != subdir, "{text}");
            assert_eq!(id.on_delete(), on_delete, "{text}");
        }
    }

    #[test]
    fn an_id_that_would_be_too_long_or_has_a_number_sign_in_a_field_names_its_record() {
        let long = "n".repeat(128);
        let ids = [
            (made("nas:/export", &long, None, OnDelete::Delete), "nas#export#", "##", long.as_str()),
            (
                made("nas:/export", "pvc-1", Some(&"a/".repeat(60).replace("/a", "/b")[..119]), OnDelete::Retain),
                "nas#export#",
                "##retain",
                "pvc-1",
            ),
            (made("nas:/a#b%", "pvc-1", None, OnDelete::Archive), "nas#a%23b%25#", "##archive", "pvc-1"),
            (made("[fe80::1%eth0]:/#", "pvc-1", Some("x"), OnDelete::Delete), "fe80::1%25eth0#%23#", "##", "pvc-1"),
            (made("nas:/export", "a#b", None, OnDelete::Delete), "nas#export#", "##", "a#b"),
            (made("nas:/export", "pvc-1", Some("a#b"), OnDelete::Delete), "nas#export#", "##", "pvc-1"),
        ];
        for (id, start, end, name) in ids {
            let key = RecordKey::of(name);
            assert_eq!(id.to_string(), format!("{start}.nfs-csi/{key}{end}"));
            assert!(id.to_string().len() <= 128);
            assert_eq!((id.key(), id.subdir()), (key.clone(), None));
            assert_eq!((id.name(), id.subdir_was_given()), (key.to_string(), false));
            assert_eq!(read(&id.to_string()), id);
        }
    }

    #[test]
    fn an_id_of_128_bytes_is_written_out() {
        let fitting = "n".repeat(128 - "nas#export###".len());
        assert_eq!(
            made("nas:/export", &fitting, None, OnDelete::Delete).to_string(),
            format!("nas#export#{fitting}##")
        );
        let longer = made("nas:/export", &format!("{fitting}n"), None, OnDelete::Delete);
        assert!(longer.subdir().is_none());
    }

    #[test]
    fn an_id_that_no_driver_made_is_foreign() {
        for text in [
            "",
            "reallyfakevolumeid",
            "some/path",
            "nas:/export",
            "pv with spaces",
            "nas#export",
            // Out of csi-driver-nfs's manual, for static volumes.
            "nfs-server.default.svc.cluster.local/share##",
            "nfs-server.default.svc.cluster.local/share#subdir#",
            "nas#export###",
            "nas/export/",
        ] {
            assert_eq!(VolumeId::parse(text), Err(IdError::Foreign { id: quote(text) }));
        }
    }

    #[test]
    fn a_malformed_id_is_refused_with_its_own_reason() {
        let refused = |text: &str| {
            let error = VolumeId::parse(text).unwrap_err();
            assert!(error.to_string().contains(&quote(text)), "{error}");
            error
        };
        let subdir = |text: &str| match refused(text) {
            IdError::SubDir { error, .. } => error,
            other => panic!("{other}"),
        };
        assert!(matches!(subdir("nas#export#../neighbour##"), PathError::DotDot { .. }));
        assert!(matches!(subdir("nas#export#a/../..##"), PathError::DotDot { .. }));
        assert!(matches!(subdir("nas#export#..#pvc-1#retain"), PathError::DotDot { .. }));
        assert!(matches!(subdir("nas/export/.."), PathError::DotDot { .. }));
        assert!(matches!(subdir("nas#export#.##"), PathError::Dot { .. }));
        assert!(matches!(subdir("nas#export#/a##"), PathError::Absolute { .. }));
        assert!(matches!(subdir("nas#export#a//b##"), PathError::EmptyComponent { .. }));
        assert!(matches!(subdir("nas#export#a/##"), PathError::EmptyComponent { .. }));
        assert!(matches!(subdir("nas#export#.nfs-csi##"), PathError::Reserved { .. }));
        assert!(matches!(subdir("nas/export/.nfs-csi"), PathError::Reserved { .. }));
        let long = format!("nas#export#{}##", "x".repeat(300));
        assert!(matches!(VolumeId::parse(&long), Err(IdError::SubDir { error: PathError::LongComponent { .. }, .. })));
        assert!(matches!(refused("nas#a/../b#pvc-1##"), IdError::Share { error: PathError::DotDot { .. }, .. }));
        assert!(matches!(refused("nas/../pvc-1"), IdError::Share { error: PathError::DotDot { .. }, .. }));
        assert!(matches!(refused("nas#a\nb#pvc-1##"), IdError::Share { error: PathError::Control { .. }, .. }));
        assert!(matches!(refused("nas#x/.nfs-csi#trash##"), IdError::Share { error: PathError::Reserved { .. }, .. }));
        assert!(matches!(
            refused("not a host#export#pvc-1##"),
            IdError::Server { error: ServerError::Malformed { .. }, .. }
        ));
        assert!(matches!(refused("../../etc"), IdError::Server { .. }));
        assert!(matches!(refused("#export#pvc-1##"), IdError::Server { error: ServerError::Empty, .. }));
        assert!(matches!(refused("nas#/export#pvc-1##"), IdError::OuterSlash { field: "share", .. }));
        assert!(matches!(refused("nas#export/#pvc-1##"), IdError::OuterSlash { field: "share", .. }));
        assert!(matches!(refused("nas/#export#pvc-1##"), IdError::OuterSlash { field: "server", .. }));
        assert!(matches!(refused("nas#export#pvc-1##burn"), IdError::OnDelete { .. }));
        assert!(matches!(refused("nas#export#pvc-1##retain "), IdError::OnDelete { .. }));
        assert!(matches!(refused("nas#export#data#a\u{1}#"), IdError::Name { .. }));
        assert!(matches!(refused("nas#export#a#b#pvc-1#"), IdError::Fields { count: 6, .. }));
        assert!(matches!(refused("nas#export#a\0b##"), IdError::Nul { .. }));
        assert!(matches!(refused("/etc/passwd"), IdError::Absolute { .. }));
        assert!(matches!(refused(".."), IdError::DotDot { .. }));
        assert!(matches!(refused("../etc"), IdError::DotDot { .. }));
        let error = VolumeId::parse(&"x".repeat(4097)).unwrap_err();
        assert!(matches!(error, IdError::TooLong { length: 4097, .. }));
        assert!(error.to_string().len() < 300, "{error}");
    }

    #[test]
    fn a_malformed_compact_id_is_refused_with_its_own_reason() {
        let refused = |text: &str| VolumeId::parse(text).unwrap_err();
        assert_eq!(read(&format!("nas#export#.nfs-csi/{KEY}##")).key().as_str(), KEY);
        assert!(matches!(refused("nas#export#.nfs-csi/volumes##"), IdError::Key { .. }));
        assert!(matches!(refused("nas#export#.nfs-csi/##"), IdError::Key { .. }));
        assert!(matches!(refused("nas#export#.nfs-csi/../../a##"), IdError::Key { .. }));
        assert!(matches!(refused(&format!("nas#export#.nfs-csi/{KEY}/a##")), IdError::Key { .. }));
        // With a name, or without all fields, it is a directory, and none of a volume's.
        assert!(matches!(refused(&format!("nas#export#.nfs-csi/{KEY}#pvc-1#")), IdError::SubDir { .. }));
        assert!(matches!(refused(&format!("nas#export#.nfs-csi/{KEY}")), IdError::SubDir { .. }));
        for share in ["a%", "a%2", "a%20b", "a%2fb", "%é"] {
            let error = refused(&format!("nas#{share}#.nfs-csi/{KEY}##"));
            assert!(matches!(error, IdError::Escape { field: "share", .. }), "{error}");
        }
        assert!(matches!(refused(&format!("nas#%23/../a#.nfs-csi/{KEY}##")), IdError::Share { .. }));
        assert!(matches!(refused(&format!("nas#a/#.nfs-csi/{KEY}##")), IdError::OuterSlash { .. }));
    }

    fn shares() -> impl Strategy<Value = Share> {
        let servers = prop_oneof![
            "[a-zA-Z_][a-zA-Z0-9_-]{0,20}(\\.[a-z][a-z0-9-]{0,20}){0,5}",
            any::<std::net::Ipv4Addr>().prop_map(|address| address.to_string()),
            any::<std::net::Ipv6Addr>().prop_map(|address| address.to_string()),
            any::<std::net::Ipv6Addr>().prop_map(|address| format!("{address}%eth0")),
        ];
        (servers, "(/[^/\\p{Cc}]{1,12}){1,6}|/|[%#/2345]{1,20}").prop_filter_map("no share", |(server, path)| {
            Some(Share::new(Server::parse(&server).ok()?, SharePath::parse(&path).ok()?))
        })
    }

    fn names() -> impl Strategy<Value = VolumeName> {
        "pvc-[0-9a-f]{8}|[a/%.#$\\{25]{1,40}|\\PC{1,60}|\\.nfs-csi|n{100,128}|/{60,128}"
            .prop_filter_map("no name", |name| VolumeName::parse(&name).ok())
    }

    fn subdirs() -> impl Strategy<Value = SubDir> {
        "[^/\\x00]{1,30}(/[^/\\x00]{1,30}){0,6}|[a#%/]{1,9}"
            .prop_filter_map("no path", |path| SubDir::parse(&path).ok())
    }

    fn policies() -> impl Strategy<Value = OnDelete> {
        prop_oneof![Just(OnDelete::Delete), Just(OnDelete::Retain), Just(OnDelete::Archive)]
    }

    proptest! {
        #[test]
        fn an_id_that_is_made_is_read_again_the_same_and_has_the_key_of_the_name(
            share in shares(), name in names(), given in proptest::option::of(subdirs()), on_delete in policies(),
        ) {
            let subdir = given.clone().unwrap_or_else(|| name.directory());
            let id = VolumeId::for_volume(share.clone(), &name, &subdir, given.is_some(), on_delete);
            prop_assert_eq!(id.key(), RecordKey::of(name.as_str()));
            prop_assert_eq!(id.share(), &share);
            prop_assert_eq!(id.on_delete(), on_delete);
            prop_assert!(id.subdir().is_none_or(|told| *told == subdir));
            prop_assert!(id.to_string().len() <= 128 || id.subdir().is_none());
            prop_assert_eq!(VolumeId::parse(&id.to_string()), Ok(id));
        }

        #[test]
        fn no_text_makes_the_parser_panic_and_what_it_reads_it_prints_unchanged(
            text in "\\PC{0,40}|[a/#.%25-]{0,24}|[a/]{0,5}#[a/]{0,5}#(\\.nfs-csi/)?[a-z2-7./]{0,17}#{0,2}(retain)?",
        ) {
            if let Ok(id) = VolumeId::parse(&text) {
                prop_assert_eq!(id.to_string(), text);
                if let Some(subdir) = id.subdir() {
                    prop_assert_eq!(&SubDir::parse(subdir.as_str()).unwrap(), subdir);
                }
            }
        }
    }
}
