//! Handlers that meddle with the transaction they run in: DDL, commits in the middle of a batch,
//! savepoints left open, errors hidden, deadlocks.

use std::sync::Arc;

use outbox::{MessageResult, OutboxMessage, TransactionalMessageHandler};
use sqlx::{Connection as _, Pool};
use tokio::sync::Notify;

use super::stage::{ONE, text_of};
use super::{Collector, Dialect, Stage};

/// Books an effect of a message.
async fn book<DB: Dialect>(connection: &mut DB::Connection, message: &OutboxMessage, note: &str) {
    let effect = format!("INSERT INTO effects VALUES ({}, '{note}')", message.seq);
    DB::run(connection, effect)
        .await
        .expect("insert the effect");
}

/// How many effects a message has, or all together.
async fn effects<DB: Dialect>(stage: &Stage<DB>, note: &str) -> i64 {
    stage
        .number(format!(
            "SELECT COUNT(*) FROM effects WHERE note LIKE '{note}'"
        ))
        .await
}

/// Books an effect, then runs the statements its message is named for, at the first attempt.
struct Meddler {
    collector: Collector,
    statement: &'static str,
    answer: MessageResult,
}

impl<DB: Dialect> TransactionalMessageHandler<DB> for Meddler {
    async fn handle(
        &self,
        connection: &mut DB::Connection,
        message: &OutboxMessage,
    ) -> MessageResult {
        book::<DB>(connection, message, &text_of(message)).await;
        let _ = self.collector.see(message);
        if text_of(message) == "meddle" && message.attempts == 0 {
            let _ = DB::run(connection, self.statement.to_owned()).await;
            return self.answer.clone();
        }
        MessageResult::Ok
    }
}

/// Runs messages past a meddler, and answers who was seen at which attempt.
async fn meddle<DB: Dialect>(
    stage: &Stage<DB>,
    statement: &'static str,
    answer: MessageResult,
    texts: &[&str],
) -> Vec<(String, u32)> {
    let settled = stage.number("SELECT COUNT(*) FROM effects").await;
    assert_eq!(settled, 0, "each round begins with an empty table");
    let collector = Collector::new();
    let meddler = Meddler {
        collector: collector.clone(),
        statement,
        answer,
    };
    let queue = stage.outbox().queue("orders", ONE);
    let handle = queue.transactional(meddler).start().await.unwrap();
    let before = stage
        .number("SELECT processed_seq FROM outbox_processors")
        .await;
    stage.enqueue(handle.outbox(), 0, texts).await;
    let settled = before + texts.len() as i64;
    stage
        .until("SELECT processed_seq FROM outbox_processors", settled)
        .await;
    handle.stop().await;
    let seen = collector.seen();
    seen.iter()
        .map(|message| (text_of(message), message.attempts))
        .collect()
}

fn deliveries(expected: &[(&str, u32)]) -> Vec<(String, u32)> {
    let owned = |(text, attempts): &(&str, u32)| ((*text).to_owned(), *attempts);
    expected.iter().map(owned).collect()
}

pub(crate) async fn a_transaction_that_ends_in_the_middle_of_a_batch_costs_the_others_one_run<
    DB: Dialect,
>(
    stage: &Stage<DB>,
) {
    for statement in ["COMMIT", "ROLLBACK"] {
        let texts = ["a", "b", "meddle", "c"];
        let seen = meddle(stage, statement, MessageResult::Ok, &texts).await;
        let undone = [("a", 0), ("b", 0), ("meddle", 0)];
        // Right before the message at fault, then that one is charged.
        let again = [("a", 0), ("b", 0), ("meddle", 0), ("meddle", 1), ("c", 0)];
        let expected = [&undone[..], &again[..]].concat();
        assert_eq!(seen, deliveries(&expected), "{statement}");
        assert_eq!(effects(stage, "c").await, 1, "{statement}");
        if statement == "ROLLBACK" {
            assert_eq!(effects(stage, "%").await, 4, "nothing it did is left twice");
        }
        stage.run("DELETE FROM effects").await;
    }
}

