//! What can be seen from outside: metrics, who works where, what was done by hand.

use std::collections::HashMap;

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use outbox::{DeadLetterFilter, MessageResult};

use super::stage::ONE;
use super::{Collector, Dialect, Stage};

/// What was counted and measured of the queue "orders": a number, or how many numbers.
fn counted(snapshotter: &Snapshotter) -> HashMap<String, f64> {
    let snapshot = snapshotter.snapshot().into_vec().into_iter();
    let of_queue = snapshot.filter(|(key, ..)| {
        let mut labels = key.key().labels();
        labels.all(|label| label.key() != "queue" || label.value() == "orders")
    });
    let mut counted = HashMap::new();
    for (key, _, _, value) in of_queue {
        let value = match value {
            DebugValue::Counter(count) => count as f64,
            DebugValue::Gauge(value) => value.into_inner(),
            DebugValue::Histogram(values) => values.len() as f64,
        };
        // Those of several workers together.
        *counted.entry(key.key().name().to_owned()).or_default() += value;
    }
    counted
}

pub(crate) async fn everything_that_happens_is_counted<DB: Dialect>(stage: &Stage<DB>) {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let recorded = metrics::set_default_local_recorder(&recorder);
    let collector = Collector::answering(|message| match &*message.payload {
        b"bad" => MessageResult::Reject("no".to_owned()),
        b"again" if message.attempts == 0 => MessageResult::Retry,
        _ => MessageResult::Ok,
    });
    let handle = stage.deliver(ONE, &collector).await;
    drop(recorded);
    let outbox = handle.outbox().clone();
    stage.enqueue(&outbox, 0, &["good", "again", "bad"]).await;
    let settled = "SELECT COUNT(*) FROM outbox_processors WHERE processed_seq = 3";
    stage.until(settled, 1).await;
    outbox.stats().await.unwrap();
    assert!(outbox.storage().await.unwrap() > 0);
    // Whoever settled has counted by then.
    handle.stop().await;

    let found = counted(&snapshotter);
    for (name, expected) in [
        ("outbox_enqueued_total", 3.0),
        ("outbox_sequenced_total", 3.0),
        ("outbox_delivered_total", 2.0),
        ("outbox_retried_total", 1.0),
        ("outbox_redelivered_total", 1.0),
        ("outbox_rejected_total", 1.0),
        ("outbox_dead_lettered_total", 1.0),
        ("outbox_delivery_latency_seconds", 3.0),
        ("outbox_lag_messages", 0.0),
        ("outbox_lag_seconds", 0.0),
        ("outbox_partitions_held", 1.0),
        ("outbox_partitions_failing", 0.0),
        ("outbox_dead_letters", 1.0),
        ("outbox_leases_lost_total", 0.0),
    ] {
        assert_eq!(found.get(name), Some(&expected), "{name}");
    }
    for name in [
        "outbox_handler_duration_seconds",
        "outbox_sequencer_duration_seconds",
        "outbox_storage_bytes",
        "outbox_wake_up_seconds",
    ] {
        assert!(found.get(name).is_some_and(|value| *value > 0.0), "{name}");
    }
    for metric in outbox::metrics::ALL {
        // Whoever waits for a connection does not know for whom.
        let known = found.contains_key(metric.name) || metric.labels.is_empty();
        assert!(known, "{} is promised", metric.name);
    }
    for name in found.keys() {
        let promised = outbox::metrics::ALL.iter();
        assert!(promised.clone().any(|one| one.name == name), "{name}");
    }
}

pub(crate) async fn what_fails_and_what_is_paused_shows<DB: Dialect>(stage: &Stage<DB>) {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let recorded = metrics::set_default_local_recorder(&recorder);
    let collector = Collector::answering(|_| MessageResult::Retry);
    let handle = stage.deliver(ONE, &collector).await;
    drop(recorded);
    let outbox = handle.outbox();
    stage.enqueue(outbox, 0, &["stuck"]).await;
    collector.wait_for(2).await;
    let charged = "SELECT COUNT(*) FROM outbox_processors WHERE attempts > 0";
    stage.until(charged, 1).await;
    outbox.stats().await.unwrap();
    let found = counted(&snapshotter);
    assert_eq!(found["outbox_partitions_failing"], 1.0);
    assert_eq!(found["outbox_lag_messages"], 1.0);
    assert!(found["outbox_lag_seconds"] > 0.0);
    assert_eq!(found["outbox_delivered_total"], 0.0);
    outbox.pause("orders", None).await.unwrap();
    outbox.stats().await.unwrap();
    let found = counted(&snapshotter);
    assert_eq!(found["outbox_partitions_paused"], 1.0);
    assert_eq!(found["outbox_lag_messages"], 1.0);
    assert_eq!(found["outbox_lag_seconds"], 0.0, "it is meant to wait");
    handle.stop().await;
}

