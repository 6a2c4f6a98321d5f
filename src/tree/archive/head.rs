//! What is written of an entry before its content: a header that every tar reads, and records for what that has no room
//! for.

use std::io;

use rustix::fs::Stat;
use tar::{EntryType, Header};

use super::{number, pax};
use crate::tree::attributes::{Attributes, Xattr};

/// What a header's field for a name holds, in bytes.
const SHORT: usize = 100;
/// Numbers from here on do not fit the fields that every tar reads.
const LARGE_SIZE: u64 = 1 << 33;
const LARGE_ID: u32 = 1 << 21;
/// Where a tar that knows no pax puts the records, and one that knows no holes the files with holes.
const RECORDS: &[u8] = b"PaxHeaders/";
const HOLES: &[u8] = b"GNUSparseFile.0/";

/// What a header says.
pub(super) struct Head<'a> {
    pub(super) path: &'a [u8],
    pub(super) kind: EntryType,
    pub(super) attributes: Attributes,
    /// What is stored of it, in bytes.
    pub(super) size: u64,
    pub(super) link: &'a [u8],
    pub(super) device: u64,
    pub(super) xattrs: &'a [Xattr],
    /// The size of a file with holes.
    pub(super) real_size: Option<u64>,
    pub(super) is_socket: bool,
}

impl<'a> Head<'a> {
    pub(super) fn new(path: &'a [u8], kind: EntryType, stat: &Stat) -> Self {
        let attributes = Attributes::of(stat);
        Self { path, kind, attributes, size: 0, link: b"", device: 0, xattrs: &[], real_size: None, is_socket: false }
    }

    fn own_name_in(&self, directory: &[u8]) -> Vec<u8> {
        let name = self.path.rsplit(|&byte| byte == b'/').find(|name| !name.is_empty()).unwrap_or_default();
        [directory, name].concat()
    }

    /// What every tar reads.
    pub(super) fn header(&self) -> io::Result<Header> {
        let mut header = Header::new_ustar();
        match self.real_size {
            None => put_name(&mut header.as_old_mut().name, self.path),
            Some(_) => put_name(&mut header.as_old_mut().name, &self.own_name_in(HOLES)),
        }
        put_name(&mut header.as_old_mut().linkname, self.link);
        header.set_entry_type(self.kind);
        header.set_mode(self.attributes.mode);
        header.set_uid(self.attributes.uid.into());
        header.set_gid(self.attributes.gid.into());
        header.set_mtime(u64::try_from(self.attributes.modified.tv_sec).unwrap_or_default());
        header.set_size(self.size);
        header.set_device_major(rustix::fs::major(self.device))?;
        header.set_device_minor(rustix::fs::minor(self.device))?;
        header.set_cksum();
        Ok(header)
    }

    /// The header of the records, which take `size` bytes.
    pub(super) fn extension_header(&self, size: usize) -> Header {
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::XHeader);
        put_name(&mut header.as_old_mut().name, &self.own_name_in(RECORDS));
        header.set_mode(0o644);
        header.set_size(size as u64);
        header.set_cksum();
        header
    }

    /// What a header has no room for.
    pub(super) fn records(&self) -> Vec<u8> {
        let mut records = Vec::new();
        let mut push = |key, value: &[u8]| pax::push(&mut records, key, value);
        push(pax::MODIFIED, number::time_text(self.attributes.modified).as_bytes());
        push(pax::ACCESSED, number::time_text(self.attributes.accessed).as_bytes());
        if let Some(size) = self.real_size {
            push(pax::SPARSE_MAJOR, b"1");
            push(pax::SPARSE_MINOR, b"0");
            push(pax::SPARSE_NAME, self.path);
            push(pax::SPARSE_REAL_SIZE, size.to_string().as_bytes());
        } else if self.path.len() > SHORT {
            push(pax::PATH, self.path);
        }
        if self.link.len() > SHORT {
            push(pax::LINK, self.link);
        }
        if self.size >= LARGE_SIZE {
            push(pax::SIZE, self.size.to_string().as_bytes());
        }
        for (key, id) in [(pax::UID, self.attributes.uid), (pax::GID, self.attributes.gid)] {
            if id >= LARGE_ID {
                push(key, id.to_string().as_bytes());
            }
        }
        if self.is_socket {
            push(pax::TYPE, pax::SOCKET);
        }
        for (name, value) in self.xattrs {
            pax::push(&mut records, &pax::xattr_key(name), value);
        }
        records
    }
}

/// Fills a header's field with a name, or its beginning.
fn put_name(field: &mut [u8; SHORT], name: &[u8]) {
    for (place, &byte) in field.iter_mut().zip(name) {
        *place = byte;
    }
}
