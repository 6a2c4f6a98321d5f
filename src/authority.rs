//! Clients whose `:authority` is no host: old ones of Go (and what is built on them, as sidecars and `csc` are) send
//! the whole target, `tcp://127.0.0.1:10000` or a socket's path, and the HTTP library below tonic ends such a call with
//! PROTOCOL_ERROR. Nothing here has a use for that header. So in what a client sends, each value of it is replaced by
//! one that is valid, before the library reads it.
//!
//! Of HTTP/2 (RFC 9113) that takes the length of its frames, and of its header compression (RFC 7541) the length of its
//! fields. A value may go into the table that both ends keep of the fields before; so that the server's never drops an
//! entry that the client's has still, the new value is no longer than any other can be. What is not understood passes
//! as it is, for the library to judge.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// What a client of HTTP/2 sends first.
const PREFACE: usize = 24;
const FRAME_HEADER: usize = 9;
/// The type of frame that begins with header fields, and its flags.
const HEADERS: u8 = 1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// The frame size that the library lets clients send.
const LONGEST_FRAME: usize = 16_384;
/// The number of `:authority` in the static table.
const AUTHORITY: u64 = 1;
/// A host's name of one letter.
const HOST: &str = "a";

/// A connection from a client.
#[derive(Debug)]
pub struct Mended<S> {
    stream: S,
    /// What stands for the value of `:authority`, as HTTP/2 writes it.
    authority: Vec<u8>,
    /// What was read and is not looked at yet.
    raw: Vec<u8>,
    /// What can be given, and how much of it was.
    passed: Vec<u8>,
    given: usize,
    state: State,
}

#[derive(Debug)]
enum State {
    /// So many bytes pass as they are.
    Passing(usize),
    /// A frame's header is next.
    AtFrame,
    /// All that comes passes.
    Through,
}

impl<S> Mended<S> {
    /// A connection whose client need not be understood.
    #[must_use]
    pub fn new(stream: S) -> Self {
        Self::with_authority(stream, HOST)
    }

    /// The same with another value of at most 126 bytes.
    #[must_use]
    pub fn with_authority(stream: S, authority: &str) -> Self {
        let length = u8::try_from(authority.len()).unwrap_or(u8::MAX).min(126);
        let authority = [&[length], &authority.as_bytes()[..usize::from(length)]].concat();
        Self { stream, authority, raw: Vec::new(), passed: Vec::new(), given: 0, state: State::Passing(PREFACE) }
    }

    /// Looks at what was read.
    fn mend(&mut self) {
        let mut at = 0;
        loop {
            let rest = &self.raw[at..];
            match self.state {
                State::Through => {
                    self.passed.extend_from_slice(rest);
                    at = self.raw.len();
                    break;
                }
                State::Passing(count) => {
                    let passing = count.min(rest.len());
                    self.passed.extend_from_slice(&rest[..passing]);
                    at += passing;
                    if passing < count {
                        self.state = State::Passing(count - passing);
                        break;
                    }
                    self.state = State::AtFrame;
                }
                State::AtFrame => {
                    let Some(header) = rest.get(..FRAME_HEADER) else { break };
                    let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
                    let (kind, flags) = (header[3], header[4]);
                    if length > LONGEST_FRAME {
                        self.state = State::Through;
                    } else if kind == HEADERS && flags & END_HEADERS != 0 {
                        let Some(payload) = rest.get(FRAME_HEADER..FRAME_HEADER + length) else { break };
                        let payload = mended(payload, flags, &self.authority);
                        let [_, a, b, c] = u32::try_from(payload.len()).unwrap_or_default().to_be_bytes();
                        self.passed.extend_from_slice(&[a, b, c]);
                        self.passed.extend_from_slice(&header[3..]);
                        self.passed.extend_from_slice(&payload);
                        at += FRAME_HEADER + length;
                    } else {
                        self.state = State::Passing(FRAME_HEADER + length);
                    }
                }
            }
        }
        self.raw.drain(..at);
    }
}

/// The payload of a frame of header fields, with another `:authority`.
fn mended(payload: &[u8], flags: u8, authority: &[u8]) -> Vec<u8> {
    let before = usize::from(flags & PADDED != 0) + if flags & PRIORITY != 0 { 5 } else { 0 };
    let padding = if flags & PADDED != 0 { payload.first().map_or(0, |length| usize::from(*length)) } else { 0 };
    let end = payload.len().checked_sub(padding).filter(|end| *end >= before);
    match end.and_then(|end| Some((end, mended_fields(payload.get(before..end)?, authority)?))) {
        Some((end, fields)) => [&payload[..before], &fields, &payload[end..]].concat(),
        None => payload.to_vec(),
    }
}

/// Header fields with another `:authority`; none where they are malformed.
fn mended_fields(fields: &[u8], authority: &[u8]) -> Option<Vec<u8>> {
    let mut mended = Vec::with_capacity(fields.len());
    let mut rest = fields;
    while let Some(&first) = rest.first() {
        // An indexed field, a field that goes into the table, a change of the table's size, and fields that do not go
        // into it.
        let (prefix, is_literal) = match first {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let (name, mut length) = integer(rest, prefix)?;
        if is_literal {
            if name == 0 {
                length += string(rest.get(length..)?)?;
            }
            let value = string(rest.get(length..)?)?;
            if name == AUTHORITY && value > 1 {
                mended.extend_from_slice(&rest[..length]);
                mended.extend_from_slice(authority);
                rest = &rest[length + value..];
                continue;
            }
            length += value;
        }
        mended.extend_from_slice(rest.get(..length)?);
        rest = &rest[length..];
    }
    Some(mended)
}

/// An integer whose first bits share a byte with others, and how many bytes it takes.
fn integer(bytes: &[u8], prefix: u32) -> Option<(u64, usize)> {
    let most = (1 << prefix) - 1;
    let first = u64::from(*bytes.first()?) & most;
    if first < most {
        return Some((first, 1));
    }
    let mut number = most;
    for (place, &byte) in bytes.get(1..)?.iter().enumerate().take(5) {
        number += u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Some((number, place + 2));
        }
    }
    None
}

