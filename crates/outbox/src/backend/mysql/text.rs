//! Statements that are sent as text, for one round trip: placeholders filled in with what cannot end a
//! literal. Numbers, lists of numbers, and everything else as hexadecimal.

use std::fmt::{self, Display, Write as _};

/// Appends a statement with its placeholders filled in.
pub(super) fn fill(text: &mut String, statement: &str, values: &[&dyn Display]) {
    let mut parts = statement.trim_end().split('?');
    text.push_str(parts.next().unwrap_or_default());
    for (value, part) in values.iter().zip(parts) {
        // Writing to a string does not fail.
        let _ = write!(text, "{value}");
        text.push_str(part);
    }
}

/// A statement with its placeholders filled in.
pub(super) fn filled(statement: &str, values: &[&dyn Display]) -> String {
    let mut text = String::new();
    fill(&mut text, statement, values);
    text
}

/// Bytes as a literal, of a character set or of none; `NULL` if there are none.
pub(super) struct Literal<'a>(pub(super) &'static str, pub(super) Option<&'a [u8]>);

impl Display for Literal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let Self(charset, value) = self;
        let Some(value) = value else {
            return f.write_str("NULL");
        };
        f.write_str(charset)?;
        f.write_str("x'")?;
        for chunk in value.chunks(64) {
            let mut digits = [0; 128];
            for (pair, byte) in digits.chunks_exact_mut(2).zip(chunk) {
                pair[0] = DIGITS[usize::from(byte >> 4)];
                pair[1] = DIGITS[usize::from(byte & 15)];
            }
            let digits = std::str::from_utf8(&digits[..2 * chunk.len()]);
            f.write_str(digits.unwrap_or_default())?;
        }
        f.write_str("'")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_filled_in_order() {
        assert_eq!(
            filled("a = ? AND b = '?'\n", &[&1, &"2,3"]),
            "a = 1 AND b = '2,3'"
        );
    }

    #[test]
    fn everything_but_numbers_is_hexadecimal() {
        let text = |value: Option<&[u8]>| Literal("_utf8mb4 ", value).to_string();
        assert_eq!(text(None), "NULL");
        assert_eq!(text(Some(b"")), "_utf8mb4 x''");
        assert_eq!(text(Some(b"'; \xff")), "_utf8mb4 x'273b20ff'");
        let long: Vec<u8> = (0..200).collect();
        let digits: String = long.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text(Some(&long)), format!("_utf8mb4 x'{digits}'"));
    }
}
