//! The real engine on SQLite against a model of it: whatever two processes do, enqueue, roll back,
//! deliver, crash, stop, let time pass, requeue, pause, what is in the database is what the model says it
//! may be, and in the end everything is settled.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::BoxFuture;
use outbox::testing::TestOutbox;
use outbox::{
    DeadLetterFilter, EnqueueMessage, LeaseConfig, MessageResult, Outbox, OutboxMessage, Partitions,
};
use proptest::prelude::*;
use proptest::test_runner::Config;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Sqlite, SqliteConnection, SqlitePool};

const QUEUE: &str = "orders";
const LEASE: LeaseConfig = LeaseConfig {
    duration: Duration::from_secs(30),
    headroom: Duration::from_secs(2),
};

/// What a message does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Fine,
    /// Fails at its first attempt.
    Stubborn,
    /// Rejected until it is requeued.
    Poison,
}

/// What happens.
#[derive(Debug, Clone)]
enum Event {
    Enqueue {
        process: usize,
        kinds: Vec<Kind>,
        commit: bool,
    },
    Drain(usize),
    Crash(usize),
    /// It crashes while it delivers, at the nth point at which it waits for anything: before or after it
    /// claims, hands over, settles or commits.
    CrashInside {
        process: usize,
        at: usize,
    },
    Stop(usize),
    TimePasses,
    Requeue,
    Pause(bool),
}

/// The model: messages in the order in which they were enqueued, and how far that can have got.
#[derive(Debug, Clone, Default)]
struct Reference {
    /// The number and kind of each committed message, requeued ones again at the end.
    committed: Vec<(u32, Kind)>,
    next: u32,
    paused: bool,
}

impl Reference {
    /// The effects there will be, in order.
    fn effects(&self) -> Vec<u32> {
        let has_effect = self
            .committed
            .iter()
            .filter(|(_, kind)| *kind != Kind::Poison);
        has_effect.map(|(number, _)| *number).collect()
    }
}

impl ReferenceStateMachine for Reference {
    type State = Self;
    type Transition = Event;

    fn init_state() -> BoxedStrategy<Self> {
        Just(Self::default()).boxed()
    }

    fn transitions(_: &Self) -> BoxedStrategy<Event> {
        let kind =
            prop_oneof![6 => Just(Kind::Fine), 1 => Just(Kind::Stubborn), 1 => Just(Kind::Poison)];
        let kinds = proptest::collection::vec(kind, 1..4);
        let process = 0..2_usize;
        prop_oneof![
            6 => (process.clone(), kinds, proptest::bool::weighted(0.7)).prop_map(
                |(process, kinds, commit)| Event::Enqueue { process, kinds, commit }
            ),
            6 => process.clone().prop_map(Event::Drain),
            2 => process.clone().prop_map(Event::Crash),
            3 => (process.clone(), 0..60_usize).prop_map(
                |(process, at)| Event::CrashInside { process, at }
            ),
            1 => process.prop_map(Event::Stop),
            2 => Just(Event::TimePasses),
            1 => Just(Event::Requeue),
            1 => any::<bool>().prop_map(Event::Pause),
        ]
        .boxed()
    }

    fn apply(mut state: Self, event: &Event) -> Self {
        match event {
            Event::Enqueue { kinds, commit, .. } => {
                for kind in kinds {
                    state.next += 1;
                    if *commit {
                        state.committed.push((state.next, *kind));
                    }
                }
            }
            Event::Pause(paused) => state.paused = *paused,
            // Which dead letter there is to requeue depends on how far it got: see `Engine::requeued`.
            Event::Requeue
            | Event::Drain(_)
            | Event::Crash(_)
            | Event::CrashInside { .. }
            | Event::Stop(_)
            | Event::TimePasses => {}
        }
        state
    }
}

/// The real thing: one database, two processes.
struct Engine {
    runtime: tokio::runtime::Runtime,
    pool: SqlitePool,
    processes: Vec<Option<TestOutbox<Sqlite>>>,
    /// Poisons that were requeued, which are poison no more.
    requeued: Vec<u32>,
    _folder: tempfile::TempDir,
}

fn number_of(message: &OutboxMessage) -> u32 {
    let text = String::from_utf8_lossy(&message.payload);
    text.parse().expect("a number")
}

