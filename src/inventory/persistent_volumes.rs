//! The PersistentVolumes of a cluster, as `kubectl get pv -o json` prints them: which of them are on an export, and in
//! which directory.
//!
//! A volume is found by its id (volumeHandle, this driver's forms and csi-driver-nfs's), or by server, share and subDir
//! in its attributes, as the node plugin does. What another driver or no driver mounts (`spec.nfs`) counts as a use of
//! its directory.

use std::collections::BTreeMap;
use std::io::Read;

use serde::Deserialize;
use thiserror::Error;

use crate::volume::id::VolumeId;
use crate::volume::record_key::RecordKey;
use crate::volume::share::{Server, Share, SharePath};
use crate::volume::subdir::SubDir;

/// Why a list of PersistentVolumes cannot be used.
#[derive(Debug, Error)]
#[error("{0}: give what `kubectl get pv -o json` prints")]
pub struct VolumesError(String);

/// A PersistentVolume, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersistentVolume {
    /// Its name.
    pub name: String,
    /// The claim that it is for, `namespace/name`.
    pub claim: Option<String>,
    /// Its size in bytes; none where that cannot be read.
    pub size_bytes: Option<u64>,
    /// When it was made, in seconds since 1970.
    pub created_at: Option<u64>,
    /// `Bound`, `Released`, …
    pub phase: String,
    /// The driver; none for an `nfs` volume, which the kubelet mounts itself.
    pub driver: Option<String>,
    /// Its id (volumeHandle).
    pub id: Option<VolumeId>,
    place: Option<Place>,
}

/// Where a volume's directory is on its server.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    server: Server,
    /// The share, and the directory below it.
    path: String,
}

/// Where a volume is, as an export sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Position {
    /// In this directory below the share; empty: the share's top.
    Directory(String),
    /// On the export, in the directory that its record names.
    Recorded,
    /// On this share, which is another one.
    Elsewhere(String),
    /// It has nothing to do with NFS, or what it has cannot be read.
    Unknown,
}

impl PersistentVolume {
    /// Reads a list of them, or a single one.
    ///
    /// # Errors
    /// Where it is neither.
    pub fn read_list(from: impl Read) -> Result<Vec<Self>, VolumesError> {
        let list: List = serde_json::from_reader(std::io::BufReader::new(from))
            .map_err(|error| VolumesError(format!("the list of PersistentVolumes cannot be read ({error})")))?;
        let objects = match (list.kind.as_str(), list.items, list.spec) {
            ("List" | "PersistentVolumeList", Some(items), _) => items,
            ("PersistentVolume", None, Some(spec)) => {
                vec![Object { kind: list.kind, metadata: list.metadata, spec, status: list.status }]
            }
            (kind, ..) => return Err(VolumesError(format!("this is no list of PersistentVolumes but {kind:?}"))),
        };
        let volumes = objects.into_iter().filter(|object| object.kind.is_empty() || object.kind == "PersistentVolume");
        Ok(volumes.map(Self::from).collect())
    }

    /// The key of its record, if it is on this share.
    #[must_use]
    pub fn key_on(&self, share: &Share, aliases: &[Server]) -> Option<RecordKey> {
        let id = self.id.as_ref()?;
        let is_here = is_same_server(id.share().server(), share, aliases) && id.share().path() == share.path();
        is_here.then(|| id.key())
    }

    /// Where it is, as an export sees it whose server has these names too.
    #[must_use]
    pub fn position(&self, share: &Share, aliases: &[Server]) -> Position {
        let Some(Place { server, path }) = &self.place else {
            return match &self.id {
                Some(id) if self.key_on(share, aliases).is_some() => {
                    id.subdir().map_or(Position::Recorded, |subdir| Position::Directory(subdir.to_string()))
                }
                Some(id) => Position::Elsewhere(id.share().to_string()),
                None => Position::Unknown,
            };
        };
        if is_same_server(server, share, aliases) {
            let own = share.path().as_str();
            let below = if own == "/" { path.strip_prefix('/') } else { strip_directory(path, own) };
            if let Some(below) = below {
                return Position::Directory(below.to_owned());
            }
        }
        let share = self.id.as_ref().map(|id| id.share().to_string());
        Position::Elsewhere(share.unwrap_or_else(|| format!("{}:{path}", server.bracketed())))
    }
}

