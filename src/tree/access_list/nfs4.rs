//! Lists of NFS version 4, as the kernel's client gives them: `nfsace4<>` in XDR (RFC 8881, section 6.2).

use super::Given;

const ALLOW: u32 = 0;
const DENY: u32 = 1;
/// The entry is for what is made in the directory only.
const INHERIT_ONLY: u32 = 0x8;

const READ: u32 = 0x1;
/// To write and to append; in a directory, to make files and directories.
const WRITE: u32 = 0x2 | 0x4;
/// To remove what is in a directory. Servers differ in whether they name it where the mode has the right to write.
const DELETE_CHILD: u32 = 0x40;
const EXECUTE: u32 = 0x20;

/// What a list gives; none if it is no list.
///
/// Entries count in their order, and the first one that names a right decides on it. One that denies it to a user or a
/// group counts for both classes: either may have them as a member.
pub(super) fn given(list: &[u8]) -> Option<Given> {
    let mut list = list;
    let (mut group, mut other) = (Rights::default(), Rights::default());
    let mut names_some = false;
    for _ in 0..number(&mut list)? {
        let (kind, flags, rights) = (number(&mut list)?, number(&mut list)?, number(&mut list)?);
        let who = text(&mut list)?;
        if flags & INHERIT_ONLY != 0 || !matches!(kind, ALLOW | DENY) {
            continue;
        }
        let (for_group, for_other) = match who {
            b"OWNER@" => (false, false),
            b"GROUP@" => (true, false),
            b"EVERYONE@" => (true, true),
            _ => {
                names_some = true;
                (kind == DENY, kind == DENY)
            }
        };
        for (class, counts) in [(&mut group, for_group), (&mut other, for_other)] {
            if counts {
                class.decide(rights, kind == ALLOW);
            }
        }
    }
    list.is_empty().then(|| Given { group: group.bits(), other: other.bits(), names_some })
}

/// The rights of a class as far as entries have decided on them.
#[derive(Default)]
struct Rights {
    allowed: u32,
    denied: u32,
}

impl Rights {
    fn decide(&mut self, rights: u32, is_allowed: bool) {
        let new = rights & !(self.allowed | self.denied);
        *(if is_allowed { &mut self.allowed } else { &mut self.denied }) |= new;
    }

    fn bits(&self) -> u32 {
        let all = |rights| self.allowed & rights == rights;
        let writes = all(WRITE) && self.denied & DELETE_CHILD == 0;
        u32::from(all(READ)) << 2 | u32::from(writes) << 1 | u32::from(all(EXECUTE))
    }
}

fn number(xdr: &mut &[u8]) -> Option<u32> {
    let (number, rest) = xdr.split_first_chunk()?;
    *xdr = rest;
    Some(u32::from_be_bytes(*number))
}

/// A text, which is filled up to a multiple of four bytes.
fn text<'a>(xdr: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(number(xdr)?).ok()?;
    let (text, rest) = xdr.split_at_checked(length.checked_next_multiple_of(4)?)?;
    *xdr = rest;
    text.get(..length)
}
