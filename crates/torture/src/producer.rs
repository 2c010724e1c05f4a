//! A producer process: business rows and their messages, in transactions half of which are rolled back.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::future::join_all;
use outbox::{EnqueueMessage, Outbox, OutboxBuilder, OutboxError, OutboxMessageId};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use sqlx::Pool;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::sync::watch;

use crate::dialect::{Dialect, PATIENCE, Ping};
use crate::ledger::now;
use crate::processes::{Mood, Role};
use crate::script::{Order, Queue, Script};
use crate::worker::{LEASE, builder, started};

/// Producers of one process, each with messages of its own.
pub(crate) const TASKS: i64 = 4;
/// The keys of one producer.
const KEYS: i64 = 3;
/// Producers that are not processes: those of the bed itself, who commit late, or look whether
/// everything moves in the end, beside one who has not committed yet.
pub(crate) const LATE: i64 = 1_000;
pub(crate) const PROBE: i64 = 1_001;
pub(crate) const OPEN: i64 = 1_002;

/// What the header says: who the message is, and under which key it was sent.
pub(crate) fn label(order: &Order, key: Option<&str>) -> String {
    format!("{order} {}", key.unwrap_or("without a key"))
}

/// The most messages of a transaction that writes them one by one, and of one that writes them together.
const MOST: u32 = 4;
const MOST_TOGETHER: u32 = 32;
/// What a transaction takes less than where nothing is in its way.
pub(crate) const SLOW: Duration = LEASE.duration;
/// The type of every message, and the header that says which one it is.
pub(crate) const KIND: &str = "torture";
pub(crate) const LABEL: &str = "order";

pub(crate) async fn run<DB: Dialect>(role: &Role, url: &str) -> Result<()> {
    let pool = DB::pool(url, role.connections, Ping::AtCheckout).await?;
    let first = role.producer.unwrap_or(0) * TASKS;
    let handle = started(async || producing(builder(pool.clone())).start().await).await?;
    let (teller, mood) = watch::channel(Mood::Wild);
    let produce = join_all((0..TASKS).map(|task| {
        let producer = Producer {
            pool: pool.clone(),
            outbox: handle.outbox().clone(),
            number: first + task,
            random: ChaCha8Rng::seed_from_u64(role.seed.wrapping_add(task.cast_unsigned())),
            mood: mood.clone(),
            next: 0,
        };
        producer.run()
    }));
    tokio::join!(produce, async {
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        while *teller.borrow() != Mood::Over {
            teller.send_replace(Mood::hear(&mut lines).await);
        }
    });
    handle.stop().await;
    Ok(())
}

/// Registers both queues without handlers.
pub(crate) fn producing<DB: Dialect>(builder: OutboxBuilder<DB>) -> OutboxBuilder<DB> {
    Queue::ALL.into_iter().fold(builder, |builder, queue| {
        let queue = builder.queue(queue.name(), Queue::PARTITIONS);
        queue.produce_only()
    })
}

/// The words a producer's lines begin with.
const DONE: &str = "done";
const ERROR: &str = "error";

/// What a producer complains of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The file was locked for longer than the producer was ready to wait.
    Busy,
    /// The server was away, or turned it away.
    Away,
    /// There was no connection to be had.
    Unconnected,
    /// A transaction that took long, whatever became of it.
    Slow,
    /// Anything else: it should not have happened.
    Hurt,
}

impl Kind {
    const ALL: [Self; 5] = [
        Self::Busy,
        Self::Away,
        Self::Unconnected,
        Self::Slow,
        Self::Hurt,
    ];

    const fn word(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Away => "away",
            Self::Unconnected => "unconnected",
            Self::Slow => "slow",
            Self::Hurt => "hurt",
        }
    }
}

/// A line in which a producer says what happened to it, and when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Complaint {
    pub(crate) at: i64,
    pub(crate) kind: Kind,
    /// Whose: the number of the producer's process.
    pub(crate) process: usize,
}

impl Complaint {
    pub(crate) fn read(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let at = words.next().filter(|word| *word == ERROR);
        let at = at.and(words.next())?.parse().ok()?;
        let word = words.next()?;
        let kind = Kind::ALL.into_iter().find(|kind| kind.word() == word)?;
        let producer: i64 = words.next()?.parse().ok()?;
        let process = usize::try_from(producer / TASKS).ok()?;
        Some(Self { at, kind, process })
    }
}

/// The messages of a transaction that was committed, as a producer's line says: whose, and from which
/// number to which.
pub(crate) fn committed(line: &str) -> Option<(i64, std::ops::RangeInclusive<i64>)> {
    let numbers = line.strip_prefix(DONE)?.trim_start();
    let mut numbers = numbers.split(' ').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??..=numbers.next()??))
}

