//! The conformance suite on PostgreSQL, and what only PostgreSQL can do.
#![cfg(all(feature = "testing", feature = "postgres"))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod conformance;
mod wire;

use std::time::Duration;

use conformance::any_language::{Call, Routine as _};
use conformance::stage::{ONE, quick, text_message, text_of};
use conformance::{Collector, Dialect, Stage};
use outbox::{Outbox, OutboxHandle, OutboxProfile, Partitions, Schema, TablePrefix, WorkerTuning};
use sqlx::Postgres;
use testbed::{Server, with_database};

conformance::suite!(sqlx::Postgres, testbed::Server::Postgres);
wire::suite!(sqlx::Postgres, testbed::Server::Postgres);

#[tokio::test]
async fn a_prepared_transaction_is_delivered_when_it_commits() {
    with_database(Server::Postgres, async |database| {
        let stage = Stage::<Postgres>::set(database).await;
        let collector = Collector::new();
        let handle = stage.deliver(ONE, &collector).await;
        // Names of prepared transactions are known to the whole server.
        let name = database.url().rsplit('/').next().unwrap().to_owned();
        for (text, suffix) in [("undone", "a"), ("kept", "b")] {
            let mut connection = stage.pool.acquire().await.unwrap();
            sqlx::raw_sql("BEGIN")
                .execute(&mut *connection)
                .await
                .unwrap();
            let message = text_message(0, text);
            handle
                .outbox()
                .enqueue(&mut connection, "orders", message)
                .await
                .unwrap();
            // From now on it belongs to no connection: it can end anywhere.
            let prepare = format!("PREPARE TRANSACTION '{name}_{suffix}'");
            Postgres::run(&mut connection, prepare).await.unwrap();
        }
        stage
            .enqueue(handle.outbox(), 0, &["others do not wait"])
            .await;
        collector.wait_for(1).await;
        stage.run(format!("ROLLBACK PREPARED '{name}_a'")).await;
        stage.run(format!("COMMIT PREPARED '{name}_b'")).await;
        collector.wait_for(2).await;
        handle.stop().await;
        assert_eq!(collector.texts(), ["others do not wait", "kept"]);
    })
    .await;
}

#[tokio::test]
async fn a_call_can_be_prepared_without_its_signal() {
    with_database(Server::Postgres, async |database| {
        let stage = Stage::<Postgres>::set(database).await;
        let collector = Collector::new();
        let handle = stage.deliver(ONE, &collector).await;
        let name = database.url().rsplit('/').next().unwrap();
        let mut connection = stage.pool.acquire().await.unwrap();
        for setting in ["on", "off"] {
            let begin = format!("BEGIN; SET LOCAL outbox.signal = '{setting}'");
            Postgres::run(&mut connection, begin).await.unwrap();
            let call = Call::new("k", setting);
            Postgres::call(&mut connection, &call).await.unwrap();
            let prepare = format!("PREPARE TRANSACTION '{name}_{setting}'");
            let prepared = Postgres::run(&mut connection, prepare).await;
            assert_eq!(prepared.is_ok(), setting == "off", "{prepared:?}");
        }
        stage.run(format!("COMMIT PREPARED '{name}_off'")).await;
        collector.wait_for(1).await;
        handle.stop().await;
        assert_eq!(collector.texts(), ["off"]);
    })
    .await;
}

#[tokio::test]
async fn a_call_finds_its_tables_whatever_the_search_path() {
    with_database(Server::Postgres, async |database| {
        let stage = Stage::<Postgres>::set(database).await;
        let there = "SET LOCAL search_path = \"Else where\"";
        let make = Schema::<Postgres>::up_sql(&TablePrefix::default());
        let queue = "INSERT INTO outbox_queues (queue, partitions, partition_ids) \
                     VALUES ('orders', 1, '{7}')";
        stage
            .run(format!(
                "BEGIN; CREATE SCHEMA \"Else where\"; {there}; {make}; {queue}; COMMIT"
            ))
            .await;
        // Untyped text, as in a shell, from sessions that do not look there.
        let call = "SELECT \"Else where\".outbox_enqueue('orders', 'k', 't', '{\"a\":1}')";
        for path in ["public", "''", "pg_temp, public"] {
            let elsewhere = format!("SET LOCAL search_path = {path}");
            stage
                .run(format!("BEGIN; {elsewhere}; {call}; COMMIT"))
                .await;
        }
        let named = "SELECT outbox_enqueue(queue => 'orders', key => NULL, type => 't', \
                     payload => '{\"a\":1}', headers => '{\"trace\": \"7\"}')";
        stage.run(format!("BEGIN; {there}; {named}; COMMIT")).await;
        let arrived = "SELECT COUNT(*) FROM \"Else where\".outbox_messages \
                       WHERE partition_id = 7 AND payload = '{\"a\":1}'";
        assert_eq!(stage.number(arrived).await, 4);
    })
    .await;
}

