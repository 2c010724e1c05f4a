//! What only MySQL and MariaDB can get wrong: ids that the server hands out in steps, batches larger
//! than a statement, and a session that has to be given back as it was.

use std::time::{Duration, SystemTime};

use outbox::{
    DeadLetterFilter, DeadLetterStatus, EnqueueMessage, Outbox, OutboxMessage, OutboxProfile,
    Partitions, Schema, TablePrefix, WorkerTuning,
};
use sqlx::{Connection as _, MySql};

use crate::conformance::any_language::{Call, Routine as _};
use crate::conformance::stage::quick;
use crate::conformance::{Collector, Dialect as _, Stage};

/// Makes a `#[tokio::test]` of every test in this file.
macro_rules! suite {
    ($server:expr) => {
        $crate::markers::suite!(@tests $server, [
            ids_follow_the_increment_of_the_session,
            a_batch_larger_than_a_statement_is_all_or_nothing,
            an_enqueue_without_a_transaction_is_atomic,
            a_call_without_a_transaction_is_atomic,
            a_call_that_fails_leaves_nothing_in_its_transaction,
            a_call_follows_the_session,
            a_borrowed_session_is_given_back_as_it_was,
            a_prepared_transaction_delays_nobody,
            a_migration_that_was_cut_short_is_finished,
            an_operator_does_not_need_what_a_sequencer_has,
            what_a_sequencer_has_not_committed_is_not_delivered,
            what_takes_too_long_to_remove_goes_in_smaller_steps,
            order_is_kept_while_thousands_of_transactions_are_open,
        ]);
    };
    (@tests $server:expr, [$($test:ident),* $(,)?]) => {
        mod only_here {
            $(
                $crate::conformance::suite!(@test sqlx::MySql, $server, $test,
                    [$crate::markers::$test]);
            )*
        }
    };
}
pub(crate) use suite;

const ONE: Partitions = Partitions::of(1);

fn texts(range: std::ops::Range<usize>) -> Vec<EnqueueMessage> {
    let message = |number: usize| EnqueueMessage::to(0, number.to_string(), "text/plain");
    range.map(message).collect()
}

pub(crate) async fn ids_follow_the_increment_of_the_session(stage: &Stage<MySql>) {
    let collector = Collector::new();
    let queue = stage.outbox().queue("orders", ONE);
    let handle = queue.leased(collector.clone()).start().await.unwrap();
    let mut connection = sqlx::MySqlConnection::connect(&stage.url).await.unwrap();
    let mut enqueued = Vec::new();
    for (step, count) in [(3, 1), (3, 5), (1, 4), (7, 20), (2, 1)] {
        let session = format!(
            "SET SESSION auto_increment_increment = {step}, auto_increment_offset = 1, \
             time_zone = '+05:30'"
        );
        MySql::run(&mut connection, session).await.unwrap();
        let mut transaction = connection.begin().await.unwrap();
        let ids = handle
            .outbox()
            .enqueue_batch(&mut transaction, "orders", &texts(0..count))
            .await
            .unwrap();
        transaction.commit().await.unwrap();
        enqueued.extend(ids);
    }
    let delivered = collector.wait_for(enqueued.len()).await;
    let ids: Vec<_> = delivered.iter().map(|message| message.id).collect();
    assert_eq!(ids, enqueued);
    let gaps: Vec<_> = ids[1..6]
        .windows(2)
        .map(|pair| pair[1].0 - pair[0].0)
        .collect();
    assert_eq!(gaps, [3; 4], "the session's increment was in force");
    let age = SystemTime::now().duration_since(delivered[0].created_at);
    assert!(
        age.unwrap_or_default() < Duration::from_secs(60),
        "whatever the time zone"
    );
    assert!(delivered[0].created_at < SystemTime::now() + Duration::from_secs(60));
    handle.stop().await;
}