struct Producer<DB: Dialect> {
    pool: Pool<DB>,
    outbox: Outbox<DB>,
    number: i64,
    random: ChaCha8Rng,
    mood: watch::Receiver<Mood>,
    /// The next message's number; none is used twice, whatever became of it.
    next: i64,
}

/// A transaction that was not committed, or may not have been.
#[derive(Debug)]
pub(crate) enum Undone {
    OnPurpose,
    Failed(OutboxError),
}

impl From<OutboxError> for Undone {
    fn from(error: OutboxError) -> Self {
        Self::Failed(error)
    }
}

impl From<sqlx::Error> for Undone {
    fn from(error: sqlx::Error) -> Self {
        Self::Failed(error.into())
    }
}

impl<DB: Dialect> Producer<DB> {
    async fn run(mut self) {
        while self.may_trade().await {
            let pause = Duration::from_millis(self.random.random_range(0..12));
            let (began, first) = (Instant::now(), self.next + 1);
            let done = self.trade().await;
            // SQLite has no queue for its lock: who is unlucky waits for long.
            if DB::CONCURRENT && began.elapsed() > SLOW {
                self.complain(Kind::Slow, &format!("{:?}", began.elapsed()));
            }
            match done {
                Ok(()) => println!("{DONE} {} {first} {}", self.number, self.next),
                Err(Undone::OnPurpose) => {}
                Err(Undone::Failed(error)) => {
                    // Whether we may be blamed is for the verdict.
                    let kind = if is_out_of_patience::<DB>(&error, began.elapsed()) {
                        Kind::Busy
                    } else if matches!(error, OutboxError::Database(sqlx::Error::PoolTimedOut)) {
                        Kind::Unconnected
                    } else if is_lost_contact(&error) {
                        Kind::Away
                    } else {
                        Kind::Hurt
                    };
                    self.complain(kind, &error.to_string());
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
            tokio::time::sleep(pause).await;
        }
    }

    fn complain(&self, kind: Kind, why: &str) {
        println!("{ERROR} {} {} {} {why}", now(), kind.word(), self.number);
    }

    /// Waits while it is to do nothing. Whether it goes on.
    async fn may_trade(&mut self) -> bool {
        let mood = self.mood.wait_for(|mood| *mood != Mood::Hushed).await;
        mood.is_ok_and(|mood| *mood != Mood::Over)
    }

    /// One transaction: rows and messages, and an end that is drawn.
    async fn trade(&mut self) -> Result<(), Undone> {
        let together = self.random.random_bool(0.5);
        let most = if together { MOST_TOGETHER } else { MOST };
        let orders: Vec<_> = (0..self.random.random_range(1..=most))
            .map(|_| self.order())
            .collect();
        let orders = if together {
            Orders::Together(&orders)
        } else {
            Orders::OneByOne(&orders)
        };
        let commit = self.random.random_bool(0.5);
        if self.random.random_bool(0.5) {
            let outbox = self.outbox.clone();
            outbox
                .transaction(async |connection| {
                    orders.write::<DB>(&outbox, connection).await?;
                    if commit {
                        Ok(())
                    } else {
                        Err(Undone::OnPurpose)
                    }
                })
                .await
        } else {
            let mut transaction = self.pool.begin_with(DB::BEGIN_WRITING).await?;
            orders.write::<DB>(&self.outbox, &mut transaction).await?;
            if commit {
                transaction.commit().await?;
                self.outbox.flush();
                return Ok(());
            }
            transaction.rollback().await?;
            Err(Undone::OnPurpose)
        }
    }

    fn order(&mut self) -> Placed {
        let queue = if self.random.random_bool(0.5) {
            Queue::Transactional
        } else {
            Queue::Leased
        };
        let key = self.random.random_range(0..KEYS);
        // One of its keys says itself where it goes. The others are spread so that no partition is without
        // work.
        let line = self.number * KEYS + key;
        let partition = line.rem_euclid(i64::from(Queue::PARTITIONS.count()));
        let partition = u32::try_from(partition).ok().filter(|_| key > 0);
        let mut script = Script::drawn(|rarity| self.random.random_ratio(1, rarity));
        if *self.mood.borrow() != Mood::Wild {
            script = Script::Fine;
        }
        self.next += 1;
        Placed {
            order: Order {
                producer: self.number,
                number: self.next,
                script,
            },
            queue,
            key,
            partition,
        }
    }
}

/// An order, and where it goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placed {
    pub(crate) order: Order,
    pub(crate) queue: Queue,
    /// One of its producer's keys, which are in order among themselves.
    pub(crate) key: i64,
    /// Its partition; that of the key if there is none.
    pub(crate) partition: Option<u32>,
}

impl Placed {
    /// The business row that commits with the message.
    fn row(&self, id: OutboxMessageId) -> String {
        let Order {
            producer,
            number,
            script,
        } = self.order;
        let (queue, key, script) = (self.queue.number(), self.key, script.number());
        format!("({producer}, {number}, {queue}, {key}, {script}, {id})")
    }

