//! What operators do: dead letters and pauses.

use std::time::Duration;

use outbox::{
    DeadLetterFilter, DeadLetterStatus, EnqueueMessage, MessageResult, OutboxError, OutboxHandle,
};

use super::stage::{FOUR, text_message, text_of};
use super::{Collector, Dialect, Stage};

const MINUTE: Duration = Duration::from_secs(60);

/// Four dead letters in two partitions: a, b in 0 and c, d in 1; d of another type.
async fn graveyard<DB: Dialect>(stage: &Stage<DB>) -> (OutboxHandle<DB>, Collector) {
    let collector = Collector::answering(|message| match message.headers.get("outbox-attempts") {
        None => MessageResult::Reject(format!("no to {}", text_of(message))),
        Some(_) => MessageResult::Ok,
    });
    let handle = stage.deliver(FOUR, &collector).await;
    let outbox = handle.outbox();
    for message in [
        text_message(0, "a"),
        EnqueueMessage::to(0, "b", "text/plain").header("colour", "blue"),
        text_message(1, "c"),
        EnqueueMessage::to(1, "d", "other"),
    ] {
        outbox
            .transaction(async |transaction| outbox.enqueue(transaction, "orders", message).await)
            .await
            .unwrap();
    }
    stage
        .until("SELECT COUNT(*) FROM outbox_dead_letters", 4)
        .await;
    (handle, collector)
}

pub(crate) async fn dead_letters_are_listed_and_counted_by_every_filter<DB: Dialect>(
    stage: &Stage<DB>,
) {
    let (handle, _) = graveyard(stage).await;
    let outbox = handle.outbox();
    let all = DeadLetterFilter::new;
    for (filter, expected) in [
        (all(), 4),
        (all().queue("orders"), 4),
        (all().queue("Orders"), 0),
        (all().partition(0), 2),
        (all().partition(3), 0),
        (all().payload_type("other"), 1),
        (all().status(DeadLetterStatus::Pending), 4),
        (all().status(DeadLetterStatus::Resolved), 0),
        (
            all()
                .queue("orders")
                .partition(1)
                .payload_type("text/plain"),
            1,
        ),
    ] {
        assert_eq!(
            outbox.dead_letter_count(&filter).await.unwrap(),
            expected,
            "{filter:?}"
        );
        let list = outbox.dead_letter_list(&filter).await.unwrap();
        assert_eq!(list.len() as u64, expected, "{filter:?}");
        assert!(
            list.windows(2).all(|pair| pair[0].id > pair[1].id),
            "newest first"
        );
    }
    let limited = outbox.dead_letter_list(&all().limit(2)).await.unwrap();
    assert_eq!(limited.len(), 2);
    let older = all().ids(i64::MIN..=limited[1].id - 1);
    assert_eq!(outbox.dead_letter_count(&older).await.unwrap(), 2);
    let older = outbox.dead_letter_list(&older).await.unwrap();
    assert!(older.iter().all(|letter| letter.id < limited[1].id));
    let one = all().ids(older[0].id..=older[0].id);
    assert_eq!(outbox.dead_letter_list(&one).await.unwrap(), older[..1]);
    assert_eq!(outbox.dead_letter_count(&all().limit(2)).await.unwrap(), 4);

    let in_zero = outbox.dead_letter_list(&all().partition(0)).await.unwrap();
    let letter = &in_zero[0];
    assert_eq!(
        (&*letter.queue, letter.partition, letter.seq),
        ("orders", 0, 2)
    );
    assert_eq!(
        (letter.payload.as_slice(), &*letter.payload_type),
        (&b"b"[..], "text/plain")
    );
    assert_eq!((&*letter.last_error, letter.attempts), ("no to b", 1));
    assert_eq!(letter.headers["colour"], "blue");
    assert!(letter.failed_at >= letter.created_at);
    assert_eq!(
        (letter.deadline, letter.completed_at, letter.requeued_as),
        (None, None, None)
    );
    handle.stop().await;
}