#[tokio::test]
async fn the_limit_of_calls_is_a_setting() {
    with_database(Server::Postgres, async |database| {
        let stage = Stage::<Postgres>::set(database).await;
        let queue = stage.outbox().queue("orders", ONE).produce_only();
        let handle = queue.start().await.unwrap();
        let mut connection = stage.pool.acquire().await.unwrap();
        for (limit, taken) in [("'9'", false), ("'10'", true), ("DEFAULT", true)] {
            let begin = format!("BEGIN; SET LOCAL outbox.max_payload = {limit}");
            Postgres::run(&mut connection, begin).await.unwrap();
            let call = Call::new("k", "ten bytes!");
            let answer = Postgres::call(&mut connection, &call).await;
            assert_eq!(answer.is_ok(), taken, "{answer:?}");
            Postgres::run(&mut connection, "ROLLBACK".to_owned())
                .await
                .unwrap();
        }
        handle.stop().await;
    })
    .await;
}

/// Lets the transactions of connections that are made from now on be serializable, unless they say otherwise.
async fn be_strict_by_default(stage: &Stage<Postgres>) {
    let name = stage.url.rsplit('/').next().unwrap();
    let change = "SET default_transaction_isolation = 'serializable'";
    stage.run(format!("ALTER DATABASE {name} {change}")).await;
}

#[tokio::test]
async fn a_server_whose_default_is_serializable_changes_nothing() {
    with_database(Server::Postgres, async |database| {
        let stage = Stage::<Postgres>::set(database).await;
        be_strict_by_default(&stage).await;
        let collector = Collector::new();
        let pool = stage.another_pool(8).await;
        let builder = quick(Outbox::builder(pool))
            .auto_migrate()
            .queue("orders", ONE);
        let handle = builder.leased(collector.clone()).start().await.unwrap();
        for number in 0..50 {
            stage
                .enqueue(handle.outbox(), 0, &[&number.to_string()])
                .await;
        }
        collector.wait_for(50).await;
        handle.stop().await;
        let expected: Vec<_> = (0..50).map(|number| number.to_string()).collect();
        assert_eq!(collector.texts(), expected);
    })
    .await;
}

/// As if every look walked over so many rows that it takes this long.
fn slow_looks(seconds: f64) -> String {
    format!(
        "ALTER TABLE outbox_queues RENAME TO quick_queues;
         CREATE VIEW outbox_queues AS SELECT * FROM quick_queues WHERE pg_sleep({seconds}) IS NOT NULL"
    )
}

#[tokio::test]
async fn what_an_open_transaction_wrote_is_not_looked_at_again_and_again() {
    what_is_known_is_not_looked_at(0.15).await;
}

#[tokio::test]
async fn looks_that_come_less_often_for_what_an_open_transaction_wrote_are_slow() {
    what_is_known_is_not_looked_at(0.02).await;
}

/// Later than what is done every ten seconds, or twenty where the machine is busy.
const SOON: Duration = Duration::from_secs(30);

/// A partition remembers what an open transaction wrote if looks take this long for it.
async fn what_is_known_is_not_looked_at(seconds: f64) {
    with_database(Server::Postgres, async |database| {
        let stage = Stage::<Postgres>::set(database).await;
        let collector = Collector::new();
        let handle = stage.deliver(ONE, &collector).await;
        stage.enqueue(handle.outbox(), 0, &["first"]).await;
        collector.wait_for(1).await;
        let mut open = stage.pool.begin().await.unwrap();
        let late = text_message(0, "late");
        let late = handle.outbox().enqueue(&mut open, "orders", late);
        late.await.unwrap();
        let own = "SELECT pg_current_xact_id()::text::bigint".to_owned();
        let own = Postgres::number(&mut open, own).await.unwrap();
        stage.run(slow_looks(seconds)).await;
        // Nothing new is in the partition, and it remembers that it knows this transaction.
        let known = format!(
            "SELECT COUNT(*) FROM outbox_partitions
             WHERE '{own}'::xid8 IN (SELECT pg_snapshot_xip(seen))"
        );
        let soon = tokio::time::timeout(SOON, stage.until(&known, 1));
        soon.await.expect("it remembers");
        open.commit().await.unwrap();
        collector.wait_for(2).await;
        stage.enqueue(handle.outbox(), 0, &["last"]).await;
        collector.wait_for(3).await;
        handle.stop().await;
        assert_eq!(collector.texts(), ["first", "late", "last"]);
    })
    .await;
}

