//! Whole trees below an export, by directory descriptor only: no symbolic link is followed and no name is trusted.

pub mod make;
pub mod remove;