pub(crate) async fn a_process_says_where_it_is<DB: Dialect>(stage: &Stage<DB>) {
    let handle = stage.deliver(ONE, &Collector::new()).await;
    let outbox = handle.outbox().clone();
    stage
        .until("SELECT COUNT(*) FROM outbox_processes", 1)
        .await;
    let processes = outbox.processes().await.unwrap();
    let [process] = &processes[..] else {
        unreachable!("one process");
    };
    let number = format!(":{}", std::process::id());
    assert!(process.host.ends_with(&number), "{}", process.host);
    assert!(process.host.len() > number.len(), "{}", process.host);
    assert_eq!(process.version, env!("CARGO_PKG_VERSION"));
    let held = "SELECT COUNT(*) FROM outbox_processors WHERE holder IS NOT NULL";
    stage.enqueue(&outbox, 0, &["a"]).await;
    stage.until(held, 1).await;
    let stats = outbox.stats().await.unwrap();
    assert_eq!(
        stats[0].holder.as_deref(),
        Some(process.incarnation.as_str())
    );
    assert!(stats[0].lease_until > Some(process.started_at));
    handle.stop().await;
    let free = outbox.stats().await.unwrap();
    assert_eq!((&free[0].holder, free[0].lease_until), (&None, None));
}

pub(crate) async fn what_was_done_by_hand_is_written_down<DB: Dialect>(stage: &Stage<DB>) {
    let queue = stage.outbox().without_workers().queue("orders", ONE);
    let handle = queue.produce_only().start().await.unwrap();
    let outbox = handle.outbox();
    assert_eq!(outbox.audit_log(None, 10).await.unwrap(), []);
    let hostile = "it's \"over\"; -- \0 🦀";
    for (action, reason) in [("pause", ""), ("skip", hostile), ("resume", "done")] {
        let recorded = outbox.audit("ada", action, "orders/0", reason);
        recorded.await.unwrap();
    }
    let log = outbox.audit_log(None, 2).await.unwrap();
    let told: Vec<_> = log
        .iter()
        .map(|one| (&*one.actor, &*one.action, &*one.target))
        .collect();
    assert_eq!(
        told,
        [("ada", "resume", "orders/0"), ("ada", "skip", "orders/0")]
    );
    assert_eq!(log[1].reason, hostile.replace('\0', "\u{fffd}"));
    let before = outbox.audit_log(Some(log[1].id), 10).await.unwrap();
    assert_eq!((before.len(), &*before[0].action), (1, "pause"));

    // 3 entries doubled 12 times are more than are kept.
    for _ in 0..12 {
        stage
            .run(
                "INSERT INTO outbox_audit (at, actor, action, target, reason) \
                 SELECT at, actor, action, target, reason FROM outbox_audit",
            )
            .await;
    }
    outbox.audit("ada", "pause", "orders", "").await.unwrap();
    let kept = stage.number("SELECT COUNT(*) FROM outbox_audit").await;
    assert!((1..=10_000).contains(&kept), "{kept}");
    let last = outbox.audit_log(None, 1).await.unwrap();
    assert_eq!(&*last[0].target, "orders");
}

pub(crate) async fn a_list_can_do_without_payloads<DB: Dialect>(stage: &Stage<DB>) {
    let collector = Collector::answering(|_| MessageResult::Reject("no".to_owned()));
    let handle = stage.deliver(ONE, &collector).await;
    let outbox = handle.outbox();
    stage.enqueue(outbox, 0, &["bad"]).await;
    stage
        .until("SELECT COUNT(*) FROM outbox_dead_letters", 1)
        .await;
    let all = DeadLetterFilter::new();
    let [brief, full] = [all.clone().without_payloads(), all];
    let brief = outbox.dead_letter_list(&brief).await.unwrap();
    let full = outbox.dead_letter_list(&full).await.unwrap();
    assert_eq!(
        (&*brief[0].payload, &*full[0].payload),
        (&b""[..], &b"bad"[..])
    );
    assert_eq!(brief[0].last_error, full[0].last_error);
    handle.stop().await;
}
