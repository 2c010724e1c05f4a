//! The network fails: a process vanishes without a word, or never learns what the server did.
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

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use conformance::outcomes::Ledger;
use conformance::stage::{ONE, quick, text_message, text_of};
use conformance::{Collector, Dialect, Stage};
use futures_util::future::join_all;
use outbox::{
    LeasedMessageHandler, MessageResult, Outbox, OutboxError, OutboxHandle, OutboxMessage,
    TransactionalMessageHandler,
};
use servers::{LEASE, RESUMED, on_every_server, until};
use sqlx::Pool;
use testbed::{After, Fault, Server, Wire, announce, with_database};
use tokio::time::Instant;

on_every_server!(
    a_holder_that_vanishes_without_closing_its_connection_is_replaced,
    a_process_that_was_cut_off_comes_back_by_itself,
    a_stop_without_contact_ends_soon_after_its_deadline,
    a_list_that_never_comes_keeps_no_connection,
    a_process_that_vanishes_between_any_two_requests_is_replaced,
    a_producers_lost_commit_reply_neither_loses_nor_doubles,
    a_leased_handlers_lost_commit_reply_neither_loses_nor_doubles,
    a_transactional_handlers_lost_commit_reply_neither_loses_nor_doubles,
);

/// An outbox of a producer alone: it has no workers, so nothing but what it is asked to do goes over
/// its connections.
async fn producer<DB: Dialect>(pool: Pool<DB>, queues: &[String]) -> Outbox<DB> {
    let mut builder = quick(Outbox::builder(pool))
        .auto_migrate()
        .without_workers();
    for queue in queues {
        builder = builder.queue(queue.as_str(), ONE).produce_only();
    }
    let handle = builder.start().await.unwrap();
    let outbox = handle.outbox().clone();
    handle.stop().await;
    outbox
}

async fn enqueue<DB: Dialect>(outbox: &Outbox<DB>, queue: &str, text: &str) {
    outbox
        .transaction(async |connection: &mut DB::Connection| {
            outbox
                .enqueue(connection, queue, text_message(0, text))
                .await
        })
        .await
        .unwrap();
}

/// A handler that never comes back, as far as anybody can tell.
#[derive(Clone, Default)]
struct Stuck {
    in_hand: Arc<AtomicUsize>,
}

impl LeasedMessageHandler for Stuck {
    async fn handle(&self, _: &OutboxMessage) -> MessageResult {
        self.in_hand.fetch_add(1, Ordering::Relaxed);
        std::future::pending().await
    }
}

impl<DB: Dialect> TransactionalMessageHandler<DB> for Stuck {
    async fn handle(
        &self,
        connection: &mut DB::Connection,
        message: &OutboxMessage,
    ) -> MessageResult {
        let effect = format!("INSERT INTO effects VALUES ({}, 'vanished')", message.seq);
        DB::run(connection, effect).await.unwrap();
        self.in_hand.fetch_add(1, Ordering::Relaxed);
        std::future::pending().await
    }
}

/// What the handlers of one that stops are given.
const STOP: Duration = Duration::from_secs(10);

/// A process that has a message of either queue in hand, and then is not heard of any more.
async fn vanished<DB: Dialect>(stage: &Stage<DB>) -> (Wire, OutboxHandle<DB>, Outbox<DB>) {
    let queues = ["orders".to_owned(), "mail".to_owned()];
    let producer = producer(stage.pool.clone(), &queues).await;
    let wire = Wire::to(&stage.url).await;
    let stuck = Stuck::default();
    let holder = quick(Outbox::builder(DB::connect(wire.url(), 8).await))
        .queue("orders", ONE)
        .transactional(stuck.clone())
        .lease(LEASE)
        .queue("mail", ONE)
        .leased(stuck.clone())
        .lease(LEASE)
        .stop_deadline(STOP)
        .start()
        .await
        .unwrap();
    for queue in &queues {
        for text in ["first", "second"] {
            enqueue(&producer, queue, text).await;
        }
    }
    let both = async || stuck.in_hand.load(Ordering::Relaxed) >= 2;
    until("both handlers have something in hand", RESUMED, both).await;
    wire.go_silent();
    (wire, holder, producer)
}

