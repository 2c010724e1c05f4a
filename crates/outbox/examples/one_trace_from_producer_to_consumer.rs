//! A request, the message it enqueues and the handler that gets it are one trace, however long after it is
//! delivered. The spans go to memory here; a collector gets them the same way.

use std::sync::Arc;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use outbox::{EnqueueMessage, MessageResult, Outbox, OutboxError, OutboxMessage, Partitions};
use tokio::sync::Notify;
use tracing::{Instrument as _, info_span};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

#[tokio::main]
async fn main() -> Result<(), OutboxError> {
    let spans = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(spans.clone())
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("shop"));
    tracing_subscriber::registry().with(layer).init();

    let handled = Arc::new(Notify::new());
    let told = Arc::clone(&handled);
    let handler = move |message: OutboxMessage| {
        let told = Arc::clone(&told);
        async move {
            let shipped =
                async { println!("the message carries {}", message.headers["traceparent"]) };
            shipped.instrument(info_span!("ship")).await;
            told.notify_one();
            MessageResult::Ok
        }
    };
    let pool = sqlx::SqlitePool::connect("sqlite::memory:").await?;
    let handle = Outbox::builder(pool)
        .auto_migrate()
        .queue("orders", Partitions::of(1))
        .leased(handler)
        .start()
        .await?;
    let outbox = handle.outbox();

    let order = async {
        let message = EnqueueMessage::keyed("ada", "a loom", "order.placed");
        let placed = outbox
            .transaction(async |transaction| outbox.enqueue(transaction, "orders", message).await);
        placed.await
    };
    order.instrument(info_span!("place an order")).await?;
    handled.notified().await;
    handle.stop().await;

    let spans = spans.get_finished_spans().expect("spans in memory");
    let named = |name: &str| -> &SpanData {
        let mut spans = spans.iter();
        spans.find(|span| span.name == name).expect(name)
    };
    let (placed, handle, ship) = (
        named("place an order"),
        named("outbox.handle"),
        named("ship"),
    );
    for span in [placed, handle, ship] {
        println!(
            "{:<16} is part of {}",
            span.name,
            span.span_context.trace_id()
        );
    }
    assert_eq!(
        handle.span_context.trace_id(),
        placed.span_context.trace_id()
    );
    assert_eq!(handle.parent_span_id, placed.span_context.span_id());
    assert_eq!(ship.parent_span_id, handle.span_context.span_id());
    println!("producer and consumer are one trace");
    Ok(())
}
