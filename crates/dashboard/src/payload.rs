//! A payload as somebody can read it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::de::IgnoredAny;

/// The most bytes that are shown.
const SHOWN: usize = 64 * 1024;
/// Bytes in a line of hexadecimal digits.
const ROW: usize = 16;

/// How a payload is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    Json,
    Text,
    Hex,
}

impl View {
    pub(crate) const ALL: [Self; 3] = [Self::Json, Self::Text, Self::Hex];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Text => "text",
            Self::Hex => "hex",
        }
    }

    fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|view| view.name() == name)
    }
}

/// A payload that is shown.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) view: View,
    pub(crate) text: String,
    /// What it has altogether.
    pub(crate) bytes: usize,
    /// Whether that is not all.
    pub(crate) cut: bool,
    /// What it can be shown as.
    pub(crate) views: Vec<View>,
}

impl Shown {
    /// As it was asked for, or as suits it best.
    pub(crate) fn new(payload: &[u8], asked: Option<&str>) -> Self {
        let text = std::str::from_utf8(payload).ok();
        let readable = text.filter(|text| {
            let odd = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t');
            !text.contains(odd)
        });
        let json = readable
            .map(str::trim)
            .filter(|text| text.starts_with(['{', '[']))
            .filter(|text| serde_json::from_str::<IgnoredAny>(text).is_ok());
        let views: Vec<_> = View::ALL
            .into_iter()
            .filter(|view| match view {
                View::Json => json.is_some(),
                View::Text => text.is_some(),
                View::Hex => true,
            })
            .collect();
        let best = match (&json, readable) {
            (Some(_), _) => View::Json,
            (None, Some(_)) => View::Text,
            (None, None) => View::Hex,
        };
        let asked = asked.and_then(View::of).filter(|view| views.contains(view));
        let view = asked.unwrap_or(best);
        let whole = match (view, &json, text) {
            (View::Json, Some(json), _) => indented_json(json, SHOWN),
            (View::Text, _, Some(text)) => text.to_owned(),
            _ => hex(&payload[..payload.len().min(SHOWN / 4)]),
        };
        let mut end = whole.len().min(SHOWN);
        while !whole.is_char_boundary(end) {
            end -= 1;
        }
        let cut = end < whole.len() || view == View::Hex && payload.len() > SHOWN / 4;
        Self {
            view,
            text: whole[..end].to_owned(),
            bytes: payload.len(),
            cut,
            views,
        }
    }
}

/// How deep lines are set in at most.
const DEEPEST: usize = 32;

/// JSON with every value in a line of its own; what is in it, and its order, stays as it was written. Not much
/// more than so many bytes.
pub fn indented_json(json: &str, most: usize) -> String {
    let (mut text, mut depth) = (String::new(), 0_usize);
    let mut rest = json.chars().peekable();
    let new_line = |text: &mut String, depth: usize| {
        text.push('\n');
        text.extend(std::iter::repeat_n(' ', 2 * depth.min(DEEPEST)));
    };
    while text.len() <= most
        && let Some(character) = rest.next()
    {
        match character {
            '"' => {
                text.push('"');
                while let Some(character) = rest.next() {
                    text.push(character);
                    match character {
                        '"' => break,
                        '\\' => text.extend(rest.next()),
                        _ => {}
                    }
                }
            }
            '{' | '[' => {
                text.push(character);
                while rest.next_if(|next| next.is_ascii_whitespace()).is_some() {}
                match rest.next_if(|next| matches!(next, '}' | ']')) {
                    Some(end) => text.push(end),
                    None => {
                        depth += 1;
                        new_line(&mut text, depth);
                    }
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                new_line(&mut text, depth);
                text.push(character);
            }
            ',' => {
                text.push(',');
                new_line(&mut text, depth);
            }
            ':' => text.push_str(": "),
            character if character.is_ascii_whitespace() => {}
            character => text.push(character),
        }
    }
    text
}

/// Places, digits, and what can be read of them.
fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (row, bytes) in bytes.chunks(ROW).enumerate() {
        let _ = write!(text, "{:08x} ", row * ROW);
        for place in 0..ROW {
            match bytes.get(place) {
                Some(byte) => {
                    let _ = write!(text, " {byte:02x}");
                }
                None => text.push_str("   "),
            }
        }
        text.push_str("  ");
        let readable = |byte: &u8| match byte {
            b' '..=b'~' => char::from(*byte),
            _ => '.',
        };
        text.extend(bytes.iter().map(readable));
        text.push('\n');
    }
    text
}

/// The headers of a message, and the trace it belongs to, for those who may see them.
pub(crate) fn headers(
    headers: &BTreeMap<String, String>,
    may_see: bool,
) -> (Vec<(String, String)>, Option<String>) {
    if !may_see {
        return (Vec::new(), None);
    }
    let traceparent = headers.get("traceparent");
    let trace = traceparent.and_then(|parent| trace_id(parent));
    let headers = headers.clone().into_iter().collect();
    (headers, trace.map(str::to_owned))
}