fn handle<'a>(
    connection: &'a mut SqliteConnection,
    message: &'a OutboxMessage,
) -> BoxFuture<'a, MessageResult> {
    Box::pin(async move {
        let number = number_of(message);
        sqlx::query("INSERT INTO effects (number, seq) VALUES (?, ?)")
            .bind(number)
            .bind(message.seq)
            .execute(&mut *connection)
            .await
            .expect("write the effect");
        match &*message.payload_type {
            "stubborn" if message.attempts == 0 => MessageResult::Retry,
            "poison" if !message.headers.contains_key("requeued") => {
                let requeued: i64 =
                    sqlx::query_scalar("SELECT COUNT(*) FROM pardons WHERE number = ?")
                        .bind(number)
                        .fetch_one(connection)
                        .await
                        .expect("look for a pardon");
                if requeued == 0 {
                    MessageResult::Reject("poison".to_owned())
                } else {
                    MessageResult::Ok
                }
            }
            _ => MessageResult::Ok,
        }
    })
}

async fn process(pool: &SqlitePool) -> TestOutbox<Sqlite> {
    Outbox::builder(pool.clone())
        .auto_migrate()
        .movable_clock()
        .queue(QUEUE, Partitions::of(1))
        .transactional(handle)
        .lease(LEASE)
        .step_by_step()
        .await
        .expect("a process")
}

impl Engine {
    async fn effects(&self) -> Vec<u32> {
        sqlx::query_scalar("SELECT number FROM effects ORDER BY rowid")
            .fetch_all(&self.pool)
            .await
            .expect("read the effects")
    }

    /// The numbers of the dead letters that nobody has requeued.
    async fn dead(&self) -> Vec<u32> {
        let outbox = self.any().outbox();
        let filter = DeadLetterFilter::new()
            .status(outbox::DeadLetterStatus::Pending)
            .limit(1000);
        let letters = outbox
            .dead_letter_list(&filter)
            .await
            .expect("dead letters");
        let number = |letter: &outbox::DeadLetter| {
            String::from_utf8_lossy(&letter.payload)
                .parse()
                .expect("a number")
        };
        let mut numbers: Vec<u32> = letters.iter().map(number).collect();
        numbers.sort_unstable();
        numbers
    }

    fn any(&self) -> &TestOutbox<Sqlite> {
        self.processes[0].as_ref().expect("a process")
    }

    async fn obey(&mut self, event: &Event, reference: &Reference) {
        match event {
            Event::Enqueue {
                process,
                kinds,
                commit,
            } => {
                let outbox = self.processes[*process]
                    .as_ref()
                    .expect("a process")
                    .outbox()
                    .clone();
                let first = reference.next - u32::try_from(kinds.len()).expect("few") + 1;
                let mut transaction = self
                    .pool
                    .begin_with("BEGIN IMMEDIATE")
                    .await
                    .expect("begin");
                for (number, kind) in (first..).zip(kinds) {
                    let kind = match kind {
                        Kind::Fine => "fine",
                        Kind::Stubborn => "stubborn",
                        Kind::Poison => "poison",
                    };
                    let message = EnqueueMessage::to(0, number.to_string(), kind);
                    outbox
                        .enqueue(&mut transaction, QUEUE, message)
                        .await
                        .expect("enqueue");
                }
                if *commit {
                    transaction.commit().await.expect("commit");
                } else {
                    transaction.rollback().await.expect("roll back");
                }
            }
            Event::Drain(process) => {
                let process = self.processes[*process].as_mut().expect("a process");
                process.drain().await.expect("drain");
            }
            Event::Crash(number) => self.crash(*number).await,
            Event::CrashInside { process, at } => {
                let mut dying = self.processes[*process].take().expect("a process");
                {
                    let mut drain = pin!(dying.drain());
                    let mut waits = 0;
                    let until_then = poll_fn(|context| {
                        waits += 1;
                        match drain.as_mut().poll(context) {
                            Poll::Pending if waits <= *at => Poll::Pending,
                            _ => Poll::Ready(()),
                        }
                    });
                    until_then.await;
                }
                drop(dying);
                self.crash(*process).await;
            }
            Event::Stop(number) => {
                let stopped = self.processes[*number].take().expect("a process");
                stopped.stop().await.expect("stop");
                self.processes[*number] = Some(process(&self.pool).await);
            }
            Event::TimePasses => self.pass_time().await,
            Event::Requeue => {
                if let Some(number) = self.dead().await.first() {
                    self.requeue(*number).await;
                }
            }
            Event::Pause(paused) => {
                let outbox = self.any().outbox();
                if *paused {
                    outbox.pause(QUEUE, None).await.expect("pause");
                } else {
                    outbox.resume(QUEUE, None).await.expect("resume");
                }
            }
        }
    }

    async fn crash(&mut self, number: usize) {
        drop(self.processes[number].take());
        self.processes[number] = Some(process(&self.pool).await);
    }

    async fn pass_time(&mut self) {
        for process in self.processes.iter().flatten() {
            process
                .advance(Duration::from_secs(3600))
                .await
                .expect("time passes");
        }
    }

