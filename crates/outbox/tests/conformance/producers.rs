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

pub(crate) async fn modes_can_be_switched_while_both_run<DB: Dialect>(stage: &Stage<DB>) {
    let (old, new) = (Collector::new(), Collector::new());
    let old_process = stage
        .outbox()
        .queue("orders", ONE)
        .transactional(Ledger(old.clone()));
    let old_process = old_process.start().await.unwrap();
    stage.enqueue(old_process.outbox(), 0, &["1", "2"]).await;
    stage.until("SELECT COUNT(*) FROM effects", 2).await;
    let pool = stage.another_pool(4).await;
    let new_process = quick(Outbox::builder(pool))
        .queue("orders", ONE)
        .leased(new.clone());
    let new_process = new_process.start().await.unwrap();
    stage.enqueue(new_process.outbox(), 0, &["3", "4"]).await;
    stage
        .until("SELECT processed_seq FROM outbox_processors", 4)
        .await;
    old_process.stop().await;
    stage.enqueue(new_process.outbox(), 0, &["5", "6"]).await;
    stage
        .until("SELECT processed_seq FROM outbox_processors", 6)
        .await;
    new_process.stop().await;
    let mut texts = old.texts();
    texts.extend(new.texts());
    assert_eq!(
        texts,
        ["1", "2", "3", "4", "5", "6"],
        "each once, whoever handled it"
    );
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
