//! What is enqueued is delivered: all of it, in order, and nothing else.

use std::collections::HashMap;
use std::time::Duration;

use outbox::{EnqueueMessage, OutboxError, WorkerTuning};
use tokio::time::Instant;

use super::stage::{FOUR, ONE, text_message, text_of};
use super::{Collector, Dialect, Stage};

pub(crate) async fn committed_messages_are_delivered_in_order<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::new();
    let handle = stage.deliver(FOUR, &collector).await;
    for round in 0..25 {
        for partition in 0..4 {
            stage
                .enqueue(handle.outbox(), partition, &[&round.to_string()])
                .await;
        }
    }
    let mut by_partition: HashMap<u32, Vec<_>> = HashMap::new();
    for message in collector.wait_for(100).await {
        assert_eq!((&*message.queue, message.attempts), ("orders", 0));
        by_partition
            .entry(message.partition)
            .or_default()
            .push((message.seq, text_of(&message)));
    }
    let expected: Vec<_> = (0..25)
        .map(|round| (round + 1, round.to_string()))
        .collect();
    assert_eq!(by_partition.len(), 4);
    for (partition, delivered) in by_partition {
        assert_eq!(delivered, expected, "partition {partition}");
    }
    assert!(handle.stop().await.is_clean());
}

pub(crate) async fn rolled_back_messages_are_never_delivered<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::new();
    let handle = stage.deliver(ONE, &collector).await;
    let outbox = handle.outbox();
    for number in 0..20 {
        let result = outbox
            .transaction(async |transaction| {
                let message = text_message(0, &number.to_string());
                outbox.enqueue(transaction, "orders", message).await?;
                if number % 2 == 0 {
                    Ok(())
                } else {
                    Err(OutboxError::InvalidKey("undo".into()))
                }
            })
            .await;
        assert_eq!(result.is_ok(), number % 2 == 0);
    }
    collector.wait_for(10).await;
    handle.stop().await;
    let even: Vec<_> = (0..20)
        .step_by(2)
        .map(|number: i32| number.to_string())
        .collect();
    assert_eq!(collector.texts(), even);
}

pub(crate) async fn messages_of_one_transaction_keep_their_order<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::new();
    let handle = stage.deliver(ONE, &collector).await;
    let outbox = handle.outbox();
    let texts: Vec<_> = (0..300).map(|number| number.to_string()).collect();
    let ids = outbox
        .transaction(async |transaction| {
            let mut ids = Vec::new();
            for chunk in texts.chunks(100) {
                let batch: Vec<_> = chunk.iter().map(|text| text_message(0, text)).collect();
                ids.extend(outbox.enqueue_batch(transaction, "orders", &batch).await?);
            }
            Ok::<_, OutboxError>(ids)
        })
        .await
        .unwrap();
    let delivered = collector.wait_for(300).await;
    assert_eq!(collector.texts(), texts);
    let delivered_ids: Vec<_> = delivered.iter().map(|message| message.id).collect();
    assert_eq!(
        delivered_ids, ids,
        "the ids that enqueue answered are those delivered"
    );
    handle.stop().await;
}

pub(crate) async fn keys_and_headers_travel_with_the_message<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::new();
    let handle = stage.deliver(FOUR, &collector).await;
    let outbox = handle.outbox();
    let message = EnqueueMessage::keyed("žluťoučký 🐎", "body", "a/b")
        .header("traceparent", "00-abc")
        .header("emoji", "🎉 \" \\ {now} {prefix}");
    let partition = message.partition_in(FOUR);
    outbox
        .transaction(async |transaction| outbox.enqueue(transaction, "orders", message).await)
        .await
        .unwrap();
    let delivered = collector.wait_for(1).await.remove(0);
    assert_eq!(delivered.partition, partition);
    assert_eq!(delivered.key.as_deref(), Some("žluťoučký 🐎"));
    assert_eq!(delivered.payload_type, "a/b");
    assert_eq!(delivered.headers["traceparent"], "00-abc");
    assert_eq!(delivered.headers["emoji"], "🎉 \" \\ {now} {prefix}");
    let age = delivered.created_at.elapsed().unwrap_or_default();
    assert!(age < Duration::from_secs(60), "created {age:?} ago");
    handle.stop().await;
}

