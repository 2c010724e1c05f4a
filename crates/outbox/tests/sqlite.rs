//! The conformance suite on SQLite.
#![cfg(all(feature = "testing", feature = "sqlite"))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod conformance;
mod log;

use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use conformance::any_language::{Call, Routine as _};
use conformance::boundaries::{self, MAX_PLACES, Mode};
use conformance::stage::{FOUR, ONE, PATIENCE, text_message, text_of};
use conformance::{Collector, Dialect as _, Stage};
use log::Log;
use outbox::LeaseConfig;
use sqlx::Sqlite;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use testbed::{Server, with_database};
use tracing::Level;

conformance::suite!(sqlx::Sqlite, testbed::Server::Sqlite);

const DYING_URL: &str = "OUTBOX_TEST_DYING_URL";
const DYING_MODE: &str = "OUTBOX_TEST_DYING_MODE";
const DYING_AT: &str = "OUTBOX_TEST_DYING_AT";

/// Not a test: the process that dies at its n-th commit, right before it takes effect. What lies
/// between two commits leaves no trace in the file, so these are all the places there are.
#[tokio::test]
#[ignore = "started by the tests that let it die"]
async fn dying_process() {
    let Ok(url) = std::env::var(DYING_URL) else {
        return;
    };
    let at: u64 = std::env::var(DYING_AT).unwrap().parse().unwrap();
    let mode = match &*std::env::var(DYING_MODE).unwrap() {
        "leased" => Mode::Leased,
        _ => Mode::Transactional,
    };
    // Where no commit waits for the disk anyway, all of them are made on this one connection.
    let file = url.parse::<SqliteConnectOptions>().unwrap();
    let file = file.synchronous(SqliteSynchronous::Normal);
    let pool = SqlitePoolOptions::new().max_connections(1);
    let pool = pool.connect_with(file).await.unwrap();
    let collector = Collector::answering(|message| {
        println!("handling {}", text_of(message));
        boundaries::answer(message)
    });
    let mut kit = boundaries::kit(pool.clone(), mode, &collector)
        .await
        .unwrap();
    let commits = AtomicU64::new(0);
    let mut connection = pool.acquire().await.unwrap();
    connection
        .lock_handle()
        .await
        .unwrap()
        .set_commit_hook(move || {
            if commits.fetch_add(1, Ordering::Relaxed) + 1 == at {
                std::process::abort();
            }
            true
        });
    drop(connection);
    boundaries::run(&mut kit, &format!("{mode:?}-{at}"))
        .await
        .unwrap();
    println!("came to its end");
}

async fn die_at_every_commit(mode: Mode) {
    with_database(Server::Sqlite, async |database| {
        let stage = Stage::<Sqlite>::set(database).await;
        boundaries::set(&stage, mode).await;
        let mut delivered = Vec::new();
        for at in 1..=MAX_PLACES {
            let process = tokio::process::Command::new(std::env::current_exe().unwrap())
                .args(["dying_process", "--exact", "--ignored", "--nocapture"])
                .env(DYING_URL, &stage.url)
                .env(DYING_MODE, format!("{mode:?}").to_lowercase())
                .env(DYING_AT, at.to_string())
                .stderr(Stdio::null())
                .output()
                .await
                .unwrap();
            let said = String::from_utf8(process.stdout).unwrap();
            let handled = said.lines().filter_map(|line| line.split_once("handling "));
            delivered.extend(handled.map(|(_, text)| text.to_owned()));
            let heir = boundaries::collector();
            boundaries::take_over(&stage, mode, &heir).await;
            delivered.extend(heir.texts());
            boundaries::inspect(&stage, mode, &delivered).await;
            if said.contains("came to its end") {
                assert!(at > 4, "there are more places to die at than {at}");
                return;
            }
        }
        panic!("a run has more than {MAX_PLACES} commits");
    })
    .await;
}

#[tokio::test]
async fn a_leased_process_may_die_at_any_commit() {
    die_at_every_commit(Mode::Leased).await;
}

#[tokio::test]
async fn a_transactional_process_may_die_at_any_commit() {
    die_at_every_commit(Mode::Transactional).await;
}

