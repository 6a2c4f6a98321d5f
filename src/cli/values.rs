//! What a flag's value may be: each function reads one kind of value from its text.

use std::time::Duration;

use crate::mount::options::Options;
use crate::volume::access::Mode;
use crate::volume::topology::is_word;

/// The permission bits of new volumes.
#[derive(Clone, Debug)]
pub(super) struct Permissions {
    /// None stands for "as the server makes them".
    pub(super) mode: Option<Mode>,
    /// What the operator needs to know of how they were read.
    pub(super) remark: Option<String>,
}

/// The specification's rule for plugin names: at most 63 characters, letters and digits at the ends, `-` and `.` too
/// between them.
pub(super) fn driver_name(text: &str) -> Result<String, String> {
    // Which is that for labels, but for one character.
    if is_word(text) && !text.contains('_') {
        return Ok(text.into());
    }
    Err("a driver name has at most 63 letters, digits, '-' and '.', and begins and ends with a letter or digit".into())
}

/// A name that can stand in the name of a folder: at most 63 characters of a label, without a dot.
pub(super) fn cluster_id(text: &str) -> Result<String, String> {
    if text.is_empty() || (is_word(text) && !text.contains(['_', '.'])) {
        return Ok(text.into());
    }
    Err("a cluster's name has at most 63 letters, digits and '-', and begins and ends with a letter or digit".into())
}

pub(super) fn host_and_port(text: &str) -> Result<String, String> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.contains('/') && port.parse::<u16>().is_ok() => Ok(text.into()),
        _ => Err("write host:port, or :port for all addresses, such as :9809 or 127.0.0.1:9809".into()),
    }
}

/// Octal. What may have been meant as a decimal number, as csi-driver-nfs reads it, is remarked on.
pub(super) fn permissions(text: &str) -> Result<Permissions, String> {
    let mode: Mode = text.parse().map_err(|error| format!("{error}"))?;
    let decimal = text.parse::<u32>().ok().filter(|bits| !text.starts_with('0') && (8..=0o777).contains(bits));
    let remark = decimal.map(|bits| {
        format!("--mount-permissions={text} is octal here, mode {mode}; if decimal is meant, write 0{bits:o}")
    });
    Ok(Permissions { mode: Some(mode).filter(|mode| mode.bits() != 0), remark })
}

/// A timeout: never zero, and a year at most.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let duration = retention(text)?;
    if duration.is_zero() || duration > Duration::from_hours(8760) {
        return Err("it must be more than nothing, and a year at most".into());
    }
    Ok(duration)
}

/// How long something is kept; 0: not at all.
pub(super) fn retention(text: &str) -> Result<Duration, String> {
    crate::volume::duration::parse(text).map_err(|error| error.to_string())
}

pub(super) fn default_options(text: &str) -> Result<Options, String> {
    Options::parse([text]).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn timeouts_are_more_than_nothing_and_a_year_at_most() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        for text in ["0", "0s", "8761h", "soon"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert_eq!(retention("0"), Ok(Duration::ZERO));
    }
}