pub(crate) async fn ddl_in_a_handler_works_or_runs_again<DB: Dialect>(stage: &Stage<DB>) {
    let create = "CREATE TABLE made_by_a_handler (n INT)";
    let texts = ["a", "meddle", "b"];
    if DB::DDL_COMMITS {
        // It ends the transaction: nothing is settled by it, and what was committed stays.
        let seen = meddle(stage, create, MessageResult::Ok, &["meddle", "next"]).await;
        assert_eq!(
            seen,
            deliveries(&[("meddle", 0), ("meddle", 1), ("next", 0)])
        );
        assert_eq!(effects(stage, "next").await, 1);
        assert_eq!(
            effects(stage, "meddle").await,
            2,
            "once committed by the DDL, once by us"
        );
        return;
    }
    let seen = meddle(stage, create, MessageResult::Retry, &texts).await;
    let expected = [("a", 0), ("meddle", 0), ("meddle", 1), ("b", 0)];
    assert_eq!(seen, deliveries(&expected));
    assert_eq!(effects(stage, "%").await, 3, "one each");
    stage.run("DELETE FROM effects").await;
    // The retry undid it, so it can be made again; this time it stays.
    let seen = meddle(stage, create, MessageResult::Ok, &texts).await;
    assert_eq!(seen, deliveries(&[("a", 0), ("meddle", 0), ("b", 0)]));
    assert_eq!(effects(stage, "%").await, 3, "one each");
    stage.run("INSERT INTO made_by_a_handler VALUES (1)").await;
}

pub(crate) async fn an_error_that_a_handler_hides_costs_no_effect<DB: Dialect>(stage: &Stage<DB>) {
    // PostgreSQL lets nothing more happen in that transaction; elsewhere it goes on.
    for texts in [["meddle", "a", "b"], ["a", "meddle", "b"]] {
        let hidden = "SELECT * FROM no_such_table";
        meddle(stage, hidden, MessageResult::Ok, &texts).await;
        for text in texts {
            assert_eq!(effects(stage, text).await, 1, "{text} of {texts:?}");
        }
        stage.run("DELETE FROM effects").await;
    }
}

/// Leaves savepoints behind, by hand and by sqlx's own transactions.
struct LeavesSavepoints(Collector);

impl<DB: Dialect> TransactionalMessageHandler<DB> for LeavesSavepoints {
    async fn handle(
        &self,
        connection: &mut DB::Connection,
        message: &OutboxMessage,
    ) -> MessageResult {
        let answer = self.0.see(message);
        book::<DB>(connection, message, "outside").await;
        for savepoint in ["SAVEPOINT mine", "SAVEPOINT mine", "SAVEPOINT another"] {
            DB::run(connection, savepoint.to_owned())
                .await
                .expect("a savepoint");
        }
        book::<DB>(connection, message, "inside").await;
        let mut kept = connection.begin().await.expect("a transaction inside");
        book::<DB>(&mut kept, message, "kept").await;
        kept.commit().await.expect("its end");
        let mut dropped = connection.begin().await.expect("a transaction inside");
        book::<DB>(&mut dropped, message, "dropped").await;
        drop(dropped);
        answer
    }
}

pub(crate) async fn savepoints_left_open_change_nothing<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::answering(|message| match (&*text_of(message), message.attempts) {
        ("retry", 0) => MessageResult::Retry,
        ("reject", _) => MessageResult::Reject("no".into()),
        _ => MessageResult::Ok,
    });
    let queue = stage.outbox().queue("orders", ONE);
    let handler = LeavesSavepoints(collector.clone());
    let handle = queue.transactional(handler).start().await.unwrap();
    let texts = ["a", "retry", "b", "reject", "c"];
    stage.enqueue(handle.outbox(), 0, &texts).await;
    stage
        .until("SELECT processed_seq FROM outbox_processors", 5)
        .await;
    handle.stop().await;
    assert_eq!(
        collector.texts(),
        ["a", "retry", "retry", "b", "reject", "c"]
    );
    for note in ["outside", "inside", "kept"] {
        assert_eq!(
            effects(stage, note).await,
            4,
            "{note}: one for each but the rejected"
        );
    }
    assert_eq!(effects(stage, "dropped").await, 0);
    let rejected = "SELECT COUNT(*) FROM effects WHERE seq = 4";
    assert_eq!(stage.number(rejected).await, 0);
}

/// Locks row 1, then row 2, while a rival that must survive does it the other way round.
struct Deadlocks<DB: Dialect> {
    collector: Collector,
    pool: Pool<DB>,
    has_locked: Arc<Notify>,
}