fn strip_directory<'a>(path: &'a str, directory: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(directory)?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix('/') }
}

fn is_same_server(server: &Server, share: &Share, aliases: &[Server]) -> bool {
    let is = |other: &Server| other.as_str().eq_ignore_ascii_case(server.as_str());
    is(share.server()) || aliases.iter().any(is)
}

impl Place {
    fn new(server: &str, share: &str, subdir: Option<&str>) -> Option<Self> {
        let share = SharePath::parse(share).ok()?;
        let path = match subdir.map(|subdir| subdir.trim_matches('/')).filter(|subdir| !subdir.is_empty()) {
            // A template that nobody resolved names no directory.
            Some(subdir) if subdir.contains("${") => return None,
            Some(subdir) => format!("{}/{}", share.as_str().trim_end_matches('/'), SubDir::recorded(subdir).ok()?),
            None => share.as_str().to_owned(),
        };
        Some(Self { server: Server::parse(server).ok()?, path })
    }

    /// That of the attributes, whose keys have no case.
    fn of_attributes(attributes: &BTreeMap<String, String>) -> Option<Self> {
        let value = |wanted: &str| attributes.iter().find(|(key, _)| key.eq_ignore_ascii_case(wanted)).map(|(_, v)| v);
        Self::new(value("server")?, value("share")?, value("subdir").map(String::as_str))
    }

    fn of_id(id: &VolumeId) -> Option<Self> {
        Self::new(id.share().server().as_str(), id.share().path().as_str(), Some(id.subdir()?.as_str()))
    }
}

impl From<Object> for PersistentVolume {
    fn from(Object { metadata, spec, status, .. }: Object) -> Self {
        let id = spec.csi.as_ref().and_then(|csi| VolumeId::parse(&csi.volume_handle).ok());
        let place = match (&spec.csi, &spec.nfs) {
            (Some(csi), _) => {
                let attributes = Place::of_attributes(&csi.volume_attributes);
                // Attributes without a directory are those of a volume that is a whole share, or of one whose id says it.
                let of_id = id.as_ref().and_then(Place::of_id);
                match (attributes, of_id) {
                    (Some(_), Some(of_id)) if !csi.has_subdir() => Some(of_id),
                    (None, of_id) => of_id,
                    // Only its record says where it is.
                    (Some(_), None) if id.is_some() && !csi.has_subdir() => None,
                    (attributes, _) => attributes,
                }
            }
            (None, Some(nfs)) => Place::new(&nfs.server, &nfs.path, None),
            (None, None) => None,
        };
        Self {
            name: metadata.name,
            claim: spec.claim_ref.map(|claim| format!("{}/{}", claim.namespace, claim.name)),
            size_bytes: spec.capacity.get("storage").and_then(|text| quantity(text)),
            created_at: metadata.creation_timestamp.as_deref().and_then(seconds_of),
            phase: status.phase,
            driver: spec.csi.map(|csi| csi.driver),
            id,
            place,
        }
    }
}

