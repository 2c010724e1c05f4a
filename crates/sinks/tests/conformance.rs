//! What every sink must do, with a real outbox on one side and the real thing on the other. What only one of
//! them must do is beside its broker in `brokers`.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod brokers;
mod source;
mod throughput;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use brokers::{Arrived, Broker};
use outbox::{EnqueueMessage, OutboxMessage};
use outbox_sinks::{Published, Refusal, Sink};
use source::{Source, numbered};
use testbed::{After, Fault, Wire, announce};
use tokio::time::Instant;

/// How long anything may take before something is wrong, however slow the machine is.
const PATIENCE: Duration = Duration::from_secs(60);
const PATIENCE_PER_MESSAGE: Duration = Duration::from_millis(5);
/// How often something is looked at that nobody tells of.
const GLANCE: Duration = Duration::from_millis(1);
/// What a sink has for an answer where nothing is meant to go wrong.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Where the network is meant to go silent.
const SHORT_TIMEOUT: Duration = Duration::from_secs(2);

/// Makes a test of each for each broker; of the second list where there is a network in between.
macro_rules! on_every_broker {
    ([$($test:ident),* $(,)?], $networked:tt) => {
        on_every_broker!(@on lines, Lines, [$($test),*]);
        on_every_broker!(@both "http", http, Http, [$($test),*], $networked);
        on_every_broker!(@both "mqtt", mqtt, Mqtt, [$($test),*], $networked);
        on_every_broker!(@both "nats", nats, Nats, [$($test),*], $networked);
        on_every_broker!(@both "rabbitmq", rabbitmq, RabbitMq, [$($test),*], $networked);
        // What its network does is beside its broker: clients find the others of a cluster by themselves.
        on_every_broker!(@both "kafka", kafka, Kafka, [$($test),*], []);
        on_every_broker!(@both "redis", redis, Redis, [$($test),*], $networked);
    };
    (@both $feature:literal, $module:ident, $broker:ident, [$($test:ident),*], [$($more:ident),* $(,)?]) => {
        #[cfg(feature = $feature)]
        on_every_broker!(@on $module, $broker, [$($test,)* $($more),*]);
    };
    (@on $module:ident, $broker:ident, [$($test:ident),* $(,)?]) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    if let Some(broker) = <crate::brokers::$broker as crate::brokers::Broker>::start().await {
                        super::$test(broker).await;
                    }
                }
            )*
        }
    };
}

on_every_broker!(
    [
        messages_arrive_in_order_with_all_that_they_have,
        a_broker_that_goes_away_loses_nothing_and_keeps_the_order,
    ],
    [
        a_network_that_fails_loses_nothing_and_keeps_the_order,
        lost_answers_lose_nothing_and_keep_the_order,
        a_broker_that_is_silent_is_given_up_in_time,
        a_broker_that_is_not_there_is_named,
    ]
);

/// How long so many messages may take.
fn patience(count: usize) -> Duration {
    PATIENCE + PATIENCE_PER_MESSAGE * u32::try_from(count).unwrap()
}

/// How many messages a test sends: a few, or what is asked for and can be kept.
fn messages<B: Broker>() -> u32 {
    let asked = std::env::var("OUTBOX_SINK_MESSAGES").ok();
    let asked = asked.map_or(2_000, |number| number.parse().unwrap());
    asked.min(B::MOST)
}

/// That all of them arrived, and the first arrivals of each key in order. Says how many came again.
fn assert_complete_and_in_order(arrived: &[Arrived], count: u32) {
    let (mut keys, mut seen) = (HashMap::new(), HashSet::new());
    for one in arrived {
        let number: u32 = std::str::from_utf8(&one.payload).unwrap().parse().unwrap();
        if seen.insert(number) {
            let last = keys.insert(&one.key, number);
            assert!(last <= Some(number), "{}: {number} after {last:?}", one.key);
        }
    }
    assert_eq!(seen.len(), count as usize, "none is lost, none invented");
    let again = arrived.len() - seen.len();
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    announce(&format!("{test}: {again} of {count} came again"));
}

async fn messages_arrive_in_order_with_all_that_they_have<B: Broker>(broker: B) {
    let source = Source::to(broker.sink_at(&broker.url(), TIMEOUT)).await;
    let blue =
        EnqueueMessage::keyed("k", "{\"a\": \"ž\"}", "order.placed").header("colour", "blue");
    source.enqueue(&[blue]).await;
    source.settled(1).await;
    let expected = Arrived {
        key: "k".to_owned(),
        seq: 1,
        payload: "{\"a\": \"ž\"}".into(),
        colour: Some("blue".to_owned()),
    };
    assert_eq!(broker.arrived().await, [expected]);
    let count = messages::<B>();
    source.enqueue(&numbered(0..count)).await;
    source.settled(count as usize + 1).await;
    let arrived = &broker.arrived().await[1..];
    assert_eq!(
        arrived.len(),
        count as usize,
        "none twice when nothing fails"
    );
    assert_complete_and_in_order(arrived, count);
    source.handle.stop().await;
}

