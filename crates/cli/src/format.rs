//! Times, durations and payloads, as people and programs read them.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::ValueEnum;
use outbox::Partitions;
use outbox_dashboard::indented_json;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

/// The last moment that the format can say.
const YEAR_9999: Duration = Duration::from_secs(253_402_300_799);

/// RFC 3339, UTC, milliseconds.
pub(crate) fn timestamp(time: SystemTime) -> String {
    let latest = SystemTime::UNIX_EPOCH + YEAR_9999;
    humantime::format_rfc3339_millis(time.min(latest)).to_string()
}

/// How long ago, in one unit.
pub(crate) fn age(since: SystemTime, now: SystemTime) -> String {
    let age = now.duration_since(since).unwrap_or_default();
    let (millis, seconds) = (age.as_millis(), age.as_secs());
    match seconds {
        0 => format!("{millis} ms"),
        1..=119 => format!("{seconds} s"),
        120..=7_199 => format!("{} min", seconds / 60),
        7_200..=172_799 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// `10m`, `1h 30m`, `500ms`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}; say for example 30s, 10m or 2h"))
}

/// `127.0.0.1:8080`.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    let address = text.parse();
    address.map_err(|_| "it is an IP address and a port, for example 127.0.0.1:8080".to_owned())
}

/// 1, 2, 4 … 64.
pub(crate) fn partitions(text: &str) -> Result<Partitions, String> {
    let count: u32 = text.parse().map_err(|error| format!("{error}"))?;
    Partitions::try_from(count).map_err(|error| error.to_string())
}

/// How to show a payload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// As it is written if it is text, hexadecimal otherwise
    #[default]
    Auto,
    /// Text, with a mark in place of what is not
    Text,
    /// JSON, indented
    Json,
    /// Hexadecimal
    Hex,
}

impl Form {
    pub(crate) fn show(self, payload: &[u8]) -> String {
        match self {
            Self::Auto => std::str::from_utf8(payload).map_or_else(|_| hex(payload), str::to_owned),
            Self::Text => String::from_utf8_lossy(payload).into_owned(),
            Self::Json => {
                json(payload).map_or_else(|| hex(payload), |json| indented_json(json, usize::MAX))
            }
            Self::Hex => hex(payload),
        }
    }
}

fn json(payload: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(payload).ok()?;
    let valid = serde_json::from_str::<IgnoredAny>(text).is_ok();
    valid.then_some(text)
}

fn hex(payload: &[u8]) -> String {
    payload.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A payload in a JSON document: as it is if it is text, and always so that nothing is lost.
pub(crate) fn payload_fields(payload: &[u8]) -> Value {
    match std::str::from_utf8(payload) {
        Ok(text) => json!({ "payload": text }),
        Err(_) => json!({ "payload_base64": STANDARD.encode(payload) }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_is_a_time_or_refused_with_an_example(
            text in "([0-9]{1,21} ?(ns|us|ms|s|m|h|days|months|y)? ?){0,4}|(?s:.{0,20})",
        ) {
            if let Err(refused) = duration(&text) {
                prop_assert!(refused.ends_with("; say for example 30s, 10m or 2h"), "{}", refused);
            }
        }

        #[test]
        fn a_time_that_is_told_can_be_given(seconds in any::<u64>(), scale in 0_u32..64, nanos in 0..1_000_000_000_u32) {
            let time = Duration::new(seconds >> scale, nanos);
            let told = humantime::format_duration(time).to_string();
            prop_assert_eq!(duration(&told), Ok(time));
        }

        #[test]
        fn a_number_of_partitions_is_a_power_of_two_up_to_64(text in "[0-9]{1,3}|[+-]?[0-9]{1,11}|.{0,5}") {
            let count = partitions(&text).map(Partitions::count).ok();
            let written = text.parse::<u64>().ok();
            let good = written.filter(|count| [1, 2, 4, 8, 16, 32, 64].contains(count));
            prop_assert_eq!(count.map(u64::from), good);
        }

        #[test]
        fn an_address_comes_back(ip in any::<std::net::IpAddr>(), port in any::<u16>(), text in ".{0,20}") {
            let written = SocketAddr::new(ip, port);
            prop_assert_eq!(address(&written.to_string()), Ok(written));
            let _ = address(&text);
        }

        #[test]
        fn any_time_of_a_database_can_be_told(millis in any::<i64>(), scale in 0_u32..63, now in any::<u32>()) {
            // As they are decoded: never before 1970.
            let millis = u64::try_from(millis >> scale).unwrap_or(0);
            let time = SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
            prop_assert!(timestamp(time).ends_with('Z'));
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(now.into());
            prop_assert!(!age(time, now).is_empty());
        }

        #[test]
        fn any_payload_is_shown_in_every_form(payload in any::<Vec<u8>>()) {
            for form in Form::value_variants() {
                let _ = form.show(&payload);
            }
            let fields = payload_fields(&payload);
            let kept = match (&fields["payload"], &fields["payload_base64"]) {
                (Value::String(text), _) => text.clone().into_bytes(),
                (_, Value::String(encoded)) => STANDARD.decode(encoded).unwrap_or_default(),
                _ => Vec::new(),
            };
            prop_assert_eq!(kept, payload);
        }
    }

    #[test]
    fn ages_have_one_unit() {
        let start = SystemTime::UNIX_EPOCH;
        let after = |seconds| age(start, start + Duration::from_secs(seconds));
        assert_eq!(after(0), "0 ms");
        assert_eq!(after(119), "119 s");
        assert_eq!(after(120), "2 min");
        assert_eq!(after(7_200), "2 h");
        assert_eq!(after(200_000), "2 d");
        assert_eq!(
            age(start + Duration::from_secs(9), start),
            "0 ms",
            "a clock that differs"
        );
    }

    #[test]
    fn payloads_are_shown_as_what_they_are() {
        let odd = r#"{"z": 1.10, "id": 12345678901234567890123, "z": 2}"#;
        assert_eq!(Form::Auto.show(odd.as_bytes()), odd);
        let indented = "{\n  \"z\": 1.10,\n  \"id\": 12345678901234567890123,\n  \"z\": 2\n}";
        assert_eq!(Form::Json.show(odd.as_bytes()), indented);
        assert_eq!(Form::Auto.show(b"plain"), "plain");
        assert_eq!(Form::Auto.show(&[0, 255]), "00ff");
        assert_eq!(Form::Json.show(b"plain"), "706c61696e");
    }
}
