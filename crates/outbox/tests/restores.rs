//! A real dump, restored into another cluster, where transaction ids begin anew.
#![cfg(all(feature = "testing", feature = "postgres"))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

#[expect(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "the stage is shared with the suite, which is not run here"
)]
mod conformance;
mod log;

use std::process::Stdio;

use conformance::outcomes::Ledger;
use conformance::stage::{ONE, quick, text_message, text_of};
use conformance::{Collector, Stage};
use log::Log;
use outbox::{MessageResult, Outbox, OutboxHandle};
use sqlx::Postgres;
use testbed::{PrivateServer, Server};
use tokio::process::Command;
use tracing::Level;

/// Where the dump comes from, and where it goes.
async fn two_clusters() -> Option<(PrivateServer, PrivateServer)> {
    let (old, new) = tokio::join!(
        PrivateServer::start(Server::Postgres),
        PrivateServer::start(Server::Postgres)
    );
    old.zip(new)
}

/// Copies a database with the server's own programs, as an operator would.
async fn dump_and_restore(from: &mut PrivateServer, to: &PrivateServer) {
    let programs = from.programs().await;
    let mut dump = Command::new(programs.join("pg_dump"))
        .arg(from.database().url())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let dumped: Stdio = dump.stdout.take().unwrap().try_into().unwrap();
    let restored = Command::new(programs.join("psql"))
        .args(["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1"])
        .args(["--single-transaction", "--output=/dev/null"])
        .arg(to.database().url())
        .stdin(dumped)
        .kill_on_drop(true)
        .status()
        .await
        .unwrap();
    assert!(dump.wait().await.unwrap().success());
    assert!(restored.success());
}

async fn start(stage: &Stage<Postgres>, collector: &Collector) -> OutboxHandle<Postgres> {
    let pool = stage.another_pool(8).await;
    let queue = quick(Outbox::builder(pool))
        .auto_migrate()
        .queue("orders", ONE);
    let booking = queue.transactional(Ledger(collector.clone()));
    booking.start().await.unwrap()
}

#[tokio::test]
async fn a_real_dump_restored_into_another_cluster_goes_on_after_repair() {
    let (log, _guard) = Log::keep(Level::WARN);
    let Some((mut old, new)) = two_clusters().await else {
        return;
    };

    // In the old cluster: two are done, one was tried and has to come again, one waits behind it, and
    // two have no number yet because nobody was there to give them one.
    let collector = Collector::answering(|message| match &*text_of(message) {
        "stubborn" => MessageResult::Retry,
        _ => MessageResult::Ok,
    });
    let before = Stage::<Postgres>::set(old.database()).await;
    let handle = start(&before, &collector).await;
    let outbox = handle.outbox().clone();
    before
        .enqueue(&outbox, 0, &["a", "b", "stubborn", "c"])
        .await;
    let tried = "SELECT COUNT(*) FROM outbox_processors WHERE processed_seq = 2 AND attempts > 0";
    before.until(tried, 1).await;
    handle.stop().await;
    before.enqueue(&outbox, 0, &["d", "e"]).await;
    let sequenced = "SELECT last_seq FROM outbox_partitions";
    assert_eq!(before.number(sequenced).await, 4);
    dump_and_restore(&mut old, &new).await;
    drop((outbox, before, old));

    // In the new one: what had its number is delivered, what has none is refused, loudly.
    let after = Stage::<Postgres> {
        url: new.database().url().to_owned(),
        pool: <Postgres as conformance::Dialect>::connect(new.database().url(), 4).await,
    };
    let restored = Collector::new();
    let handle = start(&after, &restored).await;
    log.says(&["run the repair command"]).await;
    let delivered = restored.wait_for(2).await;
    assert!(
        delivered[0].attempts > 0,
        "what was tried before is not forgotten"
    );
    after
        .until("SELECT processed_seq FROM outbox_processors", 4)
        .await;
    after.enqueue(handle.outbox(), 0, &["early"]).await;
    assert_eq!(
        after.number(sequenced).await,
        4,
        "nothing is numbered by foreign ids"
    );

    assert_eq!(handle.outbox().repair().await.unwrap(), 3);
    restored.wait_for(5).await;
    after.enqueue(handle.outbox(), 0, &["f", "g"]).await;
    restored.wait_for(7).await;
    after
        .until("SELECT processed_seq FROM outbox_processors", 9)
        .await;
    handle.stop().await;
    assert_eq!(
        restored.texts(),
        ["stubborn", "c", "d", "e", "early", "f", "g"]
    );
    for effects in [
        "SELECT COUNT(*) FROM effects",
        "SELECT COUNT(DISTINCT seq) FROM effects",
        "SELECT MAX(seq) FROM effects",
    ] {
        assert_eq!(after.number(effects).await, 9, "{effects}");
    }
}

/// G3: also where nobody had given a number before the dump was taken.
#[tokio::test]
async fn a_dump_that_nobody_had_sequenced_is_known_as_one() {
    let (log, _guard) = Log::keep(Level::WARN);
    let Some((mut old, new)) = two_clusters().await else {
        return;
    };
    let before = Stage::<Postgres>::set(old.database()).await;
    let producer = Outbox::builder(before.another_pool(2).await).auto_migrate();
    let producer = producer
        .without_workers()
        .queue("orders", ONE)
        .produce_only();
    let producer = producer.start().await.unwrap();
    before.enqueue(producer.outbox(), 0, &["a", "b"]).await;
    producer.stop().await;
    dump_and_restore(&mut old, &new).await;
    drop((before, old));

    let after = Stage::<Postgres> {
        url: new.database().url().to_owned(),
        pool: <Postgres as conformance::Dialect>::connect(new.database().url(), 4).await,
    };
    let (restored, fresh) = (Collector::new(), Collector::new());
    let handle = quick(Outbox::builder(after.another_pool(8).await));
    let handle = handle.queue("orders", ONE).leased(restored.clone());
    let handle = handle.queue("fresh", ONE).leased(fresh.clone());
    let handle = handle.start().await.unwrap();
    let outbox = handle.outbox();
    log.says(&["run the repair command"]).await;
    // Where what is new has come, what was restored had its turn.
    for count in 1..=3 {
        let message = text_message(0, "new");
        let enqueue = async |connection: &mut sqlx::PgConnection| {
            outbox.enqueue(connection, "fresh", message).await
        };
        outbox.transaction(enqueue).await.unwrap();
        fresh.wait_for(count).await;
    }
    let sequenced = "SELECT last_seq FROM outbox_partitions WHERE queue = 'orders'";
    assert_eq!(after.number(sequenced).await, 0, "foreign ids say nothing");
    assert_eq!(outbox.repair().await.unwrap(), 2);
    restored.wait_for(2).await;
    handle.stop().await;
    assert_eq!(restored.texts(), ["a", "b"]);
}
