//! Makes the faults, and undoes them.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures_util::future::{join_all, try_join_all};
use testbed::{After, Fault as WireFault, PrivateServer, Wire};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::bed::{Bed, producers_process};
use crate::dialect::Dialect;
use crate::ledger::now;
use crate::plan::{Fault, Planned, Reach};
use crate::producer::{LATE, Placed, Undone, write};
use crate::script::{Order, Queue, Script};
use crate::worker::LEASE;

/// How long a request that something waits for may keep it waiting.
pub(crate) const TRAP: Duration = Duration::from_secs(3);
/// How long a fault lasts that has an end of its own.
pub(crate) const WHILE: Duration = Duration::from_millis(1_500);

/// What a ledger may grow by while the disk is full.
const LEDGER_ROOM: u64 = 256 << 10;

/// How many connections a crowd asks for at once.
const SHOVE: usize = 16;

/// A fault that was made: what, to which worker, when, until when, and whether it found anything to
/// break: the request that a trap waited for may not have come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Made {
    pub(crate) fault: Fault,
    pub(crate) worker: usize,
    pub(crate) from: i64,
    pub(crate) to: i64,
    pub(crate) hit: bool,
}

impl Made {
    /// Whether it may have disturbed what this worker did.
    pub(crate) fn disturbs(&self, worker: usize) -> bool {
        match self.fault.reach() {
            Reach::Worker => self.worker == worker,
            Reach::All | Reach::Server => true,
            Reach::Producer | Reach::Nobody => false,
        }
    }

