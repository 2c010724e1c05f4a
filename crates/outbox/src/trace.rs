//! The trace a message belongs to. What enqueues it is one end, what handles it the other, maybe hours later
//! and on another machine: between them its headers carry the trace, as W3C's Trace Context writes it.
//!
//! Whoever has the feature `otel` gets both ends; without it headers that somebody else wrote travel like any
//! other.

#[cfg(feature = "otel")]
use std::collections::BTreeMap;

use tracing::{Span, info_span};

use crate::message::{EnqueueMessage, OutboxMessage};

/// The headers of W3C's Trace Context.
#[cfg(feature = "otel")]
const PARENT: &str = "traceparent";
#[cfg(feature = "otel")]
const STATE: &str = "tracestate";

/// The trace of whoever enqueues.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    #[cfg(feature = "otel")]
    parent: String,
    #[cfg(feature = "otel")]
    state: String,
}

impl Origin {
    /// That of the span we are in, if it is traced.
    #[cfg(not(feature = "otel"))]
    pub(crate) fn current() -> Option<Self> {
        None
    }

    /// That of the span we are in, if it is traced.
    #[cfg(feature = "otel")]
    pub(crate) fn current() -> Option<Self> {
        use opentelemetry::trace::TraceContextExt as _;
        use tracing_opentelemetry::OpenTelemetrySpanExt as _;

        let context = Span::current().context();
        let span = context.span();
        let span = span.span_context();
        span.is_valid().then(|| Self {
            parent: format!(
                "00-{}-{}-{:02x}",
                span.trace_id(),
                span.span_id(),
                span.trace_flags().to_u8() & 1
            ),
            state: span.trace_state().header(),
        })
    }

    /// Writes it into a message that belongs to no trace yet.
    #[cfg(not(feature = "otel"))]
    pub(crate) fn stamp(&self, message: EnqueueMessage) -> EnqueueMessage {
        message
    }

    /// Writes it into a message that belongs to no trace yet, and has room for it.
    #[cfg(feature = "otel")]
    pub(crate) fn stamp(&self, message: EnqueueMessage) -> EnqueueMessage {
        let traced = message.headers().any(|(name, _)| name == PARENT);
        if traced || message.headers().len() + 2 > crate::message::MAX_HEADERS {
            return message;
        }
        let message = message.header(PARENT, &self.parent);
        if self.state.is_empty() {
            return message;
        }
        message.header(STATE, &self.state)
    }
}

/// The span in which a message is handled: a continuation of the one it was enqueued in.
pub(crate) fn handle(message: &OutboxMessage) -> Span {
    let span = info_span!(
        "outbox.handle",
        otel.kind = "consumer",
        queue = &*message.queue,
        partition = message.partition,
        seq = message.seq,
        message_id = message.id.0,
        attempts = message.attempts,
    );
    #[cfg(feature = "otel")]
    if let Some(context) = context(&message.headers) {
        use tracing_opentelemetry::OpenTelemetrySpanExt as _;
        // Without a layer for it there is nothing to continue.
        let _ = span.set_parent(context);
    }
    span
}

/// The span in which a batch is handled: it belongs to no trace, and has a link to each.
pub(crate) fn handle_batch(messages: &[OutboxMessage]) -> Span {
    let first = messages.first();
    let span = info_span!(
        "outbox.handle",
        otel.kind = "consumer",
        queue = first.map_or("", |first| &first.queue),
        partition = first.map_or(0, |first| first.partition),
        seq = first.map_or(0, |first| first.seq),
        messages = messages.len(),
    );
    #[cfg(feature = "otel")]
    if !span.is_disabled() {
        use opentelemetry::trace::TraceContextExt as _;
        use tracing_opentelemetry::OpenTelemetrySpanExt as _;
        let contexts = messages.iter().filter_map(|one| context(&one.headers));
        for context in contexts.take(MOST_LINKS) {
            span.add_link(context.span().span_context().clone());
        }
    }
    span
}

/// The most links of a span: more are dropped by those who collect them.
#[cfg(feature = "otel")]
const MOST_LINKS: usize = 128;

/// What a message's headers say of its trace.
#[cfg(feature = "otel")]
fn context(headers: &BTreeMap<String, String>) -> Option<opentelemetry::Context> {
    use opentelemetry::trace::{
        SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState,
    };

    // Checked digit by digit: numbers may have a sign elsewhere.
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let mut parts = headers.get(PARENT)?.split('-');
    let mut part = |length: usize| {
        let part = parts.next()?;
        (part.len() == length && part.bytes().all(is_digit)).then_some(part)
    };
    let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
    // Only a later version may have more behind it.
    let known = match version {
        "00" => parts.next().is_none(),
        version => version != "ff",
    };
    let flags = u8::from_str_radix(flags, 16).ok()?;
    let state = headers.get(STATE).and_then(|state| state.parse().ok());
    let span = SpanContext::new(
        TraceId::from_hex(trace).ok()?,
        SpanId::from_hex(span).ok()?,
        TraceFlags::new(flags & 1),
        true,
        state.unwrap_or(TraceState::NONE),
    );
    let valid = known && span.is_valid();
    valid.then(|| opentelemetry::Context::new().with_remote_span_context(span))
}