pub(crate) async fn a_batch_larger_than_a_statement_is_all_or_nothing(stage: &Stage<MySql>) {
    let collector = Collector::new();
    let queue = stage.outbox().queue("orders", ONE);
    let handle = queue.leased(collector.clone()).start().await.unwrap();
    let refuse = "CREATE TRIGGER refuse BEFORE INSERT ON outbox_messages FOR EACH ROW \
                  BEGIN IF NEW.payload = '2400' THEN SIGNAL SQLSTATE '45000'; END IF; END";
    stage.run(refuse).await;
    // The caller ignores the error and commits: that must not be half a batch.
    let mut transaction = stage.pool.begin().await.unwrap();
    let outbox = handle.outbox();
    let enqueued = outbox
        .enqueue_batch(&mut transaction, "orders", &texts(0..2500))
        .await;
    assert!(enqueued.is_err());
    transaction.commit().await.unwrap();
    assert_eq!(
        stage.number("SELECT COUNT(*) FROM outbox_messages").await,
        0
    );
    let expected: Vec<_> = (0..2399).map(|number: u32| number.to_string()).collect();
    let mut transaction = stage.pool.begin().await.unwrap();
    let ids = outbox
        .enqueue_batch(&mut transaction, "orders", &texts(0..2399))
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    let delivered = collector.wait_for(ids.len()).await;
    assert_eq!(collector.texts(), expected);
    assert_eq!(
        delivered
            .iter()
            .map(|message| message.id)
            .collect::<Vec<_>>(),
        ids
    );
    handle.stop().await;
}

pub(crate) async fn an_enqueue_without_a_transaction_is_atomic(stage: &Stage<MySql>) {
    let queue = stage.outbox().queue("orders", ONE);
    let handle = queue.produce_only().start().await.unwrap();
    let mut connection = sqlx::MySqlConnection::connect(&stage.url).await.unwrap();
    let mut enqueue = async |count| {
        let outbox = handle.outbox();
        outbox
            .enqueue_batch(&mut connection, "orders", &texts(0..count))
            .await
    };
    stage
        .run("CREATE TRIGGER refuse BEFORE INSERT ON outbox_incoming FOR EACH ROW SIGNAL SQLSTATE '45000'")
        .await;
    assert!(enqueue(2).await.is_err());
    assert_eq!(
        stage.number("SELECT COUNT(*) FROM outbox_messages").await,
        0
    );
    stage.run("DROP TRIGGER refuse").await;
    assert_eq!(enqueue(3).await.unwrap().len(), 3);
    assert_eq!(
        stage.number("SELECT COUNT(*) FROM outbox_messages").await,
        3
    );
    // A transaction begun by hand stays the caller's.
    MySql::run(&mut connection, "BEGIN".to_owned())
        .await
        .unwrap();
    let outbox = handle.outbox();
    outbox
        .enqueue_batch(&mut connection, "orders", &texts(0..5))
        .await
        .unwrap();
    MySql::run(&mut connection, "ROLLBACK".to_owned())
        .await
        .unwrap();
    assert_eq!(
        stage.number("SELECT COUNT(*) FROM outbox_messages").await,
        3
    );
    handle.stop().await;
}

pub(crate) async fn a_call_without_a_transaction_is_atomic(stage: &Stage<MySql>) {
    let collector = Collector::new();
    let queue = stage.outbox().queue("orders", ONE);
    let handle = queue.leased(collector.clone()).start().await.unwrap();
    let mut connection = sqlx::MySqlConnection::connect(&stage.url).await.unwrap();
    // What refuses the marker refuses the message.
    stage
        .run("ALTER TABLE outbox_incoming ADD CONSTRAINT small CHECK (size < 5)")
        .await;
    let large = MySql::call(&mut connection, &Call::new("k", "large")).await;
    assert!(large.is_err());
    assert_eq!(
        stage.number("SELECT COUNT(*) FROM outbox_messages").await,
        0
    );
    let small = Call::new("k", "1");
    MySql::call(&mut connection, &small).await.unwrap();
    // A session that has a transaction all the time keeps it.
    for step in ["SET autocommit = 0", "call", "ROLLBACK", "call", "COMMIT"] {
        match step {
            "call" => drop(MySql::call(&mut connection, &small).await.unwrap()),
            step => MySql::run(&mut connection, step.to_owned()).await.unwrap(),
        }
    }
    collector.wait_for(2).await;
    handle.stop().await;
    assert_eq!(collector.texts(), ["1", "1"]);
}

