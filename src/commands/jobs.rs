//! `nfs-csi jobs`: what a running controller is at work on, from its metrics.
#![allow(clippy::print_stdout, reason = "this is the command's own output")]

use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::text::{print_table, printable, rough, size};
use crate::cli::{JobsCommand, Output};
use crate::metrics::{WORK_DONE_BYTES, WORK_DONE_FILES, WORK_LEFT_BYTES, WORK_LEFT_FILES, WORK_SECONDS};

/// How long the controller may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// No answer is longer: the metrics of a hundred jobs and a thousand servers have less than a megabyte.
const LONGEST: u64 = 16 << 20;
/// The characters of a progress bar.
const BAR: u64 = 20;

/// Why the command did not do its work.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
enum JobsError {
    #[error(
        "no controller answers on {address} ({reason}): give its --metrics-address; with several replicas, ask the one \
         that is the leader"
    )]
    Silent { address: String, reason: String },

    #[error("what answers on {address} is no controller of this driver: {line}")]
    Other { address: String, line: String },

    #[error("cannot write the list: {0}")]
    Report(#[from] serde_json::Error),
}

/// A clone, snapshot, restore or removal that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Job {
    kind: String,
    /// What is made or removed; empty: the sum of several.
    name: String,
    export: String,
    seconds: u64,
    done_files: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_files: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    done_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_bytes: Option<u64>,
}

/// Runs the command. Gives the status to exit with: 0, or 2 if no controller answers.
#[must_use]
pub fn run(command: JobsCommand) -> ExitCode {
    super::run(async move {
        let JobsCommand { address, output } = command;
        let asked = tokio::time::timeout(TIMEOUT, metrics(&address)).await;
        let silent = |reason: String| JobsError::Silent { address: address.clone(), reason };
        let answer = asked.map_err(|_| silent(format!("not within {} s", TIMEOUT.as_secs())))?;
        let answer = answer.map_err(|error| silent(error.to_string()))?;
        let text = body(&answer).ok_or_else(|| JobsError::Other {
            line: printable(answer.lines().next().unwrap_or_default()),
            address: address.clone(),
        })?;
        let jobs = jobs_in(text);
        match output {
            Output::Json => println!("{}", serde_json::to_string_pretty(&jobs)?),
            Output::Text if jobs.is_empty() => println!("nothing is running"),
            Output::Text => print(&jobs),
        }
        Ok::<_, JobsError>(ExitCode::SUCCESS)
    })
}

async fn metrics(address: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(LONGEST).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The metrics in an answer; none if it is not one of this driver's.
fn body(answer: &str) -> Option<&str> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    (head.starts_with("HTTP/1.1 200 ") && body.contains("nfs_csi_build_info")).then_some(body)
}

/// The jobs, those first that have run longest and sums last.
fn jobs_in(text: &str) -> Vec<Job> {
    let mut jobs: Vec<Job> = Vec::new();
    for (metric, labels, number) in text.lines().filter_map(sample) {
        let [kind, name, export] = ["kind", "volume", "export"].map(|wanted| {
            let label = labels.iter().find(|(label, _)| *label == wanted);
            label.map(|(_, value)| value.clone()).unwrap_or_default()
        });
        let is_it = |job: &&mut Job| (&job.kind, &job.name, &job.export) == (&kind, &name, &export);
        let set: fn(&mut Job, u64) = match metric {
            metric if metric == WORK_SECONDS.name => |job, number| job.seconds = number,
            metric if metric == WORK_DONE_FILES.name => |job, number| job.done_files = number,
            metric if metric == WORK_LEFT_FILES.name => |job, number| job.left_files = Some(number),
            metric if metric == WORK_DONE_BYTES.name => |job, number| job.done_bytes = Some(number),
            metric if metric == WORK_LEFT_BYTES.name => |job, number| job.left_bytes = Some(number),
            _ => continue,
        };
        if let Some(job) = jobs.iter_mut().find(is_it) {
            set(job, number);
        } else {
            let mut job = Job { kind, name, export, ..Job::default() };
            set(&mut job, number);
            jobs.push(job);
        }
    }
    jobs.sort_by_key(|job| (job.name.is_empty(), std::cmp::Reverse(job.seconds)));
    jobs
}

/// A metric's labels and their values.
type Labels<'a> = Vec<(&'a str, String)>;

