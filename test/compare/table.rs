//! The table: what was compared, and what each driver had there.

use std::time::Duration;

use crate::candidate::Answer;

/// Rows of two cells, the peer's and this driver's.
#[derive(Default)]
pub struct Table {
    rows: Vec<(String, [String; 2])>,
}

impl Table {
    /// Adds a row, and prints it, since the whole takes a while.
    pub fn row(&mut self, what: &str, cells: [String; 2]) {
        let cells = cells.map(|cell| cell.replace('|', "\\|").replace('\n', " "));
        println!("| {what} | {} | {} |", cells[0], cells[1]);
        self.rows.push((what.to_owned(), cells));
    }

    /// Adds a row of times.
    pub fn times(&mut self, what: &str, answers: [Vec<Answer<Duration>>; 2]) {
        self.row(what, answers.map(|answers| times(&answers)));
    }

    pub fn markdown(&self, columns: &[String; 2]) -> String {
        let head = [format!("| | {} | {} |", columns[0], columns[1]), "|---|---|---|".into()];
        let rows = self.rows.iter().map(|(what, [peer, own])| format!("| {what} | {peer} | {own} |"));
        head.into_iter().chain(rows).map(|line| line + "\n").collect()
    }
}

/// The median, the least and the most of some times, or the first error.
fn times(answers: &[Answer<Duration>]) -> String {
    let mut times = Vec::new();
    for answer in answers {
        match answer {
            Ok(time) => times.push(*time),
            Err(error) => return error.clone(),
        }
    }
    times.sort_unstable();
    let Some(median) = times.get(times.len() / 2) else { return "–".into() };
    let (unit, factor) = if *median < Duration::from_secs(1) { ("ms", 1e3) } else { ("s", 1.0) };
    let figure = |time: &Duration| {
        let value = time.as_secs_f64() * factor;
        if value < 10.0 { format!("{value:.1}") } else { format!("{value:.0}") }
    };
    match &times[..] {
        [one] => format!("{} {unit}", figure(one)),
        [least, .., most] => format!("{} {unit} ({} to {})", figure(median), figure(least), figure(most)),
        [] => String::new(),
    }
}

/// Bytes, for people.
pub fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
