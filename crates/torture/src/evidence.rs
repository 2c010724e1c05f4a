//! What is found when everything is over: in the application's tables, in the ledgers, and in the
//! outbox's own tables by plain SQL. Nothing here asks the outbox.

use anyhow::Result;
use sqlx::Pool;

use crate::bed::{Bed, SESSIONS};
use crate::dialect::Dialect;
use crate::faults::Made;
use crate::ledger::{self, Delivery, millis, now};
use crate::script::{Queue, Script};
use crate::seat;
use crate::verdict::Invariant;
use crate::worker::LEASE;

/// How far it was at some moment.
#[derive(Debug, Clone)]
pub(crate) struct Look {
    pub(crate) at: i64,
    pub(crate) partitions: Vec<Partition>,
}

impl Look {
    pub(crate) fn sequenced(&self) -> i64 {
        self.partitions.iter().map(|one| one.last_seq).sum()
    }

    pub(crate) fn settled(&self) -> i64 {
        self.partitions.iter().map(|one| one.processed_seq).sum()
    }
}

/// A message whose transaction committed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Committed {
    pub(crate) producer: i64,
    pub(crate) number: i64,
    pub(crate) queue: Queue,
    pub(crate) key: i64,
    pub(crate) script: Script,
    pub(crate) id: i64,
}

