//! The one clock of all processes of a run.

use std::time::{SystemTime, UNIX_EPOCH};

/// Nanoseconds since 1970: the same in every process of this machine.
pub fn now_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    })
}