async fn a_holder_that_vanishes_without_closing_its_connection_is_replaced<DB: Dialect>(
    server: Server,
) {
    with_database(server, async |database| {
        let stage = Stage::<DB>::set(database).await;
        let (_wire, _holder, _producer) = vanished(&stage).await;
        let vanished = Instant::now();
        let (orders, mail) = (Collector::new(), Collector::new());
        let heir = heir(&stage, &orders, &mail).await;
        stage.until("SELECT COUNT(*) FROM effects", 2).await;
        mail.wait_for(2).await;
        let took = vanished.elapsed();
        announce(&format!("{server}: replaced after {took:?}"));
        assert!(took < RESUMED, "replaced after {took:?}");
        heir.stop().await;
        assert_eq!(mail.texts(), ["first", "second"]);
        assert_eq!(orders.texts(), ["first", "second"]);
        let undone = "SELECT COUNT(*) FROM effects WHERE note = 'vanished'";
        assert_eq!(stage.number(undone).await, 0, "what it wrote is gone");
    })
    .await;
}

/// A stop of a process that has long been cut off.
async fn stop_without_contact<DB: Dialect>(server: Server) {
    with_database(server, async |database| {
        let stage = Stage::<DB>::set(database).await;
        let (_wire, holder, _producer) = vanished(&stage).await;
        // Nothing answers, so time is all that passes; in the end each waits for as long as it ever does.
        tokio::time::pause();
        tokio::time::sleep(Duration::from_secs(300)).await;
        let asked = Instant::now();
        holder.stop().await;
        let took = asked.elapsed();
        tokio::time::resume();
        announce(&format!("{server}: stopped after {took:?}"));
        let limit = STOP + Duration::from_millis(5_100);
        assert!(took < limit, "stopped after {took:?}");
    })
    .await;
}

async fn a_stop_without_contact_ends_soon_after_its_deadline<DB: Dialect>(server: Server) {
    // Time is stopped in a thread that has it for itself.
    let test = tokio::task::spawn_blocking(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(stop_without_contact::<DB>(server));
    });
    test.await.unwrap();
}

async fn a_list_that_never_comes_keeps_no_connection<DB: Dialect>(server: Server) {
    with_database(server, async |database| {
        let stage = Stage::<DB>::set(database).await;
        let wire = Wire::to(&stage.url).await;
        let producer = producer(DB::connect(wire.url(), 1).await, &["orders".into()]).await;
        wire.fail_on(b"_audit", Fault::LostReply, After::Silent);
        tokio::select! {
            records = producer.audit_log(None, 10) => panic!("heard: {records:?}"),
            () = wire.wait_tripped() => wire.heal(),
        }
        let again = enqueue(&producer, "orders", "after it");
        let again = tokio::time::timeout(RESUMED, again).await;
        again.expect("the pool has a connection again");
    })
    .await;
}

async fn heir<DB: Dialect>(
    stage: &Stage<DB>,
    orders: &Collector,
    mail: &Collector,
) -> OutboxHandle<DB> {
    quick(Outbox::builder(stage.another_pool(8).await))
        .queue("orders", ONE)
        .transactional(Ledger(orders.clone()))
        .lease(LEASE)
        .queue("mail", ONE)
        .leased(mail.clone())
        .lease(LEASE)
        .start()
        .await
        .unwrap()
}

