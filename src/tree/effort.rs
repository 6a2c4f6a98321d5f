//! STUB
/// x
#[derive(Debug)]
pub struct Effort;
impl Effort {
    /// x
    #[must_use]
    pub fn new(_: std::num::NonZero<usize>) -> Self {
        Self
    }
}
