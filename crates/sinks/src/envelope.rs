//! What a message says of itself where it goes: the attributes of a CloudEvent 1.0, by the same names at
//! every broker and endpoint.

use outbox::OutboxMessage;

/// What the names of attributes begin with where they stand among headers.
pub(crate) const PREFIX: &str = "ce-";

/// All but the payload and the message's own headers, by name.
pub(crate) fn attributes(message: &OutboxMessage, source: &str) -> Vec<(&'static str, String)> {
    let mut attributes = vec![
        ("specversion", "1.0".to_owned()),
        ("id", message.identity()),
        ("source", source.to_owned()),
        ("type", message.payload_type.clone()),
        (
            "time",
            humantime::format_rfc3339_millis(message.created_at).to_string(),
        ),
        // Texts sort like numbers only if they are as long.
        ("sequence", format!("{:019}", message.seq)),
        ("queue", message.queue.to_string()),
        ("partition", message.partition.to_string()),
    ];
    if let Some(key) = &message.key {
        attributes.push(("partitionkey", key.clone()));
    }
    attributes
}

/// What its payload is, if it says so.
#[cfg(any(feature = "http", feature = "mqtt", feature = "rabbitmq"))]
pub(crate) fn content_type(message: &OutboxMessage) -> Option<&str> {
    let mut headers = message.headers.iter();
    let (_, value) = headers.find(|(name, _)| name.eq_ignore_ascii_case("content-type"))?;
    Some(value)
}

/// The headers a broker gets: the attributes, and the message's own headers as they are. A header of the
/// message that begins like an attribute is left out, or it could pass for one.
#[cfg(feature = "broker")]
pub(crate) fn headers(message: &OutboxMessage) -> impl Iterator<Item = (String, String)> {
    let source = format!("/outbox/{}/{}", message.queue, message.partition);
    let attributes = attributes(message, &source).into_iter();
    let attributes = attributes.map(|(name, value)| (format!("{PREFIX}{name}"), value));
    let own = message.headers.iter().filter(|(name, _)| {
        !name
            .get(..PREFIX.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
    });
    attributes.chain(own.map(|(name, value)| (name.clone(), value.clone())))
}

#[cfg(all(test, feature = "broker"))]
mod tests {
    use super::*;

    #[test]
    fn a_message_cannot_pass_for_another() {
        let mut message = outbox::testing::message("body", "order.placed");
        for name in ["ce-id", "CE-Sequence", "ž", "colour"] {
            message.headers.insert(name.to_owned(), "own".to_owned());
        }
        let headers: Vec<_> = headers(&message).collect();
        let own = headers.iter().filter(|(_, value)| value == "own");
        let own: Vec<_> = own.map(|(name, _)| name.as_str()).collect();
        assert_eq!(own, ["colour", "ž"]);
        assert!(headers.contains(&("ce-id".to_owned(), message.identity())));
        assert!(headers.contains(&("ce-type".to_owned(), "order.placed".to_owned())));
    }
}
