//! The words that mount(8) and nfs(5) give to mount options: which settings they make, which values these take, and
//! who reads them.
//!
//! The kernel answers a wrong value with a bare EINVAL, so its bounds stand here too. A word that is not here is left
//! to the kernel, which may be newer than this list.

use std::fmt;
use std::net::IpAddr;

use nix::mount::MsFlags;
use serde::{Deserialize, Serialize};

/// What is shown of a secret.
pub(super) const MASK: &str = "***";
/// The place of words that the kernel may know: behind all others.
pub(super) const UNKNOWN: usize = SETTINGS.len();

/// Words that only programs in user space know, with or without a value. Nothing here has a use for them: the
/// orchestrator says when a volume is mounted and tries again when that fails, which is what `bg` and `retry` ask for.
const DROPPED: &[&str] = &[
    "defaults", "auto", "noauto", "nouser", "nousers", "noowner", "nogroup", "_netdev", "_rnetdev", "nofail",
    "comment", "retry", "fg", "bg", "intr", "nointr", "uhelper",
];

/// Words that stand for others. The words that let somebody else than root mount imply some (mount(8)); that much of
/// them has a meaning here.
const SAME_AS: &[(&str, &[&str])] = &[
    ("user", &["noexec", "nosuid", "nodev"]),
    ("users", &["noexec", "nosuid", "nodev"]),
    ("owner", &["nosuid", "nodev"]),
    ("group", &["nosuid", "nodev"]),
    ("tcp", &["proto=tcp"]),
    ("udp", &["proto=udp"]),
    ("rdma", &["proto=rdma"]),
    ("v3", &["vers=3"]),
    ("v4", &["vers=4"]),
    ("v4.0", &["vers=4.0"]),
    ("v4.1", &["vers=4.1"]),
    ("v4.2", &["vers=4.2"]),
];

/// Other names of words that take a value.
const OTHER_NAMES: &[(&str, &str)] = &[("nfsvers", "vers"), ("mounthost", "mountaddr")];

/// Words that would make another kind of mount, and why they are refused.
const REFUSED: &[(&str, &str)] = &[
    ("bind", "a volume is a mount of its own, not a second view of another; leave it out"),
    ("rbind", "a volume is a mount of its own, not a second view of others; leave it out"),
    ("move", "a volume is mounted where the orchestrator wants it; leave it out"),
    ("remount", "a mounted volume keeps its options; unpublish and publish it with the new ones"),
    ("shared", PROPAGATION),
    ("rshared", PROPAGATION),
    ("slave", PROPAGATION),
    ("rslave", PROPAGATION),
    ("private", PROPAGATION),
    ("rprivate", PROPAGATION),
    ("unbindable", PROPAGATION),
    ("runbindable", PROPAGATION),
    ("loop", "an NFS share is a directory, not an image of a disk; leave it out"),
    ("addr", "the server's address is found from its name; name another server instead"),
    ("source", "the share is named by the volume's server and share; name another there"),
    ("v2", "NFS version 2 is no longer spoken; use nfsvers=3 or newer"),
];
const PROPAGATION: &str = "how mounts spread is the container's mountPropagation; set it there";

/// Who reads a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    /// The kernel, as a flag of the one mount.
    Mount,
    /// The kernel, as a flag of the superblock that mounts share.
    Superblock,
    /// The NFS client: how it reaches the server.
    Reach,
    /// The NFS client: how it behaves then.
    Behaviour,
}

/// What may stand behind a word.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    /// Nothing; the word sets these flags.
    Flag(MsFlags),
    /// Nothing.
    Nothing,
    /// A number between two, both included.
    Number(u32, u32),
    /// One of these.
    OneOf(&'static [&'static str]),
    /// Nothing, or one of these.
    NothingOr(&'static [&'static str]),
    /// Nothing, or any text.
    Anything,
    /// One or more of these, with colons between them.
    ListOf(&'static [&'static str]),
    /// An IP address.
    Address,
    /// A security label, the only value that the kernel lets stand in quotes.
    Label,
}

