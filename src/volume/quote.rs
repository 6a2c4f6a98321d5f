//! Values in error messages: whoever sent them wrote them, so they are shown short and in one line.

/// Characters of a value that are shown. A volume id of the usual length is shown whole.
const SHOWN: usize = 128;

/// The value in quotes, with control characters escaped, and cut off where it is long.
pub(crate) fn quote(value: &str) -> String {
    let shown: String = value.chars().take(SHOWN).collect();
    let rest = if shown.len() < value.len() { "…" } else { "" };
    format!("{shown:?}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_shown_in_one_line_and_not_longer_than_is_of_use() {
        assert_eq!(quote("plain"), "\"plain\"");
        assert_eq!(quote("two\nlines\0"), "\"two\\nlines\\0\"");
        assert_eq!(quote(&"é".repeat(4096)), format!("\"{}\"…", "é".repeat(128)));
    }
}
