//! Names that nobody guesses: who does not know such a name does not get in, though everybody may walk there.

use std::fmt;
use std::io;

use data_encoding::HEXLOWER;
use rustix::rand::{GetRandomFlags, getrandom};
use thiserror::Error;

use super::quote::quote;

const BYTES: usize = 16;

/// A part of a name that makes it one that nobody guesses: hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(String);

/// A text that is no [`Secret`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{secret} is no secret: that has {} hexadecimal digits", 2 * BYTES)]
pub struct SecretError {
    secret: String,
}

impl Secret {
    /// A new one.
    ///
    /// # Errors
    /// Where the kernel gives no random bytes.
    pub fn new() -> io::Result<Self> {
        let mut random = [0; BYTES];
        let given = getrandom(&mut random, GetRandomFlags::empty())?;
        if given < BYTES {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self(HEXLOWER.encode(&random)))
    }

    /// Reads one that was made before.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        match HEXLOWER.decode(text.as_bytes()) {
            Ok(bytes) if bytes.len() == BYTES => Ok(Self(text.to_owned())),
            _ => Err(SecretError { secret: quote(text) }),
        }
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Shows nothing of it.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_secrets_are_the_same_and_none_is_shown() {
        let (one, other) = (Secret::new().unwrap(), Secret::new().unwrap());
        assert_ne!(one, other);
        assert_eq!(Secret::parse(&one.to_string()), Ok(one.clone()));
        assert!(!format!("{one:?}").contains(&one.to_string()));
        for text in ["", "0", &one.to_string()[1..], &format!("{one}0"), &one.to_string().replace(|_| true, "x")] {
            Secret::parse(text).unwrap_err();
        }
    }
}
