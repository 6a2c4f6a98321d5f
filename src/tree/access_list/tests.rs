//! The rules of narrowing, as tables, and against the kernel's algorithm.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const NO_ID: u32 = u32::MAX;

/// A POSIX list of tags and permission bits; each named user and group has a number of its own.
pub(crate) fn posix_list(entries: &[(u16, u16)]) -> Xattr {
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (number, (tag, bits)) in (1000_u32..).zip(entries) {
        let id = if matches!(tag, 2 | 8) { number } else { NO_ID };
        list.extend([&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat());
    }
    (POSIX.to_owned(), list)
}

/// A list of version 4 in the notation of nfs4_acl(5): `A` or `D` (allow, deny), flags, principal, rights.
pub(crate) fn nfs4_list(entries: &[&str]) -> Xattr {
    let mut list = u32::try_from(entries.len()).unwrap().to_be_bytes().to_vec();
    for entry in entries {
        let [kind, flags, who, rights] = entry.split(':').collect::<Vec<_>>().try_into().unwrap();
        let kind = ["A", "D", "U"].into_iter().position(|known| known == kind).unwrap();
        let number = |text: &str, known: &str| text.chars().map(|one| 1 << known.find(one).unwrap()).sum::<u32>();
        for number in [u32::try_from(kind).unwrap(), number(flags, "fdniSFg"), number(rights, "rwanNxDtT")] {
            list.extend(number.to_be_bytes());
        }
        list.extend(u32::try_from(who.len()).unwrap().to_be_bytes());
        list.extend(who.as_bytes());
        list.resize(list.len().next_multiple_of(4), 0);
    }
    (NFS4.to_owned(), list)
}

#[test]
fn an_entry_without_its_posix_list_has_what_the_list_gives_to_all_of_a_class() {
    let (owner, user, owning, group, mask, other) = (1, 2, 4, 8, 0x10, 0x20);
    for (mode, entries, expected) in [
        // The owning group has less than the mask.
        (0o660, &[(owner, 6), (user, 6), (owning, 0), (mask, 6), (other, 0)][..], Some(0o600)),
        (0o2670, &[(owner, 6), (group, 7), (owning, 4), (mask, 7), (other, 0)], Some(0o2640)),
        // The mask is less than what the owning group has.
        (0o640, &[(owner, 6), (user, 7), (owning, 6), (mask, 4), (other, 0)], Some(0o640)),
        // A named user has less than the others, or than the group that he may be in.
        (0o644, &[(owner, 6), (user, 0), (owning, 4), (mask, 4), (other, 4)], Some(0o600)),
        (0o666, &[(owner, 6), (user, 6), (user, 4), (owning, 6), (mask, 6), (other, 6)], Some(0o644)),
        (0o647, &[(owner, 6), (user, 7), (owning, 4), (mask, 4), (other, 7)], Some(0o644)),
        // A named group has less than the others; the owning group keeps its own.
        (0o664, &[(owner, 6), (owning, 6), (group, 0), (mask, 6), (other, 4)], Some(0o660)),
        // Nothing but the mode.
        (0o640, &[(owner, 6), (owning, 4), (other, 0)], None),
        (0o640, &[(owner, 6), (owning, 4), (mask, 4), (other, 0)], None),
        // Only a mask.
        (0o660, &[(owner, 6), (owning, 4), (mask, 6), (other, 0)], Some(0o640)),
        // The owner's bits and those above are the mode's.
        (0o7770, &[(owner, 0), (user, 7), (owning, 7), (mask, 7), (other, 0)], Some(0o7770)),
        // Never more than the mode.
        (0o600, &[(owner, 6), (user, 7), (owning, 7), (mask, 7), (other, 7)], Some(0o600)),
        // No list at all.
        (0o664, &[(owner, 6), (owning, 6)], Some(0o600)),
        (0o664, &[(owner, 6), (owning, 6), (other, 4), (0x40, 7)], Some(0o600)),
    ] {
        assert_eq!(mode_without(mode, &posix_list(entries)), expected, "{mode:o} {entries:?}");
    }
}

#[test]
fn an_entry_without_its_list_of_version_4_has_what_the_list_gives_to_all_of_a_class() {
    for (mode, entries, expected) in [
        // As a Linux server shows user 1234 beside a group without rights.
        (0o660, &["A::OWNER@:rwa", "A::1234:rwa", "A:g:GROUP@:", "A::EVERYONE@:"][..], Some(0o600)),
        (0o640, &["A::OWNER@:rwa", "A::1234:rwa", "A:g:GROUP@:r", "A::EVERYONE@:"], Some(0o640)),
        // As it shows user 1234 without rights where all others have some.
        (0o644, &["A::OWNER@:rwa", "D::1234:r", "A::1234:", "A:g:GROUP@:r", "A::EVERYONE@:r"], Some(0o600)),
        (
            0o664,
            &["A::OWNER@:rwa", "A:g:GROUP@:rwa", "A:g:staff@here:", "D:g:staff@here:r", "A::EVERYONE@:r"],
            Some(0o660),
        ),
        // Nothing but the mode, as servers show it.
        (0o604, &["A::OWNER@:rwa", "A:g:GROUP@:", "D:g:GROUP@:r", "A::EVERYONE@:r"], None),
        (0o044, &["D::OWNER@:r", "A:g:GROUP@:r", "A::EVERYONE@:r"], None),
        (0o755, &["A::OWNER@:rwaxD", "A:g:GROUP@:rx", "A::EVERYONE@:rx"], None),
        (0o777, &["A::EVERYONE@:rwax"], None),
        (0o775, &["A:fdi:1234:rwax", "A::OWNER@:rwax", "A:g:GROUP@:rwax", "A::EVERYONE@:rx", "U:S:x@y:r"], None),
        // The first entry decides.
        (0o666, &["D::EVERYONE@:w", "A::EVERYONE@:rwa"], Some(0o644)),
        (0o666, &["A::EVERYONE@:rwa", "D::1234:r"], Some(0o666)),
        // To write takes all that it is made of.
        (0o666, &["A::EVERYONE@:rw"], Some(0o644)),
        (0o777, &["D::EVERYONE@:D", "A::EVERYONE@:rwax"], Some(0o755)),
        // What is for others too is for the group.
        (0o664, &["A::EVERYONE@:r"], Some(0o644)),
        (0o666, &[], Some(0o600)),
    ] {
        assert_eq!(mode_without(mode, &nfs4_list(entries)), expected, "{mode:o} {entries:?}");
    }
    let (name, whole) = nfs4_list(&["A::EVERYONE@:rwax", "A::1234:r"]);
    for length in 0..whole.len() {
        assert_eq!(mode_without(0o777, &(name.clone(), whole[..length].to_vec())), Some(0o700));
    }
}

#[test]
fn a_posix_list_as_text_gives_the_same() {
    for (mode, text, expected) in [
        (0o660, "user::rw-,user:bob:rw-,group::---,mask::rw-,other::---", Some(0o600)),
        (0o664, "user::rw-\nuser:bob:r--:1000\ngroup::rw-\nmask::rw-\nother::r--\n", Some(0o644)),
        (0o640, "user::rw-,group::r--,other::---", None),
        (0o640, "user::rw-,group::r--,others::---", Some(0o600)),
        (0o640, "", Some(0o600)),
    ] {
        assert_eq!(mode_without(mode, &(POSIX_TEXT.to_owned(), text.into())), expected, "{mode:o} {text:?}");
    }
}

#[test]
fn a_list_to_be_inherited_takes_no_permissions_with_it() {
    assert_eq!(mode_without(0o755, &(POSIX_DEFAULT.to_owned(), posix_list(&[]).1)), None);
}

/// A user who is not the owner.
#[derive(Debug)]
struct User {
    /// Which of the list's entries name this user, or a group of this user.
    named: BTreeSet<usize>,
    is_in_group: bool,
}

impl User {
    /// The accesses that the algorithm of acl(5) allows: all combinations of bits that are allowed at once.
    fn may(&self, entries: &[(u16, u16)]) -> BTreeSet<u16> {
        let bits_of = |tag| entries.iter().find(|(has, _)| *has == tag).map(|&(_, bits)| bits);
        let mask = bits_of(0x10).unwrap_or(7);
        let of = |tag| {
            let named = self.named.iter().filter_map(|&at| entries.get(at));
            named.filter(move |(has, _)| *has == tag).map(|&(_, bits)| bits).collect::<Vec<_>>()
        };
        let groups: Vec<u16> = of(8).into_iter().chain(bits_of(4).filter(|_| self.is_in_group)).collect();
        let classes: Vec<u16> = match of(2).first() {
            Some(bits) => vec![bits & mask],
            None if !groups.is_empty() => groups.into_iter().map(|bits| bits & mask).collect(),
            None => bits_of(0x20).into_iter().collect(),
        };
        (0..8).filter(|wanted| classes.iter().any(|bits| bits & wanted == *wanted)).collect()
    }
}

proptest! {
    #[test]
    fn no_user_may_do_more_without_a_posix_list_than_with_it(
        named in proptest::collection::vec((prop_oneof![Just(2_u16), Just(8)], 0_u16..8), 0..4),
        owning in 0_u16..8, mask in 0_u16..8, other in 0_u16..8,
        names in proptest::collection::btree_set(0_usize..4, 0..4), is_in_group: bool,
    ) {
        let entries = [&named[..], &[(1, 7), (4, owning), (0x10, mask), (0x20, other)]].concat();
        let mode = u32::from(0o700 | mask << 3 | other);
        let user = User { named: names.into_iter().filter(|&at| at < named.len()).collect(), is_in_group };
        let without = mode_without(mode, &posix_list(&entries)).unwrap_or(mode);
        let bits = u16::try_from(if is_in_group { without >> 3 } else { without }).unwrap() & 7;
        let with = user.may(&entries);
        prop_assert!(with.contains(&bits), "{user:?} may {with:?} of {entries:?}, and {bits} of {without:o}");
    }

    #[test]
    fn any_bytes_as_a_list_give_nothing_that_the_mode_does_not(
        list in proptest::collection::vec(any::<u8>(), 0..99), mode in 0_u32..0o10000,
    ) {
        for name in [POSIX, POSIX_TEXT, NFS4] {
            let without = mode_without(mode, &(name.to_owned(), list.clone())).unwrap_or(mode);
            prop_assert_eq!((without & !mode, without & 0o7700), (0, mode & 0o7700));
        }
    }
}
