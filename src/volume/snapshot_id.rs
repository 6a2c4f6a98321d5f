//! Snapshot ids, in csi-driver-nfs's form, and how a snapshot is kept.
//!
//! | form | made by |
//! |---|---|
//! | `server#share#name#name#source` | this driver, and csi-driver-nfs |
//! | `server#share#.nfs-csi/<key>##` | this driver, where the first form does not do (see `id.rs`) |
//!
//! `source` is what the source volume's id has for a name. csi-driver-nfs keeps the snapshot as the archive
//! `<name>/<source>.tar.gz` (or `.tar`) on the share; this driver has a folder of its own under the name's key.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::id::{IdError, VolumeId, check_text, compact, escaped, share};
use super::name::{LONGEST, VolumeName, is_forbidden};
use super::path::RESERVED;
use super::quote::quote;
use super::record_key::RecordKey;
use super::share::Share;
use super::subdir::SubDir;

/// The id of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SnapshotId {
    text: String,
    share: Share,
    place: Place,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Place {
    Names { name: String, source: String },
    Record(RecordKey),
}

impl SnapshotId {
    /// The id of a snapshot of a volume, kept on a share.
    #[must_use]
    pub fn for_snapshot(share: Share, name: &VolumeName, volume: &VolumeId) -> Self {
        let source = volume.name();
        let fields = [share.server().as_str(), share.path().relative(), name.as_str(), name.as_str(), &source];
        let text = fields.join("#");
        if text.len() <= LONGEST && !fields.iter().any(|field| field.contains('#')) {
            return Self { text, share, place: Place::Names { name: name.to_string(), source } };
        }
        let key = RecordKey::of(name.as_str());
        let [server, path, ..] = fields.map(escaped);
        Self { text: format!("{server}#{path}#{RESERVED}/{key}##"), share, place: Place::Record(key) }
    }

    /// Reads an id of either form.
    ///
    /// # Errors
    /// [`IdError::Foreign`] for one that is well, but no driver's.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let id = || quote(text);
        check_text(text)?;
        let fields: Vec<&str> = text.split('#').collect();
        let [server, path, name, again, source] = fields[..] else { return Err(IdError::Foreign { id: id() }) };
        let key = name.strip_prefix(RESERVED).and_then(|name| name.strip_prefix('/'));
        let (share, place) = match key {
            Some(key) if again.is_empty() && source.is_empty() => {
                let (share, key) = compact(text, server, path, key)?;
                (share, Place::Record(key))
            }
            _ if name.is_empty() || source.is_empty() => return Err(IdError::Foreign { id: id() }),
            _ if name != again => {
                return Err(IdError::TwoNames { id: id(), first: quote(name), second: quote(again) });
            }
            _ if name.contains(is_forbidden) || source.contains(is_forbidden) => {
                return Err(IdError::Name { id: id() });
            }
            _ => (share(text, server, path)?, Place::Names { name: name.to_owned(), source: source.to_owned() }),
        };
        Ok(Self { text: text.to_owned(), share, place })
    }

    /// The share that the snapshot is on.
    #[must_use]
    pub fn share(&self) -> &Share {
        &self.share
    }

    /// The key of the snapshot's folder.
    #[must_use]
    pub fn key(&self) -> RecordKey {
        match &self.place {
            Place::Names { name, .. } => RecordKey::of(name),
            Place::Record(key) => key.clone(),
        }
    }

    /// Where csi-driver-nfs would have the snapshot: its folder, and the archives that may be in it, the likelier
    /// first. None if the id's fields are no names of files.
    #[must_use]
    pub fn archives(&self) -> Option<[SubDir; 2]> {
        let Place::Names { name, source } = &self.place else { return None };
        if name.contains('/') || source.contains('/') {
            return None;
        }
        let archive = |end: &str| SubDir::parse(&format!("{name}/{source}.{end}")).ok();
        Some([archive("tar.gz")?, archive("tar")?])
    }

    /// The id that the source volume had if it was on the same share, in its default directory.
    #[must_use]
    pub fn likely_source(&self) -> String {
        match &self.place {
            Place::Names { source, .. } => {
                [self.share.server().as_str(), self.share.path().relative(), source, "", ""].join("#")
            }
            Place::Record(_) => String::new(),
        }
    }
}

/// The id as it was made or read.
impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// How a snapshot is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SnapshotFormat {
    /// As a tree of files: shared with the volume where the server's file system can, restored as fast as it is made.
    #[default]
    #[serde(rename = "tree")]
    Tree,
    /// As one compressed archive.
    #[serde(rename = "tar.zst")]
    Archive,
}

/// Why a text is no format.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{value} is not known: write tree or tar.zst")]
pub struct FormatError {
    value: String,
}

