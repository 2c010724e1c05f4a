//! Two real processes at work on one queue at the same time, with nothing in common but the database.

use outbox::{MessageResult, OutboxMessage, Partitions, TransactionalMessageHandler};

use super::crashes::Worker;
use super::{Dialect, Stage};

/// So many that no process is left without a share.
pub(crate) const MANY: Partitions = Partitions::of(16);

/// Writes down who did what; a message that is done twice breaks the primary key.
pub(crate) struct Peer(pub(crate) &'static str);

impl<DB: Dialect> TransactionalMessageHandler<DB> for Peer {
    async fn handle(
        &self,
        connection: &mut DB::Connection,
        message: &OutboxMessage,
    ) -> MessageResult {
        let OutboxMessage { partition, seq, .. } = message;
        let deed = format!(
            "INSERT INTO deeds VALUES ({partition}, {seq}, '{}')",
            self.0
        );
        match DB::run(connection, deed).await {
            Ok(()) => MessageResult::Ok,
            Err(error) => MessageResult::Reject(error.to_string()),
        }
    }
}

pub(crate) async fn two_real_processes_share_a_queue<DB: Dialect>(stage: &Stage<DB>) {
    stage
        .run("CREATE TABLE deeds (part INT, seq BIGINT, who VARCHAR(10), PRIMARY KEY (part, seq))")
        .await;
    let queue = stage.outbox().queue("orders", MANY);
    let handle = queue.transactional(Peer("parent")).start().await.unwrap();
    let mut child = Worker::start(stage, "peer");
    child.tells("started").await;
    let by = |who| format!("SELECT COUNT(*) FROM deeds WHERE who = '{who}'");
    let mut sent = 0;
    let mut both = false;
    while !both {
        for partition in 0..16 {
            stage
                .enqueue(handle.outbox(), partition, &["x", "y", "z"])
                .await;
        }
        sent += 48;
        both = stage.number(by("child")).await > 0 && stage.number(by("parent")).await > 0;
        assert!(sent < 48_000, "one process does everything");
    }
    // Once more, now that each knows its share.
    for partition in 0..16 {
        stage
            .enqueue(handle.outbox(), partition, &["a", "b", "c", "d"])
            .await;
    }
    sent += 64;
    stage.until("SELECT COUNT(*) FROM deeds", sent).await;
    stage.until("SELECT COUNT(*) FROM outbox_messages", 0).await;
    let held_by_none = "SELECT COUNT(*) FROM outbox_dead_letters";
    assert_eq!(
        stage.number(held_by_none).await,
        0,
        "nothing was done twice"
    );
    let holes = "SELECT COUNT(*) FROM (SELECT part FROM deeds GROUP BY part \
                 HAVING COUNT(*) <> MAX(seq)) AS holes";
    assert_eq!(stage.number(holes).await, 0, "numbers are dense");
    // Whoever comes moves its share once; after that nobody fights over partitions.
    let changes = stage
        .number("SELECT MAX(epoch) FROM outbox_processors")
        .await;
    assert!(changes <= 4, "a partition changed hands {changes} times");
    child.kill().await;
    handle.stop().await;
}
