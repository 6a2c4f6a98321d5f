//! ONC RPC messages over TCP (RFC 5531), no more of it than a call with a few numbers and its answer.

/// Message types and states.
const CALL: u32 = 0;
const REPLY: u32 = 1;
const RPC_VERSION: u32 = 2;
const ACCEPTED: u32 = 0;
const DENIED: u32 = 1;
pub(crate) const SUCCESS: u32 = 0;
pub(crate) const PROG_UNAVAIL: u32 = 1;
pub(crate) const PROG_MISMATCH: u32 = 2;

/// The flavour that asks for TLS, and the length and text of the token that offers it.
const AUTH_TLS: u32 = 7;
const STARTTLS: &[u8] = b"\0\0\0\x08STARTTLS";

/// A record mark's top bit: this fragment is the last.
const LAST_FRAGMENT: u32 = 0x8000_0000;
/// No answer that is asked for here is longer.
const LONGEST_REPLY: usize = 1024;

/// A call of a procedure: program, version and number.
pub(crate) fn call(xid: u32, [program, version, procedure]: [u32; 3], arguments: &[u32]) -> Vec<u8> {
    // Credential and verifier are both AUTH_NONE: a flavour of 0 and a length of 0.
    let mut words = vec![0, xid, CALL, RPC_VERSION, program, version, procedure, 0, 0, 0, 0];
    words.extend_from_slice(arguments);
    words[0] = LAST_FRAGMENT | u32::try_from((words.len() - 1) * 4).unwrap_or(0);
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// The NULL call of a program that asks whether its server takes TLS: with the flavour AUTH_TLS (RFC 9289).
pub(crate) fn tls_probe(xid: u32, [program, version]: [u32; 2]) -> Vec<u8> {
    let mut bytes = call(xid, [program, version, 0], &[]);
    // The flavour is the seventh word of the message, which begins behind the record mark.
    bytes[28..32].copy_from_slice(&AUTH_TLS.to_be_bytes());
    bytes
}

/// Whether the answer to [`tls_probe`] offers TLS; none while more is to come.
pub(crate) fn offers_tls(xid: u32, bytes: &[u8]) -> Option<bool> {
    match answer(xid, bytes) {
        Received::Part => None,
        // The verifier is of the flavour AUTH_NONE and holds the token, behind the record mark and three words.
        Received::Answer(_) => Some(bytes.get(20..).is_some_and(|verifier| verifier.starts_with(STARTTLS))),
        Received::Denied | Received::Other(_) => Some(false),
    }
}

/// What came of a call so far.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// More is to come.
    Part,
    /// The answer: the words from the accept state on.
    Answer(Vec<u32>),
    /// The answer that the call is refused, for its RPC version or its credentials.
    Denied,
    /// What came is no answer to this call.
    Other(&'static str),
}

/// Reads the answer to the call `xid` from what its connection gave.
pub(crate) fn answer(xid: u32, bytes: &[u8]) -> Received {
    let Some((mark, body)) = bytes.split_first_chunk::<4>() else { return Received::Part };
    let mark = u32::from_be_bytes(*mark);
    let length = (mark & !LAST_FRAGMENT) as usize;
    if mark & LAST_FRAGMENT == 0 || length > LONGEST_REPLY {
        return Received::Other("its answer is no RPC reply");
    }
    let Some(message) = body.get(..length) else { return Received::Part };
    let words: Vec<u32> = message.as_chunks::<4>().0.iter().map(|word| u32::from_be_bytes(*word)).collect();
    match *words.as_slice() {
        [answered, REPLY, ACCEPTED, _flavour, verifier_length, ..] if answered == xid => {
            let rest = 5 + (verifier_length as usize).div_ceil(4);
            Received::Answer(words.get(rest..).unwrap_or_default().to_vec())
        }
        [answered, REPLY, DENIED, ..] if answered == xid => Received::Denied,
        _ => Received::Other("its answer is no RPC reply to the call"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(words: &[u32]) -> Vec<u8> {
        let mark = LAST_FRAGMENT | u32::try_from(words.len() * 4).unwrap();
        std::iter::once(&mark).chain(words).flat_map(|word| word.to_be_bytes()).collect()
    }

    #[test]
    fn an_answer_is_read_when_all_of_it_is_there() {
        let bytes = record(&[7, REPLY, ACCEPTED, 0, 8, 1, 2, SUCCESS, 42]);
        for end in 0..bytes.len() {
            assert_eq!(answer(7, &bytes[..end]), Received::Part);
        }
        assert_eq!(answer(7, &bytes), Received::Answer(vec![SUCCESS, 42]));
    }

    #[test]
    fn what_is_no_answer_to_the_call_is_told() {
        for words in [&[8, REPLY, ACCEPTED, 0, 0, SUCCESS][..], &[7, CALL, 0, 0, 0], &[8, REPLY, 1, 0, 0], &[]] {
            assert!(matches!(answer(7, &record(words)), Received::Other(_)), "{words:?}");
        }
        assert_eq!(answer(7, &record(&[7, REPLY, DENIED, 1, 5])), Received::Denied);
        assert!(matches!(answer(7, b"HTTP/1.1 400 Bad Request\r\n"), Received::Other(_)));
    }

    #[test]
    fn a_call_says_how_long_it_is() {
        let bytes = call(7, [100_003, 4, 0], &[1, 2]);
        assert_eq!(bytes[..4], 0x8000_0030_u32.to_be_bytes());
        assert_eq!(bytes.len(), 52);
    }

    #[test]
    fn a_server_offers_tls_by_a_token_in_its_verifier() {
        let probe = tls_probe(7, [100_003, 4]);
        assert_eq!(probe.len(), 44);
        assert_eq!(probe[28..36], [0, 0, 0, 7, 0, 0, 0, 0]);
        let token = [8, u32::from_be_bytes(*b"STAR"), u32::from_be_bytes(*b"TTLS")];
        let offered = record(&[&[7, REPLY, ACCEPTED, 0], &token[..], &[SUCCESS]].concat());
        for end in 0..offered.len() {
            assert_eq!(offers_tls(7, &offered[..end]), None);
        }
        assert_eq!(offers_tls(7, &offered), Some(true));
        assert_eq!(offers_tls(7, &record(&[7, REPLY, ACCEPTED, 0, 0, SUCCESS])), Some(false));
        assert_eq!(offers_tls(7, &record(&[7, REPLY, DENIED, 1, 1])), Some(false));
    }

    proptest! {
        #[test]
        fn nothing_that_comes_is_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = answer(7, &bytes);
            let _ = answer(7, &record(&bytes.iter().map(|&byte| u32::from(byte) << 24).collect::<Vec<_>>()));
        }
    }
}