/// One thing that can be set: of its words, the one given last holds.
pub(super) struct Setting {
    /// Who reads it.
    pub(super) reader: Reader,
    /// Its words, and what may stand behind each.
    pub(super) words: &'static [(&'static str, Value)],
}

const fn set(reader: Reader, words: &'static [(&'static str, Value)]) -> Setting {
    Setting { reader, words }
}

const ANY_NUMBER: Value = Value::Number(0, u32::MAX);
/// The kernel takes some numbers as signed ones.
const MOST_SIGNED: u32 = u32::MAX / 2;
/// The word for the version of NFS.
pub(super) const VERSION: &str = "vers";
/// The word for the second half of the version of NFS, which [`VERSION`] takes in.
pub(super) const MINOR_VERSION: &str = "minorversion";
/// The word that sets all of [`CACHE_TIMES`].
pub(super) const ALL_CACHE_TIMES: &str = "actimeo";
/// How long attributes stay in the cache.
pub(super) const CACHE_TIMES: &[&str] = &["acregmin", "acregmax", "acdirmin", "acdirmax"];

/// All settings, in the order in which they are shown and given to the kernel. The order matters where the kernel lets
/// one word change what another did: `sloppy` forgives what stands behind it, `hard` takes `softreval` back,
/// [`ALL_CACHE_TIMES`] sets the four behind it, and `lock` and `nolock` overrule `local_lock` (nfs(5)).
pub(super) const SETTINGS: &[Setting] = {
    use Reader::{Behaviour, Mount, Reach, Superblock};
    use Value::{Address, Anything, Flag, Label, ListOf, Nothing, NothingOr, Number, OneOf};
    &[
        set(Mount, &[("ro", Flag(MsFlags::MS_RDONLY)), ("rw", Nothing)]),
        set(Mount, &[("nosuid", Flag(MsFlags::MS_NOSUID)), ("suid", Nothing)]),
        set(Mount, &[("nodev", Flag(MsFlags::MS_NODEV)), ("dev", Nothing)]),
        set(Mount, &[("noexec", Flag(MsFlags::MS_NOEXEC)), ("exec", Nothing)]),
        // The kernel keeps one rule for access times; `relatime` is what it does without a word.
        set(
            Mount,
            &[
                ("noatime", Flag(MsFlags::MS_NOATIME)),
                ("relatime", Flag(MsFlags::MS_RELATIME)),
                ("strictatime", Flag(MsFlags::MS_STRICTATIME)),
                ("atime", Nothing),
                ("norelatime", Nothing),
                ("nostrictatime", Nothing),
            ],
        ),
        set(Mount, &[("nodiratime", Flag(MsFlags::MS_NODIRATIME)), ("diratime", Nothing)]),
        // MS_NOSYMFOLLOW, which nix does not name.
        set(Mount, &[("nosymfollow", Flag(MsFlags::from_bits_retain(256))), ("symfollow", Nothing)]),
        set(Superblock, &[("sync", Flag(MsFlags::MS_SYNCHRONOUS)), ("async", Nothing)]),
        set(Superblock, &[("dirsync", Flag(MsFlags::MS_DIRSYNC))]),
        set(Superblock, &[("lazytime", Flag(MsFlags::MS_LAZYTIME)), ("nolazytime", Nothing)]),
        set(Superblock, &[("iversion", Flag(MsFlags::MS_I_VERSION)), ("noiversion", Nothing)]),
        set(Superblock, &[("mand", Flag(MsFlags::MS_MANDLOCK)), ("nomand", Nothing)]),
        set(Superblock, &[("silent", Flag(MsFlags::MS_SILENT)), ("loud", Nothing)]),
        set(Behaviour, &[("sloppy", Nothing)]),
        set(Reach, &[(VERSION, OneOf(&["3", "4", "4.0", "4.1", "4.2"]))]),
        set(Reach, &[(MINOR_VERSION, Number(0, 2))]),
        set(Reach, &[("sec", ListOf(&["none", "null", "sys", "krb5", "krb5i", "krb5p"]))]),
        set(Reach, &[("xprtsec", OneOf(&["none", "tls", "mtls"]))]),
        set(Reach, &[("cert_serial", ANY_NUMBER)]),
        set(Reach, &[("privkey_serial", ANY_NUMBER)]),
        set(Reach, &[("proto", OneOf(&["tcp", "tcp6", "udp", "udp6", "rdma", "rdma6"]))]),
        set(Reach, &[("port", Number(1, 65535))]),
        set(Reach, &[("clientaddr", Address)]),
        set(Reach, &[("mountaddr", Address)]),
        set(Reach, &[("mountport", Number(0, 65535))]),
        set(Reach, &[("mountproto", OneOf(&["tcp", "tcp6", "udp", "udp6"]))]),
        set(Reach, &[("mountvers", Number(1, 3))]),
        set(Reach, &[("nconnect", Number(1, 16))]),
        set(Reach, &[("max_connect", Number(1, 16))]),
        set(Reach, &[("trunkdiscovery", Nothing), ("notrunkdiscovery", Nothing)]),
        set(Reach, &[("migration", Nothing), ("nomigration", Nothing)]),
        set(Reach, &[("resvport", Nothing), ("noresvport", Nothing)]),
        set(Reach, &[("rsize", ANY_NUMBER)]),
        set(Reach, &[("wsize", ANY_NUMBER)]),
        set(Behaviour, &[("hard", Nothing), ("soft", Nothing), ("softerr", Nothing)]),
        set(Behaviour, &[("softreval", Nothing), ("nosoftreval", Nothing)]),
        set(Behaviour, &[("timeo", Number(1, MOST_SIGNED))]),
        set(Behaviour, &[("retrans", Number(0, MOST_SIGNED))]),
        set(
            Behaviour,
            &[("fatal_neterrors", OneOf(&["default", "none", "ENETDOWN:ENETUNREACH", "ENETUNREACH:ENETDOWN"]))],
        ),
        set(Behaviour, &[("ac", Nothing), ("noac", Nothing)]),
        set(Behaviour, &[(ALL_CACHE_TIMES, ANY_NUMBER)]),
        set(Behaviour, &[("acregmin", ANY_NUMBER)]),
        set(Behaviour, &[("acregmax", ANY_NUMBER)]),
        set(Behaviour, &[("acdirmin", ANY_NUMBER)]),
        set(Behaviour, &[("acdirmax", ANY_NUMBER)]),
        set(Behaviour, &[("acl", Nothing), ("noacl", Nothing)]),
        set(Behaviour, &[("alignwrite", Nothing), ("noalignwrite", Nothing)]),
        set(Behaviour, &[("bsize", ANY_NUMBER)]),
        set(Behaviour, &[("cto", Nothing), ("nocto", Nothing)]),
        set(Behaviour, &[("fsc", Anything), ("nofsc", Nothing)]),
        set(Behaviour, &[("local_lock", OneOf(&["all", "flock", "posix", "none"]))]),
        set(Behaviour, &[("lock", Nothing), ("nolock", Nothing)]),
        set(Behaviour, &[("lookupcache", OneOf(&["all", "none", "pos", "positive"]))]),
        set(Behaviour, &[("namlen", ANY_NUMBER)]),
        set(Behaviour, &[("posix", Nothing), ("noposix", Nothing)]),
        set(Behaviour, &[("rdirplus", NothingOr(&["none", "force"])), ("nordirplus", Nothing)]),
        set(Behaviour, &[("sharecache", Nothing), ("nosharecache", Nothing)]),
        set(Behaviour, &[("write", OneOf(&["lazy", "eager", "wait"]))]),
        set(Behaviour, &[("context", Label)]),
        set(Behaviour, &[("fscontext", Label)]),
        set(Behaviour, &[("defcontext", Label)]),
        set(Behaviour, &[("rootcontext", Label)]),
    ]
};

