//! What is wanted of a project, and what follows from it; nothing here makes a system call.

use crate::volume::quota_files::{Applied, FORMAT, LARGEST, Wanted};
use crate::volume::record_key::RecordKey;

/// A limit that is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The change of the limit that it is.
    pub generation: u64,
    /// In bytes, as it was wanted.
    pub bytes: u64,
    /// In files and directories; 0: none.
    pub inodes: u64,
    /// The volume.
    pub volume: RecordKey,
}

impl From<&Applied> for Granted {
    fn from(applied: &Applied) -> Self {
        let Applied { generation, bytes, inodes, volume, .. } = applied;
        Self { generation: *generation, bytes: *bytes, inodes: *inodes, volume: volume.clone() }
    }
}

/// Reads what is wanted.
///
/// # Errors
/// The generation, 0 where it cannot be read, and why it cannot be granted.
pub fn parse(text: &str) -> Result<Wanted, (u64, String)> {
    let wanted: Wanted = serde_json::from_str(text)
        .map_err(|error| (0, format!("its text is not what a driver of this version writes: {error}")))?;
    let generation = wanted.generation;
    let refused = |reason: String| Err((generation, reason));
    match &wanted {
        Wanted { format, .. } if *format != FORMAT => refused(format!(
            "its format is {format}, and this agent knows {FORMAT}: update the older of agent and driver"
        )),
        Wanted { generation: 0, .. } => refused("its generation is 0".into()),
        Wanted { bytes: 0, .. } => refused("it wants a limit of 0 bytes".into()),
        Wanted { bytes, inodes, .. } if *bytes.max(inodes) > LARGEST => {
            refused(format!("it wants more than {LARGEST} bytes or files"))
        }
        Wanted { mode: Some(mode), .. } if mode & !0o7777 != 0 => refused("it wants a mode that is none".into()),
        _ => Ok(wanted),
    }
}

/// What follows from a wish for a project that has a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is in force.
    None,
    /// It is to be set.
    Set,
    /// It is not to be set.
    Refuse(String),
}

/// Decides on a wish for a project with a limit.
#[must_use]
pub fn change(granted: &Granted, wanted: &Wanted) -> Change {
    let asked = Granted::from(wanted);
    if asked == *granted {
        return Change::None;
    }
    if asked.volume != granted.volume {
        return Change::Refuse("the project is another volume's".into());
    }
    if asked.generation <= granted.generation {
        return Change::Refuse(format!("generation {} is in force, with another limit", granted.generation));
    }
    Change::Set
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wanted(generation: u64, bytes: u64, inodes: u64, volume: &str) -> Wanted {
        let (volume, claim) = (RecordKey::of(volume), "claim".into());
        Wanted { format: FORMAT, generation, bytes, inodes, mode: None, volume, claim }
    }

    #[test]
    fn a_later_generation_of_the_same_volume_is_set_and_nothing_else() {
        let granted = Granted::from(&wanted(2, 100, 10, "a"));
        assert_eq!(change(&granted, &wanted(2, 100, 10, "a")), Change::None);
        assert_eq!(change(&granted, &wanted(3, 100, 10, "a")), Change::Set);
        assert_eq!(change(&granted, &wanted(9, 50, 0, "a")), Change::Set);
        for refused in
            [wanted(2, 101, 10, "a"), wanted(1, 200, 10, "a"), wanted(3, 200, 10, "b"), wanted(2, 100, 10, "b")]
        {
            assert!(matches!(change(&granted, &refused), Change::Refuse(_)), "{refused:?}");
        }
    }

    #[test]
    fn a_wish_that_cannot_be_granted_says_why() {
        let text = |wanted: &Wanted| serde_json::to_string(wanted).unwrap();
        let later = Wanted { format: FORMAT + 1, ..wanted(7, 1, 1, "a") };
        for (wish, generation, named) in [
            (text(&later), 7, "update"),
            (text(&wanted(0, 1, 1, "a")), 0, "generation"),
            (text(&wanted(5, 0, 1, "a")), 5, "0 bytes"),
            (text(&wanted(5, LARGEST + 1, 1, "a")), 5, "more than"),
            (text(&wanted(5, 1, u64::MAX, "a")), 5, "more than"),
            (text(&Wanted { mode: Some(0o10777), ..wanted(5, 1, 1, "a") }), 5, "mode"),
            (String::new(), 0, "text"),
            ("../../../etc/passwd".into(), 0, "text"),
            ("[1]".into(), 0, "text"),
        ] {
            let (found, reason) = parse(&wish).unwrap_err();
            assert_eq!(found, generation, "{wish}");
            assert!(reason.contains(named), "{reason}");
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(generation in 1u64.., bytes in 1..=LARGEST, inodes in 0..=LARGEST, name: String) {
            let wish = wanted(generation, bytes, inodes, &name);
            prop_assert_eq!(parse(&serde_json::to_string(&wish).unwrap()), Ok(wish));
        }

        #[test]
        fn a_wish_that_was_cut_or_damaged_is_refused_or_is_one(at in 0usize..160, byte: u8, cut: bool) {
            let mut text = serde_json::to_string(&wanted(1, 1 << 30, 0, "a")).unwrap().into_bytes();
            let at = at % text.len();
            if cut { text.truncate(at) } else { text[at] = byte }
            if let Some(wish) = std::str::from_utf8(&text).ok().and_then(|text| parse(text).ok()) {
                prop_assert!(!cut && wish.bytes > 0 && wish.bytes <= LARGEST);
            }
        }

        #[test]
        fn any_text_is_read_without_a_crash(text: String) {
            let _ = parse(&text);
        }
    }
}
