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
        let text = String::deserialize(deserializer)?;
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
        let value =
            environment(name).ok_or_else(|| format!("the environment has no variable {name:?}"))?;
        expanded.push_str(before);
        expanded.push_str(&value);
        rest = after;
    }
    Ok(expanded + rest)
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
    use super::*;

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
