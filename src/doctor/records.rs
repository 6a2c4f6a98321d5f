//! What the driver and the quota agent keep on the export: the formats of the records, and the agent's signs of life.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{Mode, fstatat};
use serde::Deserialize;

use super::check::{Check, Planned};
use crate::beneath;
use crate::export::catalog;
use crate::export::identity::{IDENTITY, Identity};
use crate::reason::errno_of;
use crate::volume::export_id::ExportId;
use crate::volume::path::RESERVED;
use crate::volume::quota_files::{self, AGENT, Agent, QUOTA, SILENT_AFTER};

pub(super) const RECORDS: Planned = Planned {
    name: "records",
    if_late: "look at the load of the NFS server: it stopped to answer while the driver's records were read",
};
pub(super) const EXPORT_ID: Planned = Planned { name: "export-id", if_late: RECORDS.if_late };
pub(super) const QUOTA_AGENT: Planned = Planned { name: "quota-agent", if_late: RECORDS.if_late };

/// How long the records are read, of which there may be very many, each three calls to the server.
const TIMEOUT: Duration = Duration::from_secs(1);
/// No record and no agent's state is longer, in bytes.
const LONGEST: u64 = 64 * 1024;
/// The folder of the records.
const VOLUMES: &str = "volumes";
const SUFFIX: &str = ".json";

/// What every record has.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

/// Whether the records are of formats that this driver knows.
pub(super) fn records(root: &OwnedFd) -> Check {
    let folder = match beneath::open_dir(root, RESERVED).and_then(|own| beneath::open_dir(own, VOLUMES)) {
        Ok(folder) => folder,
        Err(Errno::ENOENT) => return RECORDS.pass("there are none: no volume was made here"),
        Err(errno) => return RECORDS.skip(format!("they cannot be read: {}", errno.desc())),
    };
    let names = match beneath::names(&folder) {
        Ok(names) => names,
        Err(errno) => return RECORDS.skip(format!("they cannot be read: {}", errno.desc())),
    };
    let end = Instant::now() + TIMEOUT;
    let (mut read, mut newer, mut broken) = (0_usize, Vec::new(), Vec::new());
    for name in &names {
        let Some(name) = name.to_str().filter(|name| name.strip_suffix(SUFFIX).is_some()) else { continue };
        if read > 0 && Instant::now() > end {
            break;
        }
        match text(&folder, name).map(|text| serde_json::from_slice::<Format>(&text)) {
            // It was removed meanwhile.
            Err(Errno::ENOENT | Errno::ESTALE) => continue,
            Ok(Ok(Format { format })) if format > catalog::FORMAT => newer.push(format!("{name} has format {format}")),
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => broken.push(name.to_owned()),
        }
        read += 1;
    }
    let seen = format!("{read} of {} records were read", names.len());
    if let Some(first) = newer.first() {
        return RECORDS.fail(
            format!(
                "{seen}; {} are of a later format: {first}, and this driver knows {}",
                newer.len(),
                catalog::FORMAT
            ),
            "update this driver to the version of the newest one that works on this export",
        );
    }
    if let Some(first) = broken.first() {
        return RECORDS
            .warn(format!("{seen}; {} cannot be read: {first}", broken.len()), "run nfs-csi check on the export");
    }
    RECORDS.pass(format!("{seen}, all of a format that this driver knows"))
}

/// Which export it is, and whether that is the one which the server map says.
pub(super) fn export_id(root: &OwnedFd, wanted: Option<&ExportId>) -> Check {
    let remedy = "export the right directory under this name (with its .nfs-csi), or correct exports in the server map";
    let read = beneath::open_dir(root, RESERVED).and_then(|own| text(&own, IDENTITY));
    let read = match read.as_deref().map(serde_json::from_slice::<Identity>) {
        Ok(Ok(identity)) => Some(identity.id),
        Err(Errno::ENOENT) => None,
        Ok(Err(error)) => {
            return EXPORT_ID
                .fail(format!("{IDENTITY} cannot be read: {error}"), "restore .nfs-csi/export.json from a backup");
        }
        Err(errno) => return EXPORT_ID.skip(format!("it cannot be read: {}", errno.desc())),
    };
    match (read, wanted) {
        (Some(id), Some(wanted)) if id == *wanted => EXPORT_ID.pass(format!("it is {id}, as the server map says")),
        (Some(id), None) => EXPORT_ID.pass(format!("it is {id}")),
        (None, None) => EXPORT_ID.skip("it has none yet: no volume was made here"),
        (Some(id), Some(wanted)) => EXPORT_ID.fail(format!("it is {id}, and the server map says {wanted}"), remedy),
        (None, Some(wanted)) => EXPORT_ID.fail(format!("it has none, and the server map says {wanted}"), remedy),
    }
}

