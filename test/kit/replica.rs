//! Controllers that run side by side, each in a client of its own; they can be frozen, woken, killed and started again.

use nix::sys::signal::Signal;

use super::client::Client;
use super::driver::Driver;
use super::retried::Controller;
use super::{Folder, folder};

/// The flags of all of them: another's work is taken over after a short silence.
const FLAGS: &[&str] = &["--takeover-after=3s"];

/// One of several controllers.
pub struct Replica {
    pub driver: Driver,
    pub calls: Controller,
    client: Client,
    flags: Vec<String>,
    folder: Folder,
}

impl Replica {
    pub async fn start(client: Client) -> Self {
        Self::start_with(client, &[]).await
    }

    /// Starts one with more flags.
    pub async fn start_with(client: Client, flags: &[&str]) -> Self {
        let folder = folder();
        let flags = [FLAGS, flags].concat();
        let driver = Driver::start_in(client, folder.path(), &flags);
        let calls = driver.controller().await;
        Self { driver, calls, client, flags: flags.into_iter().map(str::to_owned).collect(), folder }
    }

    /// Kills it and starts it again, in the same folder.
    pub async fn restart(&mut self) {
        self.driver.signal(Signal::SIGKILL);
        self.driver.wait().await;
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        self.driver = Driver::start_in(self.client, self.folder.path(), &flags);
    }

    /// How many calls of this kind (`READ`, `OPEN`, …) have been sent to the server, by all its mounts: each has counts
    /// of its own, for they share no cache.
    pub fn sent(&self, operation: &str) -> u64 {
        let statistics = std::fs::read_to_string("/proc/self/mountstats").expect("the mounts' statistics");
        let own = format!(" mounted on {}/", self.folder.path().display());
        let of_mount = |mount: &str| -> Option<u64> {
            let counts = mount.lines().find_map(|line| line.trim().strip_prefix(operation)?.strip_prefix(": "))?;
            counts.split(' ').next()?.parse().ok()
        };
        statistics.split("\ndevice ").filter(|mount| mount.contains(&own)).filter_map(of_mount).sum()
    }

    /// Freezes it: whatever is under way in its kernel ends, and then nothing more happens.
    pub fn freeze(&self) {
        self.driver.signal(Signal::SIGSTOP);
    }

    pub fn wake(&self) {
        self.driver.signal(Signal::SIGCONT);
    }
}