#[tokio::test]
async fn a_reason_that_the_database_cannot_write_is_written_in_ascii() {
    with_database(Server::Postgres, async |database| {
        let admin = Stage::<Postgres>::set(database).await;
        let name = format!("{}_latin1", database.url().rsplit('/').next().unwrap());
        let make = "ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0";
        admin.run(format!("CREATE DATABASE {name} {make}")).await;
        let url = format!("{}_latin1", database.url());
        for transactional in [false, true] {
            let pool = Postgres::connect(&url, 8).await;
            reject_with_an_emoji(
                Stage {
                    url: url.clone(),
                    pool,
                },
                transactional,
            )
            .await;
        }
        admin
            .run(format!("DROP DATABASE {name} WITH (FORCE)"))
            .await;
    })
    .await;
}

async fn reject_with_an_emoji(stage: Stage<Postgres>, transactional: bool) {
    let queue = if transactional { "booked" } else { "orders" };
    let collector = Collector::answering(|message| match (&*text_of(message), message.attempts) {
        ("poison", _) => outbox::MessageResult::Reject("I feel \u{1f922}, caf\u{e9}".into()),
        _ => outbox::MessageResult::Ok,
    });
    let builder = stage.outbox().queue(queue, ONE);
    let builder = match transactional {
        true => builder.transactional(Plain(collector.clone())),
        false => builder.leased(collector.clone()),
    };
    let handle = builder.start().await.unwrap();
    let outbox = handle.outbox();
    let messages = ["poison", "next"].map(|text| text_message(0, text));
    outbox
        .transaction(async |transaction| outbox.enqueue_batch(transaction, queue, &messages).await)
        .await
        .unwrap();
    collector
        .wait_until(|seen| seen.iter().any(|message| text_of(message) == "next"))
        .await;
    stage
        .until("SELECT MIN(processed_seq) FROM outbox_processors", 2)
        .await;
    let own = outbox::DeadLetterFilter::new().queue(queue);
    let letters = outbox.dead_letter_list(&own).await.unwrap();
    let reasons: Vec<_> = letters.iter().map(|letter| &*letter.last_error).collect();
    assert_eq!(reasons, ["I feel \\u{1f922}, caf\\u{e9}"]);
    let again = outbox.dead_letter_replay(&own, Duration::from_secs(60));
    let again = again.await.unwrap();
    let failed = outbox.dead_letter_reject(&again, "still \u{1f922}").await;
    assert_eq!(failed.unwrap(), 1);
    outbox
        .audit("me", "reject", queue, "\u{1f922}")
        .await
        .unwrap();
    handle.stop().await;
}

/// Handles inside the transaction, and writes nothing there.
struct Plain(Collector);

impl outbox::TransactionalMessageHandler<Postgres> for Plain {
    async fn handle(
        &self,
        _: &mut sqlx::PgConnection,
        message: &outbox::OutboxMessage,
    ) -> outbox::MessageResult {
        self.0.see(message)
    }
}

/// A server that gives up on a statement which writes more than two runs.
const NO_LARGE_STEPS: &str = "
    CREATE FUNCTION give_up() RETURNS TRIGGER LANGUAGE plpgsql AS $$
    BEGIN
        IF (SELECT COUNT(*) > 2 FROM written) THEN
            RAISE 'canceling statement due to statement timeout' USING ERRCODE = 'query_canceled';
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER give_up AFTER INSERT ON outbox_runs REFERENCING NEW TABLE AS written
    FOR EACH STATEMENT EXECUTE FUNCTION give_up()";

#[tokio::test]
async fn a_step_that_is_too_large_is_followed_by_smaller_ones() {
    with_database(Server::Postgres, async |database| {
        let stage = Stage::<Postgres>::set(database).await;
        let texts: Vec<_> = (0..5000).map(|number| number.to_string()).collect();
        let all: Vec<_> = texts.iter().map(String::as_str).collect();
        let collector = Collector::new();
        // The first step is two runs long, those that grow are twenty.
        let steps = WorkerTuning::sequencer_low_latency().batch_size(4);
        let builder = stage.outbox().sequencer_tuning(steps).queue("orders", ONE);
        let handle = builder.leased(collector.clone()).start().await.unwrap();
        stage.run(NO_LARGE_STEPS).await;
        stage.enqueue(handle.outbox(), 0, &all).await;
        collector.wait_for(5000).await;
        handle.stop().await;
        assert_eq!(collector.texts(), texts);
    })
    .await;
}

