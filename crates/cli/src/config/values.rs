//! Values that are checked while the file is read, so that what is wrong is said with its line.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use gethostname::gethostname;
use outbox::{Partitions, QueueName, TablePrefix};
use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error as _};

/// A text in which `${NAME}` is what the environment has; `$${` is a plain `${`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Text(String);

impl Text {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<Text> for String {
    fn from(text: Text) -> Self {
        text.0
    }
}

impl From<Text> for PathBuf {
    fn from(text: Text) -> Self {
        text.0.into()
    }
}

impl fmt::Debug for Text {
    /// It may be a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Not the number that was written there: it may be a password too.
        let no_text = |_| D::Error::custom("invalid type, expected a string");
        let text = String::deserialize(deserializer).map_err(no_text)?;
        // A shell knows its host's name and keeps it to itself.
        let host =
            |name: &str| (name == "HOSTNAME").then(|| gethostname().to_string_lossy().into_owned());
        let environment = |name: &str| std::env::var(name).ok().or_else(|| host(name));
        let expanded = expanded(&text, environment).map_err(D::Error::custom)?;
        Ok(Self(expanded))
    }
}

fn expanded(text: &str, environment: impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let (mut expanded, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("${") {
        if let Some(before) = before.strip_suffix('$') {
            expanded.push_str(before);
            expanded.push_str("${");
            rest = after;
            continue;
        }
        let Some((name, after)) = after.split_once('}') else {
            return Err("a ${ that is not closed; write $${ for a plain one".to_owned());
        };
        let value = environment(name).ok_or_else(|| missing(name))?;
        expanded.push_str(before);
        expanded.push_str(&value);
        rest = after;
    }
    Ok(expanded + rest)
}

/// Says what is missing, unless it does not look like a name: there may be a password behind a stray ${.
fn missing(name: &str) -> String {
    let letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    if name.starts_with(|first: char| !first.is_ascii_digit()) && name.chars().all(letter) {
        return format!("the environment has no variable {name:?}");
    }
    "what stands between ${ and } is no name of a variable; write $${ for a plain one".to_owned()
}

/// What is not just any text or number.
pub(crate) trait Check: Sized {
    type Written: DeserializeOwned;

    fn check(written: Self::Written) -> Result<Self, String>;
}

/// A value that was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Checked<T>(pub(crate) T);

impl<'de, T: Check> Deserialize<'de> for Checked<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = T::Written::deserialize(deserializer)?;
        T::check(written).map(Self).map_err(D::Error::custom)
    }
}

impl Check for Duration {
    type Written = String;

    fn check(written: String) -> Result<Self, String> {
        match crate::format::duration(&written)? {
            Self::ZERO => Err(format!("{written:?} must be longer than 0")),
            duration => Ok(duration),
        }
    }
}

impl Check for Partitions {
    type Written = i64;

    fn check(written: i64) -> Result<Self, String> {
        Self::try_from(written).map_err(|error| error.to_string())
    }
}

impl Check for QueueName {
    type Written = String;

    fn check(written: String) -> Result<Self, String> {
        let name: Result<Self, _> = written.parse();
        name.map_err(|_| {
            format!(
                "{written:?} is no name: ASCII letters, digits, '.', '_' and '-', beginning and ending \
                 with a letter or digit"
            )
        })
    }
}

impl Check for TablePrefix {
    type Written = String;

    fn check(written: String) -> Result<Self, String> {
        written
            .parse()
            .map_err(|error: outbox::OutboxError| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_escaped_is_taken_as_it_is_written(text in "([$]|[{]|[}]|.){0,20}") {
            let escaped = text.replace("${", "$${");
            prop_assert_eq!(expanded(&escaped, |_| None), Ok(text));
        }

        #[test]
        fn any_text_is_filled_in_or_refused(text in "([$]|[$][{]|[}]|.){0,20}", value in any::<String>()) {
            let filled = expanded(&text, |name| (!name.contains('a')).then(|| value.clone()));
            let plain = !text.contains("${");
            prop_assert!(filled.is_ok() || !plain);
            prop_assert!(!plain || filled == Ok(text));
        }

        /// What the environment has is not looked into.
        #[test]
        fn each_variable_is_replaced_once(
            parts in vec(("[^$]{0,5}", "[A-Z_]{1,8}"), 0..5),
            value in "([$]|[$][{]A[}]|.){0,10}",
        ) {
            let written: String = parts.iter().map(|(text, name)| format!("{text}${{{name}}}")).collect();
            let expected: String = parts.iter().map(|(text, _)| format!("{text}{value}")).collect();
            prop_assert_eq!(expanded(&written, |_| Some(value.clone())), Ok(expected));
        }

        #[test]
        fn a_variable_that_is_not_there_is_named(before in "[^$]{0,5}", name in "[A-Za-z_][A-Za-z0-9_]{0,7}") {
            let refused = expanded(&format!("{before}${{{name}}}"), |_| None);
            prop_assert_eq!(refused, Err(format!("the environment has no variable {name:?}")));
        }

        #[test]
        fn what_is_no_name_of_a_variable_is_not_shown(
            name in "s3cr3t[^}A-Za-z0-9_][^}]{0,8}|[0-9]s3cr3t",
        ) {
            let refused = expanded(&format!("${{{name}}}"), |_| None).expect_err("refused");
            prop_assert!(!refused.contains("s3cr3t"), "{}", refused);
        }
    }

    #[test]
    fn the_environment_is_filled_in() {
        let environment = |name: &str| (name == "PASSWORD").then(|| "a$b".to_owned());
        let filled = |text| expanded(text, environment);
        assert_eq!(filled("x:${PASSWORD}@y").unwrap(), "x:a$b@y");
        assert_eq!(filled("$5 $${PASSWORD}").unwrap(), "$5 ${PASSWORD}");
        let missing = filled("${PASSWORT}").unwrap_err();
        assert_eq!(missing, "the environment has no variable \"PASSWORT\"");
        assert!(filled("${PASSWORD").is_err());
    }
}
