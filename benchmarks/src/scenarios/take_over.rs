//! A process dies without a word while messages keep coming: how long until the other one handles
//! messages of every partition.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Result;
use bench_contract::{Handler, Production, Task, now_nanos};

use super::{Room, Sample, Unit};

/// Both processes have their share by then.
const SETTLE: Duration = Duration::from_secs(5);
/// No take-over takes longer, or it is not one.
const LONGEST: Duration = Duration::from_secs(75);

pub(crate) async fn run(room: &Room, name: &str) -> Result<Vec<Sample>> {
    let (fresh, task) = room.furnish(16).await?;
    let handling = Task {
        handler: Handler::Leased,
        low_latency: true,
        timestamps: true,
        capacity: 1 << 20,
        ..task
    };
    let producing = Task {
        handler: Handler::None,
        background: true,
        production: Some(Production {
            producers: 8,
            per_transaction: 1,
            count: None,
            millis: None,
            rate: Some(300.0),
        }),
        ..handling.clone()
    };
    let mut victim = room.spawn(&handling).await?;
    let mut heir = room.spawn(&handling).await?;
    let mut producer = room.spawn(&producing).await?;
    for process in [&mut victim, &mut heir, &mut producer] {
        process.go().await?;
    }
    tokio::time::sleep(SETTLE).await;
    let killed = now_nanos();
    victim.kill().await?;
    let (mut last, mut quiet) = (heir.progress, 0);
    let until = tokio::time::Instant::now() + LONGEST;
    // Over when the heir is as fast as the producers for a while, or the time is.
    while tokio::time::Instant::now() < until && quiet < 3 {
        heir.wait(Duration::from_secs(1), |_| false).await?;
        producer.wait(Duration::from_millis(1), |_| false).await?;
        let caught_up = heir.progress.handled - last.handled >= 250;
        let missing = producer
            .progress
            .produced
            .saturating_sub(heir.progress.handled)
            > 60 * 300;
        quiet = if caught_up && !missing { quiet + 1 } else { 0 };
        last = heir.progress;
    }
    let (heir, producer) = (heir.stop().await?, producer.stop().await?);
    fresh.remove().await?;
    let mut first: HashMap<u64, u64> = HashMap::new();
    for (id, at) in heir.handled_at.iter().filter(|(_, at)| *at >= killed) {
        let first = first.entry(id % 16).or_insert(*at);
        *first = (*at).min(*first);
    }
    let longest = first.values().max().filter(|_| first.len() == 16);
    let nanos = longest.map_or(LONGEST.as_nanos() as f64, |at| (at - killed) as f64);
    let mut sample = Sample::new(name, nanos / 1e6, Unit::Milliseconds);
    if first.len() < 16 {
        let missing = 16 - first.len();
        sample
            .remarks
            .push(format!("{missing} partitions were not taken over in time"));
    }
    room.note_errors(&mut sample, &[heir, producer]);
    Ok(vec![sample])
}