/// Whether the quota agent is alive, where there is one. `now` is the server's time since 1970.
pub(super) fn quota_agent(root: &OwnedFd, now: Duration) -> Check {
    let folder = match beneath::open_dir(root, RESERVED).and_then(|own| beneath::open_dir(own, QUOTA)) {
        Ok(folder) => folder,
        Err(Errno::ENOENT) => return QUOTA_AGENT.skip("no quota agent works here"),
        Err(errno) => return QUOTA_AGENT.skip(format!("its state cannot be read: {}", errno.desc())),
    };
    let stat = fstatat(&folder, AGENT, AtFlags::AT_SYMLINK_NOFOLLOW);
    let state = text(&folder, AGENT).map(|text| serde_json::from_slice::<Agent>(&text));
    match (stat, state) {
        (Ok(stat), Ok(Ok(agent))) => {
            alive(&agent, now.saturating_sub(Duration::from_secs(u64::try_from(stat.st_mtime).unwrap_or_default())))
        }
        (Err(Errno::ENOENT), _) => QUOTA_AGENT.fail("the quota agent has not written its state", start("the server")),
        (_, Ok(Err(error))) => {
            QUOTA_AGENT.fail(format!("the quota agent's state cannot be read: {error}"), start("the server"))
        }
        (Err(errno), _) | (_, Err(errno)) => QUOTA_AGENT.skip(format!("its state cannot be read: {}", errno.desc())),
    }
}

fn alive(agent: &Agent, age: Duration) -> Check {
    if agent.format > quota_files::FORMAT {
        return QUOTA_AGENT.fail(
            format!("the quota agent {} on {} is of a later format", agent.version, agent.host),
            "update this driver to the agent's version",
        );
    }
    if age > SILENT_AFTER {
        return QUOTA_AGENT.fail(
            format!("the quota agent on {} has given no sign of life for {} s", agent.host, age.as_secs()),
            start(&agent.host),
        );
    }
    QUOTA_AGENT.pass(format!("the quota agent {} on {} is alive", agent.version, agent.host))
}

fn start(host: &str) -> String {
    format!("start the quota agent on {host} (systemctl start nfs-csi-quota), and look at its log")
}

fn text(folder: &OwnedFd, name: &str) -> nix::Result<Vec<u8>> {
    let file = beneath::open(folder, name, OFlag::O_RDONLY | OFlag::O_NONBLOCK, Mode::empty())?;
    let mut text = Vec::new();
    File::from(file).take(LONGEST).read_to_end(&mut text).map_err(errno_of)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Outcome;

    fn agent(format: u32) -> Agent {
        Agent {
            format,
            version: "0.1.0".into(),
            host: "nas".into(),
            file_system: "xfs".into(),
            limits_root: true,
            first_id: 1,
            last_id: 9,
            ready: 0,
            volumes: 0,
            promised_bytes: 0,
        }
    }

    #[test]
    fn an_agent_that_is_silent_or_of_a_later_format_is_a_failure() {
        let second = Duration::from_secs(1);
        assert_eq!(alive(&agent(1), second).outcome, Outcome::Pass);
        let silent = alive(&agent(1), SILENT_AFTER + second);
        assert!(silent.outcome == Outcome::Fail && silent.remedy.unwrap().contains("quota agent on nas"));
        let later = alive(&agent(quota_files::FORMAT + 1), second);
        assert!(later.outcome == Outcome::Fail && later.remedy.unwrap().contains("update this driver"));
    }

    #[test]
    fn another_export_than_the_map_says_is_a_failure() {
        let share = tempfile::tempdir().unwrap();
        let root = OwnedFd::from(File::open(share.path()).unwrap());
        let (id, other) = (ExportId::new().unwrap(), ExportId::new().unwrap());
        assert_eq!(export_id(&root, None).outcome, Outcome::Skip);
        assert_eq!(export_id(&root, Some(&id)).outcome, Outcome::Fail);
        std::fs::create_dir(share.path().join(RESERVED)).unwrap();
        let file = share.path().join(RESERVED).join(IDENTITY);
        std::fs::write(&file, format!(r#"{{"id": "{id}", "inode": 1}}"#)).unwrap();
        assert_eq!(export_id(&root, None).outcome, Outcome::Pass);
        assert_eq!(export_id(&root, Some(&id)).outcome, Outcome::Pass);
        let another = export_id(&root, Some(&other));
        assert!(another.outcome == Outcome::Fail && another.seen.contains(&id.to_string()), "{}", another.seen);
        std::fs::write(&file, "{").unwrap();
        assert_eq!(export_id(&root, None).outcome, Outcome::Fail);
    }

    #[test]
    fn records_of_a_later_format_and_broken_ones_are_told_apart() {
        let share = tempfile::tempdir().unwrap();
        let root = OwnedFd::from(File::open(share.path()).unwrap());
        assert_eq!(records(&root).outcome, Outcome::Pass);
        assert_eq!(quota_agent(&root, Duration::ZERO).outcome, Outcome::Skip);
        let volumes = share.path().join(".nfs-csi/volumes");
        std::fs::create_dir_all(&volumes).unwrap();
        let write = |name: &str, text: &str| std::fs::write(volumes.join(name), text).unwrap();
        write("a.json", r#"{"format": 1, "name": "a"}"#);
        write("note", "not a record");
        assert_eq!(records(&root).outcome, Outcome::Pass);
        write("b.json", "{");
        let broken = records(&root);
        assert!(broken.outcome == Outcome::Warn && broken.remedy.unwrap().contains("nfs-csi check"));
        write("c.json", r#"{"format": 99}"#);
        let newer = records(&root);
        assert!(newer.outcome == Outcome::Fail && newer.seen.contains("c.json has format 99"), "{}", newer.seen);
    }
}
