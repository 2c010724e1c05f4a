//! Producers and handlers together in one process: what goes all the way through while producers are
//! at work. What they ran ahead by does not count, but must arrive afterwards.

use anyhow::Result;
use bench_contract::{Handler, Production, Progress, Task};

use super::enqueue::PLENTY;
use super::{Room, Sample, Unit};

pub(crate) async fn run(room: &Room, name: &str) -> Result<Vec<Sample>> {
    let (fresh, task) = room.furnish(16).await?;
    let time = room.budget.end_to_end;
    let mut process = room
        .spawn(&Task {
            handler: Handler::Leased,
            production: Some(Production::flat_out(1, time)),
            capacity: PLENTY,
            ..task
        })
        .await?;
    process.go().await?;
    process
        .wait(time + room.budget.patience, |progress| {
            progress.production_done
        })
        .await?;
    process
        .wait(room.budget.patience, Progress::all_arrived)
        .await?;
    let report = process.stop().await?;
    let seconds = report.production_nanos as f64 / 1e9;
    let rate = report.handled_during_production as f64 / seconds;
    let mut sample = Sample::new(name, rate, Unit::MessagesPerSecond);
    sample
        .more
        .insert("enqueued_per_second", report.produced as f64 / seconds);
    room.verify(
        &mut sample,
        (report.produced, report.produced_id_sum),
        &[report],
    );
    fresh.remove().await?;
    Ok(vec![sample])
}
