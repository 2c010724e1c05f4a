//! Makes the faults, and undoes them.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures_util::future::try_join_all;
use testbed::{After, Fault as WireFault};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::bed::Bed;
use crate::dialect::Dialect;
use crate::ledger::now;
use crate::plan::{Fault, Planned};
use crate::producer::{LATE, Placed, Undone, write};
use crate::script::{Order, Queue, Script};
use crate::worker::LEASE;

/// How long a request that something waits for may keep it waiting.
pub(crate) const TRAP: Duration = Duration::from_secs(3);
/// How long a fault lasts that has an end of its own.
pub(crate) const WHILE: Duration = Duration::from_millis(1_500);

/// What a ledger may grow by while the disk is full.
const LEDGER_ROOM: u64 = 256 << 10;

/// A fault that was made: what, when, and until when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Made {
    pub(crate) fault: Fault,
    pub(crate) from: i64,
    pub(crate) to: i64,
}

/// Makes the planned faults one after the other. Those that last go on beside the next.
pub(crate) async fn make_all<DB: Dialect>(
    bed: &Arc<Bed<DB>>,
    plan: &[Planned],
) -> Result<Vec<Made>> {
    let began = Instant::now();
    let mut lasting = JoinSet::new();
    let mut made = Vec::new();
    for planned in plan {
        tokio::time::sleep_until(began + planned.at).await;
        let (bed, planned) = (Arc::clone(bed), *planned);
        bed.say(format!("{}", planned.fault));
        let make = async move {
            let from = now();
            make(&bed, planned)
                .await
                .with_context(|| format!("{}", planned.fault))?;
            anyhow::Ok(Made {
                fault: planned.fault,
                from,
                to: now(),
            })
        };
        lasting.spawn(make);
        while let Some(done) = lasting.try_join_next() {
            made.push(done??);
        }
    }
    while let Some(done) = lasting.join_next().await {
        made.push(done??);
    }
    made.sort_by_key(|made| made.from);
    Ok(made)
}

async fn make<DB: Dialect>(bed: &Bed<DB>, planned: Planned) -> Result<()> {
    match planned.fault {
        Fault::KillWorker => bed.worker(planned.worker).await.replace().await,
        Fault::Restart => bed.restart(planned.worker).await,
        Fault::Freeze => {
            let worker = bed.worker(planned.worker).await;
            worker.freeze();
            sleep(LEASE.duration + Duration::from_millis(700)).await;
            worker.thaw();
            Ok(())
        }
        Fault::KillBeforeRequest(n) => {
            bed.kill_at(planned.worker, n, WireFault::BeforeRequest)
                .await
        }
        Fault::KillAfterRequest(n) => bed.kill_at(planned.worker, n, WireFault::LostReply).await,
        Fault::KillServer => bed.kill_server().await,
        Fault::Cut
        | Fault::HalfClose
        | Fault::CutAfterBytes(_)
        | Fault::Blackhole
        | Fault::Delay
        | Fault::LoseCommit
        | Fault::LoseReply(_) => {
            disturb(bed, planned).await;
            Ok(())
        }
        Fault::LateCommit => late_commit(bed).await,
        Fault::HeldSnapshot => held_snapshot(bed).await,
        Fault::LeasesExpire => leases(bed, "0").await,
        Fault::LeasesLast => leases(bed, &format!("{} + 3600000", DB::NOW)).await,
        Fault::WorkerAhead => bed.set_clock(planned.worker, "+3600s").await,
        Fault::WorkerBehind => bed.set_clock(planned.worker, "-3600s").await,
        Fault::RowsLocked => rows_locked(bed).await,
        Fault::Deadlocks => deadlocks(bed).await,
        Fault::Crowd => crowd(bed).await,
        Fault::Busy => busy(bed).await,
        Fault::DiskFull => disk_full(bed).await,
    }
}

/// Does something to the wire of a worker.
async fn disturb<DB: Dialect>(bed: &Bed<DB>, planned: Planned) {
    let Some(wire) = bed.wire(planned.worker) else {
        return;
    };
    match planned.fault {
        Fault::Cut => wire.cut(),
        Fault::HalfClose => wire.half_close(),
        Fault::CutAfterBytes(bytes) => wire.cut_after(bytes),
        Fault::Blackhole => {
            wire.go_silent();
            sleep(LEASE.duration).await;
            wire.heal();
        }
        Fault::Delay => {
            wire.delay(Duration::from_millis(60));
            sleep(WHILE).await;
            wire.delay(Duration::ZERO);
        }
        Fault::LoseCommit => {
            wire.fail_on(DB::COMMIT, WireFault::LostReply, After::Cut);
            let _ = timeout(TRAP, wire.wait_tripped()).await;
        }
        Fault::LoseReply(n) => {
            wire.fail_at(n, WireFault::LostReply, After::Cut);
            let _ = timeout(TRAP, wire.wait_tripped()).await;
        }
        _ => {}
    }
}

