//! An NFS server with a fault: what stands before the guest's own, and loses, changes or refuses some of the calls of NFS 4.
//!
//! A call is a record of words of 32 bits (RFC 5531, RFC 4506) and is found by a few of them that follow each other.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const NFSD: &str = "127.0.0.1:2049";
/// The mark of a record's last part; the rest of its head is its length in bytes.
const LAST: u32 = 1 << 31;
/// The second word of a call, and of a reply.
const CALL: u32 = 0;
const REPLY: u32 = 1;
/// The number of no operation, and the error that a server answers to one (RFC 8881).
const ILLEGAL: u32 = 10044;
/// Where a reply has the error of all its operations; that of the last one is its last word.
const STATUS: usize = 6;

/// What becomes of a call.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// The first of them does not reach the server.
    Lose,
    /// The server gets this word in the place of the one that was found here, counted from the first.
    Put(usize, u32),
    /// The server gets a number of no operation in the place of the first word that was found, and the client gets this
    /// error as the answer to its operation.
    Refuse(u32),
}

/// A fault of a server.
#[derive(Debug)]
pub struct Fault {
    words: Vec<Option<u32>>,
    change: Change,
    found: AtomicUsize,
    clients: Mutex<Vec<TcpStream>>,
}

/// These words.
pub fn words(words: &[u32]) -> Vec<Option<u32>> {
    words.iter().copied().map(Some).collect()
}

/// So many words, whatever they are.
pub fn any(count: usize) -> Vec<Option<u32>> {
    vec![None; count]
}

/// A text without its length: four letters a word, the last of which is filled up with zeros.
pub fn letters(text: &str) -> Vec<Option<u32>> {
    let word = |part: &[u8]| part.iter().chain(&[0; 4]).take(4).fold(0, |word, &byte| word << 8 | u32::from(byte));
    text.as_bytes().chunks(4).map(|part| Some(word(part))).collect()
}

/// A text.
pub fn text(text: &str) -> Vec<Option<u32>> {
    [words(&[u32::try_from(text.len()).expect("a short text")]), letters(text)].concat()
}

impl Fault {
    /// A fault in the calls with these words.
    pub fn new(words: &[Vec<Option<u32>>], change: Change) -> Self {
        Self { words: words.concat(), change, found: AtomicUsize::new(0), clients: Mutex::default() }
    }

    /// How many calls it has met.
    pub fn found(&self) -> usize {
        self.found.load(Ordering::SeqCst)
    }

    /// Closes all connections: a client that waits for the reply to a call that was lost makes it again, on another one.
    pub fn close(&self) {
        for client in self.clients.lock().expect("the clients").drain(..) {
            let _ = client.shutdown(Shutdown::Both);
        }
    }

    /// Hands on the calls of a client, and the server's replies.
    pub fn serve(&self, client: &TcpStream) {
        self.clients.lock().expect("the clients").push(client.try_clone().expect("a connection"));
        let nfsd = TcpStream::connect(NFSD).expect("the guest's server");
        let refused = Mutex::new(HashSet::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ = hand_on(&nfsd, client, |reply| {
                    self.answer(reply, &refused);
                    true
                });
                let _ = client.shutdown(Shutdown::Both);
            });
            let _ = hand_on(client, &nfsd, |call| self.meet(call, &refused));
            let _ = nfsd.shutdown(Shutdown::Both);
        });
    }

    /// Changes a call; gives whether the server gets it.
    fn meet(&self, call: &mut [u32], refused: &Mutex<HashSet<u32>>) -> bool {
        let is_it =
            |part: &[u32]| part.iter().zip(&self.words).all(|(word, wanted)| wanted.is_none_or(|it| it == *word));
        let at = call.windows(self.words.len()).position(is_it);
        let Some(at) = at.filter(|_| call.get(1) == Some(&CALL)) else { return true };
        let earlier = self.found.fetch_add(1, Ordering::SeqCst);
        match self.change {
            Change::Lose => return earlier > 0,
            Change::Put(place, word) => call[at + place] = word,
            Change::Refuse(_) => {
                call[at] = ILLEGAL;
                refused.lock().expect("the calls that are refused").insert(call[0]);
            }
        }
        true
    }

    /// Puts the error into the reply to a call that is refused.
    fn answer(&self, reply: &mut [u32], refused: &Mutex<HashSet<u32>>) {
        let (Change::Refuse(error), Some(Some(operation))) = (self.change, self.words.first()) else { return };
        let is_reply = reply.get(1) == Some(&REPLY);
        // The server stops at the operation that it does not know. One before it may have failed.
        if is_reply && reply.ends_with(&[ILLEGAL; 2]) && refused.lock().expect("those").remove(&reply[0]) {
            let last = reply.len() - 1;
            (reply[STATUS], reply[last - 1], reply[last]) = (error, *operation, error);
        }
    }
}

/// Hands on records from one to the other until one of them is gone.
fn hand_on(mut from: &TcpStream, mut to: &TcpStream, mut change: impl FnMut(&mut [u32]) -> bool) -> io::Result<()> {
    loop {
        let mut head = [0; 4];
        from.read_exact(&mut head)?;
        let mut bytes = vec![0; usize::try_from(u32::from_be_bytes(head) & !LAST).expect("a length")];
        from.read_exact(&mut bytes)?;
        let (whole, rest) = bytes.as_chunks::<4>();
        let mut words: Vec<u32> = whole.iter().copied().map(u32::from_be_bytes).collect();
        if change(&mut words) {
            let words = words.into_iter().flat_map(u32::to_be_bytes);
            let record: Vec<u8> = head.into_iter().chain(words).chain(rest.iter().copied()).collect();
            to.write_all(&record)?;
        }
    }
}
