//! A message as a CloudEvent 1.0: in headers and body, or all of it in the body.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outbox::OutboxMessage;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::{percent_encoded, visible};
use crate::Refusal;
use crate::envelope::{PREFIX, attributes};

/// Where an event's attributes are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloudEventMode {
    /// Attributes are headers, the body is the payload.
    #[default]
    Binary,
    /// Everything is in the body, which is JSON.
    Structured,
    /// Only the payload.
    Plain,
}

impl CloudEventMode {
    pub(super) fn encode(
        self,
        message: &OutboxMessage,
        source: &str,
        content_type: &str,
    ) -> Result<(HeaderMap, Vec<u8>), Refusal> {
        let mut headers = HeaderMap::new();
        let body = match self {
            Self::Plain => message.payload.clone(),
            Self::Binary => {
                for (name, value) in attributes(message, source) {
                    let name = HeaderName::try_from(format!("{PREFIX}{name}"));
                    let name = name.map_err(|error| Refusal::never(error.to_string()))?;
                    headers.insert(name, visible(&attribute(&value))?);
                }
                message.payload.clone()
            }
            Self::Structured => structured(message, source, content_type),
        };
        let content_type = match self {
            Self::Structured => HeaderValue::from_static("application/cloudevents+json"),
            Self::Binary | Self::Plain => visible(content_type)?,
        };
        headers.insert(CONTENT_TYPE, content_type);
        Ok((headers, body))
    }
}

/// As the HTTP binding of CloudEvents says: what is no visible ASCII, a space, a quote or a percent sign
/// is percent-encoded.
fn attribute(value: &str) -> String {
    percent_encoded(value, |byte| {
        byte.is_ascii_graphic() && !matches!(byte, b'"' | b'%')
    })
}

fn structured(message: &OutboxMessage, source: &str, content_type: &str) -> Vec<u8> {
    let attributes = attributes(message, source).into_iter();
    let mut event: Map<String, Value> = attributes
        .map(|(name, value)| (name.to_owned(), json!(value)))
        .collect();
    event.insert("datacontenttype".to_owned(), json!(content_type));
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    let media_type = media_type.to_ascii_lowercase();
    let is_json = media_type.ends_with("/json") || media_type.ends_with("+json");
    // As it is written: numbers and the order of fields are the application's.
    let parsed = serde_json::from_slice::<&RawValue>(&message.payload).ok();
    let (field, data) = match (parsed, std::str::from_utf8(&message.payload)) {
        (Some(parsed), _) if is_json => ("data", parsed.get().to_owned()),
        (_, Ok(text)) if !is_json => ("data", json!(text).to_string()),
        _ => {
            let encoded = STANDARD.encode(&message.payload);
            ("data_base64", json!(encoded).to_string())
        }
    };
    let mut event = Value::Object(event).to_string();
    // Before the closing brace.
    event.truncate(event.len() - 1);
    format!("{event},\"{field}\":{data}}}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(mode: CloudEventMode, payload: &[u8], content_type: &str) -> (HeaderMap, Vec<u8>) {
        let mut message = outbox::testing::message(payload, "order.placed");
        message.key = Some("ž 1%".to_owned());
        message.seq = 7;
        mode.encode(&message, "/outbox/orders", content_type)
            .unwrap()
    }

    #[test]
    fn binary_events_have_their_attributes_in_headers() {
        let (headers, body) = encoded(CloudEventMode::Binary, b"{}", "application/json");
        assert_eq!(body, b"{}");
        for (name, value) in [
            ("ce-specversion", "1.0"),
            ("ce-type", "order.placed"),
            ("ce-source", "/outbox/orders"),
            ("ce-sequence", "0000000000000000007"),
            ("ce-partitionkey", "%C5%BE%201%25"),
            ("content-type", "application/json"),
        ] {
            assert_eq!(headers[name], value, "{name}");
        }
    }

    #[test]
    fn structured_events_have_everything_in_their_body() {
        let event = |payload, content_type| {
            let (headers, body) = encoded(CloudEventMode::Structured, payload, content_type);
            assert_eq!(headers["content-type"], "application/cloudevents+json");
            serde_json::from_slice::<Value>(&body).unwrap()
        };
        let json = event(br#"{"a":1}"#, "application/json");
        assert_eq!(json["data"], json!({ "a": 1 }));
        assert_eq!(json["partitionkey"], "ž 1%");
        let charset = event(br#"{"a":1}"#, "application/JSON; charset=utf-8");
        assert_eq!(charset["data"], json!({ "a": 1 }));
        assert_eq!(event(b"plain", "text/plain")["data"], "plain");
        assert_eq!(event(&[0, 255], "image/png")["data_base64"], "AP8=");
        assert_eq!(
            event(b"not json", "application/json")["data_base64"],
            "bm90IGpzb24="
        );
    }
}