/// What a transactional handler wrote, in the order in which it was written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effect {
    pub(crate) partition: i64,
    pub(crate) seq: i64,
    pub(crate) epoch: i64,
    pub(crate) attempts: i64,
    pub(crate) producer: i64,
    pub(crate) number: i64,
    pub(crate) at: i64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Dead {
    pub(crate) queue: Queue,
    pub(crate) partition: i64,
    pub(crate) seq: i64,
    pub(crate) id: i64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Partition {
    pub(crate) queue: Queue,
    pub(crate) partition: i64,
    pub(crate) last_seq: i64,
    pub(crate) processed_seq: i64,
    pub(crate) epoch: i64,
    /// Somebody holds it whose lease has run out.
    pub(crate) overdue: bool,
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    pub(crate) committed: Vec<Committed>,
    pub(crate) effects: Vec<Effect>,
    pub(crate) deliveries: Vec<Delivery>,
    pub(crate) dead: Vec<Dead>,
    pub(crate) partitions: Vec<Partition>,
    pub(crate) faults: Vec<Made>,
    pub(crate) looks: Vec<Look>,
    /// What the producers said: what was committed, and errors.
    pub(crate) said: Vec<String>,
    /// When the faults of the plan were over, and until when everybody was left alone then.
    pub(crate) spared: (i64, i64),
    /// When the last fault was over.
    pub(crate) healed: i64,
    /// Since when nobody had a reason to change hands, and until when.
    pub(crate) calm: (i64, i64),
    /// How long announced messages took in the end, in milliseconds, sorted; and how long they may.
    pub(crate) waits: Vec<i64>,
    pub(crate) at_once: i64,
    /// When the machine itself went on that had stood still, whatever its database did.
    pub(crate) halts: Vec<i64>,
    /// What was seen at once to be wrong.
    pub(crate) broken: Vec<(Invariant, String)>,
}

impl Evidence {
    /// What was seen while nobody had a reason to change hands.
    pub(crate) fn calm_looks(&self) -> Vec<&Look> {
        let (from, to) = self.calm;
        let calm = |look: &&Look| (from..=to).contains(&look.at);
        self.looks.iter().filter(calm).collect()
    }

    /// Whether the machine itself stood still then, or right before: its leases may have run out, and nobody
    /// is to blame.
    pub(crate) fn halted_since_calm(&self) -> bool {
        let (from, _) = self.calm;
        let lease = millis(LEASE.duration);
        self.halts.iter().any(|over| from - lease < *over)
    }
}

fn long<DB: Dialect>(expression: &str) -> String {
    format!("CAST({expression} AS {})", DB::LONG)
}

/// The number of a partition's queue.
fn queue<DB: Dialect>() -> String {
    let [first, second] = Queue::ALL;
    long::<DB>(&format!(
        "CASE p.queue WHEN '{}' THEN {} ELSE {} END",
        first.name(),
        first.number(),
        second.number()
    ))
}

async fn rows<DB: Dialect, const N: usize>(pool: &Pool<DB>, sql: String) -> Result<Vec<[i64; N]>> {
    let mut connection = pool.acquire().await?;
    Ok(DB::rows(&mut connection, sql).await?)
}

pub(crate) async fn look<DB: Dialect>(pool: &Pool<DB>) -> Result<Look> {
    let partitions = partitions(pool).await?;
    Ok(Look {
        at: now(),
        partitions,
    })
}

async fn partitions<DB: Dialect>(pool: &Pool<DB>) -> Result<Vec<Partition>> {
    let sql = format!(
        "SELECT {}, {}, p.last_seq, c.processed_seq, c.epoch, {} FROM outbox_partitions p \
         JOIN outbox_processors c ON c.partition_id = p.partition_id ORDER BY p.partition_id",
        queue::<DB>(),
        long::<DB>("p.partition"),
        long::<DB>(&format!(
            "CASE WHEN c.holder IS NOT NULL AND c.lease_until < {} THEN 1 ELSE 0 END",
            DB::NOW
        ))
    );
    let found = rows(pool, sql).await?.into_iter();
    let partition = |[queue, partition, last_seq, processed_seq, epoch, overdue]: [i64; 6]| {
        Some(Partition {
            queue: Queue::of(queue)?,
            partition,
            last_seq,
            processed_seq,
            epoch,
            overdue: overdue == 1,
        })
    };
    Ok(found.filter_map(partition).collect())
}

/// The one number a query answers.
async fn number<DB: Dialect>(pool: &Pool<DB>, sql: String) -> Result<i64> {
    let found = rows(pool, sql).await?;
    Ok(found.first().map_or(0, |[number]| *number))
}

/// How many messages are committed.
pub(crate) async fn committed<DB: Dialect>(pool: &Pool<DB>) -> Result<i64> {
    number(pool, "SELECT COUNT(*) FROM business".to_owned()).await
}

/// What is still there of what should go: rows, leases, processes.
pub(crate) async fn left_behind<DB: Dialect>(pool: &Pool<DB>) -> Result<Vec<String>> {
    let mut left = Vec::new();
    for table in DB::PASSING {
        let count = number(pool, format!("SELECT COUNT(*) FROM {table}")).await?;
        if count > 0 {
            left.push(format!("{count} rows in {table}"));
        }
    }
    Ok(left)
}

/// More sessions than all processes together may have, while they run.
pub(crate) async fn too_many_sessions<DB: Dialect>(bed: &Bed<DB>) -> Result<Option<String>> {
    if !DB::CONCURRENT {
        return Ok(None);
    }
    let sessions = number(&bed.strangers, DB::OTHERS.to_owned()).await?;
    let most = i64::from(SESSIONS);
    Ok((sessions > most).then(|| format!("{sessions} sessions of {most} at most")))
}

/// How long after the last sign of life nobody remembers a process that was killed, in milliseconds: fifty
/// seconds, and as many until somebody has looked.
const FORGOTTEN: i64 = 100_000;

/// What is still there when all processes have stopped, those that lived since then in order.
async fn left_over<DB: Dialect>(bed: &Bed<DB>, since: i64) -> Result<Vec<String>> {
    let mut left = left_behind(&bed.strangers).await?;
    // One that was killed is forgotten when nobody can take it for alive any more; not before, and not
    // much later.
    let forgotten = format!(
        "SELECT COUNT(*) FROM outbox_processes WHERE seen_at > {now} - {since} \
         OR seen_at < {now} - {since} - {FORGOTTEN}",
        now = DB::NOW,
        since = now() - since
    );
    for (what, sql) in [
        (
            "leases",
            "SELECT COUNT(*) FROM outbox_processors WHERE holder IS NOT NULL",
        ),
        ("processes", &*forgotten),
    ] {
        let count = number(&bed.strangers, sql.to_owned()).await?;
        if count > 0 {
            left.push(format!("{count} {what}"));
        }
    }
    bed.strangers.close().await;
    bed.restore_wires();
    let mut connection = bed.connect().await?;
    // A server takes a moment to notice that a connection has closed.
    let until = tokio::time::Instant::now() + std::time::Duration::from_secs(10);
    loop {
        let others = DB::rows(&mut connection, DB::OTHERS.to_owned()).await?;
        let others = others.first().map_or(0, |[others]| *others);
        if others == 0 {
            return Ok(left);
        }
        if tokio::time::Instant::now() > until {
            left.push(format!("{others} connections"));
            return Ok(left);
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

/// Everything, when all processes have stopped.
pub(crate) async fn gather<DB: Dialect>(bed: &Bed<DB>, since: i64) -> Result<Evidence> {
    let pool = &bed.strangers;
    let mut evidence = Evidence {
        partitions: partitions(pool).await?,
        at_once: DB::AT_ONCE,
        ..Evidence::default()
    };
    let sql = "SELECT part, epoch_before, epoch_after, cursor_before, cursor_after FROM setbacks";
    for [partition, epoch, next_epoch, cursor, next_cursor] in rows(pool, sql.to_owned()).await? {
        let setback = format!(
            "partition {partition}: from {cursor} under {epoch} to {next_cursor} under {next_epoch}"
        );
        evidence.broken.push((Invariant::EpochsGrow, setback));
    }
    let sql = "SELECT producer, number, queue, key_number, script, message_id FROM business";
    for [producer, number, queue, key, script, id] in rows(pool, sql.to_owned()).await? {
        if let (Some(queue), Some(script)) = (Queue::of(queue), Script::of(script)) {
            evidence.committed.push(Committed {
                producer,
                number,
                queue,
                key,
                script,
                id,
            });
        }
    }
    let sql = "SELECT part, seq, epoch, attempts, producer, number, made_at FROM effects \
               ORDER BY place";
    for [partition, seq, epoch, attempts, producer, number, at] in
        rows(pool, sql.to_owned()).await?
    {
        evidence.effects.push(Effect {
            partition,
            seq,
            epoch,
            attempts,
            producer,
            number,
            at,
        });
    }
    let sql = format!(
        "SELECT {}, {}, d.seq, d.message_id FROM outbox_dead_letters d \
         JOIN outbox_partitions p ON p.partition_id = d.partition_id",
        queue::<DB>(),
        long::<DB>("p.partition")
    );
    for [queue, partition, seq, id] in rows(pool, sql).await? {
        if let Some(queue) = Queue::of(queue) {
            evidence.dead.push(Dead {
                queue,
                partition,
                seq,
                id,
            });
        }
    }
    for entry in std::fs::read_dir(bed.folder.path())? {
        let path = entry?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if let Some(worker) = seat::worker_of(name) {
            evidence
                .deliveries
                .append(&mut ledger::read(&path, worker)?);
        }
    }
    evidence
        .deliveries
        .sort_by_key(|delivery| delivery.started_nanos);
    let left = left_over(bed, since).await?;
    evidence
        .broken
        .extend(left.into_iter().map(|left| (Invariant::NothingLeft, left)));
    Ok(evidence)
}