    /// Whether it may have taken the server away from the producers of a process.
    pub(crate) fn disturbs_producer(&self, process: usize) -> bool {
        match self.fault.reach() {
            Reach::Producer => self.hit && producers_process(self.worker) == process,
            Reach::Server => true,
            Reach::Worker | Reach::All | Reach::Nobody => false,
        }
    }
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
            let hit = make(&bed, planned)
                .await
                .with_context(|| format!("{}", planned.fault))?;
            anyhow::Ok(Made {
                fault: planned.fault,
                worker: planned.worker,
                from,
                to: now(),
                hit,
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

/// Makes one, and undoes it. Whether it found anything to break.
async fn make<DB: Dialect>(bed: &Bed<DB>, planned: Planned) -> Result<bool> {
    match planned.fault {
        Fault::KillWorker => {
            bed.worker(planned.worker).await.replace().await?;
            Ok(true)
        }
        Fault::Restart => {
            bed.restart(planned.worker).await?;
            Ok(true)
        }
        Fault::Freeze => {
            let worker = bed.worker(planned.worker).await;
            worker.freeze();
            sleep(LEASE.duration + Duration::from_millis(700)).await;
            worker.thaw();
            Ok(true)
        }
        Fault::KillBeforeRequest(n) => {
            bed.kill_at(planned.worker, n, WireFault::BeforeRequest)
                .await
        }
        Fault::KillAfterRequest(n) => bed.kill_at(planned.worker, n, WireFault::LostReply).await,
        Fault::KillServer => Ok(bed.end_server(PrivateServer::kill).await),
        Fault::StopServer => Ok(bed.end_server(PrivateServer::stop).await),
        Fault::ServerCrash => Ok(false),
        Fault::Cut
        | Fault::Reset
        | Fault::HalfClose
        | Fault::CutAfterBytes(_)
        | Fault::Blackhole
        | Fault::Delay
        | Fault::LoseCommit
        | Fault::LoseReply(_) => Ok(match bed.wire(planned.worker) {
            Some(wire) => disturb::<DB>(wire, planned.fault).await,
            None => false,
        }),
        Fault::ResetProducer => {
            bed.producers_wire(planned.worker).reset();
            Ok(true)
        }
        Fault::LoseProducersCommit => {
            let wire = bed.producers_wire(planned.worker);
            Ok(disturb::<DB>(wire, Fault::LoseCommit).await)
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

/// Does something to a wire. Whether that was any use.
async fn disturb<DB: Dialect>(wire: &Wire, fault: Fault) -> bool {
    match fault {
        Fault::Cut => wire.cut(),
        Fault::Reset => wire.reset(),
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
            return sprung(wire).await;
        }
        Fault::LoseReply(n) => {
            wire.fail_at(n, WireFault::LostReply, After::Cut);
            return sprung(wire).await;
        }
        _ => return false,
    }
    true
}

/// Waits for a trap, and takes it away: nobody else shall run into it later. Whether it sprang.
pub(crate) async fn sprung(wire: &Wire) -> bool {
    let _ = timeout(TRAP, wire.wait_tripped()).await;
    wire.disarm()
}

/// Strangers are as much disturbed by the other faults as anybody: what they cannot do is not done.
async fn unless_away(work: impl Future<Output = Result<(), Undone>>) -> Result<bool> {
    let done = work.await;
    if let Err(error) = &done {
        tracing::info!(?error, "a stranger gave up");
    }
    Ok(done.is_ok())
}

/// A producer that enqueues and stays, while others enqueue and commit.
async fn late_commit<DB: Dialect>(bed: &Bed<DB>) -> Result<bool> {
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
        sleep(WHILE * 2).await;
        Ok(transaction.commit().await?)
    })
    .await
}

async fn held_snapshot<DB: Dialect>(bed: &Bed<DB>) -> Result<bool> {
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
async fn leases<DB: Dialect>(bed: &Bed<DB>, until: &str) -> Result<bool> {
    let edit =
        format!("UPDATE outbox_processors SET lease_until = {until} WHERE holder IS NOT NULL");
    unless_away(async {
        let mut connection = bed.strangers.acquire().await?;
        Ok(DB::run(&mut connection, edit).await?)
    })
    .await
}

/// Somebody looks at the outbox's tables with locks, as a person at a console may.
async fn rows_locked<DB: Dialect>(bed: &Bed<DB>) -> Result<bool> {
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

/// Strangers who lock the same two rows in two orders; some handlers want them too. Whether anybody lost.
async fn deadlocks<DB: Dialect>(bed: &Bed<DB>) -> Result<bool> {
    let until = Instant::now() + WHILE;
    let fights = [[1, 2], [2, 1], [1, 2]].map(|rows| fight(bed, rows, until));
    let lost = try_join_all(fights).await?;
    Ok(lost.contains(&true))
}

async fn fight<DB: Dialect>(bed: &Bed<DB>, rows: [i64; 2], until: Instant) -> Result<bool> {
    let mut lost = false;
    while Instant::now() < until {
        lost |= !unless_away(async {
            let mut connection = bed.strangers.acquire().await?;
            connection.close_on_drop();
            DB::run(&mut connection, DB::DEADLOCKS_SOON.to_owned()).await?;
            DB::run(&mut connection, "BEGIN".to_owned()).await?;
            for row in rows {
                DB::run(&mut connection, booking(row)).await?;
            }
            Ok(DB::run(&mut connection, "COMMIT".to_owned()).await?)
        })
        .await?;
    }
    Ok(lost)
}

/// What strangers and handlers fight over.
pub(crate) fn booking(account: i64) -> String {
    format!("UPDATE accounts SET balance = balance + 1 WHERE id = {account}")
}

/// Takes every connection that the server gives. Whether none was left.
async fn crowd<DB: Dialect>(bed: &Bed<DB>) -> Result<bool> {
    let mut crowd = Vec::new();
    let mut full = false;
    let taking = async {
        while crowd.len() < 400 && !full {
            let shove = join_all((0..SHOVE).map(|_| bed.connect())).await;
            full = shove.iter().any(Result::is_err);
            crowd.extend(shove.into_iter().flatten());
        }
    };
    let _ = timeout(WHILE * 2, taking).await;
    sleep(WHILE / 2).await;
    drop(crowd);
    Ok(full)
}

/// Holds SQLite's write lock, well within everybody's patience.
async fn busy<DB: Dialect>(bed: &Bed<DB>) -> Result<bool> {
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

/// No worker can write beyond what its ledger needs.
async fn disk_full<DB: Dialect>(bed: &Bed<DB>) -> Result<bool> {
    bed.limit_files(Some(LEDGER_ROOM)).await;
    sleep(WHILE).await;
    bed.limit_files(None).await;
    Ok(true)
}