    fn message(&self) -> EnqueueMessage {
        let payload = self.order.payload();
        let message = match self.partition {
            Some(partition) => EnqueueMessage::to(partition, payload, KIND),
            None => {
                let key = format!("{}-{}", self.order.producer, self.key);
                EnqueueMessage::keyed(key, payload, KIND)
            }
        };
        let label = label(&self.order, message.key());
        message.header(LABEL, label)
    }
}

/// The orders of a transaction, and how they are written.
#[derive(Debug, Clone, Copy)]
enum Orders<'a> {
    OneByOne(&'a [Placed]),
    Together(&'a [Placed]),
}

impl Orders<'_> {
    async fn write<DB: Dialect>(
        self,
        outbox: &Outbox<DB>,
        connection: &mut DB::Connection,
    ) -> Result<(), Undone> {
        match self {
            Self::OneByOne(orders) => write(outbox, connection, orders).await,
            Self::Together(orders) => write_together(outbox, connection, orders).await,
        }
    }
}

/// Writes messages and rows: one by one, as most applications do.
pub(crate) async fn write<DB: Dialect>(
    outbox: &Outbox<DB>,
    connection: &mut DB::Connection,
    orders: &[Placed],
) -> Result<(), Undone> {
    for placed in orders {
        let message = placed.message();
        let id = outbox
            .enqueue(connection, placed.queue.name(), message)
            .await?;
        insert::<DB>(connection, &[placed.row(id)]).await?;
    }
    Ok(())
}

/// Writes the messages of a queue at once, and the rows of all.
async fn write_together<DB: Dialect>(
    outbox: &Outbox<DB>,
    connection: &mut DB::Connection,
    orders: &[Placed],
) -> Result<(), Undone> {
    let mut rows = Vec::new();
    for queue in Queue::ALL {
        let orders: Vec<_> = orders.iter().filter(|one| one.queue == queue).collect();
        let messages: Vec<_> = orders.iter().map(|one| one.message()).collect();
        let ids = outbox
            .enqueue_batch(connection, queue.name(), &messages)
            .await?;
        rows.extend(orders.iter().zip(ids).map(|(one, id)| one.row(id)));
    }
    insert::<DB>(connection, &rows).await
}

async fn insert<DB: Dialect>(
    connection: &mut DB::Connection,
    rows: &[String],
) -> Result<(), Undone> {
    let rows = rows.join(", ");
    let insert = format!(
        "INSERT INTO business (producer, number, queue, key_number, script, message_id) VALUES {rows}"
    );
    Ok(DB::run(connection, insert).await?)
}

/// Whether others wrote to the file for as long as the producer was ready to wait: SQLite has no queue for
/// its write lock, and the bed freezes who holds it. Who waits for it keeps a connection of the pool.
fn is_out_of_patience<DB: Dialect>(error: &OutboxError, waited: Duration) -> bool {
    if DB::CONCURRENT || waited < PATIENCE {
        return false;
    }
    match error {
        OutboxError::Database(sqlx::Error::PoolTimedOut) => true,
        // Of the kinds of being busy this is the one that waited; the other one, of a snapshot that is
        // too old, is 517 and comes at once.
        OutboxError::Database(sqlx::Error::Database(error)) => error.code().as_deref() == Some("5"),
        _ => false,
    }
}

/// Whether the server was away, or cut us off: faults of the bed's own making.
fn is_lost_contact(error: &OutboxError) -> bool {
    let OutboxError::Database(error) = error else {
        return false;
    };
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => true,
        sqlx::Error::Database(error) => {
            let mysql = error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>();
            // MySQL: too many connections, shutdown. Before a client has said what it understands they
            // come without the code of their class.
            mysql.is_some_and(|error| matches!(error.number(), 1040 | 1053))
                || matches!(
                    error.code().as_deref(),
                    // PostgreSQL: connection exceptions, shutdowns, too many connections.
                    Some("08000" | "08003" | "08006" | "57P01" | "57P02" | "57P03" | "53300")
                    // MySQL: the same by their class.
                    | Some("08004" | "08S01")
                )
        }
        _ => false,
    }
}
