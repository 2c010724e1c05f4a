//! What to do with a caught panic: read its message, and get rid of it safely.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a panic said, for people.
pub fn message(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a value that is not text")
}

pub(crate) fn describe(payload: &(dyn Any + Send)) -> String {
    format!("panic: {}", message(payload))
}

/// Drops a panic's payload. A payload may panic while it is dropped, and the payload of *that* panic
/// as well, so the second one is leaked rather than dropped.
pub fn discard(payload: Box<dyn Any + Send>) {
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(second);
    }
}
