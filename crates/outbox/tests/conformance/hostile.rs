//! Text that would like to be a statement: through every string that reaches the database.

use std::time::Duration;

use outbox::{
    DeadLetterFilter, EnqueueMessage, MessageResult, Outbox, OutboxError, OutboxMessageId,
};
use serde_json::json;

use super::any_language::{Call, Routine};
use super::stage::{ONE, refusal, text_of};
use super::{Collector, Stage};

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

/// How often each is enqueued: alone, with another, and without the library.
const EACH: usize = 4;

pub(crate) async fn text_is_never_taken_for_a_statement<DB: Routine>(stage: &Stage<DB>) {
    let reject = Collector::answering(|message| MessageResult::Reject(text_of(message)));
    let handle = stage.deliver(ONE, &reject).await;
    let outbox = handle.outbox();
    for text in HOSTILE {
        enqueue(stage, outbox, text).await;
    }
    let seen = reject.wait_for(EACH * HOSTILE.len()).await;
    for (message, text) in seen
        .iter()
        .zip(HOSTILE.iter().flat_map(|text| [text; EACH]))
    {
        assert_eq!(text_of(message), *text);
        assert_eq!(message.key.as_deref(), Some(*text));
        assert_eq!(message.payload_type, *text);
        assert_eq!(message.headers.get(*text).map(String::as_str), Some(*text));
    }
    let all = i64::try_from(seen.len()).unwrap();
    stage
        .until("SELECT COUNT(*) FROM outbox_dead_letters", all)
        .await;
    for text in HOSTILE {
        decide(outbox, text).await;
        no_queue(outbox, text).await;
        outbox.audit(text, text, text, text).await.unwrap();
        let log = outbox.audit_log(None, 1).await.unwrap();
        let (actor, action) = (&*log[0].actor, &*log[0].action);
        let (target, reason) = (&*log[0].target, &*log[0].reason);
        assert_eq!([actor, action, target, reason], [text; 4]);
    }
    outbox.pause("orders", None).await.unwrap();
    stage.enqueue(outbox, 0, &HOSTILE).await;
    let last_seq = all + i64::try_from(HOSTILE.len()).unwrap();
    stage
        .until("SELECT last_seq FROM outbox_partitions", last_seq)
        .await;
    for text in HOSTILE {
        let skipped = outbox.skip("orders", 0, text).await.unwrap();
        assert!(skipped.is_some(), "{text}");
    }
    let buried = stage.buried(outbox).await;
    let skipped = &buried[seen.len()..];
    let reasons = skipped.iter().map(|(.., reason)| &**reason);
    assert!(reasons.eq(HOSTILE), "{skipped:?}");
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

/// As key, payload, type and header.
async fn enqueue<DB: Routine>(stage: &Stage<DB>, outbox: &Outbox<DB>, text: &'static str) {
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
    let call = Call {
        payload_type: text.to_owned(),
        headers: Some(json!({ text: text }).to_string()),
        ..Call::new(text, text)
    };
    let mut connection = stage.pool.acquire().await.unwrap();
    DB::call(&mut connection, &call).await.unwrap();
    let nowhere = Call {
        queue: text,
        ..call
    };
    let refused = DB::call(&mut connection, &nowhere).await;
    assert!(refused.is_err(), "{text}: {refused:?}");
}

/// As a filter, a claim and a reason.
async fn decide<DB: Routine>(outbox: &Outbox<DB>, text: &str) {
    let of_its_type = DeadLetterFilter::new().queue("orders").payload_type(text);
    let letters = outbox.dead_letter_list(&of_its_type).await.unwrap();
    assert_eq!(letters.len(), EACH, "{text}");
    assert!(letters.iter().all(|letter| letter.last_error == text));
    let minute = Duration::from_secs(60);
    let claimed = outbox.dead_letter_replay(&of_its_type, minute).await;
    let claimed = claimed.unwrap();
    let mut forged = claimed.clone();
    for letter in &mut forged {
        letter.claim_token = Some(text.to_owned());
    }
    for ended in [
        outbox.dead_letter_resolve(&forged).await,
        outbox.dead_letter_reject(&forged, text).await,
        outbox.dead_letter_discard(&forged).await,
    ] {
        assert!(matches!(ended, Ok(0)), "{text}: {ended:?}");
    }
    let rejected = outbox.dead_letter_reject(&claimed, text).await.unwrap();
    assert_eq!(rejected, EACH as u64, "{text}");
    let letters = outbox.dead_letter_list(&of_its_type).await.unwrap();
    assert!(letters.iter().all(|letter| letter.last_error == text));
}

/// As the name of a queue that there is not.
async fn no_queue<DB: Routine>(outbox: &Outbox<DB>, text: &str) {
    let of_a_queue = DeadLetterFilter::new().queue(text);
    let count = outbox.dead_letter_count(&of_a_queue).await;
    assert!(matches!(count, Ok(0)), "{text}: {count:?}");
    let claimed = outbox
        .dead_letter_replay(&of_a_queue, Duration::from_secs(60))
        .await;
    assert!(claimed.unwrap().is_empty(), "{text}");
    let removed = outbox.dead_letter_cleanup(&of_a_queue).await;
    assert!(matches!(removed, Ok(0)), "{text}: {removed:?}");
    let first = OutboxMessageId(1);
    for refused in [
        outbox.pause(text, None).await.err(),
        outbox.resume(text, None).await.err(),
        outbox.peek(text, 0, None, 1).await.err(),
        outbox.skip(text, 0, text).await.err(),
        outbox.skip_message(text, 0, first, text).await.err(),
    ] {
        assert!(
            matches!(refused, Some(OutboxError::QueueNotRegistered(_))),
            "{text}: {refused:?}"
        );
    }
}