impl<DB: Dialect> TransactionalMessageHandler<DB> for Deadlocks<DB> {
    async fn handle(
        &self,
        connection: &mut DB::Connection,
        message: &OutboxMessage,
    ) -> MessageResult {
        let first_time = !self.collector.texts().contains(&text_of(message));
        book::<DB>(connection, message, &text_of(message)).await;
        let _ = self.collector.see(message);
        if !text_of(message).starts_with("deadlock") || !first_time {
            return MessageResult::Ok;
        }
        let update = |row| format!("UPDATE accounts SET balance = balance + 1 WHERE id = {row}");
        let die = DB::DIES_IN_DEADLOCKS.to_owned();
        DB::run(connection, die).await.expect("a setting");
        DB::run(connection, update(1))
            .await
            .expect("the first lock");
        self.has_locked.notify_one();
        // The rival has to wait first, or it would be the one to find the deadlock.
        let mut looks = tokio::time::interval(std::time::Duration::from_millis(1));
        let mut waiting = 0;
        while waiting == 0 {
            looks.tick().await;
            let mut look = self.pool.acquire().await.expect("a connection");
            waiting = DB::number(&mut look, DB::WAITING.to_owned())
                .await
                .expect("a look");
        }
        let died = DB::run(connection, update(2)).await;
        assert!(died.is_err(), "the rival died instead");
        match &*text_of(message) {
            "deadlock, then retry" => MessageResult::Retry,
            "deadlock, then reject" => MessageResult::Reject("after a deadlock".into()),
            _ => MessageResult::Ok,
        }
    }
}

/// Has row 2 and wants row 1 once the handler has that; heavier than any handler.
async fn rival<DB: Dialect>(pool: &Pool<DB>, has_locked: &Notify) {
    let mut connection = pool.acquire().await.expect("a connection");
    let survive = DB::SURVIVES_DEADLOCKS.to_owned();
    DB::run(&mut connection, survive).await.expect("a setting");
    let mut transaction = connection.begin().await.expect("begin");
    let rows = vec!["(0)"; 500].join(", ");
    let statements = [
        format!("INSERT INTO ballast VALUES {rows}"),
        "UPDATE accounts SET balance = balance + 1 WHERE id = 2".to_owned(),
    ];
    for statement in statements {
        DB::run(&mut transaction, statement).await.expect("a write");
    }
    has_locked.notified().await;
    let second = "UPDATE accounts SET balance = balance + 1 WHERE id = 1";
    DB::run(&mut transaction, second.to_owned())
        .await
        .expect("it survives");
    transaction.commit().await.expect("commit");
}

pub(crate) async fn a_handler_that_deadlocks_leaves_one_effect_each<DB: Dialect>(
    stage: &Stage<DB>,
) {
    if !DB::CONCURRENT_WRITERS {
        // One writer at a time has nobody to deadlock with.
        return;
    }
    stage
        .run("CREATE TABLE accounts (id INT PRIMARY KEY, balance INT NOT NULL)")
        .await;
    stage
        .run("INSERT INTO accounts VALUES (1, 0), (2, 0)")
        .await;
    stage.run("CREATE TABLE ballast (n INT)").await;
    let pool = stage.another_pool(4).await;
    let collector = Collector::new();
    let queue = stage.outbox().queue("orders", ONE);
    let has_locked = Arc::new(Notify::new());
    let deadlocks = Deadlocks {
        collector: collector.clone(),
        pool: pool.clone(),
        has_locked: Arc::clone(&has_locked),
    };
    let handle = queue.transactional(deadlocks).start().await.unwrap();
    let answers = [
        "deadlock, then ok",
        "deadlock, then retry",
        "deadlock, then reject",
    ];
    for (round, deadlock) in (1..).zip(answers) {
        let rival = tokio::spawn({
            let (pool, has_locked) = (pool.clone(), Arc::clone(&has_locked));
            async move { rival(&pool, &has_locked).await }
        });
        // Behind others, whose effects the deadlock undoes as well on MySQL.
        stage
            .enqueue(handle.outbox(), 0, &["a", "b", deadlock, "c"])
            .await;
        rival.await.unwrap();
        stage
            .until("SELECT processed_seq FROM outbox_processors", 4 * round)
            .await;
    }
    let buried = stage.buried(handle.outbox()).await;
    handle.stop().await;
    let all = stage.number("SELECT COUNT(*) FROM effects").await;
    assert_eq!(
        all + buried.len() as i64,
        12,
        "each has an effect or a dead letter"
    );
    let different = stage
        .number("SELECT COUNT(DISTINCT seq) FROM effects")
        .await;
    assert_eq!(different, all, "and none has two");
    let others = "SELECT COUNT(*) FROM effects WHERE note IN ('a', 'b', 'c')";
    assert_eq!(stage.number(others).await, 9);
    // Where the deadlock undid only the savepoint the reject stands; where it undid all, it did not.
    assert!(buried.iter().all(|(_, seq, ..)| *seq == 11), "{buried:?}");
    assert_eq!(
        stage
            .number("SELECT COUNT(*) FROM accounts WHERE balance = 3")
            .await,
        2,
        "what the handler did to the accounts is undone"
    );
}