pub(crate) async fn a_call_that_fails_leaves_nothing_in_its_transaction(stage: &Stage<MySql>) {
    let queue = stage.outbox().queue("orders", ONE).produce_only();
    queue.start().await.unwrap().stop().await;
    let mut connection = sqlx::MySqlConnection::connect(&stage.url).await.unwrap();
    for (step, works) in [
        ("RENAME TABLE outbox_incoming TO elsewhere", true),
        ("BEGIN", true),
        ("call", false),
        ("COMMIT", true),
        ("RENAME TABLE elsewhere TO outbox_incoming", true),
        ("BEGIN", true),
        ("call", true),
        ("COMMIT", true),
    ] {
        let done = match step {
            "call" => MySql::call(&mut connection, &Call::new("k", "1"))
                .await
                .map(drop),
            step => MySql::run(&mut connection, step.to_owned()).await,
        };
        assert_eq!(done.is_ok(), works, "{step}: {done:?}");
    }
    let messages = stage.number("SELECT COUNT(*) FROM outbox_messages").await;
    assert_eq!(messages, 1, "none without a marker");
}

pub(crate) async fn a_call_follows_the_session(stage: &Stage<MySql>) {
    let queue = stage.outbox().queue("orders", ONE).produce_only();
    let handle = queue.start().await.unwrap();
    let mut connection = sqlx::MySqlConnection::connect(&stage.url).await.unwrap();
    let session = "SET SESSION auto_increment_increment = 7, auto_increment_offset = 1";
    MySql::run(&mut connection, session.to_owned())
        .await
        .unwrap();
    let mut ids = Vec::new();
    for _ in 0..3 {
        let call = Call::new("k", "x");
        ids.push(MySql::call(&mut connection, &call).await.unwrap());
    }
    assert_eq!([ids[1] - ids[0], ids[2] - ids[1]], [7, 7]);
    let large = Call::new("k", vec![0; 2 << 20]);
    assert!(MySql::call(&mut connection, &large).await.is_err());
    let limit = "SET @outbox_max_payload = 3000000";
    MySql::run(&mut connection, limit.to_owned()).await.unwrap();
    MySql::call(&mut connection, &large).await.unwrap();
    handle.stop().await;
}

pub(crate) async fn a_borrowed_session_is_given_back_as_it_was(stage: &Stage<MySql>) {
    let collector = Collector::new();
    let pool = stage.another_pool(1).await;
    let session = "CAST(CONCAT(@@SESSION.wait_timeout, @@SESSION.lock_wait_timeout, \
                   @@SESSION.innodb_lock_wait_timeout, @@SESSION.autocommit, CONNECTION_ID()) \
                   AS SIGNED)";
    let look = async || {
        let mut connection = pool.acquire().await.expect("a connection");
        MySql::number(&mut connection, format!("SELECT {session}"))
            .await
            .expect("a look")
    };
    let before = look().await;
    let queue = Outbox::builder(pool.clone()).profile(OutboxProfile::low_latency());
    stage
        .outbox()
        .queue("orders", ONE)
        .produce_only()
        .start()
        .await
        .unwrap()
        .stop()
        .await;
    let handle = queue
        .queue("orders", ONE)
        .transactional(Ledger(collector.clone()));
    let handle = handle.start().await.unwrap();
    stage.enqueue(handle.outbox(), 0, &["a", "b", "c"]).await;
    collector.wait_for(3).await;
    stage.until("SELECT COUNT(*) FROM outbox_messages", 0).await;
    handle.stop().await;
    assert_eq!(
        look().await,
        before,
        "the same connection, in the same state"
    );
}

