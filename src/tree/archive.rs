//! STUB
use super::Progress;
use std::os::fd::AsFd;
/// x
#[derive(Clone, Debug, thiserror::Error)]
#[error("x")]
pub struct ArchiveError;
impl From<std::io::Error> for ArchiveError {
    fn from(_: std::io::Error) -> Self {
        Self
    }
}
/// x
/// # Errors
/// x
pub fn write(_s: impl AsFd, _o: &std::fs::File, _p: &Progress) -> Result<u64, ArchiveError> {
    Ok(0)
}
/// x
/// # Errors
/// x
pub fn read(_s: std::fs::File, _t: impl AsFd, _p: &Progress) -> Result<(), ArchiveError> {
    Ok(())
}