pub(crate) async fn any_bytes_arrive_as_they_were_enqueued<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::new();
    let builder = stage.outbox().max_payload(1 << 20);
    let handle = builder
        .queue("orders", ONE)
        .leased(collector.clone())
        .start()
        .await
        .unwrap();
    let outbox = handle.outbox();
    let all_bytes: Vec<u8> = (0..=255).collect();
    let at_the_limit = all_bytes.repeat(4096);
    let payloads = [
        vec![],
        vec![0],
        all_bytes,
        b"\xff\xfe not utf-8".to_vec(),
        at_the_limit,
    ];
    let messages = payloads
        .clone()
        .map(|payload| EnqueueMessage::to(0, payload, "t"));
    outbox
        .transaction(async |transaction| {
            outbox.enqueue_batch(transaction, "orders", &messages).await
        })
        .await
        .unwrap();
    let delivered: Vec<_> = collector
        .wait_for(5)
        .await
        .into_iter()
        .map(|message| message.payload)
        .collect();
    assert_eq!(delivered, payloads);
    handle.stop().await;
}

pub(crate) async fn an_empty_batch_writes_nothing<DB: Dialect>(stage: &Stage<DB>) {
    let handle = stage
        .outbox()
        .queue("orders", ONE)
        .produce_only()
        .start()
        .await
        .unwrap();
    let mut connection = stage.pool.acquire().await.unwrap();
    let ids = handle
        .outbox()
        .enqueue_batch(&mut connection, "orders", &[])
        .await
        .unwrap();
    assert_eq!(ids, []);
    drop(connection);
    assert_eq!(
        stage.number("SELECT COUNT(*) FROM outbox_messages").await,
        0
    );
    handle.stop().await;
}

pub(crate) async fn one_invalid_message_refuses_the_whole_batch<DB: Dialect>(stage: &Stage<DB>) {
    let builder = stage.outbox().max_payload(100);
    let handle = builder
        .queue("orders", ONE)
        .produce_only()
        .start()
        .await
        .unwrap();
    let outbox = handle.outbox();
    let mut connection = stage.pool.acquire().await.unwrap();
    let good = || text_message(0, "good");
    for (bad, message) in [
        (
            EnqueueMessage::to(1, "", "t"),
            r#"partition 1 of queue "orders" does not exist"#,
        ),
        (
            EnqueueMessage::to(0, vec![0; 101], "t"),
            "payload of 101 bytes is over the limit of 100",
        ),
        (EnqueueMessage::to(0, "", "\n"), "invalid payload type"),
    ] {
        let batch = [good(), bad, good()];
        let error = outbox
            .enqueue_batch(&mut connection, "orders", &batch)
            .await
            .unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    }
    let error = outbox
        .enqueue(&mut connection, "Orders", good())
        .await
        .unwrap_err();
    assert!(matches!(error, OutboxError::QueueNotRegistered(name) if name == "Orders"));
    drop(connection);
    assert_eq!(
        stage.number("SELECT COUNT(*) FROM outbox_messages").await,
        0
    );
    handle.stop().await;
}

pub(crate) async fn a_late_commit_is_delivered_and_delays_nobody<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::new();
    let handle = stage.deliver(ONE, &collector).await;
    let outbox = handle.outbox();
    let mut late = stage.pool.begin_with(DB::BEGIN_WRITING).await.unwrap();
    outbox
        .enqueue(&mut late, "orders", text_message(0, "late"))
        .await
        .unwrap();
    let mut texts: Vec<_> = (0..2000).map(|number| number.to_string()).collect();
    let others = async || {
        for chunk in texts.chunks(8) {
            let chunk: Vec<_> = chunk.iter().map(String::as_str).collect();
            stage.enqueue(outbox, 0, &chunk).await;
        }
    };
    if DB::CONCURRENT_WRITERS {
        others().await;
        collector.wait_for(2000).await;
        assert_eq!(
            collector.texts(),
            texts,
            "nobody waited for the open transaction"
        );
        late.commit().await.unwrap();
        outbox.flush();
        texts.push("late".to_owned());
    } else {
        // One writer at a time: the others stand in line behind the open transaction, by design, and
        // none of them is refused.
        let commit = async {
            tokio::task::yield_now().await;
            late.commit().await
        };
        let (_, committed) = tokio::join!(others(), commit);
        committed.unwrap();
        texts.insert(0, "late".to_owned());
    }
    // It had committed before this one was enqueued.
    stage.enqueue(outbox, 0, &["after"]).await;
    texts.push("after".to_owned());
    let delivered = collector.wait_for(2002).await;
    handle.stop().await;
    assert_eq!(collector.texts(), texts);
    let seqs: Vec<_> = delivered.iter().map(|message| message.seq).collect();
    assert_eq!(seqs, (1..=2002).collect::<Vec<_>>());
}