pub(crate) async fn a_prepared_transaction_delays_nobody(stage: &Stage<MySql>) {
    let collector = Collector::new();
    let queue = stage.outbox().queue("orders", ONE);
    let handle = queue.leased(collector.clone()).start().await.unwrap();
    let outbox = handle.outbox();
    let mut connection = sqlx::MySqlConnection::connect(&stage.url).await.unwrap();
    for statement in [
        "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "XA START 'two phases'",
    ] {
        MySql::run(&mut connection, statement.to_owned())
            .await
            .unwrap();
    }
    let prepared = EnqueueMessage::to(0, "prepared", "text/plain");
    outbox
        .enqueue(&mut connection, "orders", prepared)
        .await
        .unwrap();
    for statement in ["XA END 'two phases'", "XA PREPARE 'two phases'"] {
        MySql::run(&mut connection, statement.to_owned())
            .await
            .unwrap();
    }
    for text in ["one", "two", "three"] {
        stage.enqueue(outbox, 0, &[text]).await;
    }
    collector.wait_for(3).await;
    // What is settled is swept beside it.
    stage.until("SELECT COUNT(*) FROM outbox_messages", 0).await;
    MySql::run(&mut connection, "XA COMMIT 'two phases'".to_owned())
        .await
        .unwrap();
    outbox.flush();
    collector.wait_for(4).await;
    assert_eq!(collector.texts(), ["one", "two", "three", "prepared"]);
    handle.stop().await;
}

pub(crate) async fn a_migration_that_was_cut_short_is_finished(stage: &Stage<MySql>) {
    let start = async || {
        let queue = stage.outbox().queue("orders", ONE).leased(Collector::new());
        queue.start().await.expect("it starts").stop().await
    };
    start().await;
    // The tables are made one by one; the version comes last.
    for rest in ["schema", "processes", "dead_letters", "vacuum"] {
        stage.run(format!("DROP TABLE outbox_{rest}")).await;
    }
    stage.run("DROP PROCEDURE outbox_enqueue").await;
    start().await;
    assert_eq!(stage.number("SELECT COUNT(*) FROM outbox_vacuum").await, 1);
    let routines = "SELECT COUNT(*) FROM information_schema.routines \
                    WHERE routine_schema = DATABASE()";
    assert_eq!(stage.number(routines).await, 1);
    let schema = Schema::new(stage.pool.clone(), &TablePrefix::default());
    schema.down().await.unwrap();
    assert_eq!(stage.number(routines).await, 0);
}

pub(crate) async fn an_operator_does_not_need_what_a_sequencer_has(stage: &Stage<MySql>) {
    let collector = Collector::answering(|_| outbox::MessageResult::Reject("no".into()));
    let handle = stage.deliver(ONE, &collector).await;
    let outbox = handle.outbox();
    stage.enqueue(outbox, 0, &["a", "b"]).await;
    stage
        .until("SELECT COUNT(*) FROM outbox_dead_letters", 2)
        .await;
    // As a sequencer in the middle of its step.
    let mut sequencer = stage.pool.begin().await.unwrap();
    let lock = "SELECT partition_id FROM outbox_partitions FOR UPDATE";
    MySql::number(&mut sequencer, lock.to_owned())
        .await
        .unwrap();
    let one = DeadLetterFilter::new().limit(1);
    let claimed = outbox.dead_letter_replay(&one, Duration::from_secs(60));
    let claimed = claimed.await.unwrap();
    assert_eq!(claimed.len(), 1, "no dead letter is passed over");
    let rest = DeadLetterFilter::new().status(DeadLetterStatus::Pending);
    let rest = outbox.dead_letter_list(&rest).await.unwrap();
    let requeued = outbox.dead_letter_requeue(rest[0].id).await;
    requeued.expect("it is pending, whatever a sequencer does");
    sequencer.rollback().await.unwrap();
    collector.wait_for(3).await;
    handle.stop().await;
}