/// Acks need not wait for the disk; the application's own commits do.
#[tokio::test]
async fn the_applications_sessions_stay_as_durable_as_they_were() {
    for journal in [SqliteJournalMode::Wal, SqliteJournalMode::Delete] {
        with_database(Server::Sqlite, async |database| {
            let file = database.url().parse::<SqliteConnectOptions>().unwrap();
            let file = file
                .journal_mode(journal)
                .synchronous(SqliteSynchronous::Full)
                .busy_timeout(Duration::from_secs(20));
            let pool = SqlitePoolOptions::new().max_connections(4);
            let pool = pool.connect_with(file).await.unwrap();
            let stage = Stage::<Sqlite> {
                url: database.url().to_owned(),
                pool: pool.clone(),
            };
            let collector = Collector::new();
            let handle = stage.deliver(ONE, &collector).await;
            let texts: Vec<String> = (0..50).map(|number| number.to_string()).collect();
            for text in &texts {
                stage.enqueue(handle.outbox(), 0, &[text]).await;
            }
            collector.wait_for(50).await;
            handle.stop().await;
            assert_eq!(collector.texts(), texts);
            let all = futures_util::future::join_all((0..4).map(|_| pool.acquire())).await;
            for connection in all {
                let level = "PRAGMA synchronous".to_owned();
                let level = Sqlite::number(&mut connection.unwrap(), level).await;
                assert_eq!(level.unwrap(), 2, "{journal:?}");
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_transaction_can_run_in_a_spawned_task() {
    with_database(Server::Sqlite, async |database| {
        let stage = Stage::<Sqlite>::set(database).await;
        let queue = stage.outbox().queue("orders", ONE);
        let handle = queue.produce_only().start().await.unwrap();
        let outbox = handle.outbox().clone();
        // As every web framework does it: the whole future has to be `Send`.
        let request = tokio::spawn(async move {
            let work = async |connection: &mut sqlx::SqliteConnection| {
                let effect = "INSERT INTO effects VALUES (1, 'spawned')";
                sqlx::query(effect).execute(&mut *connection).await?;
                outbox
                    .enqueue(connection, "orders", text_message(0, "spawned"))
                    .await
            };
            outbox.transaction(work).await
        });
        request.await.unwrap().unwrap();
        assert_eq!(stage.number("SELECT COUNT(*) FROM effects").await, 1);
        handle.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_type_that_hides_behind_nul_is_refused() {
    with_database(Server::Sqlite, async |database| {
        let stage = Stage::<Sqlite>::set(database).await;
        let queue = stage.outbox().queue("orders", ONE).produce_only();
        queue.start().await.unwrap().stop().await;
        let mut connection = stage.pool.acquire().await.unwrap();
        let mut call = Call::new("k", "1");
        call.payload_type = format!("a\0ž{}", "x".repeat(5_000));
        let error = Sqlite::call(&mut connection, &call).await.unwrap_err();
        assert!(
            error.to_string().contains("invalid payload type"),
            "{error}"
        );
    })
    .await;
}

/// G8: what no client should have written as text comes all the same, and so does what is around it.
#[tokio::test]
async fn text_that_is_none_stops_no_partition() {
    with_database(Server::Sqlite, async |database| {
        let stage = Stage::<Sqlite>::set(database).await;
        let collector = Collector::answering(boundaries::answer);
        let queue = stage.outbox().queue("orders", ONE);
        let handle = queue.leased(collector.clone()).start().await.unwrap();
        let outbox = handle.outbox();
        stage.enqueue(outbox, 0, &["a"]).await;
        // "Mül" in Latin-1, and the same in a header.
        let insert = "INSERT INTO outbox_enqueue (queue, hash, key, type, payload, headers) VALUES";
        let (key, headers) = (
            "CAST(x'4dfc6c' AS TEXT)",
            "CAST(x'7b2261223a22fc227d' AS TEXT)",
        );
        for values in [
            format!("('orders', 0, {key}, 't', 'b', NULL)"),
            format!("('orders', NULL, NULL, 't', 'the poison', {headers})"),
        ] {
            stage.run(format!("{insert} {values}")).await;
        }
        stage.enqueue(outbox, 0, &["c"]).await;
        let seen = collector.wait_for(4).await;
        assert_eq!(collector.texts(), ["a", "b", "the poison", "c"]);
        assert_eq!(seen[1].key.as_deref(), Some("M\u{fffd}l"));
        stage
            .until("SELECT processed_seq FROM outbox_processors", 4)
            .await;
        let all = outbox::DeadLetterFilter::new();
        let letters = outbox.dead_letter_list(&all).await.unwrap();
        assert_eq!(letters[0].headers["a"], "\u{fffd}");
        handle.stop().await;
    })
    .await;
}

/// G1: a call that succeeds has written its message.
#[tokio::test]
async fn a_hash_that_is_none_is_refused() {
    with_database(Server::Sqlite, async |database| {
        let stage = Stage::<Sqlite>::set(database).await;
        let queue = stage.outbox().queue("orders", FOUR).produce_only();
        queue.start().await.unwrap().stop().await;
        let mut connection = stage.pool.acquire().await.unwrap();
        for hash in ["-1", "-4", "4294967296", "0.5", "'x'"] {
            let insert = format!(
                "INSERT INTO outbox_enqueue (queue, hash, type, payload) VALUES ('orders', {hash}, 't', 'x')"
            );
            let refused = Sqlite::run(&mut connection, insert).await;
            let error = refused.expect_err(hash).to_string();
            assert!(error.contains("the first 4 bytes"), "{hash}: {error}");
        }
    })
    .await;
}

#[tokio::test]
async fn the_state_of_the_queues_is_logged_as_often_as_asked() {
    with_database(Server::Sqlite, async |database| {
        let stage = Stage::<Sqlite>::set(database).await;
        let (log, _guard) = Log::keep(Level::INFO);
        let queue = stage.outbox().stats_interval(Duration::from_millis(10));
        let queue = queue.queue("orders", ONE).leased(Collector::new());
        let handle = queue.start().await.unwrap();
        handle.outbox().pause("orders", None).await.unwrap();
        stage.enqueue(handle.outbox(), 0, &["a", "b"]).await;
        let fields = [
            r#"queue="orders" pending=2 "#,
            "held_here=1",
            "failing=0",
            "paused=1",
            "dead_letters=0",
        ];
        log.says(&fields).await;
        handle.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_database_in_memory_survives_a_handler_that_panics() {
    let options = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1);
    let options = options.idle_timeout(None).max_lifetime(None);
    let pool = options.connect("sqlite::memory:").await.unwrap();
    let table = "CREATE TABLE effects (seq BIGINT NOT NULL, note VARCHAR(200))";
    sqlx::query(table).execute(&pool).await.unwrap();
    let ledger = conformance::outcomes::Ledger(Collector::new());
    let ledger = outbox::testing::fail_on(1, outbox::testing::Failure::Panic, ledger);
    let builder = outbox::Outbox::builder(pool.clone()).auto_migrate();
    let builder = builder.queue("orders", ONE).transactional(ledger);
    let mut kit = builder.step_by_step().await.unwrap();
    let producer = kit.outbox().clone();
    let enqueue = async |connection: &mut sqlx::SqliteConnection| {
        producer
            .enqueue(connection, "orders", text_message(0, "x"))
            .await
    };
    producer.transaction(enqueue).await.unwrap();
    assert_eq!(kit.drain().await.unwrap().retried, 1);
    kit.advance(Duration::from_secs(60)).await.unwrap();
    assert_eq!(kit.drain().await.unwrap().settled, 1);
    let effects: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM effects")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(effects, 1);
}

/// Those who line up to write hand the lock on in no time; one who only tries now and then must get it
/// all the same, within the patience that drivers have by default. On a busy disk it may need much of it:
/// SQLite has no line of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_who_does_not_line_up_is_not_starved() {
    with_database(Server::Sqlite, async |database| {
        let stage = Stage::<Sqlite>::set(database).await;
        let collector = Collector::new();
        let handle = stage.deliver(ONE, &collector).await;
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let crowd: Vec<_> = (0..8)
            .map(|_| {
                let (outbox, stop) = (handle.outbox().clone(), Arc::clone(&stop));
                tokio::spawn(async move {
                    let outbox = &outbox;
                    while !stop.load(Ordering::Relaxed) {
                        outbox
                            .transaction(async |transaction| {
                                let message = text_message(0, "crowd");
                                outbox.enqueue(transaction, "orders", message).await
                            })
                            .await
                            .unwrap();
                    }
                })
            })
            .collect();
        let outsider = stage.another_pool(1).await;
        let mut waits = Vec::new();
        for _ in 0..100 {
            let since = std::time::Instant::now();
            let mut transaction = outsider.begin_with("BEGIN IMMEDIATE").await.unwrap();
            let message = text_message(0, "outsider");
            let enqueued = handle.outbox().enqueue(&mut transaction, "orders", message);
            enqueued.await.unwrap();
            transaction.commit().await.unwrap();
            waits.push(since.elapsed());
        }
        stop.store(true, Ordering::Relaxed);
        for producer in crowd {
            producer.await.unwrap();
        }
        waits.sort_unstable();
        println!("median {:?}, longest {:?}", waits[50], waits[99]);
        assert!(waits[50] < Duration::from_millis(500), "{waits:?}");
        assert!(waits[99] < Duration::from_secs(5), "{waits:?}");
        handle.stop().await;
    })
    .await;
}

/// G8: nobody rests on after a time in which everything could be read and nothing written.
#[tokio::test]
async fn all_go_on_when_the_database_takes_writes_again() {
    with_database(Server::Sqlite, async |database| {
        let stage = Stage::<Sqlite>::set(database).await;
        let (log, _guard) = Log::keep(Level::INFO);
        let collector = Collector::new();
        let lease = LeaseConfig {
            // No rest is longer.
            duration: Duration::from_secs(13),
            headroom: Duration::from_millis(500),
        };
        let queue = stage.outbox().queue("orders", ONE);
        let queue = queue.leased(collector.clone()).lease(lease);
        let handle = queue.start().await.unwrap();
        stage.enqueue(handle.outbox(), 0, &["before"]).await;
        collector.wait_for(1).await;
        let refused = [
            ("lease", "UPDATE", "processors"),
            ("heartbeat", "INSERT", "processes"),
        ];
        for (name, verb, table) in refused {
            let refuse = "BEGIN SELECT RAISE(ABORT, 'no writes'); END";
            let trigger = format!("CREATE TRIGGER {name} BEFORE {verb} ON outbox_{table} {refuse}");
            stage.run(trigger).await;
        }
        stage.enqueue(handle.outbox(), 0, &["meanwhile"]).await;
        log.says(&["the processor could not go on", "rest=12.8s"])
            .await;
        for (name, _, _) in refused {
            stage.run(format!("DROP TRIGGER {name}")).await;
        }
        let ended = tokio::time::Instant::now();
        collector.wait_for(2).await;
        let took = ended.elapsed();
        handle.stop().await;
        let limit = Duration::from_secs(7);
        assert!(took < limit, "it went on after {took:?}");
    })
    .await;
}

/// G3: what was handled ahead of a settlement that could not be written is settled again, and nobody's number
/// changes. SQLite counts from the last id that is settled, so number and id must never part.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_that_failed_changes_nobodys_number() {
    with_database(Server::Sqlite, async |database| {
        let options: SqliteConnectOptions = database.url().parse().unwrap();
        let options = options
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_millis(20));
        let pool = SqlitePoolOptions::new()
            .connect_with(options)
            .await
            .unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let handler = Obstructed {
            pool: pool.clone(),
            seen: Arc::clone(&seen),
        };
        let producer = outbox::Outbox::builder(pool.clone())
            .auto_migrate()
            .without_workers()
            .queue("orders", ONE)
            .produce_only();
        let producer = producer.start().await.unwrap();
        let outbox = producer.outbox();
        let enqueue = async |connection: &mut sqlx::SqliteConnection| {
            let messages: Vec<_> = (1..=6).map(|n| text_message(0, &n.to_string())).collect();
            outbox.enqueue_batch(connection, "orders", &messages).await
        };
        outbox.transaction(enqueue).await.unwrap();
        let tuning = outbox::WorkerTuning::processor_low_latency().batch_size(2);
        let builder = outbox::Outbox::builder(pool).processor_tuning(tuning);
        let builder = builder.queue("orders", ONE).batch_leased(handler);
        let handle = builder.start().await.unwrap();
        let settled = async {
            while handle.outbox().stats().await.unwrap()[0].processed_seq < 6 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, settled).await.unwrap();
        handle.stop().await;
        producer.stop().await;
        let seen = seen.lock().unwrap();
        assert!(
            seen.iter().all(|(seq, text)| seq.to_string() == *text),
            "{seen:?}"
        );
    })
    .await;
}

/// Finds the database locked for long when it handles the fifth message, and fails.
struct Obstructed {
    pool: sqlx::SqlitePool,
    seen: Arc<Mutex<Vec<(i64, String)>>>,
}

impl outbox::LeasedHandler for Obstructed {
    async fn handle(&self, batch: &mut outbox::Batch<'_>) -> outbox::HandlerResult {
        let messages = batch.next_chunk(usize::MAX);
        let seen = messages.iter().map(|one| (one.seq, text_of(one)));
        let seen: Vec<_> = seen.collect();
        let obstructed = seen.iter().any(|(_, text)| text == "5")
            && !self
                .seen
                .lock()
                .unwrap()
                .iter()
                .any(|(_, text)| text == "5");
        self.seen.lock().unwrap().extend(seen);
        if obstructed {
            let lock = self.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
            tokio::time::sleep(Duration::from_millis(500)).await;
            lock.rollback().await.unwrap();
            let reason = "the broker is away".to_owned();
            return outbox::HandlerResult::Retry { reason };
        }
        batch.ack_chunk(messages);
        outbox::HandlerResult::Success
    }
}

/// G1: the driver lets the next rollback pass after a commit that nobody waited for. It must not be the one of
/// somebody who gets that connection later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_nobody_waits_for_leaves_a_connection_that_rolls_back() {
    with_database(Server::Sqlite, async |database| {
        let options: SqliteConnectOptions = database.url().parse().unwrap();
        let options = options.journal_mode(SqliteJournalMode::Wal);
        let options = options.busy_timeout(Duration::from_millis(100));
        let pool = SqlitePoolOptions::new().max_connections(1);
        let pool = pool.connect_with(options.clone()).await.unwrap();
        let builder = outbox::Outbox::builder(pool.clone()).auto_migrate();
        let builder = builder
            .without_workers()
            .queue("orders", ONE)
            .produce_only();
        let handle = builder.start().await.unwrap();
        let outbox = handle.outbox();
        {
            let done = std::sync::atomic::AtomicBool::new(false);
            let mut transaction = std::pin::pin!(outbox.transaction(async |connection| {
                let message = text_message(0, "committed");
                let enqueued = outbox.enqueue(connection, "orders", message).await;
                done.store(true, Ordering::Relaxed);
                enqueued
            }));
            // Until the commit is under way, and no longer.
            std::future::poll_fn(|context| match transaction.as_mut().poll(context) {
                std::task::Poll::Pending if !done.load(Ordering::Relaxed) => {
                    std::task::Poll::Pending
                }
                _ => std::task::Poll::Ready(()),
            })
            .await;
        }
        let mut undone = pool.begin().await.unwrap();
        let message = text_message(0, "rolled back");
        let enqueued = outbox.enqueue(&mut undone, "orders", message);
        enqueued.await.unwrap();
        drop(undone);
        // Nobody holds the lock, and what was rolled back is not there.
        let other = SqlitePoolOptions::new()
            .connect_with(options)
            .await
            .unwrap();
        let writing = async {
            while other.begin_with("BEGIN IMMEDIATE").await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        let freed = tokio::time::timeout(Duration::from_secs(5), writing).await;
        assert!(freed.is_ok(), "the transaction is still open");
        let count = "SELECT COUNT(*) FROM outbox_messages";
        let count: i64 = sqlx::query_scalar(count).fetch_one(&other).await.unwrap();
        assert_eq!(count, 1);
        handle.stop().await;
    })
    .await;
}

/// Writes its effect, and at the first attempt more than the file may hold, which ends the transaction; and
/// says that all went well.
struct Overfull(Collector);

impl outbox::TransactionalMessageHandler<Sqlite> for Overfull {
    async fn handle(
        &self,
        connection: &mut sqlx::SqliteConnection,
        message: &outbox::OutboxMessage,
    ) -> outbox::MessageResult {
        let effect = format!("INSERT INTO effects VALUES ({}, 'x')", message.seq);
        Sqlite::run(connection, effect).await.unwrap();
        if self.0.see(message) == outbox::MessageResult::Ok && self.0.seen().len() == 2 {
            // No more than there is: SQLite raises a limit below that to it.
            Sqlite::run(connection, "PRAGMA max_page_count = 1".to_owned())
                .await
                .unwrap();
            let too_much = "INSERT INTO effects VALUES (0, zeroblob(1000000))";
            let full = Sqlite::run(connection, too_much.to_owned()).await;
            let code = full.unwrap_err().into_database_error().unwrap();
            assert_eq!(code.code().as_deref(), Some("13"), "the database is full");
            Sqlite::run(connection, "PRAGMA max_page_count = 1000000".to_owned())
                .await
                .unwrap();
        }
        outbox::MessageResult::Ok
    }
}

#[tokio::test]
async fn a_full_database_takes_back_what_it_took_back_and_settles_nothing() {
    with_database(Server::Sqlite, async |database| {
        let stage = Stage::<Sqlite>::set(database).await;
        let collector = Collector::new();
        let queue = stage.outbox().queue("orders", ONE);
        let handle = queue.transactional(Overfull(collector.clone())).start();
        let handle = handle.await.unwrap();
        stage.enqueue(handle.outbox(), 0, &["a", "b", "c"]).await;
        stage.until("SELECT COUNT(*) FROM effects", 3).await;
        handle.stop().await;
        let distinct = "SELECT COUNT(DISTINCT seq) FROM effects WHERE seq > 0";
        assert_eq!(stage.number(distinct).await, 3);
        assert_eq!(
            stage
                .number("SELECT processed_seq FROM outbox_processors")
                .await,
            3
        );
        let texts = collector.texts();
        assert!(texts.len() > 3, "nothing came again: {texts:?}");
        assert_eq!(texts.last().map(String::as_str), Some("c"));
    })
    .await;
}
