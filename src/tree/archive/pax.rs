//! The records of a pax header: `<length> <key>=<value>\n`, where the length counts the whole record, itself too.
//!
//! A value may hold any byte, a newline too: only the length tells where a record ends.

use std::ffi::CStr;

use super::number;

pub(super) const PATH: &[u8] = b"path";
pub(super) const LINK: &[u8] = b"linkpath";
pub(super) const SIZE: &[u8] = b"size";
pub(super) const UID: &[u8] = b"uid";
pub(super) const GID: &[u8] = b"gid";
pub(super) const MODIFIED: &[u8] = b"mtime";
pub(super) const ACCESSED: &[u8] = b"atime";
/// star's name for an extended attribute, before the attribute's own.
const XATTR: &[u8] = b"SCHILY.xattr.";
/// What stands in an attribute's name for `=`, where a key ends, and so for `%`: GNU tar writes and reads them so too.
const ESCAPES: [(u8, &[u8]); 2] = [(b'=', b"%3D"), (b'%', b"%25")];
/// Our own: what tar has no type for.
pub(super) const TYPE: &[u8] = b"NFSCSI.type";
pub(super) const SOCKET: &[u8] = b"socket";
/// GNU tar's for files with holes.
pub(super) const SPARSE_MAJOR: &[u8] = b"GNU.sparse.major";
pub(super) const SPARSE_MINOR: &[u8] = b"GNU.sparse.minor";
pub(super) const SPARSE_NAME: &[u8] = b"GNU.sparse.name";
pub(super) const SPARSE_REAL_SIZE: &[u8] = b"GNU.sparse.realsize";
/// The same in GNU tar's versions 0.0 and 0.1.
pub(super) const SPARSE_SIZE: &[u8] = b"GNU.sparse.size";
pub(super) const SPARSE_MAP: &[u8] = b"GNU.sparse.map";
pub(super) const SPARSE_OFFSET: &[u8] = b"GNU.sparse.offset";
pub(super) const SPARSE_LENGTH: &[u8] = b"GNU.sparse.numbytes";

/// Adds a record.
pub(super) fn push(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    // The length has digits that it counts itself.
    while rest + digits(length) > length {
        length += 1;
    }
    records.extend_from_slice(length.to_string().as_bytes());
    records.push(b' ');
    records.extend_from_slice(key);
    records.push(b'=');
    records.extend_from_slice(value);
    records.push(b'\n');
}

/// The key of an extended attribute.
pub(super) fn xattr_key(name: &CStr) -> Vec<u8> {
    let mut key = XATTR.to_vec();
    for byte in name.to_bytes() {
        match ESCAPES.iter().find(|(escaped, _)| escaped == byte) {
            Some((_, text)) => key.extend_from_slice(text),
            None => key.push(*byte),
        }
    }
    key
}

/// The name of the extended attribute that has this key; `None` if it is the key of something else.
pub(super) fn xattr_name(key: &[u8]) -> Option<Vec<u8>> {
    let mut left = key.strip_prefix(XATTR)?;
    let mut name = Vec::with_capacity(left.len());
    while let Some((&first, rest)) = left.split_first() {
        let escape = ESCAPES.iter().find_map(|(byte, text)| Some((*byte, left.strip_prefix(*text)?)));
        let (byte, rest) = escape.unwrap_or((first, rest));
        name.push(byte);
        left = rest;
    }
    Some(name)
}

fn digits(number: usize) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}

/// The records' keys and values, in order; `None` where something is no record.
pub(super) fn records(mut bytes: &[u8]) -> impl Iterator<Item = Option<(&[u8], &[u8])>> {
    std::iter::from_fn(move || {
        // Some writers fill the last block up and count that in.
        if bytes.iter().all(|&byte| byte == 0) {
            return None;
        }
        let record = split(bytes);
        bytes = record.map_or(&[], |(_, rest)| rest);
        Some(record.map(|(record, _)| record))
    })
}

type Record<'a> = (&'a [u8], &'a [u8]);

fn split(bytes: &[u8]) -> Option<(Record<'_>, &[u8])> {
    let space = bytes.iter().take(20).position(|&byte| byte == b' ')?;
    let length = usize::try_from(number::decimal(&bytes[..space])?).ok()?;
    let (record, rest) = bytes.split_at_checked(length)?;
    let record = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|&byte| byte == b'=')?;
    Some(((&record[..equals], &record[equals + 1..]), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_length_counts_itself() {
        for size in [0, 1, 80, 85, 86, 87, 88, 89, 90, 91, 980, 985, 990, 995] {
            let mut written = Vec::new();
            push(&mut written, b"key", &vec![b'\n'; size]);
            let space = written.iter().position(|&byte| byte == b' ').unwrap();
            assert_eq!(number::decimal(&written[..space]), Some(written.len() as u64));
        }
    }

    #[test]
    fn the_key_of_an_attribute_with_an_equals_sign_is_that_of_gnu_tar() {
        assert_eq!(xattr_key(c"user.a=b%25c%"), b"SCHILY.xattr.user.a%3Db%2525c%25");
        // From a tar that writes a name as it is.
        assert_eq!(xattr_name(b"SCHILY.xattr.user.50%"), Some(b"user.50%".to_vec()));
        assert_eq!(xattr_name(b"path"), None);
    }

    proptest! {
        #[test]
        fn the_name_of_an_attribute_comes_back(name in "user\\.[a-c=%23D5]{0,20}") {
            let name = std::ffi::CString::new(name).unwrap();
            let mut written = Vec::new();
            push(&mut written, &xattr_key(&name), b"=value=");
            let (key, value) = records(&written).next().unwrap().unwrap();
            prop_assert_eq!((xattr_name(key), value), (Some(name.into_bytes()), &b"=value="[..]));
        }

        #[test]
        fn records_are_read_as_they_were_written(
            pairs in proptest::collection::vec(("[a-z.]{1,9}", proptest::collection::vec(any::<u8>(), 0..200)), 0..9),
        ) {
            let mut written = Vec::new();
            for (key, value) in &pairs {
                push(&mut written, key.as_bytes(), value);
            }
            let read: Vec<_> = records(&written).map(Option::unwrap).collect();
            let pairs: Vec<_> = pairs.iter().map(|(key, value)| (key.as_bytes(), value.as_slice())).collect();
            prop_assert_eq!(read, pairs);
        }

        #[test]
        fn what_is_no_record_ends_the_reading(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let wrong = records(&bytes).filter(Option::is_none).count();
            prop_assert!(wrong <= 1);
        }
    }
}