/// What a word means.
#[derive(Debug)]
pub(super) enum Meaning {
    /// Nothing to anybody here.
    Dropped,
    /// It would make another kind of mount, or one that is not there; with the way out.
    Refused(&'static str),
    /// The same as these words.
    SameAs(&'static [&'static str]),
    /// One of the words of a setting.
    Sets {
        /// The setting's index in [`SETTINGS`].
        place: usize,
        /// The word, by the first of its names.
        name: &'static str,
        /// What may stand behind it.
        value: Value,
    },
    /// The kernel may know.
    Unknown,
}

/// What a word means; without its value.
pub(super) fn meaning(name: &str) -> Meaning {
    if DROPPED.contains(&name) || name.starts_with("x-") || name.starts_with("X-") {
        return Meaning::Dropped;
    }
    if let Some(&(_, reason)) = REFUSED.iter().find(|(word, _)| *word == name) {
        return Meaning::Refused(reason);
    }
    if let Some(&(_, words)) = SAME_AS.iter().find(|(word, _)| *word == name) {
        return Meaning::SameAs(words);
    }
    let name = OTHER_NAMES.iter().find(|(other, _)| *other == name).map_or(name, |&(_, first)| first);
    for (place, setting) in SETTINGS.iter().enumerate() {
        if let Some(&(name, value)) = setting.words.iter().find(|(word, _)| *word == name) {
            return Meaning::Sets { place, name, value };
        }
    }
    Meaning::Unknown
}

