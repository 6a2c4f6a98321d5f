//! The numbers and times of tar: octal digits or base 256 in a header's fields, decimal digits in pax records.

use std::fmt::Write as _;

use rustix::fs::Timespec;

const BILLION: i64 = 1_000_000_000;

/// A header's numeric field: octal digits between spaces and NULs, or GNU's two's complement with the first bit set.
/// An empty field is 0. `None` for what is no number, or too large a one.
pub(super) fn field(bytes: &[u8]) -> Option<i64> {
    let (&first, rest) = bytes.split_first()?;
    if first & 0x80 != 0 {
        // The first bit is the mark, the second the sign.
        let negative = first & 0x40 != 0;
        let first = if negative { i64::from(first) - 0x100 } else { i64::from(first & 0x3f) };
        return rest.iter().try_fold(first, |number, &byte| number.checked_mul(256)?.checked_add(i64::from(byte)));
    }
    let text = bytes.trim_ascii_start();
    let text = text.split(|&byte| byte == 0).next()?.trim_ascii_end();
    text.iter().try_fold(0_i64, |number, &byte| match byte {
        b'0'..=b'7' => number.checked_mul(8)?.checked_add(i64::from(byte - b'0')),
        _ => None,
    })
}

/// Decimal digits and nothing else.
pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |number, &byte| match byte {
        b'0'..=b'9' => number.checked_mul(10)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    })
}

/// A pax time: seconds since 1970 with a fraction, below zero too. What is finer than a nanosecond is cut off.
pub(super) fn time(text: &[u8]) -> Option<Timespec> {
    let (negative, text) = text.strip_prefix(b"-").map_or((false, text), |rest| (true, rest));
    let mut parts = text.splitn(2, |&byte| byte == b'.');
    let seconds = i64::try_from(decimal(parts.next()?)?).ok()?;
    let mut nanoseconds = 0;
    let mut digits = parts.next().unwrap_or_default().iter();
    for _ in 0..9 {
        let digit = digits.next().map_or(Some(0), |&byte| byte.is_ascii_digit().then(|| i64::from(byte - b'0')))?;
        nanoseconds = nanoseconds * 10 + digit;
    }
    if !digits.all(u8::is_ascii_digit) {
        return None;
    }
    Some(match (negative, nanoseconds) {
        (false, _) => Timespec { tv_sec: seconds, tv_nsec: nanoseconds },
        (true, 0) => Timespec { tv_sec: -seconds, tv_nsec: 0 },
        (true, _) => Timespec { tv_sec: -seconds - 1, tv_nsec: BILLION - nanoseconds },
    })
}

/// A time as pax writes it.
pub(super) fn time_text(time: Timespec) -> String {
    let (sign, seconds, nanoseconds) = if time.tv_sec < 0 && time.tv_nsec > 0 {
        ("-", -(time.tv_sec + 1), BILLION - time.tv_nsec)
    } else {
        ("", time.tv_sec, time.tv_nsec)
    };
    let mut text = format!("{sign}{seconds}");
    if nanoseconds != 0 {
        // Writing to a String cannot fail.
        let _ = write!(text, ".{nanoseconds:09}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_of_all_tars_are_read() {
        assert_eq!(field(b"0000644\0"), Some(0o644));
        assert_eq!(field(b"  644 \0 "), Some(0o644));
        assert_eq!(field(b"77777777"), Some(0o77_777_777));
        assert_eq!(field(&[0; 8]), Some(0));
        assert_eq!(field(b"0000648\0"), None);
        assert_eq!(field(b"-1\0"), None);
        assert_eq!(field(&[0x80, 0, 0, 0, 0, 0, 1, 0]), Some(256));
        assert_eq!(field(&[0xff; 12]), Some(-1));
        assert_eq!(field(&[0x80, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), None);
    }

    proptest! {
        #[test]
        fn a_time_is_read_as_it_was_written(tv_sec in i64::MIN / 2..i64::MAX / 2, tv_nsec in 0..BILLION) {
            let text = time_text(Timespec { tv_sec, tv_nsec });
            let read = time(text.as_bytes()).unwrap();
            prop_assert_eq!((read.tv_sec, read.tv_nsec), (tv_sec, tv_nsec));
        }

        #[test]
        fn nothing_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..24)) {
            field(&bytes);
            decimal(&bytes);
            time(&bytes);
        }
    }
}