pub(crate) async fn a_plain_transaction_is_found_within_a_moment<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::new();
    let handle = stage.deliver(ONE, &collector).await;
    // A producer in another process: nobody here hears of its commit.
    let elsewhere = stage.another_pool(1).await;
    let producer = super::stage::quick(outbox::Outbox::builder(elsewhere.clone()));
    let producer = producer
        .queue("orders", ONE)
        .produce_only()
        .start()
        .await
        .unwrap();
    stage.enqueue(handle.outbox(), 0, &["first"]).await;
    collector.wait_for(1).await;
    for number in 0..5 {
        let mut transaction = elsewhere.begin().await.unwrap();
        let message = text_message(0, "plain");
        producer
            .outbox()
            .enqueue(&mut transaction, "orders", message)
            .await
            .unwrap();
        transaction.commit().await.unwrap();
        let committed = Instant::now();
        collector.wait_for(number + 2).await;
        let waited = committed.elapsed();
        assert!(waited < Duration::from_secs(2), "found after {waited:?}");
    }
    producer.stop().await;
    handle.stop().await;
}

pub(crate) async fn a_backlog_larger_than_every_batch_is_drained<DB: Dialect>(stage: &Stage<DB>) {
    let producer = stage
        .outbox()
        .queue("orders", ONE)
        .produce_only()
        .start()
        .await
        .unwrap();
    let texts: Vec<_> = (0..5000).map(|number| number.to_string()).collect();
    for chunk in texts.chunks(500) {
        let chunk: Vec<_> = chunk.iter().map(String::as_str).collect();
        stage.enqueue(producer.outbox(), 0, &chunk).await;
    }
    producer.stop().await;
    let collector = Collector::new();
    let steps = WorkerTuning::sequencer_low_latency().batch_size(DB::SMALL_BATCH);
    let builder = stage.outbox().sequencer_tuning(steps).queue("orders", ONE);
    let handle = builder.leased(collector.clone()).start().await.unwrap();
    collector.wait_for(5000).await;
    handle.stop().await;
    assert_eq!(collector.texts(), texts);
}

pub(crate) async fn settled_messages_leave_nothing_behind<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::new();
    let handle = stage.deliver(FOUR, &collector).await;
    for partition in 0..4 {
        stage
            .enqueue(handle.outbox(), partition, &["a", "b", "c"])
            .await;
    }
    collector.wait_for(12).await;
    stage.until("SELECT COUNT(*) FROM outbox_messages", 0).await;
    handle.stop().await;
}

pub(crate) async fn what_another_vacuum_was_at_is_removed_by_the_next<DB: Dialect>(
    stage: &Stage<DB>,
) {
    if !DB::CONCURRENT_WRITERS {
        return; // Who removes has the database for itself.
    }
    let collector = Collector::new();
    // Nobody but the vacuum itself has it look again.
    let never = WorkerTuning::reconciler().idle_interval(Duration::from_secs(3600));
    let queue = stage.outbox().reconciler_tuning(never).queue("orders", ONE);
    let handle = queue.leased(collector.clone()).start().await.unwrap();
    let mut other = stage.pool.begin().await.unwrap();
    let lock = "SELECT partition_id FROM outbox_vacuum FOR UPDATE".to_owned();
    DB::run(&mut other, lock).await.unwrap();
    stage.enqueue(handle.outbox(), 0, &["a", "b"]).await;
    stage
        .until("SELECT processed_seq FROM outbox_processors", 2)
        .await;
    // Long enough for the vacuum to look, which it does every second at most.
    stage.signs_of_life(3).await;
    let messages = "SELECT COUNT(*) FROM outbox_messages";
    assert_eq!(
        stage.number(messages).await,
        2,
        "it leaves them to the other"
    );
    other.rollback().await.unwrap();
    stage.until(messages, 0).await;
    handle.stop().await;
}
