//! The course of a run: trouble, quiet, the last fault, calm, and the verdict.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use futures_util::future::join_all;
use outbox::OutboxHandle;
use sqlx::Transaction;
use tempfile::TempDir;
use testbed::Server;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::RunOptions;
use crate::bed::{Bed, PRODUCERS, tell};
use crate::clock;
use crate::dialect::Dialect;
use crate::evidence::{self, Evidence, Look};
use crate::faults::{Made, make_all};
use crate::ledger::now;
use crate::plan::{Fault, WORKERS, plan};
use crate::processes::Mood;
use crate::producer::{OPEN, PROBE, Placed, Undone, write};
use crate::prompt;
use crate::pulse;
use crate::report;
use crate::script::{Order, Queue, Script};
use crate::verdict::{self, Invariant};
use crate::worker::LEASE;

/// How long nothing may move, once nothing goes wrong any more, before everything is settled.
const DRAIN: Duration = Duration::from_secs(60);
/// What the promise G8 grants beside the lease.
pub(crate) const GRACE: Duration = Duration::from_secs(5);
/// How long a handler that hangs may keep its partition, and on SQLite everybody: in a batch it is tried three
/// times before anything smaller is.
pub(crate) const HANGING: Duration = Duration::from_secs(6);
/// When everything that is committed has its number, at the latest.
const NUMBERED: Duration = LEASE.duration.saturating_add(GRACE).saturating_add(HANGING);

/// Tortures one database. Whether every promise was kept.
pub(crate) async fn run(options: &RunOptions) -> Result<bool> {
    match options.db {
        Server::Postgres => run_on::<sqlx::Postgres>(options).await,
        Server::MariaDb | Server::MySql => run_on::<sqlx::MySql>(options).await,
        Server::Sqlite => run_on::<sqlx::Sqlite>(options).await,
    }
}

async fn run_on<DB: Dialect>(options: &RunOptions) -> Result<bool> {
    let seed = options.schedule.seed.unwrap_or_else(rand::random);
    let mut plan = plan(options.db, seed, options.schedule.duration());
    if clock::library().is_none() {
        eprintln!("no libfaketime here: the clocks of the workers stay as they are");
        plan.retain(|planned| !matches!(planned.fault, Fault::WorkerAhead | Fault::WorkerBehind));
    }
    eprintln!(
        "{}: seed {seed}, {} faults in {} s, {WORKERS} workers, {PRODUCERS} producers; the schedule is in {}",
        options.db,
        plan.len(),
        options.schedule.seconds,
        report::write_plan(options, &plan)?.display()
    );
    let (bed, handle) = Bed::<DB>::make(options.db, seed, options.schedule.duration()).await?;
    let bed = Arc::new(bed);
    let evidence = torture(&bed, handle, &plan).await;
    bed.bar.finish_and_clear();
    let evidence = match evidence {
        Ok(evidence) => evidence,
        Err(error) => {
            let kept = keep_logs(&bed.folder, options)?;
            return Err(error.context(format!("the logs are in {}", kept.display())));
        }
    };
    let verdict = verdict::judge(&evidence);
    let summary = report::write(options, seed, &plan, &evidence, &verdict)?;
    print!("{summary}");
    if !verdict.is_kept() {
        let kept = keep_logs(&bed.folder, options)?;
        println!("the logs and ledgers are in {}", kept.display());
    }
    Ok(verdict.is_kept())
}