async fn a_process_that_was_cut_off_comes_back_by_itself<DB: Dialect>(server: Server) {
    with_database(server, async |database| {
        let stage = Stage::<DB>::set(database).await;
        let producer = producer(stage.pool.clone(), &["orders".into(), "mail".into()]).await;
        let wire = Wire::to(&stage.url).await;
        let (orders, mail) = (Collector::new(), Collector::new());
        // The stage's pools go through the wire from here on.
        let cut_off = Stage {
            url: wire.url().to_owned(),
            pool: stage.pool.clone(),
        };
        let _handle = heir(&cut_off, &orders, &mail).await;
        for queue in ["orders", "mail"] {
            enqueue(&producer, queue, "before").await;
        }
        orders.wait_for(1).await;
        mail.wait_for(1).await;
        wire.go_silent();
        for queue in ["orders", "mail"] {
            enqueue(&producer, queue, "meanwhile").await;
        }
        // Nobody renews any more: whatever the process has tried since is without an answer.
        let run_out = async || {
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap()
                .as_millis();
            let held = "SELECT COUNT(*) FROM outbox_processors WHERE lease_until >";
            stage.number(format!("{held} {now}")).await == 0
        };
        until("the leases run out", RESUMED, run_out).await;
        wire.heal();
        let healed = Instant::now();
        orders.wait_for(2).await;
        mail.wait_for(2).await;
        let took = healed.elapsed();
        announce(&format!("{server}: back after {took:?}"));
        assert!(took < RESUMED, "back after {took:?}");
        stage.until("SELECT COUNT(*) FROM effects", 2).await;
    })
    .await;
}

/// How many requests of a process are tried as its last.
const LAST_WORDS: u64 = 12;

async fn a_process_that_vanishes_between_any_two_requests_is_replaced<DB: Dialect>(server: Server) {
    with_database(server, async |database| {
        let stage = Stage::<DB>::set(database).await;
        let names = |mode: &str| {
            (1..=LAST_WORDS)
                .map(move |n| format!("{mode}{n}"))
                .collect::<Vec<_>>()
        };
        let (leased, transactional) = (names("leased"), names("transactional"));
        let queues = [leased.clone(), transactional.clone()].concat();
        let producer = producer(stage.pool.clone(), &queues).await;

        // One process for each queue and each last request, all at once to save time.
        let vanish = queues.iter().enumerate().map(|(index, queue)| {
            let (stage, producer) = (&stage, &producer);
            async move {
                let wire = Wire::to(&stage.url).await;
                let builder = quick(Outbox::builder(DB::connect(wire.url(), 2).await));
                let queued = builder.queue(queue.as_str(), ONE);
                let builder = if queue.starts_with("leased") {
                    queued.leased(Collector::new())
                } else {
                    queued.transactional(Ledger(Collector::new()))
                };
                let holder = builder.lease(LEASE).start().await.unwrap();
                // Its connections are made and its statements prepared: it asks for nothing else.
                enqueue(producer, queue, "zeroth").await;
                let settled = format!(
                    "SELECT COUNT(*) FROM outbox_processors c JOIN outbox_partitions p \
                     ON p.partition_id = c.partition_id WHERE p.queue = '{queue}' AND processed_seq = 1"
                );
                stage.until(&settled, 1).await;
                wire.fail_at(
                    index as u64 % LAST_WORDS + 1,
                    Fault::BeforeRequest,
                    After::Silent,
                );
                enqueue(producer, queue, "first").await;
                wire.wait_tripped().await;
                (wire, holder)
            }
        });
        let _vanished = join_all(vanish).await;

        let started = Instant::now();
        let mut builder = quick(Outbox::builder(stage.another_pool(10).await));
        for queue in &leased {
            builder = builder
                .queue(queue.as_str(), ONE)
                .leased(Collector::new())
                .lease(LEASE);
        }
        for queue in &transactional {
            let ledger = Ledger(Collector::new());
            builder = builder
                .queue(queue.as_str(), ONE)
                .transactional(ledger)
                .lease(LEASE);
        }
        let start = tokio::time::timeout(RESUMED, builder.start());
        let heir = start.await.expect("a new process starts").unwrap();
        for queue in &queues {
            enqueue(heir.outbox(), queue, "second").await;
        }
        let settled = "SELECT COUNT(*) FROM outbox_processors WHERE processed_seq = 3";
        let all = queues.len() as i64;
        let done = async || stage.number(settled).await == all;
        until("every queue goes on", RESUMED, done).await;
        announce(&format!(
            "{server}: all replaced after {:?}",
            started.elapsed()
        ));
        heir.stop().await;
        // Three of each queue that books, no more.
        let expected = 3 * transactional.len() as i64;
        assert_eq!(stage.number("SELECT COUNT(*) FROM effects").await, expected);
    })
    .await;
}

