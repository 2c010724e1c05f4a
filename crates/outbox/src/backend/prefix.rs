//! The one piece of text that is pasted into SQL: the common prefix of all table names. Validated
//! here, so that the statements can be asserted safe.

use std::fmt;
use std::str::FromStr;

use super::{Direction, TimeSource};
use crate::error::OutboxError;

const MAX: usize = 32;

/// What all table names begin with: `outbox_` unless configured otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TablePrefix(String);

impl Default for TablePrefix {
    fn default() -> Self {
        Self("outbox_".to_owned())
    }
}

impl FromStr for TablePrefix {
    type Err = OutboxError;

    /// A lower-case letter, then lower-case letters, digits and underscores: the same name on every
    /// database, whatever it does with upper case, and nothing that could end an identifier.
    fn from_str(prefix: &str) -> Result<Self, OutboxError> {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        let valid = prefix.len() <= MAX
            && prefix.starts_with(|first: char| first.is_ascii_lowercase())
            && prefix.bytes().all(inner);
        if valid {
            return Ok(Self(prefix.to_owned()));
        }
        let shown: String = prefix.chars().take(100).collect();
        let allowed = format!(
            "a lower-case letter, then at most {} of a-z, 0-9 and _",
            MAX - 1
        );
        Err(OutboxError::config("table_prefix", shown, allowed))
    }
}

impl TablePrefix {
    /// A template with this prefix filled in.
    pub(crate) fn fill(&self, template: &str) -> String {
        template.replace("{prefix}", &self.0)
    }
}

impl fmt::Display for TablePrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The statements of a backend, and its migrations.
pub trait StatementSet: fmt::Debug + Send + Sync {
    /// With the prefix, and where the time comes from, filled in.
    fn new(prefix: &TablePrefix, time: TimeSource) -> Self;

    /// The migration as plain SQL.
    fn migration(prefix: &TablePrefix, direction: Direction) -> String;
}

/// Declares the statements of a backend: a field per file in its `sql/` folder, each with the prefix
/// filled in once, and the files in its `migrations/` folder.
macro_rules! statements {
    ($($verb:ident),* $(,)?) => {
        /// The statements, one per file in `sql/`.
        #[derive(Debug)]
        pub struct Statements {
            $(pub(super) $verb: std::sync::Arc<str>,)*
        }

        impl crate::backend::StatementSet for Statements {
            fn migration(
                prefix: &crate::backend::TablePrefix,
                direction: crate::backend::Direction,
            ) -> String {
                let template = match direction {
                    crate::backend::Direction::Up => include_str!("migrations/1_up.sql"),
                    crate::backend::Direction::Down => include_str!("migrations/1_down.sql"),
                };
                #[cfg(mutants)]
                let template = &crate::mutants::changed(template);
                // Only tests move the clock, and not for what the database does by itself.
                prefix.fill(&template.replace("{now}", NOW))
            }

            fn new(
                prefix: &crate::backend::TablePrefix,
                time: crate::backend::TimeSource,
            ) -> Self {
                let now = time.expression(NOW, INTEGER);
                let fill = |template: &str| {
                    #[cfg(mutants)]
                    let template = &crate::mutants::changed(template);
                    prefix.fill(&template.replace("{now}", &now)).into()
                };
                Self {
                    $($verb: fill(include_str!(concat!("sql/", stringify!($verb), ".sql"))),)*
                }
            }
        }
    };
}
pub(crate) use statements;

/// Makes a query of a statement that was read from a file and has nothing pasted in but the prefix.
macro_rules! query {
    ($statement:expr) => {
        sqlx::query(sqlx::AssertSqlSafe(std::sync::Arc::clone(&$statement)))
    };
}
pub(crate) use query;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_but_a_plain_identifier_is_a_prefix() {
        for good in ["outbox_", "a", "my_app_2_", &"a".repeat(32)] {
            assert_eq!(good.parse::<TablePrefix>().unwrap().to_string(), good);
        }
        let long = "a".repeat(33);
        for bad in [
            "", "Outbox_", "1a", "_a", "a b", "a;--", "a\"", "a`", "a'", "á", "a\0", "{now}", &long,
        ] {
            assert!(bad.parse::<TablePrefix>().is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn no_other_text_is_one(text in "[a-z][a-z0-9_]{0,40}|.{0,40}") {
            let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
            let good = text.len() <= 32
                && text.bytes().all(plain)
                && text.starts_with(|first: char| first.is_ascii_lowercase());
            prop_assert_eq!(text.parse::<TablePrefix>().is_ok(), good);
        }
    }
}
