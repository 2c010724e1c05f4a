//! A periodic knock on a worker's door, for work that nobody announces.

use std::sync::Arc;
use std::time::Duration;

use crate::runtime::tokio::sync::Notify;
use crate::runtime::tokio::task::JoinHandle;
use crate::runtime::tokio_util::sync::CancellationToken;
use crate::runtime::{pause, tokio};

/// The shortest interval a poker takes; anything shorter would be a busy loop.
pub const MIN_INTERVAL: Duration = Duration::from_millis(1);

/// Spawns a task that notifies every `interval`, for the first time after one interval, until
/// `cancel` fires. An interval below [`MIN_INTERVAL`] is taken as that.
///
/// # Panics
///
/// Outside a tokio runtime, like [`tokio::spawn`](https://docs.rs/tokio/latest/tokio/fn.spawn.html).
pub fn poker(interval: Duration, cancel: CancellationToken) -> (Arc<Notify>, JoinHandle<()>) {
    let notify = Arc::new(Notify::new());
    let handle = tokio::task::spawn({
        let notify = Arc::clone(&notify);
        let interval = interval.max(MIN_INTERVAL);
        async move {
            while cancel.run_until_cancelled(pause(interval)).await.is_some() {
                notify.notify_one();
            }
        }
    });
    (notify, handle)
}
