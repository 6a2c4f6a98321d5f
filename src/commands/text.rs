//! How commands print sizes, durations and tables, and text that others wrote.
#![allow(clippy::print_stdout, reason = "this is the commands' own output")]

use std::time::Duration;

/// Prints rows below each other, each column as wide as its widest cell.
pub(super) fn print_table<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    for row in rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

/// Without what would move the terminal's cursor: any NFS client may have written it.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|one| if one.is_control() { '\u{fffd}' } else { one }).collect()
}

/// A number of bytes in the largest unit that has no more than one digit after the point.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut unit, mut tenths) = (0, u128::from(bytes) * 10);
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths = tenths.div_ceil(1024);
        unit += 1;
    }
    match tenths % 10 {
        0 => format!("{} {}", tenths / 10, UNITS[unit]),
        tenth => format!("{}.{tenth} {}", tenths / 10, UNITS[unit]),
    }
}

/// A duration in the largest unit of which it has some.
pub(super) fn rough(duration: Duration) -> String {
    let seconds = duration.as_secs();
    for (unit, size) in [("d", 86400), ("h", 3600), ("m", 60)] {
        if seconds >= 4 * size {
            return format!("{}{unit}", seconds / size);
        }
    }
    format!("{seconds}s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_short_and_never_less_than_it_is() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1025, "1.1 KiB"),
            (5 << 30, "5 GiB"),
            ((5 << 30) + (1 << 29), "5.5 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn what_a_client_wrote_does_not_move_the_cursor() {
        assert_eq!(printable("a\u{1b}[2J\nb"), "a\u{fffd}[2J\u{fffd}b");
    }

    #[test]
    fn durations_are_told_in_their_largest_unit() {
        for (seconds, text) in
            [(0, "0s"), (239, "239s"), (240, "4m"), (14_399, "239m"), (259_200, "72h"), (345_600, "4d")]
        {
            assert_eq!(rough(Duration::from_secs(seconds)), text);
        }
    }
}