pub(crate) async fn what_a_sequencer_has_not_committed_is_not_delivered(stage: &Stage<MySql>) {
    let collector = Collector::new();
    let session = "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED";
    let builder = quick(Outbox::builder(stage.pool_saying(session, 8).await)).auto_migrate();
    let queue = builder.queue("orders", ONE).leased(collector.clone());
    let handle = queue.start().await.unwrap();
    let outbox = handle.outbox();
    // A sequencer that has written all of its step, and freezes.
    let mut frozen = stage.pool.begin().await.unwrap();
    let lock = "SELECT partition_id FROM outbox_partitions FOR UPDATE";
    MySql::number(&mut frozen, lock.to_owned()).await.unwrap();
    stage.enqueue(outbox, 0, &["a", "b"]).await;
    for step in [
        "INSERT INTO outbox_runs (partition_id, first_seq, last_seq, width, ids, sizes) \
         SELECT partition_id, 1, COUNT(*), 20, \
                CONCAT(GROUP_CONCAT(LPAD(id, 19, ' ') ORDER BY id), ','), \
                CONCAT(GROUP_CONCAT(LPAD(size, 19, ' ') ORDER BY id), ',') \
         FROM outbox_incoming GROUP BY partition_id",
        "DELETE FROM outbox_incoming",
        "UPDATE outbox_partitions SET last_seq = 2",
    ] {
        MySql::run(&mut frozen, step.to_owned()).await.unwrap();
    }
    stage.signs_of_life(3).await;
    assert!(collector.seen().is_empty(), "{:?}", collector.texts());
    frozen.rollback().await.unwrap();
    collector.wait_for(2).await;
    stage.enqueue(outbox, 0, &["c"]).await;
    collector.wait_for(3).await;
    handle.stop().await;
    assert_eq!(collector.texts(), ["a", "b", "c"]);
}

/// A server on which a statement that removes more than a hundred messages takes longer than anybody waits
/// at first, and is broken off whoever waits.
const SLOW_REMOVALS: &str = "CREATE TRIGGER take_long BEFORE DELETE ON outbox_messages FOR EACH ROW BEGIN \
    SET @removed = IF(@began <=> NOW(6), @removed + 1, 1), @began = NOW(6); \
    IF @removed > 100 THEN DO SLEEP(3); SIGNAL SQLSTATE '70100'; END IF; END";

pub(crate) async fn what_takes_too_long_to_remove_goes_in_smaller_steps(stage: &Stage<MySql>) {
    let collector = Collector::new();
    // Nobody but the vacuum itself has it look again.
    let never = WorkerTuning::reconciler().idle_interval(Duration::from_secs(3600));
    let queue = stage.outbox().reconciler_tuning(never).queue("orders", ONE);
    let handle = queue.leased(collector.clone()).start().await.unwrap();
    stage.run(SLOW_REMOVALS).await;
    // As if another vacuum were at it, so that there is much when it ends.
    let mut other = stage.pool.begin().await.unwrap();
    let lock = "SELECT partition_id FROM outbox_vacuum FOR UPDATE".to_owned();
    MySql::run(&mut other, lock).await.unwrap();
    let texts: Vec<_> = (0..200).map(|number: u32| number.to_string()).collect();
    let texts: Vec<_> = texts.iter().map(String::as_str).collect();
    stage.enqueue(handle.outbox(), 0, &texts).await;
    stage
        .until("SELECT processed_seq FROM outbox_processors", 200)
        .await;
    other.rollback().await.unwrap();
    stage.until("SELECT COUNT(*) FROM outbox_messages", 0).await;
    stage.until("SELECT COUNT(*) FROM outbox_runs", 0).await;
    handle.stop().await;
}

/// So many transactions are open beside those of the test: a server that takes its snapshots bit by bit
/// needs long for one, and others commit meanwhile.
const CROWD: usize = 4000;
/// How often somebody enqueues right behind another's commit.
const ROUNDS: usize = 2000;

