//! What a handler answers.

/// How a batch ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandlerResult {
    /// All is well: settle what was handled.
    Success,
    /// Not now: settle what was handled before, and deliver the rest again after a backoff.
    Retry {
        /// Why, for the operator.
        reason: String,
    },
    /// Never: the message at fault goes to the dead letters.
    Reject {
        /// Why, for the operator.
        reason: String,
    },
}

/// How one message ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageResult {
    /// Handled.
    Ok,
    /// Not now: deliver it again after a backoff.
    Retry,
    /// Never: it goes to the dead letters, for this reason.
    Reject(String),
}