#[cfg(all(test, feature = "otel"))]
mod tests {
    use opentelemetry::trace::TraceContextExt as _;
    use proptest::prelude::*;

    use super::*;

    /// The trace that a header names.
    fn read(parent: &str) -> Option<String> {
        let headers = BTreeMap::from([(PARENT.to_owned(), parent.to_owned())]);
        context(&headers).map(|context| context.span().span_context().trace_id().to_string())
    }

    /// By where the characters stand.
    fn is_traceparent(text: &str) -> bool {
        let is_digit = |c: char| "0123456789abcdef".contains(c);
        let digits = |from, to| {
            let part = text.get(from..to);
            part.is_some_and(|part| part.chars().all(is_digit))
        };
        let not_zero = |from: usize, to| text[from..to].contains(|c| c != '0');
        digits(0, 2)
            && digits(3, 35)
            && digits(36, 52)
            && digits(53, 55)
            && [2, 35, 52]
                .iter()
                .all(|place| text[*place..].starts_with('-'))
            && not_zero(3, 35)
            && not_zero(36, 52)
            && match &text[..2] {
                "00" => text.len() == 55,
                "ff" => false,
                _ => text.len() == 55 || text[55..].starts_with('-'),
            }
    }

    proptest! {
        #[test]
        fn any_header_is_a_traceparent_as_w3c_has_it_or_none(
            version in "00|[0-9a-f]{2}|.{2}",
            trace in "[0-9a-f]{32}|[0-9a-f]{32}|0{32}|[+][0-9a-f]{31}|[0-9a-fA-F]{31,33}",
            span in "[0-9a-f]{16}|[0-9a-f]{16}|0{16}|[+][0-9a-f]{15}|[0-9a-fA-F]{15,17}",
            flags in "[0-9a-f]{2}|[0-9a-f]{2}|[+][0-9a-f]|.{1,3}",
            rest in "||-.{0,9}|.{0,9}",
        ) {
            let header = format!("{version}-{trace}-{span}-{flags}{rest}");
            let expected = is_traceparent(&header).then_some(trace);
            prop_assert_eq!(read(&header), expected);
        }

        #[test]
        fn no_header_of_a_trace_makes_reading_panic(parent in any::<String>(), state in any::<String>()) {
            let headers = [(PARENT, parent), (STATE, state)].map(|(name, value)| (name.to_owned(), value));
            context(&BTreeMap::from(headers));
        }
    }

    #[test]
    fn only_what_w3c_calls_a_traceparent_is_one() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        let good = format!("00-{trace}-00f067aa0ba902b7-01");
        assert_eq!(read(&good).as_deref(), Some(trace));
        // A later version may have more behind it.
        assert_eq!(
            read(&format!("01-{trace}-00f067aa0ba902b7-01-more")).as_deref(),
            Some(trace)
        );
        for bad in [
            "",
            "00",
            trace,
            &format!("ff-{trace}-00f067aa0ba902b7-01"),
            &format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            &format!("00-{trace}-0000000000000000-01"),
            &format!("00-{trace}-00f067aa0ba902b7-zz"),
            &format!("00-{}-00f067aa0ba902b7-01", "ü".repeat(16)),
            // A sign is no digit, and the first version has nothing behind it.
            &format!("00-+{}-00f067aa0ba902b7-01", &trace[1..]),
            &format!("00-{trace}-00f067aa0ba902b7-+1"),
            &format!("00-{trace}-00f067aa0ba902b7-01-more"),
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_message_keeps_the_trace_it_has_and_the_room_it_needs() {
        let origin = Origin {
            parent: "00-new".to_owned(),
            state: "a=b".to_owned(),
        };
        let message = || EnqueueMessage::to(0, "", "text/plain");
        let names = |message: &EnqueueMessage| message.headers().count();
        assert_eq!(names(&origin.stamp(message())), 2);
        let own = origin.stamp(message().header(PARENT, "00-own"));
        assert_eq!(own.headers().collect::<Vec<_>>(), [(PARENT, "00-own")]);
        let full = (0..crate::message::MAX_HEADERS - 1)
            .fold(message(), |message, n| message.header(format!("h{n}"), ""));
        assert_eq!(names(&origin.stamp(full)), crate::message::MAX_HEADERS - 1);
    }
}
