//! From a commit's return to the handler's call, message by message: in one process and across two,
//! idle (a message now and then) and at 300/s.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Result;
use bench_contract::{Handler, Production, Progress, Report, Task};

use super::{Room, Sample, Unit};

/// What is committed sooner after the first commit does not count, for anybody: connections are new,
/// statements not planned, partitions not claimed.
const WARM_UP: Duration = Duration::from_millis(500);
/// Messages per second, and what the row's name ends with.
const RATES: [(f64, &str); 2] = [(20.0, "_idle"), (300.0, "")];

fn task(room: &Room, task: &Task, rate: f64) -> Task {
    let millis = u64::try_from((room.budget.latency + WARM_UP).as_millis()).ok();
    let production = Production {
        // One producer at 300/s would wait for its own commits.
        producers: if rate > 100.0 { 8 } else { 1 },
        per_transaction: 1,
        count: None,
        millis,
        rate: Some(rate),
    };
    Task {
        low_latency: true,
        timestamps: true,
        capacity: 1 << 20,
        production: Some(production),
        ..task.clone()
    }
}

pub(crate) async fn in_process(room: &Room, name: &str) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for (rate, ending) in RATES {
        let (fresh, furnished) = room.furnish(16).await?;
        let task = Task {
            handler: Handler::Leased,
            ..task(room, &furnished, rate)
        };
        let mut process = room.spawn(&task).await?;
        process.go().await?;
        let patience = WARM_UP + room.budget.latency + room.budget.patience;
        process.wait(patience, Progress::all_arrived).await?;
        let report = process.stop().await?;
        samples.push(sample(room, format!("{name}{ending}"), &report, &report));
        fresh.remove().await?;
    }
    Ok(samples)
}

pub(crate) async fn cross_process(room: &Room, name: &str) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for (rate, ending) in RATES {
        let (fresh, furnished) = room.furnish(16).await?;
        let producing = Task {
            background: true,
            ..task(room, &furnished, rate)
        };
        let handling = Task {
            handler: Handler::Leased,
            production: None,
            background: false,
            ..producing.clone()
        };
        let mut handler = room.spawn(&handling).await?;
        let mut producer = room.spawn(&producing).await?;
        handler.go().await?;
        // Whoever starts up late is not what is measured.
        tokio::time::sleep(Duration::from_millis(500)).await;
        producer.go().await?;
        producer
            .wait(room.budget.patience * 2, |progress| {
                progress.production_done
            })
            .await?;
        let produced = producer.progress.produced;
        handler
            .wait(room.budget.patience, |progress| {
                progress.handled >= produced
            })
            .await?;
        let (handled, produced) = (handler.stop().await?, producer.stop().await?);
        samples.push(sample(room, format!("{name}{ending}"), &produced, &handled));
        fresh.remove().await?;
    }
    Ok(samples)
}

fn sample(room: &Room, row: String, produced: &Report, handled: &Report) -> Sample {
    let at: HashMap<u64, u64> = handled.handled_at.iter().copied().collect();
    let waited_nanos = u64::try_from(room.budget.patience.as_nanos()).unwrap_or(u64::MAX);
    // A handler may well be called before the producer hears of its commit: no time at all. What never
    // came counts as what it was waited for.
    let latency = |(id, committed): &(u64, u64)| {
        let nanos = at
            .get(id)
            .map_or(waited_nanos, |at| at.saturating_sub(*committed));
        nanos as f64 / 1e6
    };
    let first = produced.committed_at.iter().map(|(_, at)| *at).min();
    let counts_from = first.unwrap_or(0) + u64::try_from(WARM_UP.as_nanos()).unwrap_or(0);
    let warm = |(_, committed): &&(u64, u64)| *committed >= counts_from;
    let committed = produced.committed_at.iter();
    let mut millis: Vec<f64> = committed.filter(warm).map(latency).collect();
    millis.sort_by(f64::total_cmp);
    let mut sample = Sample::new(row, quantile(&millis, 0.5), Unit::Milliseconds);
    sample.p99 = Some(quantile(&millis, 0.99));
    sample.more.insert("messages", millis.len() as f64);
    let sums = (produced.produced, produced.produced_id_sum);
    let mut both = vec![handled.clone()];
    if handled.produced == 0 {
        both.push(Report {
            handled: 0,
            ..produced.clone()
        });
    }
    room.verify(&mut sample, sums, &both);
    sample.distribution = millis;
    sample
}

/// Of sorted figures.
pub(crate) fn quantile(sorted: &[f64], q: f64) -> f64 {
    let last = sorted.len().saturating_sub(1) as f64;
    sorted
        .get((last * q).round() as usize)
        .copied()
        .unwrap_or(f64::NAN)
}