/// From the first process to the last.
async fn torture<DB: Dialect>(
    bed: &Arc<Bed<DB>>,
    handle: OutboxHandle<DB>,
    plan: &[crate::plan::Planned],
) -> Result<Evidence> {
    let mut producers = bed.start_producers()?;
    let over = CancellationToken::new();
    let supervisor = tokio::spawn(Arc::clone(bed).supervise(over.clone()));
    let pulse = pulse::feel(bed.folder.path(), over.clone());
    let watcher = tokio::spawn(Arc::clone(bed).watch(over.clone()));

    let mut faults = tokio::select! {
        faults = make_all(bed, plan) => faults?,
        never = bed.pace(&mut producers) => match never? {},
    };
    bed.say("no more trouble".to_owned());
    bed.restore_wires();
    tell(&mut producers, Mood::Hushed).await?;
    // Whoever lived through it has to go on by himself.
    let spared = now();
    bed.settle_all("after the last fault").await;
    let spared = (spared, now());

    // The last fault of all: nobody is left. From here on the promise counts, for each partition's next
    // message, which has none before it to wait for.
    let from = now();
    let mut workers = join_all((0..WORKERS).map(|worker| bed.worker(worker))).await;
    for worker in &mut workers {
        worker.kill().await;
    }
    for worker in &mut workers {
        worker.replace().await?;
    }
    drop(workers);
    let healed = now();
    faults.extend((0..WORKERS).map(|worker| Made {
        fault: Fault::KillWorker,
        worker,
        from,
        to: healed,
        hit: true,
    }));
    let open = bed.open_everywhere().await;
    bed.probe().await;
    bed.say("everything moves again?".to_owned());
    sleep(LEASE.duration + GRACE).await;
    if let Some(open) = open {
        let committed = open.commit().await.err();
        let wrong = committed.map(|error| format!("what was open did not commit: {error}"));
        bed.blame(Invariant::ProducersUnhurt, wrong).await;
    }
    tell(&mut producers, Mood::Calm).await?;
    let since = now();
    // Long enough for others to find most leases that nobody renews.
    sleep(LEASE.duration * 5).await;
    let calm = (since, now());
    let crowded = evidence::too_many_sessions(bed).await?;
    bed.blame(Invariant::NothingLeft, crowded).await;

    let mut said = Vec::new();
    for producer in &mut producers {
        match producer.stop().await {
            Ok(mut lines) => said.append(&mut lines),
            Err(error) => {
                let wrong = format!("a producer: {error:#}");
                bed.blame(Invariant::ProducersUnhurt, [wrong]).await;
            }
        }
    }
    if bed.settle_all("in the end").await {
        bed.wait_swept().await?;
    }
    over.cancel();
    let looks = watcher.await?;
    faults.extend(supervisor.await??);
    for number in 0..WORKERS {
        let mut worker = bed.worker(number).await;
        if let Err(error) = worker.stop().await {
            let wrong = format!("worker {number}: {error:#}");
            bed.blame(Invariant::MovesAgain, [wrong]).await;
            worker.kill().await;
        }
    }
    handle.stop().await;
    let waits = match prompt::waits(&bed.strangers).await {
        Ok(waits) => waits,
        Err(error) => {
            bed.blame(Invariant::Prompt, [format!("{error:#}")]).await;
            Vec::new()
        }
    };
    bed.say("looking for losses".to_owned());
    let mut found = evidence::gather(bed, calm.0).await?;
    found.broken.extend(bed.blamed().await);
    Ok(Evidence {
        faults,
        said,
        looks,
        spared,
        healed,
        calm,
        waits,
        halts: pulse.await??,
        ..found
    })
}