pub(crate) async fn a_claimed_dead_letter_belongs_to_one_operator<DB: Dialect>(stage: &Stage<DB>) {
    let (handle, _) = graveyard(stage).await;
    let outbox = handle.outbox();
    let all = DeadLetterFilter::new;
    let mine = outbox
        .dead_letter_replay(&all().limit(3), MINUTE)
        .await
        .unwrap();
    let theirs = outbox.dead_letter_replay(&all(), MINUTE).await.unwrap();
    assert_eq!(
        (mine.len(), theirs.len()),
        (3, 1),
        "nobody gets what another holds"
    );
    assert!(
        mine.iter()
            .all(|letter| letter.status == DeadLetterStatus::Reprocessing)
    );
    assert!(mine.iter().all(|letter| letter.deadline.is_some()));

    let mut listed = outbox.dead_letter_list(&all()).await.unwrap();
    let resolved = outbox.dead_letter_resolve(&listed).await.unwrap();
    assert_eq!(resolved, 0, "to list is not to claim");
    listed.retain(|letter| letter.id == theirs[0].id);
    listed[0].claim_token = theirs[0].claim_token.clone();
    let rejected = outbox.dead_letter_reject(&listed, "not yet").await.unwrap();
    assert_eq!(rejected, 1, "the token is what counts");
    let one = all().ids(theirs[0].id..=theirs[0].id);
    let theirs = outbox.dead_letter_replay(&one, MINUTE).await.unwrap();
    assert_eq!(theirs.len(), 1, "the one that was asked for");
    assert_eq!(outbox.dead_letter_resolve(&mine[..1]).await.unwrap(), 1);
    assert_eq!(
        outbox.dead_letter_resolve(&mine[..1]).await.unwrap(),
        0,
        "only once"
    );
    assert_eq!(
        outbox
            .dead_letter_reject(&mine[1..2], "still no")
            .await
            .unwrap(),
        1
    );
    assert_eq!(outbox.dead_letter_discard(&mine[2..]).await.unwrap(), 1);
    let count = async |status| {
        outbox
            .dead_letter_count(&all().status(status))
            .await
            .unwrap()
    };
    assert_eq!(count(DeadLetterStatus::Resolved).await, 1);
    assert_eq!(count(DeadLetterStatus::Discarded).await, 1);
    let pending = all().status(DeadLetterStatus::Pending);
    let pending = outbox.dead_letter_list(&pending).await.unwrap();
    assert_eq!(pending.len(), 1);
    assert_eq!(
        (pending[0].attempts, &*pending[0].last_error),
        (2, "still no")
    );
    assert_eq!(outbox.dead_letter_discard(&pending).await.unwrap(), 1);

    // Their claim runs out and goes to somebody else; what they say then counts for nothing.
    stage
        .run("UPDATE outbox_dead_letters SET deadline = 0 WHERE status = 'reprocessing'")
        .await;
    let heir = outbox.dead_letter_replay(&all(), MINUTE).await.unwrap();
    assert_eq!(heir.len(), 1);
    assert_eq!(outbox.dead_letter_resolve(&theirs).await.unwrap(), 0);
    assert_eq!(outbox.dead_letter_resolve(&heir).await.unwrap(), 1);

    assert_eq!(
        outbox.dead_letter_cleanup(&all().limit(3)).await.unwrap(),
        3
    );
    assert_eq!(outbox.dead_letter_cleanup(&all()).await.unwrap(), 1);
    assert_eq!(outbox.dead_letter_count(&all()).await.unwrap(), 0);
    handle.stop().await;
}

pub(crate) async fn cleanup_removes_only_what_has_ended<DB: Dialect>(stage: &Stage<DB>) {
    let (handle, _) = graveyard(stage).await;
    let outbox = handle.outbox();
    let all = DeadLetterFilter::new();
    outbox
        .dead_letter_replay(&all.clone().limit(1), MINUTE)
        .await
        .unwrap();
    assert_eq!(outbox.dead_letter_cleanup(&all).await.unwrap(), 0);
    assert_eq!(outbox.dead_letter_count(&all).await.unwrap(), 4);
    handle.stop().await;
}