/// Waits until so many have arrived.
async fn arrival_of<B: Broker>(broker: &B, source: &Source, count: usize) {
    let until = Instant::now() + PATIENCE;
    loop {
        let arrived = broker.count().await;
        if arrived >= count {
            return;
        }
        if Instant::now() > until {
            let stats = source.handle.outbox().stats().await;
            panic!("{arrived} of {count} arrived: {stats:?}");
        }
        tokio::time::sleep(GLANCE).await;
    }
}

/// Some messages in several goes, each disturbed in the middle of it.
async fn disturbed<B: Broker>(
    broker: &mut B,
    url: &str,
    timeout: Duration,
    goes: u32,
    mut disturb: impl AsyncFnMut(&mut B, u32),
) {
    let source = Source::to(broker.sink_at(url, timeout)).await;
    let each = messages::<B>() / goes;
    for go in 0..goes {
        let before = broker.count().await;
        source.enqueue(&numbered(go * each..go * each + each)).await;
        arrival_of(broker, &source, before + each as usize / 6).await;
        disturb(broker, go).await;
    }
    source.settled((goes * each) as usize).await;
    source.handle.stop().await;
    let arrived = broker.arrived().await;
    assert_complete_and_in_order(&arrived, goes * each);
}

async fn a_broker_that_goes_away_loses_nothing_and_keeps_the_order<B: Broker>(mut broker: B) {
    let url = broker.url();
    disturbed(&mut broker, &url, TIMEOUT, 3, async |broker: &mut B, _| {
        broker.stop().await;
        broker.start_again().await;
    })
    .await;
}

async fn a_network_that_fails_loses_nothing_and_keeps_the_order<B: Broker>(mut broker: B) {
    let wire = Wire::to(&broker.url()).await;
    let url = wire.url().to_owned();
    let faults = async |_: &mut B, go| match go {
        0 => wire.cut(),
        1 => wire.half_close(),
        2 => wire.cut_after(5_000),
        3 => {
            wire.go_silent();
            wire.heal();
        }
        _ => wire.delay(Duration::from_millis(5)),
    };
    disturbed(&mut broker, &url, SHORT_TIMEOUT, 5, faults).await;
}

async fn lost_answers_lose_nothing_and_keep_the_order<B: Broker>(broker: B) {
    let wire = Wire::to(&broker.url()).await;
    let source = Source::to(broker.sink_at(wire.url(), SHORT_TIMEOUT)).await;
    let (goes, each) = (8, messages::<B>() / 8);
    let mut lost = 0;
    for go in 0..goes {
        let then = if go % 2 == 0 {
            After::Cut
        } else {
            After::Silent
        };
        wire.fail_at(u64::from(go % 3 + 1), Fault::LostReply, then);
        source.enqueue(&numbered(go * each..go * each + each)).await;
        tokio::select! {
            () = wire.wait_tripped() => lost += 1,
            () = source.settled(((go + 1) * each) as usize) => {}
        }
        wire.heal();
    }
    assert!(lost > 0, "no answer was lost");
    source.settled((goes * each) as usize).await;
    source.handle.stop().await;
    assert_complete_and_in_order(&broker.arrived().await, goes * each);
}

/// A message that any sink takes.
fn message() -> OutboxMessage {
    let mut message = outbox::testing::message("body", "order.placed");
    message.key = Some("k".to_owned());
    message
}

/// That a sink takes a message, at once unless the machine is so slow that its time runs out.
async fn works_again(sink: &impl Sink, timeout: Duration) {
    let until = Instant::now() + PATIENCE;
    loop {
        let began = Instant::now();
        let published = sink.publish(&[message()]).await;
        if published == Published::all(&[message()]) {
            return;
        }
        let was_slow = began.elapsed() >= timeout && Instant::now() < until;
        assert!(was_slow, "{published:?} after {:?}", began.elapsed());
    }
}

async fn a_broker_that_is_silent_is_given_up_in_time<B: Broker>(broker: B) {
    let wire = Wire::to(&broker.url()).await;
    let sink = broker.sink_at(wire.url(), SHORT_TIMEOUT);
    let refused = async || {
        let began = Instant::now();
        let published = sink.publish(&[message()]).await;
        // Far from for ever, also where every step takes its time.
        assert!(began.elapsed() < SHORT_TIMEOUT * 5, "{:?}", began.elapsed());
        let later = matches!(published.refusal, Some(Refusal::Later { .. }));
        assert!(later && published.confirmed == 0, "{published:?}");
    };
    works_again(&sink, SHORT_TIMEOUT).await;
    wire.go_silent();
    // Once on the connection that was there, once on a new one.
    refused().await;
    refused().await;
    wire.heal();
    works_again(&sink, SHORT_TIMEOUT).await;
}

async fn a_broker_that_is_not_there_is_named<B: Broker>(mut broker: B) {
    let sink = broker.sink_at(&broker.url(), TIMEOUT);
    sink.check().await.unwrap();
    broker.stop().await;
    assert_ne!(sink.check().await.unwrap_err(), "");
    let published = sink.publish(&[message()]).await;
    let later = matches!(published.refusal, Some(Refusal::Later { .. }));
    assert!(later && published.confirmed == 0, "{published:?}");
    broker.start_again().await;
    sink.check().await.unwrap();
    assert_eq!(
        sink.publish(&[message()]).await,
        Published::all(&[message()])
    );
}
