//! The server itself crashes and comes back, while producers and handlers go on.
#![cfg(all(feature = "testing", any(feature = "postgres", feature = "mysql")))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

#[expect(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "the stage is shared with the suite, which is not run here"
)]
mod conformance;
mod servers;

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use conformance::stage::{quick, text_message, text_of};
use conformance::{Dialect, Stage};
use outbox::{
    LeasedMessageHandler, MessageResult, Outbox, OutboxError, OutboxMessage, Partitions,
    TransactionalMessageHandler,
};
use servers::{LEASE, RESUMED, on_every_server, until};
use testbed::{PrivateServer, Server, announce};
use tokio::time::Instant;

on_every_server!(a_server_restart_in_the_middle_loses_doubles_and_reorders_nothing);

const TWO: Partitions = Partitions::of(2);
const RESTARTS: u32 = 3;
/// So many deliveries between two restarts, at least.
const DELIVERIES: usize = 50;
/// How long something that should happen soon may take, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Writes a business row and a message to either queue in one transaction. The note begins with its
/// producer's letter and goes on with a number that grows.
async fn place<DB: Dialect>(
    outbox: &Outbox<DB>,
    note: &str,
    partition: u32,
) -> Result<(), OutboxError> {
    outbox
        .transaction(async |connection: &mut DB::Connection| {
            DB::run(connection, format!("INSERT INTO placed VALUES ('{note}')")).await?;
            for queue in ["orders", "mail"] {
                let message = text_message(partition, note);
                outbox.enqueue(connection, queue, message).await?;
            }
            Ok(())
        })
        .await
}

