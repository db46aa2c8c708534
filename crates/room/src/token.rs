//! What visitors carry.

/// Why a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It is not a token, or not one of ours.
    #[error("not readable")]
    Malformed,
}