/// The words that mount options are made of here, for somebody whose word the kernel refused.
#[must_use]
pub fn known_words() -> String {
    let settings = SETTINGS.iter().flat_map(|setting| setting.words);
    let words = settings.map(|(name, value)| match value {
        Value::Flag(_) | Value::Nothing | Value::NothingOr(_) | Value::Anything => (*name).to_owned(),
        _ => format!("{name}="),
    });
    let others = OTHER_NAMES.iter().map(|(name, _)| format!("{name}="));
    let short = SAME_AS.iter().map(|(name, _)| (*name).to_owned());
    words.chain(others).chain(short).collect::<Vec<_>>().join(", ")
}

impl Value {
    /// The value as it is kept; if it may not stand behind the word, what should instead.
    pub(super) fn checked(self, value: Option<&str>) -> Result<Option<String>, String> {
        let kept = match (self, value) {
            (Self::Flag(_) | Self::Nothing | Self::NothingOr(_) | Self::Anything, None) => return Ok(None),
            (Self::Flag(_) | Self::Nothing, Some(_)) | (_, None) => None,
            (Self::Number(least, most), Some(text)) => number(text, least, most),
            (Self::OneOf(values) | Self::NothingOr(values), Some(text)) => {
                values.contains(&text).then(|| text.to_owned())
            }
            (Self::Anything, Some(text)) => (!text.contains('"')).then(|| text.to_owned()),
            (Self::ListOf(values), Some(text)) => {
                text.split(':').all(|one| values.contains(&one)).then(|| text.to_owned())
            }
            (Self::Address, Some(text)) => address(text).map(|_| text.to_owned()),
            (Self::Label, Some(text)) => label(text),
        };
        kept.map(Some).ok_or_else(|| self.form())
    }

    /// What stands behind the word, to be read behind it.
    fn form(self) -> String {
        match self {
            Self::Flag(_) | Self::Nothing => " alone".to_owned(),
            Self::Number(least, most) => format!("=N with a number from {least} to {most}"),
            Self::OneOf(values) => format!("=V with one of {}", values.join(", ")),
            Self::NothingOr(values) => format!(" alone, or =V with one of {}", values.join(", ")),
            Self::Anything => " alone, or =V with a text without quotes".to_owned(),
            Self::ListOf(values) => format!("=V with one or more of {}, colons between them", values.join(", ")),
            Self::Address => "=A with an IP address (a host's name is not looked up here)".to_owned(),
            Self::Label => {
                "=L with a label of letters, digits and _ . : - (in double quotes if it has commas)".to_owned()
            }
        }
    }
}

/// A number in decimal. The kernel would read one with leading zeros as octal, so they are not kept.
fn number(text: &str, least: u32, most: u32) -> Option<String> {
    let number = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u32>().ok()).flatten()?;
    (least..=most).contains(&number).then(|| number.to_string())
}