pub(crate) async fn what_nobody_came_back_for_can_be_discarded<DB: Dialect>(stage: &Stage<DB>) {
    let (handle, _) = graveyard(stage).await;
    let outbox = handle.outbox();
    let all = DeadLetterFilter::new();
    let one = all.clone().limit(1);
    outbox.dead_letter_replay(&one, MINUTE).await.unwrap();
    let reprocessing = all.status(DeadLetterStatus::Reprocessing);
    let claimed = outbox.dead_letter_list(&reprocessing).await.unwrap();
    assert_eq!(outbox.dead_letter_discard(&claimed).await.unwrap(), 0);
    stage
        .run("UPDATE outbox_dead_letters SET deadline = 0 WHERE status = 'reprocessing'")
        .await;
    assert_eq!(outbox.dead_letter_discard(&claimed).await.unwrap(), 1);
    handle.stop().await;
}

pub(crate) async fn a_requeued_dead_letter_is_delivered_with_its_history<DB: Dialect>(
    stage: &Stage<DB>,
) {
    let (handle, collector) = graveyard(stage).await;
    let outbox = handle.outbox();
    let letter = outbox
        .dead_letter_list(&DeadLetterFilter::new().partition(0))
        .await
        .unwrap();
    let letter = &letter[0];
    let id = outbox.dead_letter_requeue(letter.id).await.unwrap();
    let delivered = collector.wait_for(5).await.remove(4);
    assert_eq!(
        (delivered.id, delivered.seq, text_of(&delivered)),
        (id, 3, "b".to_owned())
    );
    assert_eq!(delivered.headers["colour"], "blue");
    assert_eq!(
        delivered.headers["outbox-requeued-from"],
        letter.id.to_string()
    );
    assert_eq!(delivered.headers["outbox-attempts"], "1");
    assert_eq!(delivered.headers["outbox-last-error"], "no to b");

    let again = outbox.dead_letter_requeue(letter.id).await.unwrap_err();
    assert!(matches!(again, OutboxError::DeadLetterNotPending(refused) if refused == letter.id));
    let resolved = DeadLetterFilter::new().status(DeadLetterStatus::Resolved);
    let resolved = outbox.dead_letter_list(&resolved).await.unwrap();
    assert_eq!(resolved.len(), 1);
    assert_eq!(resolved[0].requeued_as, Some(id));
    assert!(resolved[0].completed_at.is_some());
    handle.stop().await;
}

pub(crate) async fn a_paused_partition_waits_and_resumes_where_it_stood<DB: Dialect>(
    stage: &Stage<DB>,
) {
    let collector = Collector::new();
    let handle = stage.deliver(FOUR, &collector).await;
    let outbox = handle.outbox();
    outbox.pause("orders", Some(0)).await.unwrap();
    stage.enqueue(outbox, 0, &["paused"]).await;
    stage.enqueue(outbox, 1, &["free"]).await;
    collector.wait_for(1).await;
    outbox.pause("orders", None).await.unwrap();
    stage.enqueue(outbox, 1, &["all paused"]).await;
    // Both messages have their numbers, so only the pause holds them back.
    stage
        .until("SELECT MAX(last_seq) FROM outbox_partitions", 2)
        .await;
    assert_eq!(collector.texts(), ["free"]);
    outbox.resume("orders", None).await.unwrap();
    collector.wait_for(2).await;
    assert_eq!(collector.texts(), ["free", "all paused"]);
    outbox.resume("orders", Some(0)).await.unwrap();
    collector.wait_for(3).await;
    assert_eq!(collector.texts(), ["free", "all paused", "paused"]);
    let error = outbox.pause("orders", Some(4)).await.unwrap_err();
    assert!(
        matches!(error, OutboxError::PartitionOutOfRange { max: 3, .. }),
        "{error}"
    );
    handle.stop().await;
}
