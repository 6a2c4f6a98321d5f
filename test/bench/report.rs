//! The figures: a table for people, JSON for machines, and which of them are out of bounds.

use std::fmt::Display;

use serde::Serialize;

#[derive(Default)]
pub struct Report {
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    what: String,
    unit: &'static str,
    value: f64,
    /// What it is compared with.
    floor: Option<Floor>,
    /// At most (or at least) this, for the ratio where there is a floor, for the value otherwise.
    bound: Option<Bound>,
    kept: bool,
}

#[derive(Serialize)]
struct Floor {
    what: &'static str,
    value: f64,
    ratio: f64,
}

#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Report {
    /// A figure that must not be larger than a bound.
    pub fn at_most(&mut self, what: &str, unit: &'static str, value: f64, bound: f64) {
        self.add(what, unit, value, None, Bound::AtMost(bound));
    }

    /// A figure that must not be smaller than a bound.
    pub fn at_least(&mut self, what: &str, unit: &'static str, value: f64, bound: f64) {
        self.add(what, unit, value, None, Bound::AtLeast(bound));
    }

    /// A figure whose ratio to the floor must not be larger than a bound (infinite: none).
    pub fn ratio(&mut self, what: &str, against: &'static str, unit: &'static str, value: f64, floor: f64, bound: f64) {
        let floor = Floor { what: against, value: floor, ratio: value / floor };
        self.add(what, unit, value, Some(floor), Bound::AtMost(bound));
    }

    fn add(&mut self, what: &str, unit: &'static str, value: f64, floor: Option<Floor>, bound: Bound) {
        let judged = floor.as_ref().map_or(value, |floor| floor.ratio);
        let (kept, bound) = match bound {
            Bound::AtMost(most) => (judged <= most, Some(bound).filter(|_| most.is_finite())),
            Bound::AtLeast(least) => (judged >= least, Some(bound).filter(|_| least > 0.0)),
        };
        let row = Row { what: what.into(), unit, value, floor, bound, kept };
        row.print();
        self.rows.push(row);
    }

    /// What a figure is made of, under it in the table.
    pub fn detail(what: &dyn Display) {
        println!("    {what}");
    }

    pub fn failed(&self) -> bool {
        self.rows.iter().any(|row| !row.kept)
    }

    pub fn json(&self) -> String {
        serde_json::to_string_pretty(&self.rows).expect("plain figures")
    }

    /// Prints the table's head; the rows follow as they are measured.
    pub fn head() {
        println!("\n{:<64} {:>16}   {:<38} {:>7} {:>10}", "what", "measured", "against", "ratio", "bound");
    }
}

impl Row {
    fn print(&self) {
        let value = format!("{:.2} {}", self.value, self.unit);
        let (against, ratio) = match &self.floor {
            Some(floor) => (format!("{} {:.2} {}", floor.what, floor.value, self.unit), format!("{:.2}", floor.ratio)),
            None => (String::new(), String::new()),
        };
        let bound = match self.bound {
            Some(Bound::AtMost(most)) => format!("<= {most}"),
            Some(Bound::AtLeast(least)) => format!(">= {least}"),
            None => String::new(),
        };
        let missed = if self.kept { "" } else { "  MISSED" };
        println!("{:<64} {value:>16}   {against:<38} {ratio:>7} {bound:>10}{missed}", self.what);
    }
}
