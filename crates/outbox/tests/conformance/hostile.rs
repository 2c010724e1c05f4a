//! Text that would like to be a statement: through every string that reaches the database.

use std::time::Duration;

use outbox::{DeadLetterFilter, EnqueueMessage, MessageResult, OutboxError};

use super::stage::{ONE, refusal, text_of};
use super::{Collector, Dialect, Stage};

/// All of them printable, so that they pass wherever text passes.
const HOSTILE: [&str; 14] = [
    "'; DROP TABLE outbox_messages; --",
    "\"; DROP TABLE outbox_messages; --",
    "`; DROP TABLE outbox_messages; --",
    "\\'; DROP TABLE outbox_messages; -- ",
    "') ; DELETE FROM outbox_messages WHERE ('' = '",
    "' OR '1' = '1",
    "x' UNION SELECT 1, 2, 3 --",
    "$1 $2 ?1 ? :a @a",
    "{prefix}messages {now}",
    "%s %d %",
    "/* */ /*! SELECT 1 */ # --",
    "[1, \"2\", {\"a\": null}]",
    "$$; DROP TABLE outbox_messages; $$",
    "\\",
];

pub(crate) async fn text_is_never_taken_for_a_statement<DB: Dialect>(stage: &Stage<DB>) {
    let reject = Collector::answering(|message| MessageResult::Reject(text_of(message)));
    let handle = stage.deliver(ONE, &reject).await;
    let outbox = handle.outbox();
    for text in HOSTILE {
        let message = EnqueueMessage::keyed(text, text, text).header(text, text);
        // One alone and two at once go different ways.
        for messages in [
            vec![message.clone()],
            vec![message.clone(), message.clone()],
        ] {
            let enqueue = async |connection: &mut DB::Connection| {
                outbox.enqueue_batch(connection, "orders", &messages).await
            };
            outbox.transaction(enqueue).await.unwrap();
        }
    }
    let seen = reject.wait_for(3 * HOSTILE.len()).await;
    for (message, text) in seen.iter().zip(HOSTILE.iter().flat_map(|text| [text; 3])) {
        assert_eq!(text_of(message), *text);
        assert_eq!(message.key.as_deref(), Some(*text));
        assert_eq!(message.payload_type, *text);
        assert_eq!(message.headers.get(*text).map(String::as_str), Some(*text));
    }
    stage
        .until("SELECT COUNT(*) FROM outbox_dead_letters", 42)
        .await;
    for text in HOSTILE {
        let of_its_type = DeadLetterFilter::new().queue("orders").payload_type(text);
        let letters = outbox.dead_letter_list(&of_its_type).await.unwrap();
        assert_eq!(letters.len(), 3, "{text}");
        assert!(letters.iter().all(|letter| letter.last_error == text));
        let minute = Duration::from_secs(60);
        let claimed = outbox.dead_letter_replay(&of_its_type, minute).await;
        let claimed = claimed.unwrap();
        let rejected = outbox.dead_letter_reject(&claimed, text).await.unwrap();
        assert_eq!(rejected, 3, "{text}");
        let letters = outbox.dead_letter_list(&of_its_type).await.unwrap();
        assert!(letters.iter().all(|letter| letter.last_error == text));
        let of_a_queue = DeadLetterFilter::new().queue(text);
        let count = outbox.dead_letter_count(&of_a_queue).await;
        assert!(matches!(count, Ok(0)), "{text}: {count:?}");
        let paused = outbox.pause(text, None).await;
        assert!(
            matches!(paused, Err(OutboxError::QueueNotRegistered(_))),
            "{paused:?}"
        );
    }
    outbox.pause("orders", None).await.unwrap();
    stage.enqueue(outbox, 0, &["skipped"]).await;
    stage
        .until("SELECT last_seq FROM outbox_partitions", 43)
        .await;
    outbox.skip("orders", 0, HOSTILE[0]).await.unwrap();
    let buried = stage.buried(outbox).await;
    assert_eq!(buried.last().unwrap().3, HOSTILE[0]);
    handle.stop().await;
    for text in HOSTILE {
        let queue = stage.outbox().queue(text, ONE).produce_only();
        let error = refusal(queue).await;
        assert!(
            matches!(error, OutboxError::InvalidQueueName(_)),
            "{error:?}"
        );
        let prefixed = stage.outbox().table_prefix(text);
        let error = refusal(prefixed.queue("orders", ONE).produce_only()).await;
        assert!(
            matches!(error, OutboxError::InvalidConfig { .. }),
            "{error:?}"
        );
    }
}