/// Producers that go on whatever happens.
struct Producers {
    confirmed: Arc<Mutex<Vec<String>>>,
    failed: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Producers {
    fn start<DB: Dialect>(outbox: &Outbox<DB>) -> Self {
        let mut producers = Self {
            confirmed: Arc::default(),
            failed: Arc::default(),
            stop: Arc::default(),
            tasks: Vec::new(),
        };
        for letter in ["a", "b", "c"] {
            let outbox = outbox.clone();
            let (confirmed, failed) = (
                Arc::clone(&producers.confirmed),
                Arc::clone(&producers.failed),
            );
            let stop = Arc::clone(&producers.stop);
            producers.tasks.push(tokio::spawn(async move {
                let mut pace = tokio::time::interval(Duration::from_millis(4));
                for number in 0_u32.. {
                    pace.tick().await;
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let note = format!("{letter}{number:06}");
                    match place(&outbox, &note, number % 2).await {
                        Ok(()) => confirmed.lock().unwrap().push(note),
                        // It may be in the database or not: nobody will ever say. It is not repeated.
                        Err(_) => drop(failed.fetch_add(1, Ordering::Relaxed)),
                    }
                }
            }));
        }
        producers
    }

    /// What was confirmed.
    async fn stop(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
        std::mem::take(&mut *self.confirmed.lock().unwrap())
    }
}

/// Books each message, and remembers in which order they came.
#[derive(Clone, Default)]
struct Desk(Arc<Mutex<Vec<(u32, i64, String)>>>);

impl Desk {
    fn note(&self, message: &OutboxMessage) {
        let entry = (message.partition, message.seq, text_of(message));
        self.0.lock().unwrap().push(entry);
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// How many messages came, however often.
    fn distinct(&self) -> i64 {
        let entries = self.0.lock().unwrap();
        let notes: HashSet<_> = entries.iter().map(|(_, _, note)| note).collect();
        notes.len() as i64
    }

    fn has(&self, note: &str) -> bool {
        self.0
            .lock()
            .unwrap()
            .iter()
            .rev()
            .any(|entry| entry.2 == note)
    }
}

impl LeasedMessageHandler for Desk {
    async fn handle(&self, message: &OutboxMessage) -> MessageResult {
        self.note(message);
        MessageResult::Ok
    }
}

impl<DB: Dialect> TransactionalMessageHandler<DB> for Desk {
    async fn handle(
        &self,
        connection: &mut DB::Connection,
        message: &OutboxMessage,
    ) -> MessageResult {
        let (partition, seq, note) = (message.partition, message.seq, text_of(message));
        let book = format!(
            "INSERT INTO booked (partition_index, seq, note) VALUES ({partition}, {seq}, '{note}')"
        );
        if DB::run(connection, book).await.is_err() {
            return MessageResult::Retry;
        }
        self.note(message);
        MessageResult::Ok
    }
}

async fn a_server_restart_in_the_middle_loses_doubles_and_reorders_nothing<DB: Dialect>(
    server: Server,
) {
    let Some(mut private) = PrivateServer::start(server).await else {
        return;
    };
    let stage = Stage::<DB>::set(private.database()).await;
    stage
        .run("CREATE TABLE placed (note VARCHAR(40) PRIMARY KEY)")
        .await;
    // The ids say in which order the effects of a partition were written.
    stage
        .run("CREATE TABLE booked (id SERIAL, partition_index INT, seq BIGINT, note VARCHAR(40))")
        .await;
    let (orders, mail) = (Desk::default(), Desk::default());
    let handle = quick(Outbox::builder(stage.another_pool(10).await))
        .auto_migrate()
        .queue("orders", TWO)
        .transactional(orders.clone())
        .lease(LEASE)
        .queue("mail", TWO)
        .leased(mail.clone())
        .lease(LEASE)
        .start()
        .await
        .unwrap();
    let producers = Producers::start(handle.outbox());

    let mut resumed = Vec::new();
    for round in 0..RESTARTS {
        let goal = (orders.count() + DELIVERIES, mail.count() + DELIVERIES);
        let going = async || orders.count() >= goal.0 && mail.count() >= goal.1;
        until("deliveries go on", PATIENCE, going).await;
        let failed = producers.failed.load(Ordering::Relaxed);
        private.kill().await;
        let noticed = async || producers.failed.load(Ordering::Relaxed) > failed;
        until("the producers notice", PATIENCE, noticed).await;
        private.start_again().await;
        let back = Instant::now();
        for partition in 0..2 {
            let mut tries = 0;
            // Several connections of the pool may be broken, and only their use shows it.
            let note = loop {
                let note = format!("z{round}{partition}{tries:04}");
                match place(handle.outbox(), &note, partition).await {
                    Ok(()) => break note,
                    Err(_) => tries += 1,
                }
                assert!(back.elapsed() < RESUMED, "no producer gets through");
            };
            let delivered = async || orders.has(&note) && mail.has(&note);
            until("the pipeline goes on", RESUMED, delivered).await;
        }
        resumed.push(back.elapsed());
    }
    let slowest = resumed.iter().max().unwrap();
    assert!(*slowest < RESUMED, "resumed after {resumed:?}");

    let confirmed = producers.stop().await;
    // The connections that the restarts broke went with the old pool.
    let stage = Stage {
        url: stage.url,
        pool: DB::connect(private.database().url(), 2).await,
    };
    let placed = stage.number("SELECT COUNT(*) FROM placed").await;
    stage.until("SELECT COUNT(*) FROM booked", placed).await;
    let all = async || mail.distinct() >= placed;
    until("all mail is delivered", PATIENCE, all).await;
    let unsettled = "SELECT COUNT(*) FROM outbox_processors c JOIN outbox_partitions p \
                     ON p.partition_id = c.partition_id WHERE c.processed_seq < p.last_seq";
    stage.until(unsettled, 0).await;
    handle.stop().await;

    announce(&format!(
        "{server}: {placed} placed, {} confirmed, resumed after {resumed:?}",
        confirmed.len()
    ));
    let list = |notes: &[String]| format!("'{}'", notes.join("','"));
    let kept = format!(
        "SELECT COUNT(*) FROM placed WHERE note IN ({})",
        list(&confirmed)
    );
    assert_eq!(
        stage.number(kept).await,
        confirmed.len() as i64,
        "what was confirmed is there"
    );
    booked_is_exact(&stage).await;
    mail_is_complete(&stage, &mail, placed).await;
}

/// Transactional effects: each message that exists once, in order, without holes.
async fn booked_is_exact<DB: Dialect>(stage: &Stage<DB>) {
    let before = "LAG(note) OVER (PARTITION BY partition_index, SUBSTR(note, 1, 1) ORDER BY id)";
    for (what, wrong) in [
        (
            "lost",
            "placed p LEFT JOIN booked b ON b.note = p.note WHERE b.note IS NULL".to_owned(),
        ),
        (
            "made up",
            "booked b LEFT JOIN placed p ON p.note = b.note WHERE p.note IS NULL".to_owned(),
        ),
        (
            "doubled",
            "(SELECT note FROM booked GROUP BY note HAVING COUNT(*) > 1) AS doubled".to_owned(),
        ),
        (
            "out of order, or behind a hole",
            "(SELECT seq, COALESCE(LAG(seq) OVER (PARTITION BY partition_index ORDER BY id), 0) AS last \
             FROM booked) AS steps WHERE seq <> last + 1"
                .to_owned(),
        ),
        (
            "before what its producer placed earlier",
            format!("(SELECT note, {before} AS last FROM booked) AS steps WHERE note < last"),
        ),
    ] {
        let found = stage.number(format!("SELECT COUNT(*) FROM {wrong}")).await;
        assert_eq!(found, 0, "{what}");
    }
}

/// Leased deliveries: at least once, and each first time in order and without holes.
async fn mail_is_complete<DB: Dialect>(stage: &Stage<DB>, mail: &Desk, placed: i64) {
    let mut first_times: BTreeMap<u32, Vec<i64>> = BTreeMap::new();
    let (mut seen, mut notes) = (HashSet::new(), HashSet::new());
    for (partition, seq, note) in &*mail.0.lock().unwrap() {
        notes.insert(note.clone());
        if seen.insert((*partition, *seq)) {
            first_times.entry(*partition).or_default().push(*seq);
        }
    }
    for seqs in first_times.values() {
        assert!(seqs.iter().copied().eq(1..=seqs.len() as i64), "{seqs:?}");
    }
    assert_eq!(notes.len() as i64, placed, "every message, and no other");
    let notes: Vec<_> = notes.into_iter().collect();
    let known = format!(
        "SELECT COUNT(*) FROM placed WHERE note IN ('{}')",
        notes.join("','")
    );
    assert_eq!(stage.number(known).await, placed);
}

/// Servers that count their sessions begin anew when they are started.
#[cfg(feature = "mysql")]
mod counted_sessions {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use outbox::{LeaseConfig, MessageResult, Outbox, OutboxMessage, TransactionalMessageHandler};
    use sqlx::{Connection as _, MySql, MySqlConnection};
    use testbed::{PrivateServer, Server, Wire};
    use tokio::time::Instant;