/// A line of the metrics: the metric, its labels, and its number; none if it is none of these.
fn sample(line: &str) -> Option<(&str, Labels<'_>, u64)> {
    let (metric, mut rest) = line.split_once('{')?;
    let mut labels = Vec::new();
    loop {
        let (label, behind) = rest.split_once("=\"")?;
        let (mut value, mut characters) = (String::new(), behind.char_indices());
        let end = loop {
            match characters.next()? {
                (at, '"') => break at,
                (_, '\\') => match characters.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        labels.push((label, value));
        rest = &behind[end + 1..];
        match rest.strip_prefix(',') {
            Some(next) => rest = next,
            None => break,
        }
    }
    let number = rest.strip_prefix("} ")?.parse().ok()?;
    Some((metric, labels, number))
}

fn print(jobs: &[Job]) {
    let header = ["KIND", "VOLUME", "EXPORT", "PROGRESS", "BYTES", "FILES", "RUNNING"].map(str::to_owned);
    print_table(&std::iter::once(header).chain(jobs.iter().map(row)).collect::<Vec<_>>());
}

fn row(job: &Job) -> [String; 7] {
    let of = |done: String, left: Option<String>| left.map_or_else(|| done.clone(), |all| format!("{done} of {all}"));
    let several = |text: &str| if text.is_empty() { "(others)".to_owned() } else { printable(text) };
    let bytes = job.done_bytes.map(|done| of(size(done), job.left_bytes.map(|left| size(done + left))));
    [
        job.kind.clone(),
        several(&job.name),
        several(&job.export),
        progress(job),
        bytes.unwrap_or_else(|| "-".into()),
        of(job.done_files.to_string(), job.left_files.map(|left| (job.done_files + left).to_string())),
        rough(Duration::from_secs(job.seconds)),
    ]
}

/// A bar and the percentage: of the bytes where these are known, else of the files. It is full only at the end.
fn progress(job: &Job) -> String {
    let known = |done: Option<u64>, left: Option<u64>| Some((done?, left?)).filter(|(done, left)| done + left > 0);
    let of_files = known(Some(job.done_files), job.left_files);
    let Some((done, left)) = known(job.done_bytes, job.left_bytes).or(of_files) else {
        return format!("[{}]    ?", " ".repeat(usize::try_from(BAR).unwrap_or_default()));
    };
    let part = |of: u64| u128::from(done) * u128::from(of) / (u128::from(done) + u128::from(left));
    let filled = usize::try_from(part(BAR)).unwrap_or_default();
    let empty = usize::try_from(BAR).unwrap_or_default() - filled;
    format!("[{}{}] {:>3}%", "#".repeat(filled), ".".repeat(empty), part(100))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::metrics::Metrics;
    use crate::running_work::{RunningWork, WorkKind};
    use crate::tree::Progress;

    #[test]
    fn what_the_metrics_say_is_what_is_shown() {
        let (metrics, work) = (Metrics::new("d"), RunningWork::default());
        metrics.read_running_work(&work);
        assert_eq!(jobs_in(&metrics.text()), []);
        let progress = Arc::<Progress>::default();
        progress.expect(Some(4), Some(1 << 20));
        progress.add(3, 1 << 18);
        let name = "pvc \"1\\,\n{}=";
        let _restore = work.begin(WorkKind::Restore, name.into(), "nas:/a".into(), progress);
        let removed = Arc::<Progress>::default();
        removed.add(7, 0);
        let _free = work.begin(WorkKind::Free, "v.x".into(), "nas:/a".into(), removed);
        let jobs = jobs_in(&metrics.text());
        let export = "nas:/a".to_owned();
        let restore = Job {
            kind: "restore".into(),
            name: name.into(),
            export: export.clone(),
            seconds: jobs[0].seconds,
            done_files: 3,
            left_files: Some(1),
            done_bytes: Some(1 << 18),
            left_bytes: Some(3 << 18),
        };
        let free = Job { kind: "free".into(), name: "v.x".into(), export, done_files: 7, ..Job::default() };
        assert_eq!(jobs, [restore, Job { seconds: jobs[1].seconds, ..free }]);
        let cells = row(&jobs[0]);
        assert_eq!(cells[3..6], ["[#####...............]  25%", "256 KiB of 1 MiB", "3 of 4"].map(str::to_owned));
        let cells = row(&jobs[1]);
        assert_eq!(cells[3..6], ["[                    ]    ?", "-", "7"].map(str::to_owned));
    }

    #[test]
    fn a_bar_is_full_at_the_end_only() {
        let job = |done, left| Job { done_files: done, left_files: Some(left), ..Job::default() };
        for (job, shown) in [
            (job(0, 10), "[....................]   0%"),
            (job(999, 1), "[###################.]  99%"),
            (job(10, 0), "[####################] 100%"),
            (job(0, 0), "[                    ]    ?"),
            (job(u64::MAX / 2, u64::MAX / 2), "[##########..........]  50%"),
        ] {
            assert_eq!(progress(&job), shown);
        }
    }

    #[test]
    fn an_answer_of_something_else_is_not_taken_for_a_controller_s() {
        assert_eq!(body("HTTP/1.1 200 OK\r\nA: b\r\n\r\n# nfs_csi_build_info"), Some("# nfs_csi_build_info"));
        assert_eq!(body("HTTP/1.1 200 OK\r\n\r\nother"), None);
        assert_eq!(body("HTTP/1.1 404 Not Found\r\n\r\nnfs_csi_build_info"), None);
        assert_eq!(body("SSH-2.0"), None);
    }
}
