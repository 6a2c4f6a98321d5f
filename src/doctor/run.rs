//! All groups of checks, each in a process of its own, within ten seconds.
//!
//! What needs no server runs at the same time as the questions to the server: its name, then its ports. The share is
//! mounted last, and only where what the mount needs is there: a mount without it would hang, or fail with an error that
//! says less.

use std::io;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout, timeout_at};

use super::check::{Check, Outcome, Planned, Report};
use super::scratch::{CLEANUP, unique};
use super::task::{Assignment, Line, OnShare, Subject, Task};
use super::{export, kernel, names, node, options, security, server, worker};
use crate::mount::protocol::Reached;

/// When the groups must have ended, from the start of all: those that need no server or the one before ask it, the
/// mount of the share, and what removes its directory where that was killed.
const LOCAL: Duration = Duration::from_secs(7);
const NAMES: Duration = Duration::from_secs(4);
const SERVER: Duration = Duration::from_secs(7);
const EXPORT: Duration = Duration::from_secs(8);
const SWEEP: Duration = Duration::from_millis(9500);
/// How long the process that has mounted the share may take to let it go, before it is killed.
const LET_GO: Duration = Duration::from_millis(300);
/// How long a process may take to end that was killed. One that the kernel does not let go is left to it.
const KILLED: Duration = Duration::from_millis(300);

/// Makes all checks. None of their processes runs afterwards.
pub async fn examine(subject: &Subject) -> Report {
    let begun = Instant::now();
    let local = async |task, planned| ask(subject, task, planned, begun + LOCAL).await.checks;
    let (kernel, options, security, node, (server, reached)) = tokio::join!(
        local(Task::Kernel, kernel::CHECKS),
        local(Task::Options, options::CHECKS),
        local(Task::Security, security::CHECKS),
        local(Task::Node, node::CHECKS),
        ask_server(subject, begun),
    );
    let needed: Vec<&Check> = kernel.iter().chain(&options).chain(&security).chain(&server).collect();
    let export = match (hindrance(subject, &needed), reached) {
        (None, Some(reached)) => examine_export(subject, reached, begun).await,
        (Some(reason), _) => skipped(export::CHECKS, &reason),
        (None, None) => skipped(export::CHECKS, "the server was not reached"),
    };
    Report::of([kernel, options, security, server, export, node].concat())
}

/// Looks the server up, and asks it whether it is there.
async fn ask_server(subject: &Subject, begun: Instant) -> (Vec<Check>, Option<Reached>) {
    if subject.server.is_none() {
        return (skipped([names::CHECKS, server::CHECKS].concat(), NO_SERVER), None);
    }
    let Answer { mut checks, addresses, .. } = ask(subject, Task::Names, names::CHECKS, begun + NAMES).await;
    if addresses.is_empty() {
        checks.extend(skipped(server::CHECKS, "the server has no address (name-lookup)"));
        return (checks, None);
    }
    let answer = ask(subject, Task::Server(addresses), server::CHECKS, begun + SERVER).await;
    checks.extend(answer.checks);
    (checks, answer.reached)
}

const NO_SERVER: &str = "no server is named (--server)";

/// Why the share is not mounted; none where nothing is in the way.
fn hindrance(subject: &Subject, checks: &[&Check]) -> Option<String> {
    match (&subject.server, &subject.share) {
        (None, _) => Some(NO_SERVER.into()),
        (_, None) => Some("no share is named (--share)".into()),
        _ => {
            let failed = checks.iter().find(|check| check.outcome == Outcome::Fail);
            failed.map(|check| format!("the share was not mounted, since {} failed", check.name))
        }
    }
}

async fn examine_export(subject: &Subject, reached: Reached, begun: Instant) -> Vec<Check> {
    let unique = unique();
    let task = |sweep, until: Duration| {
        let limit = until.saturating_sub(begun.elapsed()).saturating_sub(LET_GO);
        Task::Export(reached.clone(), OnShare { unique: unique.clone(), sweep, limit })
    };
    let mut checks = ask(subject, task(false, EXPORT), export::CHECKS, begun + EXPORT).await.checks;
    let is_clean = |check: &Check| check.name != CLEANUP.name || check.outcome == Outcome::Pass;
    let is_mounted = checks.first().is_some_and(|check| matches!(check.outcome, Outcome::Pass | Outcome::Warn));
    if is_mounted && !checks.iter().all(is_clean) {
        // It was killed while it worked in its directory, or could not remove it.
        let swept = ask(subject, task(true, SWEEP), &[CLEANUP], begun + SWEEP).await.checks;
        checks.retain(|check| check.name != CLEANUP.name);
        checks.extend(swept);
    }
    checks
}

