//! Numbers, times and bytes as people read them.

use std::fmt::Display;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A whole number in groups of three: 1 234 567.
pub(crate) fn number(number: impl Display) -> String {
    let text = number.to_string();
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("−", digits),
        None => ("", &*text),
    };
    let mut grouped = sign.to_owned();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            // A narrow space that no line breaks at.
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    grouped
}

/// A number that fits into a little box: 12, 3.4k, 5.1M.
pub(crate) fn short(number: i64) -> String {
    let (value, unit) = match number.unsigned_abs() {
        0..1_000 => return number.to_string(),
        1_000..1_000_000 => (number as f64 / 1e3, "k"),
        1_000_000..1_000_000_000 => (number as f64 / 1e6, "M"),
        _ => (number as f64 / 1e9, "G"),
    };
    if value.abs() < 9.95 {
        format!("{value:.1}{unit}")
    } else {
        format!("{value:.0}{unit}")
    }
}

/// How often per second.
pub(crate) fn rate(per_second: f64) -> String {
    if per_second >= 99.95 {
        number(per_second.round() as i64)
    } else if per_second >= 0.05 || per_second == 0.0 {
        format!("{per_second:.1}")
    } else {
        "< 0.1".to_owned()
    }
}

/// How long: the two largest units.
pub(crate) fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    let two = |large: u64, large_unit, small: u64, small_unit| match small {
        0 => format!("{large} {large_unit}"),
        small => format!("{large} {large_unit} {small} {small_unit}"),
    };
    match seconds {
        0 if span.is_zero() => "0 s".to_owned(),
        0 => "< 1 s".to_owned(),
        1..60 => format!("{seconds} s"),
        60..3_600 => two(seconds / 60, "min", seconds % 60, "s"),
        3_600..86_400 => two(seconds / 3_600, "h", seconds % 3_600 / 60, "min"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3_600, "h"),
    }
}

/// How long ago, by this machine's clock.
pub(crate) fn ago(then: SystemTime) -> String {
    match SystemTime::now().duration_since(then) {
        Ok(since) if since < Duration::from_secs(1) => "now".to_owned(),
        Ok(since) => format!("{} ago", span(since)),
        Err(ahead) if ahead.duration() < Duration::from_secs(2) => "now".to_owned(),
        Err(ahead) => format!("in {}", span(ahead.duration())),
    }
}

/// The last moment that the format can say, in seconds since 1970.
const YEAR_9999: Duration = Duration::from_secs(253_402_300_799);

/// A moment, to the second.
pub(crate) fn moment(at: SystemTime) -> String {
    // What a row says may be any time, whoever wrote it.
    let at = at.clamp(UNIX_EPOCH, UNIX_EPOCH + YEAR_9999);
    let text = humantime::format_rfc3339_seconds(at).to_string();
    text.replace('T', " ").replace('Z', " UTC")
}

/// A moment of today.
pub(crate) fn clock(at: SystemTime) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (hours, minutes) = (seconds / 3_600 % 24, seconds / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02}", seconds % 60)
}

/// So many bytes.
pub(crate) fn bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["bytes", "KiB", "MiB", "GiB"] {
        if value < 1_024.0 {
            return match unit {
                "bytes" => format!("{bytes} bytes"),
                unit => format!("{value:.1} {unit}"),
            };
        }
        value /= 1_024.0;
    }
    format!("{value:.1} TiB")
}

/// One of these, or many.
pub(crate) fn plural(count: impl Display, one: &str, many: &str) -> String {
    let count = number(count);
    format!("{count} {}", if count == "1" { one } else { many })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_time_of_a_database_can_be_told(millis in any::<i64>(), scale in 0_u32..63) {
            let millis = u64::try_from(millis >> scale).unwrap_or(0);
            let at = UNIX_EPOCH + Duration::from_millis(millis);
            prop_assert!(moment(at).ends_with(" UTC"));
            prop_assert_eq!(clock(at).len(), 8);
            prop_assert!(!ago(at).is_empty());
        }
    }

    #[test]
    fn numbers_are_short_and_still_true() {
        assert_eq!(number(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(number(-12), "−12");
        let shorts = [0, 999, 1_000, 9_949, 12_345, 999_999, 5_100_000].map(short);
        assert_eq!(shorts, ["0", "999", "1.0k", "9.9k", "12k", "1000k", "5.1M"]);
        let rates = [0.0, 0.01, 0.5, 99.9, 1_234.0].map(rate);
        assert_eq!(rates, ["0.0", "< 0.1", "0.5", "99.9", "1\u{202f}234"]);
        let sizes = [0, 1_023, 1_024, 5 << 30].map(bytes);
        assert_eq!(sizes, ["0 bytes", "1023 bytes", "1.0 KiB", "5.0 GiB"]);
    }

    #[test]
    fn times_say_the_two_largest_units() {
        let spans = [0, 1, 59, 60, 3_599, 3_600, 90_000].map(Duration::from_secs);
        assert_eq!(
            spans.map(span),
            [
                "0 s",
                "1 s",
                "59 s",
                "1 min",
                "59 min 59 s",
                "1 h",
                "1 d 1 h"
            ]
        );
        assert_eq!(span(Duration::from_millis(5)), "< 1 s");
        let at = UNIX_EPOCH + Duration::from_secs(86_400 + 3_661);
        assert_eq!(
            (clock(at), moment(at)),
            ("01:01:01".to_owned(), "1970-01-02 01:01:01 UTC".to_owned())
        );
    }
}