/// A quantity of Kubernetes in whole units, rounded up: `10Gi`, `5G`, `1e9`, `1.5Ti`, `500m`.
fn quantity(text: &str) -> Option<u64> {
    let digits = text.find(|one: char| !one.is_ascii_digit() && one != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let power = |base: u128, exponent: u32| base.checked_pow(exponent);
    let (times, divided) = match suffix {
        "" => (1, 1),
        "n" => (1, 1_000_000_000),
        "u" => (1, 1_000_000),
        "m" => (1, 1000),
        "k" => (1000, 1),
        _ => match (suffix.strip_prefix(['e', 'E']).map(str::parse::<u32>), suffix.strip_suffix('i').unwrap_or(suffix))
        {
            (Some(Ok(exponent)), _) => (power(10, exponent)?, 1),
            (_, letter) => {
                let exponent =
                    1 + u32::try_from(["K", "M", "G", "T", "P", "E"].iter().position(|one| *one == letter)?).ok()?;
                (power(if suffix.ends_with('i') { 1024 } else { 1000 }, exponent)?, 1)
            }
        },
    };
    // More digits than any size has are not needed.
    let fraction = &fraction[..fraction.len().min(18)];
    let scale = power(10, u32::try_from(fraction.len()).ok()?)?;
    let all = format!("{whole}{fraction}").parse::<u128>().ok()?;
    u64::try_from(all.checked_mul(times)?.div_ceil(scale * divided)).ok()
}

/// A time as Kubernetes writes it (`2024-02-29T12:00:00Z`), in seconds since 1970.
fn seconds_of(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let three = |text: &str, separator: char| -> Option<[i64; 3]> {
        let fields: Vec<i64> = text.split(separator).map(str::parse).collect::<Result<_, _>>().ok()?;
        fields.try_into().ok()
    };
    let [year, month, day] = three(date, '-')?;
    let [hour, minute, second] = three(time.split('.').next()?, ':')?;
    if !(1970..10_000).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days in a calendar whose year begins in March, so that a leap day is a year's last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    u64::try_from(((days * 24 + hour) * 60 + minute) * 60 + second).ok()
}

#[derive(Deserialize)]
struct List {
    #[serde(default)]
    kind: String,
    items: Option<Vec<Object>>,
    #[serde(default)]
    metadata: Metadata,
    spec: Option<Spec>,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    kind: String,
    metadata: Metadata,
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: String,
    creation_timestamp: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    capacity: BTreeMap<String, String>,
    csi: Option<Csi>,
    nfs: Option<Nfs>,
    claim_ref: Option<Claim>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Csi {
    driver: String,
    #[serde(default)]
    volume_handle: String,
    #[serde(default)]
    volume_attributes: BTreeMap<String, String>,
}

impl Csi {
    fn has_subdir(&self) -> bool {
        self.volume_attributes.iter().any(|(key, value)| key.eq_ignore_ascii_case("subdir") && !value.is_empty())
    }
}

#[derive(Deserialize)]
struct Nfs {
    server: String,
    path: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Claim {
    namespace: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn share(text: &str) -> Share {
        text.parse().unwrap()
    }

    fn csi(handle: &str, attributes: &serde_json::Value) -> PersistentVolume {
        let spec = json!({"csi": {"driver": "nfs.csi.k8s.io", "volumeHandle": handle, "volumeAttributes": attributes}});
        one(&spec)
    }

    fn one(spec: &serde_json::Value) -> PersistentVolume {
        let text = json!({"kind": "List", "items": [{"metadata": {"name": "pv"}, "spec": spec}]}).to_string();
        PersistentVolume::read_list(text.as_bytes()).unwrap().pop().unwrap()
    }

    #[test]
    fn a_volume_is_where_the_node_plugin_mounts_it() {
        let directory = |path: &str| Position::Directory(path.into());
        let none = json!({});
        let attributes = |subdir: &str| json!({"Server": "nas", "share": "/export", "subDir": subdir});
        let key = "nas#export#.nfs-csi/abcdefghij234567##";
        for (volume, position) in [
            (csi("nas#export#pvc-1##", &none), directory("pvc-1")),
            (csi("NAS#export#team/a#pvc-1#retain", &none), directory("team/a")),
            (csi("nas/export/pvc-1", &none), directory("pvc-1")),
            (csi("10.0.0.5#export#pvc-1##", &none), directory("pvc-1")),
            (csi("by-hand", &attributes("data")), directory("data")),
            (csi("by-hand", &json!({"server": "nas", "share": "/export/deep/data"})), directory("deep/data")),
            (csi("by-hand", &json!({"server": "nas", "share": "/export/"})), directory("")),
            (csi("nas#export#pvc-1##", &json!({"server": "nas", "share": "/export"})), directory("pvc-1")),
            (csi(key, &none), Position::Recorded),
            (csi(key, &json!({"server": "nas", "share": "/export"})), Position::Recorded),
            (csi(key, &attributes("a#b")), directory("a#b")),
            (csi("nas#other#pvc-1##", &none), Position::Elsewhere("nas:/other".into())),
            (csi("nas#export2#pvc-1##", &none), Position::Elsewhere("nas:/export2".into())),
            (csi("other#export#pvc-1##", &none), Position::Elsewhere("other:/export".into())),
            (csi("vol-0123", &none), Position::Unknown),
            (csi("by-hand", &attributes("../other")), Position::Unknown),
            (one(&json!({"nfs": {"server": "nas", "path": "/export/provisioned"}})), directory("provisioned")),
            (one(&json!({"hostPath": {"path": "/export"}})), Position::Unknown),
        ] {
            let found = volume.position(&share("nas:/export"), &[Server::parse("10.0.0.5").unwrap()]);
            assert_eq!(found, position, "{volume:?}");
        }
        let deep = csi("nas#export#pvc-1##", &json!({})).position(&share("nas:/"), &[]);
        assert_eq!(deep, directory("export/pvc-1"));
    }

    #[test]
    fn a_record_is_a_volume_s_if_the_id_is_of_this_share() {
        let key = |handle: &str| csi(handle, &json!({})).key_on(&share("nas:/export"), &[]);
        assert_eq!(key("nas#export#team/a#pvc-1#"), Some(RecordKey::of("pvc-1")));
        assert_eq!(key("nas#export#pvc-1##"), Some(RecordKey::of("pvc-1")));
        assert_eq!(key("nas#export#.nfs-csi/abcdefghij234567##"), "abcdefghij234567".parse().ok());
        assert_eq!(key("nas#other#pvc-1##"), None);
        assert_eq!(key("by-hand"), None);
    }

    #[test]
    fn what_kubectl_prints_is_read() {
        let text = r#"{"apiVersion": "v1", "kind": "List", "items": [{
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {"name": "pvc-1", "creationTimestamp": "2024-02-29T12:00:01Z", "uid": "x"},
            "spec": {"accessModes": ["ReadWriteMany"], "capacity": {"storage": "10Gi"},
                "claimRef": {"kind": "PersistentVolumeClaim", "name": "data", "namespace": "team"},
                "csi": {"driver": "nfs.csi.k8s.io", "volumeHandle": "nas#export#pvc-1##"}},
            "status": {"phase": "Bound"}}]}"#;
        let volumes = PersistentVolume::read_list(text.as_bytes()).unwrap();
        let [volume] = &volumes[..] else { panic!("{volumes:?}") };
        assert_eq!((volume.name.as_str(), volume.claim.as_deref()), ("pvc-1", Some("team/data")));
        assert_eq!((volume.size_bytes, volume.created_at), (Some(10 << 30), Some(1_709_208_001)));
        assert_eq!((volume.phase.as_str(), volume.driver.as_deref()), ("Bound", Some("nfs.csi.k8s.io")));
        let single = r#"{"kind": "PersistentVolume", "metadata": {"name": "a"}, "spec": {}}"#;
        assert_eq!(PersistentVolume::read_list(single.as_bytes()).unwrap().len(), 1);
        for other in ["", "{", "[]", r#"{"kind": "Pod", "metadata": {"name": "a"}, "spec": {}}"#] {
            let error = PersistentVolume::read_list(other.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("kubectl get pv -o json"), "{error}");
        }
    }

    #[test]
    fn quantities_are_read_in_all_units_of_kubernetes() {
        for (text, bytes) in [
            ("0", Some(0)),
            ("10Gi", Some(10 << 30)),
            ("5G", Some(5_000_000_000)),
            ("1.5Ti", Some(3 << 39)),
            ("1e9", Some(1_000_000_000)),
            ("3E", Some(3_000_000_000_000_000_000)),
            ("8k", Some(8000)),
            ("1500m", Some(2)),
            ("7Ki", Some(7168)),
            ("100Ei", None),
            ("", None),
            ("Gi", None),
            ("1.2.3", None),
            ("5X", None),
            ("-5", None),
        ] {
            assert_eq!(quantity(text), bytes, "{text}");
        }
    }

    #[test]
    fn times_are_seconds_since_1970() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2000-03-01T00:00:00Z", Some(951_868_800)),
            ("2024-12-31T23:59:59.5Z", Some(1_735_689_599)),
            ("2024-13-01T00:00:00Z", None),
            ("yesterday", None),
        ] {
            assert_eq!(seconds_of(text), seconds, "{text}");
        }
    }
}
