//! Large messages: what a payload of 8 KiB does to producers and handlers.

use anyhow::Result;
use bench_contract::{Handler, Task};

use super::{Room, Sample, drain, enqueue};

const BYTES: usize = 8192;
/// So many fewer messages than of the usual size, for each is so much larger.
const FEWER: u64 = 8;

pub(crate) async fn run(room: &Room, name: &str) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for handler in [Handler::None, Handler::Leased] {
        let (fresh, task) = room.furnish(16).await?;
        let task = Task {
            payload_bytes: BYTES,
            handler,
            ..task
        };
        samples.push(if handler == Handler::None {
            enqueue::measure(room, &format!("{name}_enqueue_100"), 100, &task).await?
        } else {
            let count = room.budget.backlog / FEWER;
            drain::measure(room, &format!("{name}_drain"), count, 1, &task).await?
        });
        fresh.remove().await?;
    }
    Ok(samples)
}