/// An IP address; a link-local one may name its interface: `fe80::1%eth0`.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    let Some((address, interface)) = text.split_once('%') else { return text.parse().ok() };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let named = !interface.is_empty() && interface.bytes().all(plain);
    address.parse().ok().filter(|address: &IpAddr| named && address.is_ipv6())
}

/// A security label, in quotes only where it needs them. It is the security module that knows about quotes; without it
/// the kernel splits at the commas in them, so nothing may stand there that could pass for an option with a value.
fn label(text: &str) -> Option<String> {
    let bare = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(text);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:,-".contains(&byte);
    (!bare.is_empty() && bare.bytes().all(plain))
        .then(|| if bare.contains(',') { format!("\"{bare}\"") } else { bare.to_owned() })
}

/// One word as it was given, checked.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Word {
    /// The index of its setting in [`SETTINGS`], or [`UNKNOWN`].
    pub(super) place: usize,
    pub(super) name: String,
    pub(super) value: Option<String>,
    /// Whether it came from a secret.
    pub(super) secret: bool,
}

impl Word {
    pub(super) fn reader(&self) -> Option<Reader> {
        SETTINGS.get(self.place).map(|setting| setting.reader)
    }

    pub(super) fn flag(&self) -> Option<MsFlags> {
        match meaning(&self.name) {
            Meaning::Sets { value: Value::Flag(flag), .. } => Some(flag),
            _ => None,
        }
    }

    /// The word as it is, be it secret or not.
    pub(super) fn plain(&self) -> String {
        match &self.value {
            Some(value) => format!("{}={value}", self.name),
            None => self.name.clone(),
        }
    }
}

/// What anybody may see of it.
impl fmt::Display for Word {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.plain();
        formatter.write_str(if self.secret { masked(&text) } else { text }.as_str())
    }
}

/// Name and value of a word.
pub(super) fn parts(text: &str) -> (&str, Option<&str>) {
    text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)))
}

/// What an error shows of a word that is not checked: no more than helps to find it.
pub(super) fn shown(text: &str, secret: bool) -> String {
    if secret {
        return masked(text);
    }
    let start: String = text.chars().take(80).collect();
    let more = if start.len() < text.len() { "…" } else { "" };
    format!("{}{more}", start.escape_debug())
}

/// What may be seen of a word that came from a secret: its name, if it is one of those that everybody knows.
fn masked(text: &str) -> String {
    let (name, value) = parts(text);
    match (meaning(name), value) {
        (Meaning::Unknown | Meaning::Dropped, _) => MASK.to_owned(),
        (_, Some(_)) => format!("{name}={MASK}"),
        (_, None) => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_word_stands_in_the_tables_twice() {
        let settings = SETTINGS.iter().flat_map(|setting| setting.words).map(|(name, _)| *name);
        let refused = REFUSED.iter().map(|(name, _)| *name);
        let same = SAME_AS.iter().map(|(name, _)| *name);
        let others = OTHER_NAMES.iter().map(|(name, _)| *name);
        let mut all: Vec<_> =
            settings.chain(refused).chain(same).chain(others).chain(DROPPED.iter().copied()).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn words_for_words_lead_to_settings() {
        let same = SAME_AS.iter().flat_map(|(_, words)| *words).map(|word| parts(word).0);
        let others = OTHER_NAMES.iter().map(|(_, first)| *first);
        let cached = CACHE_TIMES.iter().copied().chain([ALL_CACHE_TIMES, VERSION, MINOR_VERSION]);
        for name in same.chain(others).chain(cached) {
            assert!(matches!(meaning(name), Meaning::Sets { .. }), "{name}");
        }
    }

    #[test]
    fn the_known_words_are_those_that_can_be_given() {
        let listed = known_words();
        let words: Vec<&str> = listed.split(", ").collect();
        for word in ["ro", "nfsvers=", "vers=", "v4.1", "hard", "softerr", "timeo=", "fsc", "tcp", "nolock", "user"] {
            assert!(words.contains(&word), "{word} in {listed}");
        }
        for word in ["bind", "addr=", "_netdev", "v2"] {
            assert!(!words.contains(&word), "{word} in {listed}");
        }
    }
}
