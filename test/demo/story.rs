//! How the demo prints what happens: chapters of steps, each with its time and with what is seen afterwards.
//!
//! No line is longer than 100 columns (`test/demo/picture` refuses one). Lines have colours if `$E2E_COLOUR` is `always`:
//! the guest cannot know where its output goes, `test/demo/run` does.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// The steps so far.
pub struct Story {
    step: u32,
    coloured: bool,
}

impl Story {
    pub fn begin(title: &str, scene: &str) -> Self {
        let story = Self { step: 0, coloured: std::env::var_os("E2E_COLOUR").is_some_and(|when| when == "always") };
        println!("\n  {}  {}", story.bold(title), story.faint(scene));
        story
    }

    pub fn chapter(&self, title: &str) {
        println!("\n  {}", self.painted("1;35", title));
    }

    /// A call of the CSI: `work` is what is timed.
    pub async fn call<T>(&mut self, call: &str, what: &str, work: impl Future<Output = T>) -> T {
        self.step("1;36", call, what, work).await
    }

    /// What a pod, the server or the driver itself does.
    pub async fn act<T>(&mut self, who: &str, what: &str, work: impl Future<Output = T>) -> T {
        self.step("1;33", who, what, work).await
    }

    async fn step<T>(&mut self, colour: &str, left: &str, what: &str, work: impl Future<Output = T>) -> T {
        self.step += 1;
        let begun = Instant::now();
        let result = work.await;
        let time = readable(begun.elapsed());
        let number = self.faint(&format!("{:>4}", self.step));
        let left = self.painted(colour, &format!("{left:<22}"));
        println!("{number}  {left}  {what:<58}{}", self.painted("32", &format!("{time:>10}")));
        result
    }

    /// What is seen where, after a step.
    pub fn seen(&self, place: &str, what: impl Display) {
        println!("      {}  {}", self.faint(&format!("{place:>22}")), self.faint(&what.to_string()));
    }

    pub fn end(self) {
        let verdict = format!("{} steps, none failed", self.step);
        println!("\n  {}\n", self.painted("1;32", &verdict));
    }

    fn bold(&self, text: &str) -> String {
        self.painted("1", text)
    }

    fn faint(&self, text: &str) -> String {
        self.painted("2", text)
    }

    /// `text` with the parameters of an SGR sequence (ECMA-48).
    fn painted(&self, parameters: &str, text: &str) -> String {
        if self.coloured { format!("\x1b[{parameters}m{text}\x1b[0m") } else { text.into() }
    }
}

fn readable(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{:.1} ms", time.as_secs_f64() * 1000.0)
    } else {
        format!("{:.2} s", time.as_secs_f64())
    }
}