impl<DB: Dialect> Bed<DB> {
    /// Waits until everything that is committed now is settled. Whether it is. Nobody sees a partition stand
    /// still whose messages have no numbers: that they get them soon is asked here.
    async fn settle_all(&self, when: &str) -> bool {
        let began = Instant::now();
        let mut until = began + DRAIN;
        let (mut committed, mut before) = (None, 0);
        let mut wanted: Option<Look> = None;
        loop {
            let found = self.progress(&mut committed).await;
            if let (Ok(found), Some(committed)) = (&found, committed) {
                if found.sequenced() >= committed && wanted.is_none() {
                    wanted = Some(found.clone());
                    let late = Some(began.elapsed()).filter(|took| *took > NUMBERED);
                    let late = late.map(|took| format!("{when} numbers took {took:?}"));
                    self.blame(Invariant::MovesAgain, late).await;
                }
                let settled = |wanted: &Look| {
                    let mut pairs = wanted.partitions.iter().zip(&found.partitions);
                    pairs.all(|(wanted, found)| found.processed_seq >= wanted.last_seq)
                };
                if wanted.as_ref().is_some_and(settled) {
                    return true;
                }
                // A slow disk is no reason to blame anybody.
                if found.settled() > before {
                    before = found.settled();
                    until = Instant::now() + DRAIN;
                }
            }
            if Instant::now() > until {
                let wrong = format!(
                    "{when} {committed:?} committed, wanted {wanted:?}, after {DRAIN:?} {found:?}"
                );
                self.blame(Invariant::MovesAgain, [wrong]).await;
                return false;
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn progress(&self, committed: &mut Option<i64>) -> Result<Look> {
        if committed.is_none() {
            *committed = Some(evidence::committed(&self.strangers).await?);
        }
        evidence::look(&self.strangers).await
    }

    /// Waits until what was settled is removed.
    async fn wait_swept(&self) -> Result<()> {
        let until = Instant::now() + DRAIN;
        while Instant::now() < until {
            if evidence::left_behind(&self.strangers).await?.is_empty() {
                return Ok(());
            }
            sleep(Duration::from_millis(100)).await;
        }
        // The verdict says what it is.
        Ok(())
    }

    /// A transaction that has a message for every partition and does not end; where others can write
    /// beside it. Nobody may have to wait for it.
    async fn open_everywhere(&self) -> Option<Transaction<'static, DB>> {
        if !DB::CONCURRENT {
            return None;
        }
        let opened = async {
            let mut transaction = self.strangers.begin_with(DB::BEGIN_WRITING).await?;
            write(&self.outbox, &mut transaction, &everywhere(OPEN)).await?;
            Ok::<_, Undone>(transaction)
        };
        match opened.await {
            Ok(transaction) => Some(transaction),
            Err(error) => {
                let wrong = format!("a transaction beside the probe failed: {error:?}");
                self.blame(Invariant::ProducersUnhurt, [wrong]).await;
                None
            }
        }
    }

    /// A message for every partition.
    async fn probe(&self) {
        for placed in everywhere(PROBE) {
            let probe = self
                .outbox
                .transaction(async |connection| write(&self.outbox, connection, &[placed]).await);
            if let Err(error) = probe.await {
                let wrong = format!("the probe was not enqueued: {error:?}");
                self.blame(Invariant::ProducersUnhurt, [wrong]).await;
            }
        }
    }
}

/// A message for every partition.
fn everywhere(producer: i64) -> Vec<Placed> {
    let partitions = 0..u32::from(Queue::PARTITIONS.count());
    let places = Queue::ALL
        .into_iter()
        .flat_map(|queue| partitions.clone().map(move |partition| (queue, partition)));
    let place = |(number, (queue, partition)): (i64, (Queue, u32))| Placed {
        order: Order {
            producer,
            number,
            script: Script::Fine,
        },
        queue,
        key: i64::from(partition),
        partition: Some(partition),
    };
    (0..).zip(places).map(place).collect()
}

/// Puts what the processes wrote where it stays.
fn keep_logs(folder: &TempDir, options: &RunOptions) -> Result<PathBuf> {
    let kept = options
        .schedule
        .reports
        .join("kept")
        .join(options.db.name());
    // What an earlier run left says nothing about this one.
    let _ = std::fs::remove_dir_all(&kept);
    std::fs::create_dir_all(&kept)?;
    for entry in std::fs::read_dir(folder.path())? {
        let entry = entry?;
        std::fs::copy(entry.path(), kept.join(entry.file_name()))?;
    }
    Ok(kept)
}