    async fn requeue(&mut self, number: u32) {
        let outbox = self.any().outbox().clone();
        let letters = outbox
            .dead_letter_list(&DeadLetterFilter::new().limit(1000))
            .await;
        let letters = letters.expect("dead letters");
        let text = number.to_string().into_bytes();
        let letter = letters
            .iter()
            .find(|letter| letter.payload == text)
            .expect("it is there");
        sqlx::query("INSERT INTO pardons (number) VALUES (?)")
            .bind(number)
            .execute(&self.pool)
            .await
            .expect("pardon");
        outbox
            .dead_letter_requeue(letter.id)
            .await
            .expect("requeue");
        self.requeued.push(number);
    }

    /// What must hold at any moment.
    async fn inspect(&self, reference: &Reference) {
        let effects = self.effects().await;
        let mut expected = reference.effects().into_iter();
        let mut pardoned: BTreeMap<u32, u32> = BTreeMap::new();
        for number in &effects {
            if self.requeued.contains(number) {
                *pardoned.entry(*number).or_default() += 1;
            } else {
                assert_eq!(
                    Some(*number),
                    expected.next(),
                    "in order, none twice: {effects:?}"
                );
            }
        }
        assert!(
            pardoned.values().all(|effects| *effects == 1),
            "{pardoned:?}"
        );
        let poisons = reference
            .committed
            .iter()
            .filter(|(_, kind)| *kind == Kind::Poison);
        let poisons: Vec<u32> = poisons.map(|(number, _)| *number).collect();
        for number in self.dead().await {
            assert!(poisons.contains(&number), "{number} is no poison");
            assert!(!self.requeued.contains(&number), "{number} was requeued");
        }
    }

    /// What must hold in the end, when nothing stands in the way.
    async fn finish(&mut self, reference: &Reference) {
        self.any()
            .outbox()
            .resume(QUEUE, None)
            .await
            .expect("resume");
        // Each stubborn message costs a round, and so may a lease.
        for _ in 0..reference.committed.len() + 3 {
            self.pass_time().await;
            for process in self.processes.iter_mut().flatten() {
                process.drain().await.expect("drain");
            }
        }
        self.any().assert_nothing_enqueued(QUEUE).await;
        self.inspect(reference).await;
        let effects = self.effects().await.len();
        assert_eq!(
            effects,
            reference.effects().len() + self.requeued.len(),
            "every effect"
        );
        let poisons = reference
            .committed
            .iter()
            .filter(|(_, kind)| *kind == Kind::Poison);
        let mut poisons: Vec<u32> = poisons.map(|(number, _)| *number).collect();
        poisons.retain(|number| !self.requeued.contains(number));
        assert_eq!(self.dead().await, poisons, "every dead letter");
        let rows: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM outbox_messages")
            .fetch_one(&self.pool)
            .await
            .expect("count");
        assert_eq!(rows, 0, "nothing is left behind");
    }
}

impl StateMachineTest for Engine {
    type SystemUnderTest = Self;
    type Reference = Reference;

    fn init_test(_: &Reference) -> Self {
        let runtime = tokio::runtime::Runtime::new().expect("tokio");
        let folder = tempfile::tempdir().expect("a folder");
        let (pool, processes) = runtime.block_on(async {
            let file = SqliteConnectOptions::new()
                .filename(folder.path().join("model.db"))
                .create_if_missing(true)
                .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
                .synchronous(SqliteSynchronous::Off);
            let pool = SqlitePoolOptions::new()
                .max_connections(4)
                .connect_with(file);
            let pool = pool.await.expect("open sqlite");
            sqlx::raw_sql(
                "CREATE TABLE effects (number INTEGER, seq INTEGER); \
                           CREATE TABLE pardons (number INTEGER)",
            )
            .execute(&pool)
            .await
            .expect("make tables");
            let processes = vec![Some(process(&pool).await), Some(process(&pool).await)];
            (pool, processes)
        });
        Self {
            runtime,
            pool,
            processes,
            requeued: Vec::new(),
            _folder: folder,
        }
    }

    fn apply(mut state: Self, reference: &Reference, event: Event) -> Self {
        let handle = state.runtime.handle().clone();
        handle.block_on(async {
            state.obey(&event, reference).await;
            state.inspect(reference).await;
        });
        state
    }

    fn teardown(mut state: Self, reference: Reference) {
        let handle = state.runtime.handle().clone();
        handle.block_on(async {
            state.finish(&reference).await;
            // While there is a runtime in which they can be closed.
            state.processes.clear();
            state.pool.close().await;
        });
    }
}

prop_state_machine! {
    #![proptest_config(Config {
        // PROPTEST_CASES wins.
        cases: 300,
        failure_persistence: None,
        ..Config::default()
    })]

    #[test]
    fn the_engine_does_what_the_model_says(sequential 1..25 => Engine);
}