/// Writes a business row and a message in one transaction. The row's key is what tells an application
/// that tries again that it need not.
async fn place<DB: Dialect>(outbox: &Outbox<DB>, note: &str) -> Result<(), OutboxError> {
    outbox
        .transaction(async |connection: &mut DB::Connection| {
            DB::run(connection, format!("INSERT INTO placed VALUES ('{note}')")).await?;
            let message = text_message(0, note);
            outbox.enqueue(connection, "orders", message).await?;
            Ok(())
        })
        .await
}

fn is_duplicate(error: &OutboxError) -> bool {
    let OutboxError::Database(sqlx::Error::Database(error)) = error else {
        return false;
    };
    error.is_unique_violation()
}

async fn a_producers_lost_commit_reply_neither_loses_nor_doubles<DB: Dialect>(server: Server) {
    with_database(server, async |database| {
        let stage = Stage::<DB>::set(database).await;
        stage
            .run("CREATE TABLE placed (note VARCHAR(40) PRIMARY KEY)")
            .await;
        let wire = Wire::to(&stage.url).await;
        let pool = DB::connect(wire.url(), 1).await;
        let producer = producer(pool.clone(), &["orders".into()]).await;
        let collector = Collector::new();
        let handle = stage.deliver(ONE, &collector).await;
        let mut placed = Vec::new();
        for fault in [Fault::BeforeRequest, Fault::LostReply] {
            let mut already_there = 0;
            for n in 1.. {
                assert!(n < 50, "a transaction has a handful of requests");
                // A connection that works, with statements that it knows.
                let warm_up = format!("{fault:?} {n} warm-up");
                place(&producer, &warm_up).await.unwrap();
                placed.push(warm_up);
                // The pool tries every connection that comes back to it.
                let at_rest = async || pool.num_idle() == 1;
                until("the connection is back", RESUMED, at_rest).await;
                let note = format!("{fault:?} {n}");
                wire.fail_at(n, fault, After::Cut);
                let last = place(&producer, &note).await.is_ok();
                if !last {
                    assert!(wire.tripped(), "nothing else went wrong");
                    // As an application would that must know.
                    match place(&producer, &note).await {
                        Ok(()) => {}
                        Err(error) if is_duplicate(&error) => already_there += 1,
                        Err(error) => panic!("{note}: {error}"),
                    }
                }
                placed.push(note);
                if last {
                    break;
                }
            }
            let commits = usize::from(fault == Fault::LostReply);
            assert_eq!(
                already_there, commits,
                "{fault:?}: only a commit's lost reply hides one"
            );
            // The fault must not lie in wait for what the pool does by itself.
            wire.disarm();
        }
        collector.wait_for(placed.len()).await;
        stage
            .until(
                "SELECT MIN(processed_seq) FROM outbox_processors",
                placed.len() as i64,
            )
            .await;
        handle.stop().await;
        assert_eq!(
            collector.texts(),
            placed,
            "each once, in the order of the commits"
        );
    })
    .await;
}

/// A handler that makes the wire fail at one of the requests that follow, the settlement's among them.
struct Saboteur<DB: Dialect> {
    wire: Wire,
    direct: Pool<DB>,
    seen: Arc<Mutex<Vec<i64>>>,
    /// Messages that came although the database had their settlement.
    too_late: Arc<Mutex<Vec<i64>>>,
}