/// A server that gives up on a statement which removes more than a run.
const NO_LARGE_REMOVALS: &str = "
    CREATE FUNCTION give_up() RETURNS TRIGGER LANGUAGE plpgsql AS $$
    BEGIN
        IF (SELECT COUNT(*) > 1000 FROM removed) THEN
            RAISE 'canceling statement due to statement timeout' USING ERRCODE = 'query_canceled';
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER give_up AFTER DELETE ON outbox_messages REFERENCING OLD TABLE AS removed
    FOR EACH STATEMENT EXECUTE FUNCTION give_up()";

#[tokio::test]
async fn a_removal_that_is_too_large_is_followed_by_smaller_ones() {
    with_database(Server::Postgres, async |database| {
        let stage = Stage::<Postgres>::set(database).await;
        let collector = Collector::new();
        let never = WorkerTuning::reconciler().idle_interval(Duration::from_secs(3600));
        let queue = stage.outbox().reconciler_tuning(never).queue("orders", ONE);
        let handle = queue.leased(collector.clone()).start().await.unwrap();
        stage.run(NO_LARGE_REMOVALS).await;
        let mut other = stage.pool.begin().await.unwrap();
        let lock = "SELECT partition_id FROM outbox_vacuum FOR UPDATE".to_owned();
        Postgres::run(&mut other, lock).await.unwrap();
        stage
            .enqueue(handle.outbox(), 0, &vec!["small"; 3000])
            .await;
        stage
            .until("SELECT processed_seq FROM outbox_processors", 3000)
            .await;
        other.rollback().await.unwrap();
        stage.until("SELECT COUNT(*) FROM outbox_messages", 0).await;
        handle.stop().await;
    })
    .await;
}

/// A server on which a step takes longer than anybody waits the first time, and the second, where the
/// message is in the first partition. It counts them, those that are undone too.
const SLOW_STEPS: &str = "
    CREATE SEQUENCE steps;
    CREATE FUNCTION take_long() RETURNS TRIGGER LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM nextval('steps'), pg_sleep(4.5);
        RETURN NEW;
    END $$;
    CREATE TRIGGER take_long BEFORE INSERT ON outbox_runs
    FOR EACH ROW WHEN (NEW.partition_id = 1) EXECUTE FUNCTION take_long()";

#[tokio::test]
async fn a_slow_step_comes_to_its_end_beside_quick_ones() {
    with_database(Server::Postgres, async |database| {
        let stage = Stage::<Postgres>::set(database).await;
        // What is not waited for is undone.
        be_strict_by_default(&stage).await;
        let collector = Collector::new();
        let pool = stage.another_pool(8).await;
        let builder = quick(Outbox::builder(pool)).auto_migrate();
        // One sequencer does it all.
        let queue = builder.maintenance(0, 1).queue("orders", Partitions::of(2));
        let handle = queue.leased(collector.clone()).start().await.unwrap();
        let outbox = handle.outbox();
        assert_eq!(outbox.partition_ids("orders").unwrap()[0], 1);
        stage.run(SLOW_STEPS).await;
        stage.enqueue(outbox, 0, &["slow"]).await;
        let quick = async {
            loop {
                stage.enqueue(outbox, 1, &["quick"]).await;
            }
        };
        tokio::select! {
            () = quick => {}
            () = collector.wait_until(|seen| seen.iter().any(|one| one.partition == 0)) => {}
        }
        handle.stop().await;
        let steps = stage.number("SELECT last_value FROM steps").await;
        assert!(steps <= 3, "each has twice the time: {steps}");
    })
    .await;
}

#[tokio::test]
async fn room_is_given_back_when_many_messages_have_gone() {
    with_database(Server::Postgres, async |database| {
        let stage = Stage::<Postgres>::set(database).await;
        let handle = many_that_go(&stage).await;
        stage.until(ROOM, 0).await;
        handle.stop().await;
    })
    .await;
}

