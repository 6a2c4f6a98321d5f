//! Mount options, given in the words of mount(8) and nfs(5), as mount(2) takes them: flags and a string of data.
//!
//! There is no mount.nfs behind this driver, so what it does with options is done here: versions are chosen, addresses
//! filled in, and words that only programs know are dropped. Of two words for one setting the last holds, as with
//! mount(8). `ro` never becomes a flag of mount(2): it would get a superblock of its own (measured); the mount is made
//! read-only afterwards.

mod version;
mod words;

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use nix::mount::MsFlags;
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use self::version::{Transport, Version, fs_type};
pub use self::words::known_words;
use self::words::{
    ALL_CACHE_TIMES, CACHE_TIMES, MASK, MINOR_VERSION, Meaning, Reader, UNKNOWN, VERSION, Value, Word, address,
    meaning, parts, shown,
};

/// mount(2) takes one page of data, with the zero byte at its end.
const LONGEST_DATA: usize = 4094;
const LONGEST_WORD: usize = 1024;
const NFS_PORT: u16 = 2049;
const NFS_RDMA_PORT: u16 = 20049;

/// Why mount options cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum OptionError {
    #[error("mount options {options} have a double quote without its match: close it")]
    Quote { options: String },

    #[error("mount option {option} holds a control character: write it without")]
    ControlCharacter { option: String },

    #[error("mount option {option} has {bytes} bytes, and {LONGEST_WORD} are allowed: shorten it")]
    LongWord { option: String, bytes: usize },

    #[error("the mount options have {bytes} bytes together, and the kernel takes {LONGEST_DATA}: leave some out")]
    TooLong { bytes: usize },

    #[error("mount option {option} is not possible here: {reason}")]
    Refused { option: String, reason: &'static str },

    #[error("mount option {option} is not valid: write {name}{form}")]
    Value { option: String, name: String, form: String },

    #[error("{option} is no mount option: write it as word or word=value, without quotes")]
    Malformed { option: String },

    #[error("mount option {option} holds {MASK}, which stands for a hidden value: write the value itself")]
    Masked { option: String },

    #[error("mount options {one} and {other} contradict each other: leave one out")]
    Contradiction { one: String, other: String },

    #[error("mount option {option} does not go with the IPv4 address {address}: use it without the 6")]
    Family { option: String, address: IpAddr },
}

/// Checked mount options, in an order of their own: equal ones are equal however they were given.
///
/// Neither `Display` nor `Debug` shows the value of a word that came from a secret. What is serialised holds it, and is
/// not checked again: it is for a worker process of this same binary alone.
#[derive(Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Options(Vec<Word>);

impl Options {
    /// Reads options. Each item may hold several words with commas between them; a comma in double quotes is part of a
    /// word.
    pub fn parse<I, S>(items: I) -> Result<Self, OptionError>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<str>,
    {
        Self::read(items, false)
    }

    /// Reads options that came in a secret. Their values, and words that are not known here, are never shown.
    pub fn parse_secret(text: &str) -> Result<Self, OptionError> {
        Self::read([text], true)
    }

    /// These options with others over them: where both make a setting, the other's holds.
    #[must_use]
    pub fn merged(mut self, other: Self) -> Self {
        for word in other.0 {
            self.put(word);
        }
        self
    }

    /// These options without the words that came from a secret.
    #[must_use]
    pub fn without_secrets(&self) -> Self {
        Self(self.0.iter().filter(|word| !word.secret).cloned().collect())
    }

    /// The versions to try, the newest first.
    #[must_use]
    pub fn candidates(&self) -> Vec<Version> {
        use Version::{V3, V4_0, V4_1, V4_2};
        match self.value(VERSION) {
            Some("3") => vec![V3],
            Some("4") => vec![V4_2, V4_1, V4_0],
            Some("4.0") => vec![V4_0],
            Some("4.1") => vec![V4_1],
            Some(_) => vec![V4_2],
            // Version 4 wants a transport that keeps order.
            None if self.transport() == Transport::Udp => vec![V3],
            None => vec![V4_2, V4_1, V4_0, V3],
        }
    }

