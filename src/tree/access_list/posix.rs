//! POSIX lists, as the kernel gives them: a version, then a tag, permission bits and a number for each entry.

use super::Given;

const VERSION: u32 = 2;
const ENTRY: usize = 8;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// What a list gives; none if it is no list.
pub(super) fn given(list: &[u8]) -> Option<Given> {
    let (version, entries) = list.split_first_chunk()?;
    if u32::from_le_bytes(*version) != VERSION || entries.len() % ENTRY != 0 {
        return None;
    }
    let entries = entries.chunks_exact(ENTRY).map(|entry| {
        let field = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
        (field(0), u32::from(field(2)))
    });
    given_by(&entries.collect::<Vec<_>>())
}

/// The same of a list as acl(5) writes it, `user::rw-,user:bob:r--,…`; a number may follow (star).
pub(super) fn given_by_text(text: &[u8]) -> Option<Given> {
    let text = std::str::from_utf8(text).ok()?;
    let entries = text.split([',', '\n']).map(str::trim).filter(|entry| !entry.is_empty()).map(|entry| {
        let mut fields = entry.split(':');
        let (tag, name, bits) = (fields.next()?, fields.next()?, fields.next()?);
        let tag = match (tag, name.is_empty()) {
            ("user", true) => USER_OBJ,
            ("user", false) => USER,
            ("group", true) => GROUP_OBJ,
            ("group", false) => GROUP,
            ("mask", true) => MASK,
            ("other", true) => OTHER,
            _ => return None,
        };
        let bit = |letter, bit| if bits.contains(letter) { bit } else { 0 };
        Some((tag, bit('r', 4) | bit('w', 2) | bit('x', 1)))
    });
    given_by(&entries.collect::<Option<Vec<_>>>()?)
}

/// What a list of these tags and permission bits gives.
///
/// A named user may be in the owning group or not, so neither class gets what one of them lacks. The members of a named
/// group that are in the owning group too have what either gives, so they lack nothing of that; the rest of them are
/// others then.
fn given_by(entries: &[(u16, u32)]) -> Option<Given> {
    let bits_of = |wanted| entries.iter().find(|&&(tag, _)| tag == wanted).map(|&(_, bits)| bits);
    let mask = bits_of(MASK).unwrap_or(0o7);
    let mut given = Given { group: bits_of(GROUP_OBJ)? & mask, other: bits_of(OTHER)? & 0o7, names_some: false };
    for &(tag, bits) in entries {
        match tag {
            USER => given.group &= bits & mask,
            GROUP | USER_OBJ | GROUP_OBJ | MASK | OTHER => {}
            _ => return None,
        }
        if matches!(tag, USER | GROUP) {
            given.other &= bits & mask;
            given.names_some = true;
        }
    }
    Some(given)
}