impl<DB: Dialect> Saboteur<DB> {
    async fn see(&self, message: &OutboxMessage) {
        let mut connection = self.direct.acquire().await.unwrap();
        let settled = "SELECT MIN(processed_seq) FROM outbox_processors".to_owned();
        if DB::number(&mut connection, settled).await.unwrap() >= message.seq {
            self.too_late.lock().unwrap().push(message.seq);
        }
        let first_time = {
            let mut seen = self.seen.lock().unwrap();
            seen.push(message.seq);
            !seen[..seen.len() - 1].contains(&message.seq)
        };
        if !first_time {
            return;
        }
        // "LostReply 3": the third request from now on.
        let text = text_of(message);
        let (fault, n) = text.split_once(' ').unwrap();
        let fault = match fault {
            "LostReply" => Fault::LostReply,
            _ => Fault::BeforeRequest,
        };
        self.wire.fail_at(n.parse().unwrap(), fault, After::Cut);
    }
}

impl<DB: Dialect> LeasedMessageHandler for Saboteur<DB> {
    async fn handle(&self, message: &OutboxMessage) -> MessageResult {
        self.see(message).await;
        MessageResult::Ok
    }
}

impl<DB: Dialect> TransactionalMessageHandler<DB> for Saboteur<DB> {
    async fn handle(
        &self,
        connection: &mut DB::Connection,
        message: &OutboxMessage,
    ) -> MessageResult {
        let effect = format!("INSERT INTO effects VALUES ({}, '')", message.seq);
        if DB::run(connection, effect).await.is_err() {
            // The wire was cut by somebody else's request.
            return MessageResult::Retry;
        }
        self.see(message).await;
        MessageResult::Ok
    }
}

/// How many of the requests after a handler's answer fail, one at a time.
const REQUESTS_AFTER: u64 = 8;

/// Delivers messages whose settlements fail in every way, and answers how many there were.
async fn sabotage<DB: Dialect>(server: Server, transactional: bool) {
    with_database(server, async |database| {
        let stage = Stage::<DB>::set(database).await;
        let producer = producer(stage.another_pool(1).await, &["orders".into()]).await;
        let (seen, too_late) = (Arc::<Mutex<_>>::default(), Arc::<Mutex<_>>::default());
        let saboteur = Saboteur {
            wire: Wire::to(&stage.url).await,
            direct: stage.pool.clone(),
            seen: Arc::clone(&seen),
            too_late: Arc::clone(&too_late),
        };
        let pool = DB::connect(saboteur.wire.url(), 6).await;
        let queue = quick(Outbox::builder(pool)).queue("orders", ONE);
        let builder = if transactional {
            queue.transactional(saboteur)
        } else {
            queue.leased(saboteur)
        };
        let handle = builder.lease(LEASE).start().await.unwrap();
        let mut sent = 0;
        for fault in [Fault::LostReply, Fault::BeforeRequest] {
            for n in 1..=REQUESTS_AFTER {
                enqueue(&producer, "orders", &format!("{fault:?} {n}")).await;
                sent += 1;
                stage
                    .until("SELECT MIN(processed_seq) FROM outbox_processors", sent)
                    .await;
            }
        }
        handle.stop().await;
        let seen = seen.lock().unwrap().clone();
        announce(&format!(
            "{server}: {sent} messages came {} times",
            seen.len()
        ));
        assert!(seen.is_sorted(), "{seen:?}");
        assert_eq!(
            *too_late.lock().unwrap(),
            [0_i64; 0],
            "a durable ack is final"
        );
        let mut each = seen.clone();
        each.dedup();
        assert_eq!(each, (1..=sent).collect::<Vec<_>>());
        if transactional {
            for effects in [
                "SELECT COUNT(*) FROM effects",
                "SELECT COUNT(DISTINCT seq) FROM effects",
            ] {
                assert_eq!(stage.number(effects).await, sent);
            }
            // Some settlement never arrived, or the faults missed what they were meant for.
            assert!(seen.len() as i64 > sent, "nothing came twice");
        }
    })
    .await;
}

async fn a_leased_handlers_lost_commit_reply_neither_loses_nor_doubles<DB: Dialect>(
    server: Server,
) {
    sabotage::<DB>(server, false).await;
}

async fn a_transactional_handlers_lost_commit_reply_neither_loses_nor_doubles<DB: Dialect>(
    server: Server,
) {
    sabotage::<DB>(server, true).await;
}