    use super::conformance::stage::{ONE, quick};
    use super::conformance::{Dialect as _, Stage};
    use super::{PATIENCE, until};

    const SESSION: &str = "SELECT CAST(CONNECTION_ID() AS SIGNED)";
    /// Long enough for a server to come back while a handler is at work.
    const LEASE: LeaseConfig = LeaseConfig {
        duration: Duration::from_secs(15),
        headroom: Duration::from_secs(1),
    };

    /// Notes its sessions, and never comes back from the first.
    #[derive(Clone, Default)]
    struct StuckOnce(Arc<Mutex<Vec<i64>>>);

    impl StuckOnce {
        fn sessions(&self) -> Vec<i64> {
            self.0.lock().unwrap().clone()
        }
    }

    impl TransactionalMessageHandler<MySql> for StuckOnce {
        async fn handle(
            &self,
            connection: &mut MySqlConnection,
            _: &OutboxMessage,
        ) -> MessageResult {
            let session = MySql::number(connection, SESSION.to_owned()).await;
            self.0.lock().unwrap().push(session.unwrap());
            if self.sessions().len() == 1 {
                std::future::pending::<()>().await;
            }
            MessageResult::Ok
        }
    }

    /// The application's session of this number.
    async fn numbered(url: &str, number: i64) -> MySqlConnection {
        loop {
            let mut connection = MySqlConnection::connect(url).await.unwrap();
            let own = MySql::number(&mut connection, SESSION.to_owned()).await;
            let own = own.unwrap();
            assert!(own <= number, "nobody else has {number}");
            if own == number {
                return connection;
            }
            connection.close().await.unwrap();
        }
    }

    async fn a_stopped_handler_ends_no_session_of_a_server_started_since(server: Server) {
        let Some(mut private) = PrivateServer::start(server).await else {
            return;
        };
        let stage = Stage::<MySql>::set(private.database()).await;
        // Numbers that a server gives out in no time are not waited for.
        let mut last = MySqlConnection::connect(&stage.url).await.unwrap();
        let last = MySql::number(&mut last, SESSION.to_owned()).await.unwrap();
        drop(numbered(&stage.url, last + 50).await);
        let (wire, stuck) = (Wire::to(&stage.url).await, StuckOnce::default());
        let queue = quick(Outbox::builder(MySql::connect(wire.url(), 6).await))
            .auto_migrate()
            .queue("orders", ONE);
        let queue = queue.transactional(stuck.clone()).lease(LEASE);
        let handle = queue.start().await.unwrap();
        let began = Instant::now();
        stage.enqueue(handle.outbox(), 0, &["a"]).await;
        let at_work = async || !stuck.sessions().is_empty();
        until("the handler is at work", PATIENCE, at_work).await;

        private.kill().await;
        wire.go_silent();
        private.start_again().await;
        let mut lock = MySqlConnection::connect(&stage.url).await.unwrap();
        let hold = "SELECT GET_LOCK('busy', 0)".to_owned();
        assert_eq!(MySql::number(&mut lock, hold).await.unwrap(), 1);
        let mut victim = numbered(&stage.url, stuck.sessions()[0]).await;
        let victim = tokio::spawn(async move {
            let wait = "SELECT GET_LOCK('busy', 300)".to_owned();
            MySql::number(&mut victim, wait).await
        });
        wire.heal();
        let took = began.elapsed();
        assert!(
            took < LEASE.handler_budget(),
            "nothing was tested: the restart took {took:?}, and the handler was stopped before its end"
        );
        let again = async || stuck.sessions().len() > 1;
        until("the message comes again", 2 * PATIENCE, again).await;
        lock.close().await.unwrap();
        assert_eq!(victim.await.unwrap().unwrap(), 1, "it was left in peace");
        handle.stop().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_stopped_handler_ends_no_session_of_a_mariadb_started_since() {
        a_stopped_handler_ends_no_session_of_a_server_started_since(Server::MariaDb).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_stopped_handler_ends_no_session_of_a_mysql_started_since() {
        a_stopped_handler_ends_no_session_of_a_server_started_since(Server::MySql).await;
    }
}
