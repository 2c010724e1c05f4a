//! Whatever a handler does with its batch, the cursor passes nothing that was neither acked nor
//! rejected, and only what was rejected goes to the dead letters.

use std::sync::Mutex;

use outbox::{Batch, HandlerResult, LeasedHandler, OutboxMessage};

use super::stage::{ONE, text_message, text_of};
use super::{Collector, Dialect, Stage};

/// Gets everything about acks wrong, and looks at what the batch makes of it.
struct Bungler {
    strangers: Vec<OutboxMessage>,
    settled: Mutex<Vec<OutboxMessage>>,
    collector: Collector,
}

impl Bungler {
    fn first_time(&self, batch: &mut Batch<'_>, messages: &[OutboxMessage]) -> HandlerResult {
        // Of another queue, with the very same numbers.
        batch.ack_chunk(&self.strangers);
        batch.reject(&self.strangers[3], "not even in this queue");
        assert_eq!(batch.processed(), 0);
        let [twice, then_rejected, then_acked, _skipped, behind, last] = messages else {
            panic!("{} messages came at once", messages.len());
        };
        batch.ack(twice);
        batch.ack(twice);
        batch.ack(then_rejected);
        batch.reject(then_rejected, "too late");
        batch.reject(then_acked, "in time");
        batch.ack(then_acked);
        batch.reject(then_acked, "once is enough");
        batch.reject(behind, "behind a gap");
        batch.ack(last);
        assert_eq!(batch.processed(), 3);
        *self.settled.lock().expect("no panic inside") = messages[..3].to_vec();
        HandlerResult::Success
    }
}

impl LeasedHandler for Bungler {
    async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
        let messages = batch.next_chunk(usize::MAX);
        for message in messages {
            let _ = self.collector.see(message);
        }
        assert!(batch.next_msg().is_none() && batch.next_chunk(3).is_empty());
        let (first, attempts) = (text_of(&messages[0]), messages[0].attempts);
        match (&*first, attempts) {
            ("twice", 0) => self.first_time(batch, messages),
            ("skipped", 0) => {
                // What was settled long ago, as often as there are messages now.
                let settled = self.settled.lock().expect("no panic inside").clone();
                batch.ack_chunk(&settled);
                assert_eq!(batch.processed(), 0);
                HandlerResult::Success
            }
            _ => {
                batch.ack_chunk(messages);
                batch.ack_chunk(messages);
                HandlerResult::Success
            }
        }
    }
}

pub(crate) async fn no_misuse_of_a_batch_moves_the_cursor_too_far<DB: Dialect>(stage: &Stage<DB>) {
    let texts = [
        "twice",
        "acked first",
        "rejected first",
        "skipped",
        "behind",
        "last",
    ];
    let strangers = Collector::new();
    let queue = stage
        .outbox()
        .queue("strangers", ONE)
        .leased(strangers.clone());
    let handle = queue.start().await.unwrap();
    let outbox = handle.outbox();
    let batch = texts.map(|text| text_message(0, text));
    outbox
        .transaction(async |transaction| {
            outbox.enqueue_batch(transaction, "strangers", &batch).await
        })
        .await
        .unwrap();
    let strangers = strangers.wait_for(6).await;
    handle.stop().await;

    let collector = Collector::new();
    let bungler = Bungler {
        strangers,
        settled: Mutex::default(),
        collector: collector.clone(),
    };
    let queue = stage.outbox().queue("orders", ONE).batch_leased(bungler);
    let handle = queue.start().await.unwrap();
    stage.enqueue(handle.outbox(), 0, &texts).await;
    stage
        .until("SELECT MIN(processed_seq) FROM outbox_processors", 6)
        .await;
    let buried = stage.buried(handle.outbox()).await;
    handle.stop().await;
    let seen = collector.seen();
    let seen: Vec<_> = seen
        .iter()
        .map(|message| (message.seq, message.attempts))
        .collect();
    let first = (1..=6).map(|seq| (seq, 0));
    // The gap is charged to nobody; a success that acked nothing is a failed attempt.
    let second = [(4, 0), (5, 0), (6, 0)];
    let third = [(4, 1), (5, 0), (6, 0)];
    assert_eq!(seen, first.chain(second).chain(third).collect::<Vec<_>>());
    assert_eq!(buried, [(0, 3, 1, "in time".to_owned())]);
}

/// Rejects every third message by name, acks the others, and says a word that must not matter.
struct Picky(Collector, HandlerResult);

impl LeasedHandler for Picky {
    async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
        while let Some(message) = batch.next_msg() {
            let _ = self.0.see(message);
            if message.seq % 3 == 0 {
                batch.reject(message, format!("no to {}", message.seq));
            } else {
                batch.ack(message);
            }
        }
        self.1.clone()
    }
}

pub(crate) async fn rejects_in_the_middle_of_a_batch_are_exact<DB: Dialect>(stage: &Stage<DB>) {
    let answers = [
        HandlerResult::Success,
        HandlerResult::Retry {
            reason: "nothing is left to retry".into(),
        },
        HandlerResult::Reject {
            reason: "nothing is left to reject".into(),
        },
    ];
    let texts: Vec<_> = (1..=30).map(|number| number.to_string()).collect();
    let texts: Vec<_> = texts.iter().map(String::as_str).collect();
    for (round, answer) in (1..).zip(answers) {
        let collector = Collector::new();
        let queue = stage.outbox().queue("orders", ONE);
        let builder = queue.batch_leased(Picky(collector.clone(), answer.clone()));
        let handle = builder.start().await.unwrap();
        stage.enqueue(handle.outbox(), 0, &texts).await;
        stage
            .until("SELECT processed_seq FROM outbox_processors", 30 * round)
            .await;
        let buried = stage.buried(handle.outbox()).await;
        handle.stop().await;
        assert_eq!(collector.texts(), texts, "{answer:?}: each comes once");
        let thirds = (1..=30 * round).filter(|seq| seq % 3 == 0);
        let expected: Vec<_> = thirds
            .map(|seq| (0, seq, 1, format!("no to {seq}")))
            .collect();
        assert_eq!(buried, expected, "{answer:?}");
    }
}