#[tokio::test]
async fn room_that_somebody_held_for_a_while_is_given_back() {
    with_database(Server::Postgres, async |database| {
        let stage = Stage::<Postgres>::set(database).await;
        let mut reader = stage.pool.acquire().await.unwrap();
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1";
        Postgres::run(&mut reader, begin.to_owned()).await.unwrap();
        let handle = many_that_go(&stage).await;
        let tries = "SELECT LEAST(vacuum_count, 1) FROM pg_stat_user_tables
            WHERE relname = 'outbox_messages'";
        stage.until(tries, 1).await;
        assert!(stage.number(ROOM).await > 0);
        Postgres::run(&mut reader, "COMMIT".to_owned())
            .await
            .unwrap();
        stage.until(ROOM, 0).await;
        handle.stop().await;
    })
    .await;
}

#[tokio::test]
async fn room_is_given_back_after_an_attempt_that_failed() {
    with_database(Server::Postgres, async |database| {
        let stage = Stage::<Postgres>::set(database).await;
        // Long enough to be seen.
        let slow = "SET vacuum_cost_delay = 1; SET vacuum_cost_limit = 1";
        let stage = Stage {
            pool: stage.pool_saying(slow, 8).await,
            url: stage.url,
        };
        let handle = many_that_go(&stage).await;
        let end = "SELECT COUNT(pg_terminate_backend(pid)) FROM pg_stat_activity \
                   WHERE datname = current_database() AND state = 'active' AND query LIKE 'VACUUM%'";
        stage.until(end, 1).await;
        stage.until(ROOM, 0).await;
        handle.stop().await;
    })
    .await;
}

#[tokio::test]
async fn room_is_given_back_once_while_messages_stay() {
    with_database(Server::Postgres, async |database| {
        let stage = Stage::<Postgres>::set(database).await;
        let waiting = stage.outbox().queue("waiting", ONE).produce_only();
        let waiting = waiting.start().await.unwrap();
        let mut connection = stage.pool.acquire().await.unwrap();
        let stays = waiting
            .outbox()
            .enqueue(&mut connection, "waiting", text_message(0, "stays"));
        stays.await.unwrap();
        let handle = many_that_go(&stage).await;
        let tries =
            "SELECT vacuum_count FROM pg_stat_user_tables WHERE relname = 'outbox_messages'";
        stage.until(tries, 1).await;
        // It says every second that it is alive; the next try would come after one.
        stage.signs_of_life(4).await;
        assert_eq!(stage.number(tries).await, 1);
        handle.stop().await;
        waiting.stop().await;
    })
    .await;
}

const ROOM: &str = "SELECT pg_relation_size('outbox_messages')";

/// Lets so many messages come and go that their room is worth giving back, which nobody but the outbox
/// does.
async fn many_that_go(stage: &Stage<Postgres>) -> OutboxHandle<Postgres> {
    let handle = stage
        .outbox()
        .profile(OutboxProfile::high_throughput())
        // Nobody but the vacuum itself has it look again.
        .reconciler_tuning(WorkerTuning::reconciler().idle_interval(Duration::from_secs(3600)))
        .queue("orders", ONE)
        .batch_leased(TakeAll)
        .start()
        .await
        .unwrap();
    stage
        .run("ALTER TABLE outbox_messages SET (autovacuum_enabled = off)")
        .await;
    let texts: Vec<_> = vec!["x"; 1000];
    // Well above what is worth while.
    for _ in 0..80 {
        stage.enqueue(handle.outbox(), 0, &texts).await;
    }
    assert!(stage.number(ROOM).await > 0);
    let gone = "SELECT COUNT(*) FROM outbox_messages WHERE payload = 'x'";
    stage.until(gone, 0).await;
    handle
}

/// Acks whatever comes.
struct TakeAll;

impl outbox::LeasedHandler for TakeAll {
    async fn handle(&self, batch: &mut outbox::Batch<'_>) -> outbox::HandlerResult {
        while let Some(message) = batch.next_msg() {
            batch.ack(message);
        }
        outbox::HandlerResult::Success
    }
}

