//! Durations as people write them: `500ms`, `30s`, `2m`, `72h`, `7d`; a bare number is seconds.

use std::time::Duration;

use thiserror::Error;

use super::quote::quote;

/// Why a text is no duration.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text} is no duration: write a number with a unit, such as 500ms, 30s, 2m, 72h or 7d")]
pub struct DurationError {
    text: String,
}

/// Reads a duration; zero is one.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let error = || DurationError { text: quote(text) };
    let digits = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| error())?;
    let seconds = |factor: u64| number.checked_mul(factor).map(Duration::from_secs);
    let duration = match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" | "" => seconds(1),
        "m" => seconds(60),
        "h" => seconds(3600),
        "d" => seconds(86400),
        _ => None,
    };
    duration.ok_or_else(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        for (text, seconds) in [("30", 30), ("0", 0), ("30s", 30), ("2m", 120), ("72h", 259_200), ("7d", 604_800)] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        for text in ["", "s", "-1s", "1.5h", "1w", "1 h", "99999999999999999999", "18446744073709551615d"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