/// The trace a message belongs to, by the header that W3C's Trace Context defines.
fn trace_id(traceparent: &str) -> Option<&str> {
    let mut parts = traceparent.split('-');
    let (_version, trace) = (parts.next()?, parts.next()?);
    let hexadecimal = |byte: u8| byte.is_ascii_hexdigit();
    let valid = trace.len() == 32 && trace.bytes().all(hexadecimal);
    Some(trace).filter(|trace| valid && trace.bytes().any(|byte| byte != b'0'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// JSON as somebody may have written it, with spaces and what is special to the indentation.
    fn json() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            "-?[1-9][0-9]{0,25}",
            Just("null".to_owned()),
            any::<String>().prop_map(|text| serde_json::Value::from(text).to_string()),
            "[{}\\[\\],: ]{0,9}".prop_map(|text| serde_json::Value::from(text).to_string()),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            let key = any::<String>().prop_map(|text| serde_json::Value::from(text).to_string());
            let entry = (key, inner.clone()).prop_map(|(key, value)| format!("{key} :{value}"));
            let list = |open, close| {
                move |parts: Vec<String>| format!("{open} {}\n{close}", parts.join(" , "))
            };
            prop_oneof![
                proptest::collection::vec(inner, 0..4).prop_map(list('[', ']')),
                proptest::collection::vec(entry, 0..4).prop_map(list('{', '}')),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_payload_is_shown_whatever_was_asked_for(
            payload in any::<Vec<u8>>(),
            text in "[\\[{]?(?s:.{0,20})",
            asked in "json|text|hex|(?s:.{0,5})",
        ) {
            for payload in [&*payload, text.as_bytes()] {
                let shown = Shown::new(payload, Some(&asked));
                prop_assert!(shown.views.contains(&shown.view));
                prop_assert!(!shown.cut);
                prop_assert_eq!(shown.bytes, payload.len());
                let as_asked = View::of(&asked).filter(|view| shown.views.contains(view));
                prop_assert!(as_asked.is_none_or(|asked| asked == shown.view));
            }
        }

        #[test]
        fn json_that_is_indented_is_the_same_json(json in json(), most in 0_usize..200) {
            let indented = indented_json(&json, usize::MAX);
            let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
            prop_assert!(value(&json).is_some());
            prop_assert_eq!(value(&indented), value(&json));
            prop_assert_eq!(indented_json(&indented, usize::MAX), indented.clone());
            prop_assert!(indented.starts_with(&indented_json(&json, most)));
        }

        #[test]
        fn any_text_can_be_indented(text in "([\\[\\]{},:\" ]|\\\\|.){0,30}") {
            indented_json(&text, usize::MAX);
        }

        #[test]
        fn a_trace_id_is_32_digits_that_are_not_all_zero(
            header in "[0-9a-f]{2}-([0-9a-f]{32}|[0-9a-fA-F+]{31,33}|0{32})(-.{0,20})?|.{0,60}",
        ) {
            let second = header.split('-').nth(1).unwrap_or_default();
            let digits = second.chars().all(|c| c.is_ascii_hexdigit()) && second.chars().count() == 32;
            let good = digits && second.chars().any(|c| c != '0');
            prop_assert_eq!(trace_id(&header), good.then_some(second));
        }
    }

    #[test]
    fn a_payload_is_shown_as_what_it_is() {
        let json = Shown::new(br#"{"a":1}"#, None);
        assert_eq!((json.view, &*json.text), (View::Json, "{\n  \"a\": 1\n}"));
        assert_eq!(json.views, View::ALL);
        let text = Shown::new("grüezi".as_bytes(), None);
        assert_eq!((text.view, &*text.text), (View::Text, "grüezi"));
        // A number is JSON too, but nobody reads it as such.
        assert_eq!(Shown::new(b"42", None).view, View::Text);
        let binary = Shown::new(&[0, 0xff, b'A'], None);
        assert_eq!(binary.views, [View::Hex]);
        assert!(
            binary.text.starts_with("00000000  00 ff 41 "),
            "{}",
            binary.text
        );
        assert!(binary.text.ends_with("  ..A\n"), "{}", binary.text);
        assert_eq!(Shown::new(br#"{"a":1}"#, Some("hex")).view, View::Hex);
        assert_eq!(Shown::new(b"text", Some("json")).view, View::Text);
        assert_eq!(Shown::new(b"", None).text, "");
    }

    #[test]
    fn json_keeps_its_order_and_its_numbers() {
        let json =
            r#" { "b":[1,2.50,{}],"a" : "x\"}{,", "n":123456789012345678901234567890, "e":[ ] }"#;
        let lines = [
            "{",
            "  \"b\": [",
            "    1,",
            "    2.50,",
            "    {}",
            "  ],",
            "  \"a\": \"x\\\"}{,\",",
            "  \"n\": 123456789012345678901234567890,",
            "  \"e\": []",
            "}",
        ];
        assert_eq!(Shown::new(json.as_bytes(), None).text, lines.join("\n"));
    }

    #[test]
    fn what_is_nested_deeply_costs_no_more_than_it_shows() {
        let deep = format!("{}{}", "[".repeat(500_000), "]".repeat(500_000));
        let shown = Shown::new(deep.as_bytes(), None);
        assert!(shown.cut && shown.text.len() <= SHOWN);
    }

    #[test]
    fn a_large_payload_is_cut_between_characters() {
        let large = "é".repeat(SHOWN);
        for view in ["text", "hex"] {
            let shown = Shown::new(large.as_bytes(), Some(view));
            assert!(shown.cut, "{view}");
            assert_eq!(shown.bytes, 2 * SHOWN);
        }
        assert!(!Shown::new(b"small", None).cut);
    }

    #[test]
    fn only_a_trace_id_is_one() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        let of = |id: &str| format!("00-{id}-00f067aa0ba902b7-01");
        assert_eq!(trace_id(&of(id)), Some(id));
        for bad in [
            &of("0"),
            "",
            "00",
            &of(&"0".repeat(32)),
            &of(&"x".repeat(32)),
        ] {
            assert_eq!(trace_id(bad), None, "{bad}");
        }
    }
}
