//! What holds for every path that the driver sends to a server, be it a share's or one below it.
//!
//! The bounds are those of the protocols: 255 bytes for a name on nearly every server's file system, and 1024 bytes,
//! with an end mark, for a path in the MOUNT protocol of NFS 3 (RFC 1813).

use thiserror::Error;

use super::quote::quote;

/// The driver's own folder on an export. No volume and no share has a component of this name.
pub const RESERVED: &str = ".nfs-csi";

/// The longest name of a file or directory, in bytes.
pub(super) const LONGEST_COMPONENT: usize = 255;
/// The longest path, in bytes.
pub(super) const LONGEST_PATH: usize = 1023;

/// Why a text is no path of the kind that was wanted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum PathError {
    #[error("the path is empty: name a directory")]
    Empty,

    #[error("{path} is absolute: write it relative to the share, without a slash at its start")]
    Absolute { path: String },

    #[error("{path} has an empty component: write single slashes, and none at the end")]
    EmptyComponent { path: String },

    #[error("{path} has the component '.': leave it out")]
    Dot { path: String },

    #[error("{path} has the component '..', which leads out of a directory: name the directory that is meant")]
    DotDot { path: String },

    #[error("{path} holds a NUL byte: leave it out")]
    Nul { path: String },

    #[error("{path} holds a control character: leave it out")]
    Control { path: String },

    #[error("{component} is too long for a name: it has {length} bytes, at most {LONGEST_COMPONENT} are allowed")]
    LongComponent { component: String, length: usize },

    #[error("{path} is too long: it has {length} bytes, at most {LONGEST_PATH} are allowed")]
    TooLong { path: String, length: usize },

    #[error("{path} has the component '{RESERVED}', which is the driver's own: use another name")]
    Reserved { path: String },
}

/// Checks the length of a path, and each of its components, which must not be empty.
pub(super) fn check<'a>(path: &'a str, components: impl Iterator<Item = &'a str>) -> Result<(), PathError> {
    let shown = || quote(path);
    if path.len() > LONGEST_PATH {
        return Err(PathError::TooLong { path: shown(), length: path.len() });
    }
    if path.contains('\0') {
        return Err(PathError::Nul { path: shown() });
    }
    for component in components {
        match component {
            "" => return Err(PathError::EmptyComponent { path: shown() }),
            "." => return Err(PathError::Dot { path: shown() }),
            ".." => return Err(PathError::DotDot { path: shown() }),
            RESERVED => return Err(PathError::Reserved { path: shown() }),
            _ if component.len() > LONGEST_COMPONENT => {
                return Err(PathError::LongComponent { component: quote(component), length: component.len() });
            }
            _ => {}
        }
    }
    Ok(())
}
