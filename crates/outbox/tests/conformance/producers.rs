//! Whatever transaction a producer uses, its messages are part of it; and the outbox makes do with
//! whatever pool it is given.

use outbox::Outbox;

use super::outcomes::Ledger;
use super::stage::{ONE, quick, text_message};
use super::{Collector, Dialect, Stage};

pub(crate) async fn every_isolation_level_will_do<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::new();
    let handle = stage.deliver(ONE, &collector).await;
    for (number, statements) in DB::TRANSACTIONS.iter().enumerate() {
        for end in ["ROLLBACK", "COMMIT"] {
            let mut connection = stage.another_pool(1).await.acquire().await.unwrap();
            for statement in *statements {
                DB::run(&mut connection, (*statement).to_owned())
                    .await
                    .unwrap();
            }
            let message = text_message(0, end);
            handle
                .outbox()
                .enqueue(&mut connection, "orders", message)
                .await
                .unwrap();
            DB::run(&mut connection, end.to_owned()).await.unwrap();
        }
        handle.outbox().flush();
        collector.wait_for(number + 1).await;
    }
    handle.stop().await;
    assert_eq!(collector.texts(), vec!["COMMIT"; DB::TRANSACTIONS.len()]);
}

pub(crate) async fn a_savepoint_takes_its_messages_with_it<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::new();
    let handle = stage.deliver(ONE, &collector).await;
    let outbox = handle.outbox();
    outbox
        .transaction(async |transaction| {
            outbox
                .enqueue(transaction, "orders", text_message(0, "kept"))
                .await?;
            for (text, end) in [
                ("undone", "ROLLBACK TO SAVEPOINT inner_one"),
                ("also kept", "RELEASE SAVEPOINT inner_one"),
            ] {
                DB::run(transaction, "SAVEPOINT inner_one".to_owned()).await?;
                outbox
                    .enqueue(transaction, "orders", text_message(0, text))
                    .await?;
                DB::run(transaction, end.to_owned()).await?;
            }
            outbox
                .enqueue(transaction, "orders", text_message(0, "last"))
                .await
        })
        .await
        .unwrap();
    collector.wait_for(3).await;
    handle.stop().await;
    assert_eq!(collector.texts(), ["kept", "also kept", "last"]);
}

pub(crate) async fn a_pool_of_one_connection_is_enough<DB: Dialect>(stage: &Stage<DB>) {
    let (leased, transactional) = (Collector::new(), Collector::new());
    let builder = quick(Outbox::builder(stage.another_pool(1).await)).auto_migrate();
    let handle = builder
        .queue("orders", ONE)
        .leased(leased.clone())
        .queue("effects", ONE)
        .transactional(Ledger(transactional.clone()))
        .start()
        .await
        .unwrap();
    let outbox = handle.outbox();
    for number in 0..20 {
        outbox
            .transaction(async |transaction| {
                let message = || text_message(0, &number.to_string());
                outbox.enqueue(transaction, "orders", message()).await?;
                outbox.enqueue(transaction, "effects", message()).await
            })
            .await
            .unwrap();
    }
    leased.wait_for(20).await;
    stage.until("SELECT COUNT(*) FROM effects", 20).await;
    handle.stop().await;
}

pub(crate) async fn the_strictest_sessions_will_do<DB: Dialect>(stage: &Stage<DB>) {
    // The pool's owner wants it so: producers and the outbox have nothing but such sessions.
    let pool = stage.pool_saying(DB::STRICTEST, 8).await;
    let (leased, transactional) = (Collector::new(), Collector::new());
    let builder = quick(Outbox::builder(pool.clone())).auto_migrate();
    let handle = builder
        .queue("orders", ONE)
        .leased(leased.clone())
        .queue("effects", ONE)
        .transactional(Ledger(transactional.clone()))
        .start()
        .await
        .unwrap();
    let outbox = handle.outbox();
    let produce = async |producer: u32| {
        for number in 0..25 {
            let mut transaction = pool.begin_with(DB::BEGIN_WRITING).await.unwrap();
            let text = format!("{producer}/{number:02}");
            for queue in ["orders", "effects"] {
                let message = text_message(0, &text);
                let enqueued = outbox.enqueue(&mut transaction, queue, message).await;
                enqueued.expect("no strictness makes an enqueue fail");
            }
            let committed = transaction.commit().await;
            committed.expect("no strictness makes a commit fail");
        }
    };
    futures_util::future::join_all((0..4).map(produce)).await;
    stage.until("SELECT COUNT(*) FROM effects", 100).await;
    leased.wait_for(100).await;
    stage.until("SELECT COUNT(*) FROM outbox_messages", 0).await;
    handle.stop().await;
    for collector in [leased, transactional] {
        for producer in 0..4 {
            let mut texts = collector.texts();
            texts.retain(|text| text.starts_with(&format!("{producer}/")));
            let expected: Vec<_> = (0..25).map(|n| format!("{producer}/{n:02}")).collect();
            assert_eq!(texts, expected, "each once, in order");
        }
    }
}

pub(crate) async fn order_follows_the_enqueue_not_the_transactions_begin<DB: Dialect>(
    stage: &Stage<DB>,
) {
    // Nobody sequences yet: both messages are found in one look.
    let producer = stage
        .outbox()
        .queue("orders", ONE)
        .produce_only()
        .start()
        .await
        .unwrap();
    let outbox = producer.outbox().clone();
    producer.stop().await;
    if DB::CONCURRENT_WRITERS {
        let mut early = stage.pool.begin().await.unwrap();
        DB::run(
            &mut early,
            "INSERT INTO effects VALUES (0, 'began first')".to_owned(),
        )
        .await
        .unwrap();
        stage.enqueue(&outbox, 0, &["committed first"]).await;
        let message = text_message(0, "enqueued second");
        outbox.enqueue(&mut early, "orders", message).await.unwrap();
        early.commit().await.unwrap();
    } else {
        stage.enqueue(&outbox, 0, &["committed first"]).await;
        stage.enqueue(&outbox, 0, &["enqueued second"]).await;
    }
    let collector = Collector::new();
    let handle = stage.deliver(ONE, &collector).await;
    collector.wait_for(2).await;
    handle.stop().await;
    assert_eq!(collector.texts(), ["committed first", "enqueued second"]);
}
