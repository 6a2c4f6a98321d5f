//! The id of an export, by which it is known again wherever it is and whatever its server is called.

use std::fmt;
use std::io;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::quote::quote;
use super::secret::Secret;

const DIGITS: usize = 32;

/// 32 hexadecimal digits of chance, kept on the export itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ExportId(String);

/// A text that is no [`ExportId`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{id} is no export's id: that has {DIGITS} hexadecimal digits in lower case")]
pub struct ExportIdError {
    id: String,
}

impl ExportId {
    /// A new one.
    ///
    /// # Errors
    /// Where the kernel gives no random bytes.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Secret::new()?.to_string()))
    }

    /// Reads one that was made before.
    pub fn parse(text: &str) -> Result<Self, ExportIdError> {
        match HEXLOWER.decode(text.as_bytes()) {
            Ok(bytes) if bytes.len() * 2 == DIGITS => Ok(Self(text.to_owned())),
            _ => Err(ExportIdError { id: quote(text) }),
        }
    }
}

impl TryFrom<String> for ExportId {
    type Error = ExportIdError;

    fn try_from(text: String) -> Result<Self, ExportIdError> {
        Self::parse(&text)
    }
}

impl From<ExportId> for String {
    fn from(id: ExportId) -> Self {
        id.0
    }
}

impl fmt::Display for ExportId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_was_written() {
        let (one, other) = (ExportId::new().unwrap(), ExportId::new().unwrap());
        assert_ne!(one, other);
        assert_eq!(ExportId::parse(&one.to_string()), Ok(one.clone()));
        assert_eq!(serde_json::from_str::<ExportId>(&serde_json::to_string(&one).unwrap()).unwrap(), one);
        for text in ["", "0", &one.to_string()[1..], &format!("{one}0"), "6F1C6F1C6F1C6F1C6F1C6F1C6F1C6F1C"] {
            assert_eq!(ExportId::parse(text), Err(ExportIdError { id: quote(text) }));
        }
    }
}