/// Strangers are as much disturbed by the other faults as anybody: what they cannot do is not done.
async fn unless_away(work: impl Future<Output = Result<(), Undone>>) -> Result<()> {
    if let Err(error) = work.await {
        tracing::info!(?error, "a stranger gave up");
    }
    Ok(())
}

/// A producer that enqueues and stays, while others enqueue and commit.
async fn late_commit<DB: Dialect>(bed: &Bed<DB>) -> Result<()> {
    let late = bed.next_late();
    unless_away(async {
        let mut transaction = bed.strangers.begin_with(DB::BEGIN_WRITING).await?;
        for (number, queue) in (late * 2..).zip(Queue::ALL) {
            let order = Order {
                producer: LATE,
                number,
                script: Script::Fine,
            };
            // A key of its own: its messages come after those that committed before.
            let placed = Placed {
                order,
                queue,
                key: number,
                partition: None,
            };
            write(&bed.outbox, &mut transaction, &[placed]).await?;
        }
        if DB::CONCURRENT {
            sleep(WHILE * 2).await;
        }
        Ok(transaction.commit().await?)
    })
    .await
}

async fn held_snapshot<DB: Dialect>(bed: &Bed<DB>) -> Result<()> {
    unless_away(async {
        let mut connection = bed.strangers.acquire().await?;
        connection.close_on_drop();
        DB::run(&mut connection, DB::HELD.to_owned()).await?;
        sleep(WHILE * 3).await;
        Ok(DB::run(&mut connection, "ROLLBACK".to_owned()).await?)
    })
    .await
}

/// What a clock that was set does to the leases that are held.
async fn leases<DB: Dialect>(bed: &Bed<DB>, until: &str) -> Result<()> {
    let edit =
        format!("UPDATE outbox_processors SET lease_until = {until} WHERE holder IS NOT NULL");
    unless_away(async {
        let mut connection = bed.strangers.acquire().await?;
        Ok(DB::run(&mut connection, edit).await?)
    })
    .await
}

/// Somebody looks at the outbox's tables with locks, as a person at a console may.
async fn rows_locked<DB: Dialect>(bed: &Bed<DB>) -> Result<()> {
    unless_away(async {
        let mut transaction = bed.strangers.begin_with(DB::BEGIN_WRITING).await?;
        for table in ["outbox_partitions", "outbox_processors"] {
            let lock = format!("SELECT * FROM {table} ORDER BY partition_id FOR UPDATE");
            DB::run(&mut transaction, lock).await?;
        }
        sleep(WHILE).await;
        Ok(transaction.rollback().await?)
    })
    .await
}

/// Strangers who lock the same two rows in two orders.
async fn deadlocks<DB: Dialect>(bed: &Bed<DB>) -> Result<()> {
    let until = Instant::now() + WHILE;
    let fights = [[1, 2], [2, 1], [1, 2]].map(|rows| fight(bed, rows, until));
    try_join_all(fights).await.map(drop)
}

async fn fight<DB: Dialect>(bed: &Bed<DB>, rows: [u8; 2], until: Instant) -> Result<()> {
    while Instant::now() < until {
        unless_away(async {
            let mut connection = bed.strangers.acquire().await?;
            connection.close_on_drop();
            DB::run(&mut connection, DB::DEADLOCKS_SOON.to_owned()).await?;
            DB::run(&mut connection, "BEGIN".to_owned()).await?;
            for row in rows {
                let update = format!("UPDATE accounts SET balance = balance + 1 WHERE id = {row}");
                DB::run(&mut connection, update).await?;
            }
            Ok(DB::run(&mut connection, "COMMIT".to_owned()).await?)
        })
        .await?;
    }
    Ok(())
}

/// Takes every connection that the server gives.
async fn crowd<DB: Dialect>(bed: &Bed<DB>) -> Result<()> {
    let mut crowd = Vec::new();
    let taking = async {
        while crowd.len() < 400
            && let Ok(connection) = bed.connect().await
        {
            crowd.push(connection);
        }
    };
    let _ = timeout(WHILE, taking).await;
    sleep(WHILE / 2).await;
    drop(crowd);
    Ok(())
}

/// Holds SQLite's write lock, well within everybody's patience.
async fn busy<DB: Dialect>(bed: &Bed<DB>) -> Result<()> {
    unless_away(async {
        let mut transaction = bed.strangers.begin_with(DB::BEGIN_WRITING).await?;
        DB::run(
            &mut transaction,
            "UPDATE accounts SET balance = 0".to_owned(),
        )
        .await?;
        sleep(WHILE).await;
        Ok(transaction.rollback().await?)
    })
    .await
}

/// No process of the bed can write beyond what its ledger needs.
async fn disk_full<DB: Dialect>(bed: &Bed<DB>) -> Result<()> {
    bed.limit_files(Some(LEDGER_ROOM)).await;
    sleep(WHILE).await;
    bed.limit_files(None).await;
    Ok(())
}