/// How many bytes a string takes, with its length before it.
fn string(bytes: &[u8]) -> Option<usize> {
    let (length, of_length) = integer(bytes, 7)?;
    let whole = usize::try_from(length).ok()?.checked_add(of_length)?;
    (whole <= bytes.len()).then_some(whole)
}

impl<S: AsyncRead + Unpin> AsyncRead for Mended<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.given == this.passed.len() {
            let mut bytes = [0; 4096];
            let mut buffer = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut buffer))?;
            this.passed.clear();
            this.given = 0;
            if buffer.filled().is_empty() {
                // The end; what is left is the beginning of a frame.
                into.put_slice(&this.raw[..this.raw.len().min(into.remaining())]);
                this.raw.clear();
                return Poll::Ready(Ok(()));
            }
            this.raw.extend_from_slice(buffer.filled());
            this.mend();
        }
        let giving = (this.passed.len() - this.given).min(into.remaining());
        into.put_slice(&this.passed[this.given..this.given + giving]);
        this.given += giving;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Mended<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

impl<S: Connected> Connected for Mended<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::AsyncReadExt;

    use super::*;

    const SENT: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let [_, a, b, c] = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&[a, b, c, kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// A field that goes into the table, by the number of its name.
    fn literal(name: u8, value: &[u8]) -> Vec<u8> {
        [&[0x40 | name, u8::try_from(value.len()).unwrap()], value].concat()
    }

    /// What the library reads of what a client sends in pieces of this size.
    async fn read(sent: &[u8], piece: usize) -> Vec<u8> {
        let mut builder = in_pieces(sent, piece);
        let mut all = Vec::new();
        Mended::new(&mut builder).read_to_end(&mut all).await.unwrap();
        all
    }

    /// A stream that gives so much at a time.
    fn in_pieces(sent: &[u8], piece: usize) -> impl AsyncRead + Unpin {
        struct Pieces(Vec<u8>, usize, usize);
        impl AsyncRead for Pieces {
            fn poll_read(
                mut self: Pin<&mut Self>,
                _: &mut Context<'_>,
                into: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                let end = (self.1 + self.2.min(into.remaining())).min(self.0.len());
                into.put_slice(&self.0[self.1..end]);
                self.1 = end;
                Poll::Ready(Ok(()))
            }
        }
        Pieces(sent.to_vec(), 0, piece)
    }

    #[tokio::test]
    async fn an_authority_is_replaced_and_all_else_stays() {
        let indexed = [0x83, 0x86];
        let path = literal(4, b"/csi.v1.Identity/Probe");
        let named = [&[0x40, 3][..], b"te:", &[2], b"ab"].concat();
        for authority in [&b"tcp://127.0.0.1:10000"[..], b"/csi/csi.sock", b"passthrough:///unix:///csi/csi.sock"] {
            let fields = |value: &[u8]| [&indexed[..], &literal(1, value), &path, &named].concat();
            let data = frame(0, 1, &[7; 3000]);
            let sent = |value: &[u8]| [SENT, &frame(4, 0, &[0; 6]), &frame(HEADERS, 4, &fields(value)), &data].concat();
            for piece in [1, 7, 4096] {
                assert_eq!(read(&sent(authority), piece).await, sent(b"a"), "in pieces of {piece}");
            }
            // With padding and a priority.
            let padded = |value: &[u8]| {
                let payload = [&[3, 0, 0, 0, 0, 16][..], &fields(value), &[0; 3]].concat();
                [SENT, &frame(HEADERS, END_HEADERS | PADDED | PRIORITY, &payload)].concat()
            };
            assert_eq!(read(&padded(authority), 4096).await, padded(b"a"));
        }
    }

    #[tokio::test]
    async fn a_value_that_is_not_kept_and_a_long_one_are_replaced_too() {
        let long = [&[0x01, 0x7f, 0xe9, 0x00][..], &[b'x'; 232]].concat();
        let never = [&[0x11, 0x82][..], &[0xff, 0xff]].concat();
        for field in [long, never] {
            let sent = [SENT, &frame(HEADERS, 4, &field)].concat();
            let expected = [SENT, &frame(HEADERS, 4, &[field[0], 1, b'a'])].concat();
            assert_eq!(read(&sent, 4096).await, expected);
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_passes_in_full_or_as_valid_frames(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            piece in 1_usize..64,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let got = runtime.block_on(read(&bytes, piece));
            prop_assert!(got.len() <= bytes.len());
            let framed = [SENT, &frame(HEADERS, END_HEADERS, &bytes)].concat();
            let got = runtime.block_on(read(&framed, piece));
            prop_assert!(got.len() <= framed.len());
            prop_assert_eq!(&got[..24], SENT);
            let length = u32::from_be_bytes([0, got[24], got[25], got[26]]) as usize;
            prop_assert_eq!(length + FRAME_HEADER + 24, got.len());
        }
    }
}