    /// Whether `ro` is among them.
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.has("ro")
    }

    /// These options, and `ro`.
    #[must_use]
    pub fn for_readers(self) -> Self {
        self.merged(Self::parse(["ro"]).unwrap_or_default())
    }

    /// The flags for mount(2): all that the words ask for.
    #[must_use]
    pub fn mount_flags(&self) -> MsFlags {
        self.flags(Reader::Mount) | self.flags(Reader::Superblock)
    }

    /// The flags for a second mount(2) that makes the mount read-only and leaves its other flags as they are; none if
    /// that is not asked for, or done by the first.
    #[must_use]
    pub fn remount_flags(&self, read_only: bool) -> Option<MsFlags> {
        let change = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
        (read_only && !self.read_only()).then(|| self.flags(Reader::Mount) | change)
    }

    /// The data for mount(2) of a server at this address. `client` is this host's address towards it: a server of
    /// NFS 4.0 calls back there.
    pub fn data(&self, version: Version, server: SocketAddr, client: Option<IpAddr>) -> Result<String, OptionError> {
        let data = self.parts(version, server, client)?.join(",");
        if data.len() > LONGEST_DATA { Err(OptionError::TooLong { bytes: data.len() }) } else { Ok(data) }
    }

    /// The options of [`Self::data`] one by one, for fsconfig(2).
    pub fn parts(
        &self,
        version: Version,
        server: SocketAddr,
        client: Option<IpAddr>,
    ) -> Result<Vec<String>, OptionError> {
        self.check_transport(version)?;
        let mount_server = self.value("mountaddr").and_then(address).unwrap_or(server.ip());
        let (family, server) = (server.ip(), with_zone(server));
        let mut parts = vec![format!("{VERSION}={version}"), format!("addr={server}")];
        match version {
            Version::V3 => {
                // Without a port the kernel asks the server's portmapper for it.
                parts.push(format!("port={}", self.port()));
                if !self.has("mountaddr") {
                    parts.push(format!("mountaddr={server}"));
                }
            }
            Version::V4_0 if !self.has("clientaddr") => {
                parts.extend(client.map(|client| format!("clientaddr={client}")));
            }
            _ => {}
        }
        for word in &self.0 {
            let text = match word.name.as_str() {
                // The first stands there already; for the second, its default, the kernel has no word.
                VERSION | "nosoftreval" => continue,
                "port" if version == Version::V3 => continue,
                // The kernel refuses it for other versions.
                "migration" if version != Version::V4_0 => continue,
                "proto" => format!("proto={}", netid(word, family)?),
                "mountproto" => format!("mountproto={}", netid(word, mount_server)?),
                _ if matches!(word.reader(), Some(Reader::Mount | Reader::Superblock)) => continue,
                _ => word.plain(),
            };
            parts.push(text);
        }
        Ok(parts)
    }

    /// The server's TCP or UDP port for NFS.
    #[must_use]
    pub fn port(&self) -> u16 {
        let usual = if self.transport() == Transport::Rdma { NFS_RDMA_PORT } else { NFS_PORT };
        self.value("port").and_then(|port| port.parse().ok()).unwrap_or(usual)
    }

    /// What carries the calls.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.value("proto").map_or(Transport::Tcp, Transport::named)
    }

    /// What the server's answers are secured by: the words for it, as they stand.
    #[must_use]
    pub fn security(&self) -> String {
        let words = ["sec", "xprtsec"].into_iter().filter_map(|name| self.word(name));
        words.map(Word::plain).collect::<Vec<_>>().join(",")
    }

    /// Whether locks of version 3 go to the server, for which rpc.statd must run on this host.
    #[must_use]
    pub fn locks_need_statd(&self) -> bool {
        // `lock` and `nolock` overrule `local_lock` (nfs(5)).
        self.has("lock") || !(self.has("nolock") || self.value("local_lock") == Some("all"))
    }

    /// Whether they name a server of their own, which tells what is mounted (with NFS 3).
    #[must_use]
    pub fn names_server(&self) -> bool {
        self.has("mountaddr")
    }

    /// The options for the controller's own mount of the share, through which it works on trees: only what says how the
    /// server is reached, and a dead server gives errors. (`softerr` would go on with what the client remembers.)
    ///
    /// `nosharecache`: a command for people does not read what the controller's mount remembers of a directory, and
    /// calls that are ended here are nobody else's.
    ///
    /// `nodev,nosuid,noexec`: a volume's user may put a device in the place of a file just when that is opened.
    ///
    /// A disk may be slow: with NFS 4 a call fails only when the connection is lost, with NFS 3 when its answer takes 9
    /// s.
    #[must_use]
    pub fn for_controller(&self) -> Self {
        let reach = self.0.iter().filter(|word| word.reader() == Some(Reader::Reach)).cloned().collect();
        // These are words of the table; a test sees that they get through.
        let own = Self::parse(["soft,timeo=30,retrans=2,nolock,nosharecache,nodev,nosuid,noexec"]);
        Self(reach).merged(own.unwrap_or_default())
    }

    /// The options for the controller's other mount, through which it looks names up: the server is asked for each of
    /// them.
    #[must_use]
    pub fn for_lookups(&self) -> Self {
        self.for_controller().merged(Self::parse(["lookupcache=none"]).unwrap_or_default())
    }

    fn read<I, S>(items: I, secret: bool) -> Result<Self, OptionError>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<str>,
    {
        let mut options = Self::default();
        let mut bytes = 0;
        for item in items {
            let item = item.as_ref();
            bytes += item.len();
            if bytes > LONGEST_DATA {
                return Err(OptionError::TooLong { bytes });
            }
            for word in split(item, secret)? {
                options.add(word.trim(), secret)?;
            }
        }
        options.take_in_minor_version()?;
        for version in options.candidates() {
            options.check_transport(version)?;
        }
        Ok(options)
    }

    /// Adds one word.
    fn add(&mut self, text: &str, secret: bool) -> Result<(), OptionError> {
        let option = || shown(text, secret);
        if text.is_empty() {
            return Ok(());
        }
        if text.len() > LONGEST_WORD {
            return Err(OptionError::LongWord { option: option(), bytes: text.len() });
        }
        if text.chars().any(char::is_control) {
            return Err(OptionError::ControlCharacter { option: option() });
        }
        if text.contains(MASK) {
            return Err(OptionError::Masked { option: option() });
        }
        let (name, value) = parts(text);
        let wrong = |form| OptionError::Value { option: option(), name: name.to_owned(), form };
        match meaning(name) {
            Meaning::Dropped => {}
            Meaning::Refused(reason) => return Err(OptionError::Refused { option: option(), reason }),
            Meaning::SameAs(words) => {
                Value::Nothing.checked(value).map_err(wrong)?;
                for word in words {
                    self.add(word, secret)?;
                }
            }
            Meaning::Sets { place, name, value: kind } => {
                let value = kind.checked(value).map_err(wrong)?;
                self.put(Word { place, name: name.to_owned(), value, secret });
            }
            Meaning::Unknown if name.is_empty() || text.contains('"') => {
                return Err(OptionError::Malformed { option: option() });
            }
            Meaning::Unknown => {
                self.put(Word { place: UNKNOWN, name: name.to_owned(), value: value.map(str::to_owned), secret });
            }
        }
        Ok(())
    }

    /// Puts a word in its place, instead of what it overrules.
    fn put(&mut self, word: Word) {
        let overruled = |kept: &Word| {
            let same = kept.place == word.place && (word.place != UNKNOWN || kept.name == word.name);
            same || (word.name == ALL_CACHE_TIMES && CACHE_TIMES.contains(&kept.name.as_str()))
        };
        self.0.retain(|kept| !overruled(kept));
        let place = self.0.partition_point(|kept| kept.place <= word.place);
        self.0.insert(place, word);
    }

    /// Makes one word of `vers=4,minorversion=1`.
    fn take_in_minor_version(&mut self) -> Result<(), OptionError> {
        let Some(place) = self.0.iter().position(|word| word.name == MINOR_VERSION) else { return Ok(()) };
        let minor = self.0.remove(place);
        let whole = format!("4.{}", minor.value.as_deref().unwrap_or_default());
        match self.word(VERSION) {
            Some(version) if version.value.as_deref() == Some(whole.as_str()) => Ok(()),
            Some(version) if version.value.as_deref() != Some("4") => {
                Err(OptionError::Contradiction { one: version.to_string(), other: minor.to_string() })
            }
            _ => self.add(&format!("{VERSION}={whole}"), minor.secret),
        }
    }

    fn check_transport(&self, version: Version) -> Result<(), OptionError> {
        match self.word("proto") {
            Some(word) if self.transport() == Transport::Udp && version > Version::V3 => {
                let version = self.word(VERSION).map_or_else(|| format!("{VERSION}={version}"), ToString::to_string);
                Err(OptionError::Contradiction { one: version, other: word.to_string() })
            }
            _ => Ok(()),
        }
    }

    fn flags(&self, reader: Reader) -> MsFlags {
        self.0.iter().filter(|word| word.reader() == Some(reader)).filter_map(Word::flag).collect()
    }

    fn word(&self, name: &str) -> Option<&Word> {
        self.0.iter().find(|word| word.name == name)
    }

    fn has(&self, name: &str) -> bool {
        self.word(name).is_some()
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.word(name).and_then(|word| word.value.as_deref())
    }
}

