//! The one place that knows where `tokio` comes from: the real one, or under `--cfg shuttle` a
//! stand-in whose every interleaving a test scheduler controls. Everything else in this crate names
//! `tokio` and `tokio_util` through here.

#[cfg(not(shuttle))]
pub(crate) use {::tokio, ::tokio_util};
#[cfg(shuttle)]
pub(crate) use {shuttle_tokio as tokio, shuttle_tokio_util as tokio_util};

use std::time::Duration;

/// Waits for `duration`; nothing at all still lets other tasks have their turn.
///
/// `sleep` rounds up to the timer's next millisecond, which would make a zero pace a slow one.
pub(crate) async fn pause(duration: Duration) {
    if duration.is_zero() {
        tokio::task::consume_budget().await;
    } else {
        tokio::time::sleep(duration).await;
    }
}