pub(crate) async fn order_is_kept_while_thousands_of_transactions_are_open(stage: &Stage<MySql>) {
    let collector = Collector::new();
    let queue = stage.outbox().queue("orders", ONE);
    let mut kit = queue
        .leased(collector.clone())
        .step_by_step()
        .await
        .unwrap();
    let partition_id = kit.outbox().partition_ids("orders").unwrap()[0];
    tokio::join!(
        crowd(stage, 0),
        crowd(stage, 1),
        crowd(stage, 2),
        crowd(stage, 3)
    );
    let looking = async {
        loop {
            kit.drain().await.expect("a drain");
        }
    };
    tokio::select! {
        () = enqueue_behind_a_commit(stage, partition_id) => {}
        () = looking => {}
    }
    kit.drain().await.unwrap();
    let mut connection = sqlx::MySqlConnection::connect(&stage.url).await.unwrap();
    for number in 0..CROWD {
        let end = format!("XA ROLLBACK 'crowd {number}'");
        MySql::run(&mut connection, end).await.unwrap();
    }
    let texts = collector.texts();
    assert_eq!(texts.len(), 2 * ROUNDS);
    let place = |text: String| texts.iter().position(|seen| *seen == text);
    let overtaken =
        |round: &usize| place(format!("first {round}")) > place(format!("second {round}"));
    let overtaken: Vec<_> = (0..ROUNDS).filter(overtaken).collect();
    assert!(overtaken.is_empty(), "{overtaken:?}");
}

/// A quarter of the crowd. Prepared transactions need no connection.
async fn crowd(stage: &Stage<MySql>, quarter: usize) {
    for number in (quarter..CROWD).step_by(4) {
        let mut connection = sqlx::MySqlConnection::connect(&stage.url).await.unwrap();
        let name = format!("'crowd {number}'");
        let prepare = format!(
            "XA START {name}; INSERT INTO effects (seq) VALUES ({number}); XA END {name}; \
             XA PREPARE {name}"
        );
        MySql::run(&mut connection, prepare).await.unwrap();
        connection.close().await.unwrap();
    }
}

/// One commits, then another enqueues, who has begun before and commits at once. The server hands the turn
/// over: a client would be too slow.
async fn enqueue_behind_a_commit(stage: &Stage<MySql>, partition_id: i64) {
    let mut first = sqlx::MySqlConnection::connect(&stage.url).await.unwrap();
    let mut second = sqlx::MySqlConnection::connect(&stage.url).await.unwrap();
    let enqueue = |text: String| {
        format!(
            "INSERT INTO outbox_messages (partition_id, created_at, payload_type, payload) \
             VALUES ({partition_id}, 0, 'text/plain', '{text}'); \
             INSERT INTO outbox_incoming (partition_id, id, size) \
             VALUES ({partition_id}, LAST_INSERT_ID(), 8)"
        )
    };
    let turn = "CONCAT(DATABASE(), '.turn')";
    for round in 0..ROUNDS {
        let begin = format!(
            "DO GET_LOCK({turn}, 60); BEGIN; {}",
            enqueue(format!("first {round}"))
        );
        MySql::run(&mut first, begin).await.unwrap();
        let begin = "BEGIN; INSERT INTO effects (seq) VALUES (0)";
        MySql::run(&mut second, begin.to_owned()).await.unwrap();
        let behind = format!(
            "DO GET_LOCK({turn}, 60); {}; COMMIT; DO RELEASE_LOCK({turn})",
            enqueue(format!("second {round}"))
        );
        // After a moment, in which the second begins to wait.
        let commit = format!("DO SLEEP(0.001); COMMIT; DO RELEASE_LOCK({turn})");
        let (behind, commit) = tokio::join!(
            MySql::run(&mut second, behind),
            MySql::run(&mut first, commit)
        );
        commit.unwrap();
        behind.unwrap();
    }
}

/// A handler inside the transaction.
struct Ledger(Collector);

impl outbox::TransactionalMessageHandler<MySql> for Ledger {
    async fn handle(
        &self,
        connection: &mut sqlx::MySqlConnection,
        message: &OutboxMessage,
    ) -> outbox::MessageResult {
        // The server ends this transaction if we are gone for a lease, not for the usual eight hours.
        let timeout = MySql::number(
            connection,
            "SELECT CAST(@@SESSION.wait_timeout AS SIGNED)".to_owned(),
        );
        assert_eq!(timeout.await.expect("a look"), 31);
        self.0.see(message)
    }
}