impl fmt::Display for Options {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, word) in self.0.iter().enumerate() {
            if index > 0 {
                formatter.write_str(",")?;
            }
            word.fmt(formatter)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Options").field(&self.to_string()).finish()
    }
}

/// An address in the form that the kernel reads, a link-local one with its zone.
fn with_zone(address: SocketAddr) -> String {
    match address {
        SocketAddr::V6(address) if address.scope_id() != 0 => format!("{}%{}", address.ip(), address.scope_id()),
        address => address.ip().to_string(),
    }
}

/// The transport's name as the kernel wants it, which depends on the address's family. That somebody wrote `tcp` does
/// not mean that IPv6 is unwanted, but `tcp6` means IPv6.
fn netid(word: &Word, address: IpAddr) -> Result<String, OptionError> {
    let given = word.value.as_deref().unwrap_or_default();
    match given.strip_suffix('6') {
        Some(_) if address.is_ipv4() => Err(OptionError::Family { option: word.to_string(), address }),
        None if address.is_ipv6() => Ok(format!("{given}6")),
        _ => Ok(given.to_owned()),
    }
}

/// The words of one item, split at the commas that do not stand in double quotes.
fn split(item: &str, secret: bool) -> Result<impl Iterator<Item = &str>, OptionError> {
    if item.bytes().filter(|&byte| byte == b'"').count() % 2 == 1 {
        return Err(OptionError::Quote { options: shown(item, secret) });
    }
    let mut quoted = false;
    Ok(item.split(move |character| {
        quoted ^= character == '"';
        character == ',' && !quoted
    }))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::{Index, select};

    use super::words::SETTINGS;
    use super::*;

    const V4_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 7)), 2049);
    const V6_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 7)), 2049);
    const ALL: [Version; 4] = [Version::V4_2, Version::V4_1, Version::V4_0, Version::V3];

    fn parse(text: &str) -> Options {
        Options::parse([text]).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn refusal(text: &str) -> OptionError {
        Options::parse([text]).expect_err(text)
    }

    fn data(text: &str, version: Version) -> String {
        parse(text).data(version, V4_ADDRESS, Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9)))).unwrap()
    }

    #[test]
    fn words_are_shown_in_one_order_and_one_spelling() {
        for (given, shown) in [
            ("", ""),
            (" , ,", ""),
            ("hard,nfsvers=4.1,ro", "ro,vers=4.1,hard"),
            ("timeo=0600 , tcp", "proto=tcp,timeo=600"),
            ("zeta,alpha=1,hard,zeta=2", "hard,alpha=1,zeta=2"),
            ("noac,ac", "ac"),
            ("mounthost=10.0.0.1", "mountaddr=10.0.0.1"),
            ("context=\"a_u:b_r:c_t:s0:c1,c2\"", "context=\"a_u:b_r:c_t:s0:c1,c2\""),
            ("context=\"a_u:b_r:c_t:s0\"", "context=a_u:b_r:c_t:s0"),
            ("fsc=cache,fsc", "fsc"),
            ("clientaddr=fe80::1%eth0", "clientaddr=fe80::1%eth0"),
        ] {
            assert_eq!(parse(given).to_string(), shown, "{given}");
        }
    }

    #[test]
    fn a_link_local_address_keeps_its_zone() {
        let address = "[fe80::1%7]:2049".parse().unwrap();
        assert_eq!(parse("").data(Version::V4_2, address, None).unwrap(), "vers=4.2,addr=fe80::1%7");
        let data = parse("proto=tcp").data(Version::V3, address, None).unwrap();
        assert!(data.contains("mountaddr=fe80::1%7") && data.contains("proto=tcp6"), "{data}");
    }

    #[test]
    fn items_may_hold_one_word_or_several() {
        let items = Options::parse(vec!["ro,hard".to_owned(), "timeo=10".to_owned()]).unwrap();
        assert_eq!(items, parse("timeo=10,hard,ro"));
    }

    #[test]
    fn words_for_other_programs_are_dropped() {
        let words = "defaults,auto,noauto,nouser,_netdev,nofail,x-systemd.automount,X-mount.mkdir=0755,comment=a \
                     b,retry=5,fg,bg,intr,nointr";
        assert_eq!(parse(words), Options::default());
    }

    #[test]
    fn versions_are_tried_from_the_newest_asked_for_to_the_oldest() {
        use Version::{V3, V4_0, V4_1, V4_2};
        for (words, versions) in [
            ("", &[V4_2, V4_1, V4_0, V3][..]),
            ("nfsvers=4", &[V4_2, V4_1, V4_0]),
            ("vers=4", &[V4_2, V4_1, V4_0]),
            ("v4", &[V4_2, V4_1, V4_0]),
            ("vers=4.2", &[V4_2]),
            ("nfsvers=4.1", &[V4_1]),
            ("v4.1", &[V4_1]),
            ("vers=4,minorversion=1", &[V4_1]),
            ("minorversion=1,vers=4", &[V4_1]),
            ("minorversion=2", &[V4_2]),
            ("vers=4.1,minorversion=1", &[V4_1]),
            ("v4.0", &[V4_0]),
            ("vers=4.0", &[V4_0]),
            ("nfsvers=3", &[V3]),
            ("v3", &[V3]),
            ("vers=3,nfsvers=4.2", &[V4_2]),
            ("vers=3,minorversion=1,vers=4", &[V4_1]),
            ("udp", &[V3]),
        ] {
            assert_eq!(parse(words).candidates(), versions, "{words}");
        }
        assert!(V3 < V4_0 && V4_0 < V4_1 && V4_1 < V4_2);
        assert_eq!((V3.major(), V4_0.major(), fs_type(V3), fs_type(V4_2)), (3, 4, "nfs", "nfs4"));
    }

    #[test]
    fn words_that_contradict_each_other_are_refused() {
        for (words, one, other) in [
            ("vers=3,minorversion=1", "vers=3", "minorversion=1"),
            ("minorversion=2,v4.1", "vers=4.1", "minorversion=2"),
            ("vers=4.2,udp", "vers=4.2", "proto=udp"),
            ("proto=udp6,vers=4", "vers=4", "proto=udp6"),
        ] {
            assert_eq!(refusal(words), OptionError::Contradiction { one: one.into(), other: other.into() }, "{words}");
        }
        let merged = parse("udp").merged(parse("vers=4.1"));
        assert!(matches!(merged.data(Version::V4_1, V4_ADDRESS, None), Err(OptionError::Contradiction { .. })));
    }

    #[test]
    fn vfs_words_become_flags_and_the_last_of_a_kind_holds() {
        use MsFlags as F;
        for (words, flags) in [
            ("", F::empty()),
            ("ro,rw,suid,dev,exec,async,atime,diratime,loud,nolazytime,noiversion,nomand", F::empty()),
            ("nosuid,nodev,noexec", F::MS_NOSUID | F::MS_NODEV | F::MS_NOEXEC),
            ("nosuid,suid", F::empty()),
            ("noatime,nodiratime", F::MS_NOATIME | F::MS_NODIRATIME),
            ("noatime,relatime", F::MS_RELATIME),
            ("relatime,norelatime", F::empty()),
            ("strictatime", F::MS_STRICTATIME),
            ("strictatime,nostrictatime", F::empty()),
            ("sync,dirsync,silent", F::MS_SYNCHRONOUS | F::MS_DIRSYNC | F::MS_SILENT),
            ("lazytime,iversion,mand", F::MS_LAZYTIME | F::MS_I_VERSION | F::MS_MANDLOCK),
            ("user", F::MS_NOSUID | F::MS_NODEV | F::MS_NOEXEC),
            ("users,exec", F::MS_NOSUID | F::MS_NODEV),
            ("owner", F::MS_NOSUID | F::MS_NODEV),
            ("hard,vers=4.2", F::empty()),
        ] {
            assert_eq!(parse(words).mount_flags(), flags, "{words}");
            assert_eq!(data(words, Version::V4_2).replace(",hard", ""), "vers=4.2,addr=10.0.0.7", "{words}");
        }
    }

    #[test]
    fn read_only_is_a_second_step_that_keeps_the_flags_of_the_mount_unless_the_options_ask_for_it() {
        let change = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
        let options = parse("nosuid,noatime,sync");
        assert_eq!(options.remount_flags(false), None);
        assert_eq!(options.remount_flags(true), Some(change | MsFlags::MS_NOSUID | MsFlags::MS_NOATIME));
        let readers = options.for_readers();
        assert_eq!((readers.remount_flags(false), readers.remount_flags(true)), (None, None));
        assert!(readers.mount_flags().contains(MsFlags::MS_RDONLY | MsFlags::MS_NOSUID));
        assert!(parse("ro").read_only() && !parse("ro,rw").read_only());
    }

    #[test]
    fn words_for_another_kind_of_mount_are_refused_with_a_reason_each() {
        let words = "bind,rbind,move,remount,shared,rshared,private,rprivate,slave,rslave,unbindable,runbindable,loop,\
                     loop=/dev/loop0,addr=1.2.3.4,source=a:/b,v2";
        for word in words.split(',') {
            let error = refusal(word);
            assert!(matches!(error, OptionError::Refused { .. }), "{word}: {error}");
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn values_that_the_kernel_refuses_are_refused_with_those_that_it_takes() {
        for (word, form) in [
            ("timeo", "timeo=N with a number from 1 to 2147483647"),
            ("timeo=", "timeo=N with a number from 1 to 2147483647"),
            ("timeo=0", "timeo=N with a number from 1 to 2147483647"),
            ("timeo=+1", "timeo=N with a number from 1 to 2147483647"),
            ("timeo=0x10", "timeo=N with a number from 1 to 2147483647"),
            ("retrans=2147483648", "retrans=N with a number from 0 to 2147483647"),
            ("rsize=1M", "rsize=N with a number from 0 to 4294967295"),
            ("wsize=4294967296", "wsize=N with a number from 0 to 4294967295"),
            ("acregmin=-1", "acregmin=N with a number from 0 to 4294967295"),
            ("port=0", "port=N with a number from 1 to 65535"),
            ("port=65536", "port=N with a number from 1 to 65535"),
            ("mountport=65536", "mountport=N with a number from 0 to 65535"),
            ("nconnect=17", "nconnect=N with a number from 1 to 16"),
            ("max_connect=0", "max_connect=N with a number from 1 to 16"),
            ("minorversion=3", "minorversion=N with a number from 0 to 2"),
            ("nfsvers=2", "nfsvers=V with one of 3, 4, 4.0, 4.1, 4.2"),
            ("vers=4.3", "vers=V with one of 3, 4, 4.0, 4.1, 4.2"),
            ("sec=krb6", "sec=V with one or more of none, null, sys, krb5, krb5i, krb5p, colons between them"),
            ("sec=sys:", "sec=V with one or more of none, null, sys, krb5, krb5i, krb5p, colons between them"),
            ("proto=sctp", "proto=V with one of tcp, tcp6, udp, udp6, rdma, rdma6"),
            ("mountproto=rdma", "mountproto=V with one of tcp, tcp6, udp, udp6"),
            ("xprtsec=ssl", "xprtsec=V with one of none, tls, mtls"),
            ("lookupcache=some", "lookupcache=V with one of all, none, pos, positive"),
            ("local_lock=fcntl", "local_lock=V with one of all, flock, posix, none"),
            ("rdirplus=maybe", "rdirplus alone, or =V with one of none, force"),
            ("hard=1", "hard alone"),
            ("ro=1", "ro alone"),
            ("tcp=1", "tcp alone"),
            ("clientaddr=host", "clientaddr=A with an IP address (a host's name is not looked up here)"),
            ("mounthost=10.0.0.1%eth0", "mounthost=A with an IP address (a host's name is not looked up here)"),
        ] {
            let error = refusal(word);
            assert_eq!(error.to_string(), format!("mount option {word} is not valid: write {form}"));
        }
        for word in ["context=\"a,addr=1.2.3.4,b\"", "context=", "context=\"\"", "context=a b"] {
            assert!(matches!(refusal(word), OptionError::Value { .. }), "{word}");
        }
    }

    #[test]
    fn words_that_cannot_be_an_option_are_refused() {
        let long = "x".repeat(LONGEST_WORD + 1);
        let many = vec![format!("word={}", "y".repeat(1000)); 5];
        assert!(matches!(refusal("a\0b"), OptionError::ControlCharacter { .. }));
        assert!(matches!(refusal("a\nb"), OptionError::ControlCharacter { .. }));
        assert!(matches!(refusal(&long), OptionError::LongWord { bytes: 1025, .. }));
        assert!(matches!(refusal("=5"), OptionError::Malformed { .. }));
        assert!(matches!(refusal("fsc=\"a,addr=1.2.3.4,b\""), OptionError::Value { .. }));
        assert!(matches!(refusal("new=\"a,addr=1.2.3.4,b\""), OptionError::Malformed { .. }));
        assert!(matches!(refusal("\"hard,soft\""), OptionError::Malformed { .. }));
        assert!(matches!(refusal("context=\"a,b"), OptionError::Quote { .. }));
        assert!(matches!(refusal("sec=***"), OptionError::Masked { .. }));
        assert!(matches!(Options::parse(&many), Err(OptionError::TooLong { .. })));
        assert!(refusal(&long).to_string().len() < 300);
    }

    #[test]
    fn the_kernel_gets_what_each_version_needs() {
        use Version::{V3, V4_0, V4_1, V4_2};
        for (words, version, expected) in [
            ("", V4_2, "vers=4.2,addr=10.0.0.7"),
            ("vers=4", V4_1, "vers=4.1,addr=10.0.0.7"),
            ("", V4_0, "vers=4.0,addr=10.0.0.7,clientaddr=10.0.0.9"),
            ("clientaddr=10.1.1.1", V4_0, "vers=4.0,addr=10.0.0.7,clientaddr=10.1.1.1"),
            ("", V3, "vers=3,addr=10.0.0.7,port=2049,mountaddr=10.0.0.7"),
            ("rdma", V3, "vers=3,addr=10.0.0.7,port=20049,mountaddr=10.0.0.7,proto=rdma"),
            (
                "port=2050,mountport=635,mountaddr=10.0.0.8",
                V3,
                "vers=3,addr=10.0.0.7,port=2050,mountaddr=10.0.0.8,mountport=635",
            ),
            ("port=2050", V4_2, "vers=4.2,addr=10.0.0.7,port=2050"),
            ("ro,soft,new=1,timeo=30,sec=krb5p", V4_2, "vers=4.2,addr=10.0.0.7,sec=krb5p,soft,timeo=30,new=1"),
            ("migration", V4_2, "vers=4.2,addr=10.0.0.7"),
            ("migration,clientaddr=::", V4_0, "vers=4.0,addr=10.0.0.7,clientaddr=::,migration"),
            ("softerr,nosoftreval", V4_2, "vers=4.2,addr=10.0.0.7,softerr"),
            ("acregmin=5,actimeo=9", V4_2, "vers=4.2,addr=10.0.0.7,actimeo=9"),
            ("actimeo=9,acregmin=5", V4_2, "vers=4.2,addr=10.0.0.7,actimeo=9,acregmin=5"),
            ("nolock,local_lock=none", V4_2, "vers=4.2,addr=10.0.0.7,local_lock=none,nolock"),
        ] {
            assert_eq!(data(words, version), expected, "{words} {version}");
        }
        assert_eq!(parse("").data(V4_0, V4_ADDRESS, None).unwrap(), "vers=4.0,addr=10.0.0.7");
    }

    #[test]
    fn the_name_of_the_transport_follows_the_family_of_the_address() {
        let to_v6 = |words| parse(words).data(Version::V4_2, V6_ADDRESS, None).unwrap();
        assert_eq!(to_v6("proto=tcp"), "vers=4.2,addr=fd00::7,proto=tcp6");
        assert_eq!(to_v6("proto=tcp6"), "vers=4.2,addr=fd00::7,proto=tcp6");
        assert_eq!(
            to_v6("mountproto=udp,mountaddr=10.0.0.1"),
            "vers=4.2,addr=fd00::7,mountaddr=10.0.0.1,mountproto=udp"
        );
        let error = parse("proto=tcp6").data(Version::V4_2, V4_ADDRESS, None).unwrap_err();
        assert_eq!(error, OptionError::Family { option: "proto=tcp6".into(), address: V4_ADDRESS.ip() });
    }

    #[test]
    fn data_that_mount_would_cut_off_is_refused() {
        let one = Options::parse(["a", "b", "c"].map(|name| format!("{name}={}", "x".repeat(1000)))).unwrap();
        let two = Options::parse(["d", "e"].map(|name| format!("{name}={}", "x".repeat(1000)))).unwrap();
        assert!(one.data(Version::V4_2, V4_ADDRESS, None).is_ok());
        let error = one.merged(two).data(Version::V4_2, V4_ADDRESS, None).unwrap_err();
        assert!(matches!(error, OptionError::TooLong { .. }));
    }

    #[test]
    fn port_and_transport_are_the_usual_ones_unless_given() {
        for (words, port, transport) in [
            ("", 2049, Transport::Tcp),
            ("proto=tcp6,port=1", 1, Transport::Tcp),
            ("udp", 2049, Transport::Udp),
            ("rdma", 20049, Transport::Rdma),
            ("rdma,tcp", 2049, Transport::Tcp),
        ] {
            let options = parse(words);
            assert_eq!((options.port(), options.transport()), (port, transport), "{words}");
        }
    }

    #[test]
    fn locks_need_statd_unless_all_of_them_are_local() {
        for (words, needed) in [
            ("", true),
            ("nolock", false),
            ("nolock,lock", true),
            ("local_lock=all", false),
            ("local_lock=flock", true),
            ("local_lock=posix", true),
            ("nolock,local_lock=none", false),
            ("local_lock=all,lock", true),
        ] {
            assert_eq!(parse(words).locks_need_statd(), needed, "{words}");
        }
    }

    #[test]
    fn the_later_of_merged_options_holds() {
        let class = parse("ro,vers=3,acregmin=5,hard,sec=sys");
        let secret = Options::parse_secret("sec=krb5,actimeo=9").unwrap();
        let merged = class.merged(secret).merged(parse("rw,v4.1"));
        assert_eq!(merged.to_string(), "rw,vers=4.1,sec=***,hard,actimeo=***");
        assert_eq!(
            data("", Version::V4_1) + ",sec=krb5,hard,actimeo=9",
            merged.data(Version::V4_1, V4_ADDRESS, None).unwrap()
        );
    }

    #[test]
    fn the_controller_keeps_the_way_to_the_server_and_gives_up_on_a_dead_one() {
        let words = "ro,noatime,hard,noac,nfsvers=4.1,sec=krb5,proto=tcp,port=1,mountport=2,xprtsec=tls,nconnect=4,\
                     rsize=8192,noresvport,context=a,new";
        let kept = "nosuid,nodev,noexec,vers=4.1,sec=krb5,xprtsec=tls,proto=tcp,port=1,mountport=2,nconnect=4,\
                    noresvport,rsize=8192,soft,timeo=30,retrans=2,nolock,nosharecache";
        assert_eq!(parse(words).for_controller().to_string(), kept);
        let lookups = format!("{kept},lookupcache=none");
        let sorted = |options: &str| {
            let mut words: Vec<String> = options.split(',').map(str::to_owned).collect();
            words.sort_unstable();
            words
        };
        assert_eq!(sorted(&parse(words).for_lookups().to_string()), sorted(&lookups));
    }

    #[test]
    fn nothing_of_a_secret_but_known_names_is_ever_shown() {
        let options = Options::parse_secret("sec=krb5,noresvport,hunter2,key=hunter2,hunter2=1,x-hunter2").unwrap();
        assert_eq!(options.to_string(), "sec=***,noresvport,***,***");
        assert_eq!(format!("{options:?}"), "Options(\"sec=***,noresvport,***,***\")");
        let long = "hunter2".repeat(200);
        for text in ["sec=hunter2", "hunter2\0", "addr=hunter2", "sec=\"hunter2", "hunter2=\"\"", "hunter2***", &long] {
            let error = Options::parse_secret(text).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
        let error = Options::parse_secret("vers=4.1,minorversion=2").unwrap_err();
        assert_eq!(
            error.to_string(),
            "mount options vers=*** and minorversion=*** contradict each other: leave one out"
        );
    }

    /// A word of the table with a value that it takes.
    fn known_word() -> impl Strategy<Value = String> {
        let words: Vec<_> = SETTINGS.iter().flat_map(|setting| setting.words).collect();
        (select(words), any::<u32>(), any::<Index>()).prop_map(|((name, value), number, index)| match value {
            Value::Flag(_) | Value::Nothing => (*name).to_owned(),
            Value::Number(least, most) => format!("{name}={}", number.clamp(*least, *most)),
            Value::OneOf(values) | Value::NothingOr(values) | Value::ListOf(values) => {
                format!("{name}={}", index.get(values))
            }
            Value::Anything => format!("{name}=cache{number}"),
            Value::Address => format!("{name}={}", if number % 2 == 0 { "10.0.0.1" } else { "fe80::1%eth0" }),
            Value::Label => format!("{name}=\"a_u:b_r:c_t:s0:c{number},c7\""),
        })
    }

    fn any_word() -> impl Strategy<Value = String> {
        let unknown = "[a-z]{1,9}(=[ -!#-+\\--~]{0,9})?";
        prop_oneof![6 => known_word(), 2 => unknown, 1 => "x-[a-z]{1,5}", 1 => Just(String::new())]
    }

    fn any_options() -> impl Strategy<Value = Options> {
        let accepted = |words: Vec<String>| Options::parse(words).ok();
        vec(any_word(), 0..12).prop_filter_map("these contradict each other", accepted)
    }

    fn any_mixture() -> impl Strategy<Value = Options> {
        let accepted = |words: Vec<String>| Options::parse_secret(&words.join(",")).ok();
        let secret = vec(any_word(), 0..6).prop_filter_map("these contradict each other", accepted);
        (any_options(), secret, any_options()).prop_map(|(one, two, three)| one.merged(two).merged(three))
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back_unchanged(options in any_options()) {
            prop_assert_eq!(Options::parse([options.to_string()]), Ok(options));
        }

        #[test]
        fn a_worker_gets_the_same_options_with_their_secrets(options in any_mixture()) {
            let sent = serde_json::to_string(&options).unwrap();
            prop_assert_eq!(serde_json::from_str::<Options>(&sent).unwrap(), options);
        }

        #[test]
        fn merging_is_like_giving_all_words_at_once(one in vec(any_word(), 0..8), two in vec(any_word(), 0..8)) {
            let both = Options::parse(one.iter().chain(&two));
            // The two halves of a version belong together where they are given together.
            let whole = !one.iter().chain(&two).any(|word| word.starts_with(MINOR_VERSION));
            if let (Ok(one), Ok(two), Ok(both), true) = (Options::parse(&one), Options::parse(&two), both, whole) {
                prop_assert_eq!(one.merged(two), both);
            }
        }

        #[test]
        fn no_text_makes_the_parser_panic(items in vec(any::<String>(), 0..4), noise in "[\",= a-z*\\PC]{0,80}") {
            let parsed = [Options::parse(&items), Options::parse([&noise]), Options::parse_secret(&noise)];
            for options in parsed.into_iter().flatten() {
                for version in ALL {
                    let _ = options.data(version, V6_ADDRESS, None);
                }
                let _ = (options.for_controller(), options.mount_flags(), options.port(), options.locks_need_statd());
            }
        }

        #[test]
        fn data_holds_one_version_and_one_address_and_nothing_for_others(
            options in any_mixture(), version in select(&ALL[..]), server in select(&[V4_ADDRESS, V6_ADDRESS][..]),
        ) {
            let Ok(data) = options.data(version, server, Some(V4_ADDRESS.ip())) else { return Ok(()) };
            let words: Vec<&str> = split(&data, false).unwrap().collect();
            let count = |name: &str| words.iter().filter(|word| super::parts(word).0 == name).count();
            prop_assert_eq!((count("vers"), count("addr"), count(MINOR_VERSION)), (1, 1, 0), "{}", data);
            let start = format!("vers={version},addr={}", server.ip());
            prop_assert!(data.starts_with(&start), "{}", data);
            prop_assert!(data.len() < 4095 && !data.contains(MASK));
            let flags = SETTINGS.iter().filter(|setting| matches!(setting.reader, Reader::Mount | Reader::Superblock));
            for (name, _) in flags.flat_map(|setting| setting.words) {
                prop_assert_eq!(count(name), 0, "{} {}", name, data);
            }
            for word in &words {
                prop_assert_eq!(count(super::parts(word).0), 1, "{} {}", word, data);
            }
        }

        #[test]
        fn no_value_of_a_secret_is_shown(word in known_word(), unknown in "[a-z]{1,9}") {
            let name = super::parts(&word).0;
            for text in [format!("{name}=hunter2"), format!("{unknown}=hunter2"), format!("hunter2{unknown}")] {
                let shown = match Options::parse_secret(&text) {
                    Ok(options) => format!("{options} {options:?} {}", options.for_controller()),
                    Err(error) => format!("{error} {error:?}"),
                };
                prop_assert!(!shown.contains("hunter2"), "{}", shown);
            }
        }

        #[test]
        fn the_controllers_options_are_their_own_controllers_options(options in any_mixture()) {
            let once = options.for_controller();
            prop_assert_eq!(once.for_controller(), once.clone());
            prop_assert!(once.to_string().contains("soft,timeo=30,retrans=2,nolock,nosharecache"));
            let flags = MsFlags::MS_NODEV | MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
            prop_assert_eq!((once.mount_flags(), once.remount_flags(false)), (flags, None));
            prop_assert_eq!(once.candidates(), options.candidates());
        }
    }
}