#[tokio::test]
async fn sequencing_stops_on_foreign_transaction_ids_until_it_is_repaired() {
    with_database(Server::Postgres, async |database| {
        let stage = Stage::<Postgres>::set(database).await;
        let collector = Collector::new();
        let handle = stage.deliver(ONE, &collector).await;
        stage.enqueue(handle.outbox(), 0, &["before"]).await;
        collector.wait_for(1).await;
        // As after a dump and restore: the rows are there, the cluster is another.
        stage
            .run("UPDATE outbox_partitions SET cluster = cluster + 1")
            .await;
        stage.enqueue(handle.outbox(), 0, &["after"]).await;
        // The other partition shows that time has passed: it was marked later and is done.
        let probe = quick(Outbox::builder(stage.pool.clone())).queue("probe", ONE);
        let probed = Collector::new();
        let probe = probe.leased(probed.clone()).start().await.unwrap();
        let outbox = probe.outbox();
        outbox
            .transaction(async |transaction| {
                outbox
                    .enqueue(transaction, "probe", text_message(0, "probe"))
                    .await
            })
            .await
            .unwrap();
        probed.wait_for(1).await;
        assert_eq!(
            collector.texts(),
            ["before"],
            "nothing is numbered by foreign ids"
        );
        probe.stop().await;
        handle.stop().await;
    })
    .await;
}

/// Changes its session: for its transaction, or for good but then asks for a retry.
struct ChangesTheSession(Collector);

impl outbox::TransactionalMessageHandler<Postgres> for ChangesTheSession {
    async fn handle(
        &self,
        connection: &mut sqlx::PgConnection,
        message: &outbox::OutboxMessage,
    ) -> outbox::MessageResult {
        let answer = self.0.see(message);
        let (change, answer) = match message.attempts {
            0 => ("SET search_path = nowhere", outbox::MessageResult::Retry),
            _ => ("SET LOCAL statement_timeout = 77777", answer),
        };
        Postgres::run(connection, change.to_owned()).await.unwrap();
        answer
    }
}

#[tokio::test]
async fn settings_of_a_handlers_transaction_end_with_it() {
    with_database(Server::Postgres, async |database| {
        let stage = Stage::<Postgres>::set(database).await;
        let collector = Collector::new();
        let pool = stage.another_pool(1).await;
        let builder = quick(Outbox::builder(pool.clone())).auto_migrate();
        let queue = builder.queue("orders", ONE);
        let handler = ChangesTheSession(collector.clone());
        let handle = queue.transactional(handler).start().await.unwrap();
        stage.enqueue(handle.outbox(), 0, &["a", "b"]).await;
        stage
            .until("SELECT processed_seq FROM outbox_processors", 2)
            .await;
        handle.stop().await;
        let seen = collector.seen();
        let seen: Vec<_> = seen.iter().map(|m| (m.seq, m.attempts)).collect();
        assert_eq!(seen, [(1, 0), (1, 1), (2, 0), (2, 1)]);
        // The same connection: nothing of what the handler or the outbox set is left.
        let mut connection = pool.acquire().await.unwrap();
        for setting in [
            "search_path",
            "statement_timeout",
            "idle_in_transaction_session_timeout",
            "transaction_isolation",
        ] {
            let changed = format!(
                "SELECT COUNT(*) FROM pg_settings WHERE name = '{setting}' AND setting <> reset_val"
            );
            let changed = Postgres::number(&mut connection, changed).await.unwrap();
            assert_eq!(changed, 0, "{setting}");
        }
    })
    .await;
}

/// Leaves its session without the outbox's tables.
struct LosesTheTables(Collector);

impl outbox::TransactionalMessageHandler<Postgres> for LosesTheTables {
    async fn handle(
        &self,
        connection: &mut sqlx::PgConnection,
        message: &outbox::OutboxMessage,
    ) -> outbox::MessageResult {
        if conformance::stage::text_of(message) == "poison" {
            let change = "SET search_path = nowhere";
            Postgres::run(connection, change.to_owned()).await.unwrap();
        }
        self.0.see(message)
    }
}

#[tokio::test]
async fn a_handler_that_breaks_the_settlement_is_charged_for_it() {
    with_database(Server::Postgres, async |database| {
        let stage = Stage::<Postgres>::set(database).await;
        let collector = Collector::new();
        let queue = stage.outbox().queue("orders", ONE);
        let handler = LosesTheTables(collector.clone());
        let handle = queue.transactional(handler).max_attempts(2);
        let handle = handle.start().await.unwrap();
        stage
            .enqueue(handle.outbox(), 0, &["a", "poison", "b"])
            .await;
        stage
            .until("SELECT processed_seq FROM outbox_processors", 3)
            .await;
        let buried = stage.buried(handle.outbox()).await;
        handle.stop().await;
        let buried: Vec<_> = buried.iter().map(|letter| (letter.1, letter.2)).collect();
        assert_eq!(buried, [(2, 2)]);
    })
    .await;
}