impl SnapshotFormat {
    /// Reads the value of the parameter `snapshotFormat`, in any case.
    pub fn parse(text: &str) -> Result<Self, FormatError> {
        match text.to_ascii_lowercase().as_str() {
            "tree" => Ok(Self::Tree),
            "tar.zst" => Ok(Self::Archive),
            _ => Err(FormatError { value: quote(text) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn made(share: &str, name: &str, volume: &str) -> SnapshotId {
        let volume = VolumeId::parse(volume).unwrap();
        SnapshotId::for_snapshot(Share::parse(share).unwrap(), &VolumeName::parse(name).unwrap(), &volume)
    }

    #[test]
    fn an_id_is_made_in_csi_driver_nfs_s_form() {
        for (id, text) in [
            (made("nas:/export", "snap-1", "nas#export#pvc-1##"), "nas#export#snap-1#snap-1#pvc-1"),
            (made("nas:/x/y", "snap-1", "nas#export#team/data#pvc-1#"), "nas#x/y#snap-1#snap-1#pvc-1"),
            (made("nas:/x", "snap-1", "nas/export/old"), "nas#x#snap-1#snap-1#old"),
            (made("nas:/", "a/b", "nas#export#team/data##"), "nas##a/b#a/b#team/data"),
        ] {
            assert_eq!(id.to_string(), text);
            assert_eq!(SnapshotId::parse(text).unwrap(), id);
        }
    }

    #[test]
    fn an_id_that_would_be_too_long_or_ambiguous_names_the_key() {
        for name in ["n".repeat(128), "a#b".into()] {
            let id = made("nas:/exp#ort", &name, "nas#export#pvc-1##");
            assert!(id.to_string().len() <= LONGEST);
            assert_eq!(id.to_string(), format!("nas#exp%23ort#.nfs-csi/{}##", RecordKey::of(&name)));
            let read = SnapshotId::parse(&id.to_string()).unwrap();
            assert_eq!((read.key(), read.share()), (RecordKey::of(&name), id.share()));
            assert_eq!(read.archives(), None);
        }
    }

    #[test]
    fn csi_driver_nfs_s_archives_are_beside_each_other() {
        let archives = SnapshotId::parse("nas#export#snap-1#snap-1#pvc-1").unwrap().archives().unwrap();
        assert_eq!(archives.map(|path| path.to_string()), ["snap-1/pvc-1.tar.gz", "snap-1/pvc-1.tar"]);
        for odd in ["nas#export#..#..#x", "nas#export#.#.#x", "nas#export#a/b#a/b#x", "nas#export#a#a#../x"] {
            assert_eq!(SnapshotId::parse(odd).unwrap().archives(), None, "{odd}");
        }
    }

    #[test]
    fn what_no_driver_made_is_refused() {
        for text in ["", "snap", "nas/export/snap", "nas#export#snap", "nas#export#a#a#", "nas#export###x"] {
            assert!(matches!(SnapshotId::parse(text), Err(IdError::Foreign { .. })), "{text}");
        }
        assert!(matches!(SnapshotId::parse("nas#export#a#b#x"), Err(IdError::TwoNames { .. })));
        assert!(matches!(SnapshotId::parse("nas#../x#a#a#x"), Err(IdError::Share { .. })));
        assert!(matches!(SnapshotId::parse("nas#x#a\u{1}#a\u{1}#x"), Err(IdError::Name { .. })));
        assert!(matches!(SnapshotId::parse("/nas#x#a#a#x"), Err(IdError::Absolute { .. })));
        assert!(matches!(SnapshotId::parse("nas#x#.nfs-csi/short##"), Err(IdError::Key { .. })));
    }

    #[test]
    fn formats_have_names() {
        assert_eq!(SnapshotFormat::parse("Tree"), Ok(SnapshotFormat::Tree));
        assert_eq!(SnapshotFormat::parse("tar.zst"), Ok(SnapshotFormat::Archive));
        assert!(SnapshotFormat::parse("zip").unwrap_err().to_string().contains("zip"));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "[a-z./#%]{0,40}|\\PC{0,40}|[ -~]{0,60}") {
            if let Ok(id) = SnapshotId::parse(&text) {
                prop_assert_eq!(id.to_string(), text);
                let _ = (id.archives(), id.key(), id.likely_source());
            }
        }

        #[test]
        fn an_id_that_is_made_is_read_again(name in "[a-z#/. -]{1,40}", subdir in "[a-z]{1,20}") {
            let id = made("nas:/export", &name, &format!("nas#export#{subdir}##"));
            prop_assert_eq!(SnapshotId::parse(&id.to_string()).unwrap(), id);
        }
    }
}
