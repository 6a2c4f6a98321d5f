//! STUB
use super::{Progress, TreeError, effort::Effort};
use std::os::fd::{AsFd, BorrowedFd};
/// x
#[derive(Debug)]
pub struct Links<'a> {
    place: BorrowedFd<'a>,
    name: String,
}
impl<'a> Links<'a> {
    /// x
    #[must_use]
    pub fn new(place: BorrowedFd<'a>, name: String) -> Self {
        Self { place, name }
    }
}
/// x
/// # Errors
/// x
pub fn tree(_s: impl AsFd, _t: impl AsFd, l: &Links<'_>, _e: &Effort, _p: &Progress) -> Result<(), TreeError> {
    let _ = (&l.place, &l.name);
    Ok(())
}