fn skipped(planned: impl AsRef<[Planned]>, reason: &str) -> Vec<Check> {
    planned.as_ref().iter().map(|planned| planned.skip(reason)).collect()
}

/// What came from a group's process.
#[derive(Debug, Default)]
struct Answer {
    checks: Vec<Check>,
    addresses: Vec<SocketAddr>,
    reached: Option<Reached>,
    /// Whether a process was killed that took too long.
    killed: bool,
}

/// Has a group's checks made by a process of its own, which is killed at the deadline.
async fn ask(subject: &Subject, task: Task, planned: &[Planned], until: Instant) -> Answer {
    let begun = Instant::now();
    let mut answer = Answer::default();
    let ended = match start(subject, &task).await {
        Ok(mut child) => {
            let read = timeout_at(until, read(&mut child, &mut answer)).await;
            // It may have ended by itself.
            let _ = child.start_kill();
            let _ = timeout(KILLED, child.wait()).await;
            match read {
                Ok(Ok(())) if !answer.killed => "its process ended too early".into(),
                Ok(Err(error)) => format!("its process cannot be read from: {error}"),
                Ok(Ok(())) | Err(_) => format!("it did not end within {} ms", begun.elapsed().as_millis()),
            }
        }
        Err(error) => format!("its process cannot be started: {error}"),
    };
    fill(planned, &ended, &mut answer.checks);
    answer
}

/// The check that had not ended is a failure, and those behind it were not made.
fn fill(planned: &[Planned], ended: &str, checks: &mut Vec<Check>) {
    let mut missing = planned.iter().filter(|planned| !checks.iter().any(|check| check.name == planned.name)).copied();
    let Some(first) = missing.next() else { return };
    let rest: Vec<Check> = missing.map(|planned| planned.skip(format!("{} did not end", first.name))).collect();
    checks.push(first.fail(ended, first.if_late));
    checks.extend(rest);
}

async fn start(subject: &Subject, task: &Task) -> io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(worker::COMMAND).arg(std::process::id().to_string()).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    if matches!(task, Task::Names) {
        let (name, value) = names::RESOLVER;
        command.env(name, value);
    }
    let mut child = command.spawn()?;
    let assignment = Assignment { subject: subject.clone(), task: task.clone() };
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(&serde_json::to_vec(&assignment)?).await?;
    }
    Ok(child)
}

async fn read(child: &mut Child, answer: &mut Answer) -> io::Result<()> {
    let Some(stdout) = child.stdout.take() else { return Ok(()) };
    let mut lines = BufReader::new(stdout).lines();
    while let Some(line) = lines.next_line().await? {
        match serde_json::from_str(&line)? {
            Line::Check(check) => answer.checks.push(check),
            Line::Addresses(addresses) => answer.addresses = addresses,
            Line::Reached(reached) => answer.reached = Some(reached),
            Line::Killed => answer.killed = true,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Planned = Planned { name: "one", if_late: "start one" };
    const TWO: Planned = Planned { name: "two", if_late: "start two" };
    const THREE: Planned = Planned { name: "three", if_late: "start three" };

    #[test]
    fn the_check_that_did_not_end_fails_with_its_remedy_and_those_behind_it_were_not_made() {
        let mut checks = vec![ONE.pass("fine")];
        fill(&[ONE, TWO, THREE], "it did not end within 2000 ms", &mut checks);
        let outcomes: Vec<Outcome> = checks.iter().map(|check| check.outcome).collect();
        assert_eq!(outcomes, [Outcome::Pass, Outcome::Fail, Outcome::Skip]);
        assert_eq!(checks[1].remedy.as_deref(), Some("start two"));
        assert!(checks[2].seen.contains("two did not end"));
        let mut whole = checks.clone();
        fill(&[ONE, TWO, THREE], "", &mut whole);
        assert_eq!(whole, checks);
    }

    #[test]
    fn the_share_is_mounted_only_where_nothing_failed_that_the_mount_needs() {
        let mut subject = Subject::default();
        let (failed, warned) = (ONE.fail("no", "do"), TWO.warn("so", "do"));
        assert!(hindrance(&subject, &[]).unwrap().contains("--server"));
        subject.server = Some("nas".into());
        assert!(hindrance(&subject, &[]).unwrap().contains("--share"));
        subject.share = Some("/export".into());
        assert_eq!(hindrance(&subject, &[&warned]), None);
        assert!(hindrance(&subject, &[&warned, &failed]).unwrap().contains("one failed"));
    }

    #[test]
    fn no_check_has_the_name_of_another() {
        let groups = [
            kernel::CHECKS,
            options::CHECKS,
            security::CHECKS,
            names::CHECKS,
            server::CHECKS,
            export::CHECKS,
            node::CHECKS,
        ];
        let mut names: Vec<&str> = groups.concat().iter().map(|planned| planned.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
