//! Queues and their partitions: names, counts, and which partition a key belongs to.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::error::OutboxError;

pub(crate) const MAX_PARTITIONS: u16 = 64;
pub(crate) const MAX_QUEUE_NAME: usize = 1024;

/// The number of partitions of a queue: 1, 2, 4 … 64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Partitions(u16);

impl Partitions {
    /// A number of partitions that is known when the program is written.
    ///
    /// In a constant, a bad number does not compile:
    ///
    /// ```compile_fail
    /// const THREE: outbox::Partitions = outbox::Partitions::of(3);
    /// ```
    ///
    /// For a number that is read at run time use [`Partitions::try_from`].
    ///
    /// # Panics
    ///
    /// If `count` is not a power of two from 1 to 64.
    pub const fn of(count: u16) -> Self {
        assert!(
            count.is_power_of_two() && count <= MAX_PARTITIONS,
            "a queue has 1, 2, 4, 8, 16, 32 or 64 partitions"
        );
        Self(count)
    }

    /// How many there are.
    pub const fn count(self) -> u16 {
        self.0
    }

    /// The partition of a key: the first 4 bytes, big-endian, of its SHA-256, modulo the count. The
    /// same in every version, in every language and in SQL.
    pub fn of_key(self, key: &str) -> u32 {
        let digest = Sha256::digest(key.as_bytes());
        let head = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
        head % u32::from(self.0)
    }
}

/// Whatever integer the number was read into.
macro_rules! partitions_try_from {
    ($($integer:ty),*) => {$(
        impl TryFrom<$integer> for Partitions {
            type Error = OutboxError;

            fn try_from(count: $integer) -> Result<Self, OutboxError> {
                match u16::try_from(count) {
                    Ok(small) if small.is_power_of_two() && small <= MAX_PARTITIONS => {
                        Ok(Self(small))
                    }
                    _ => Err(OutboxError::InvalidPartitionCount(count as i128)),
                }
            }
        }
    )*};
}

partitions_try_from!(u8, u16, u32, u64, usize, i8, i16, i32, i64, isize);

/// The name of a queue: ASCII letters, digits, `.`, `_` and `-`, starting and ending with a letter
/// or digit, at most 1024 long. Case matters, on every database.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueName(Arc<str>);

impl QueueName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as every message of the queue carries it.
    pub(crate) fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }
}

impl FromStr for QueueName {
    type Err = OutboxError;

    fn from_str(name: &str) -> Result<Self, OutboxError> {
        let bytes = name.as_bytes();
        let inner = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
        let edges = [bytes.first(), bytes.last()];
        let valid = bytes.len() <= MAX_QUEUE_NAME
            && bytes.iter().all(inner)
            && edges
                .iter()
                .all(|edge| edge.is_some_and(u8::is_ascii_alphanumeric));
        if valid {
            Ok(Self(name.into()))
        } else {
            // A name of megabytes must not become a log line of megabytes.
            let shown: String = name.chars().take(MAX_QUEUE_NAME + 1).collect();
            Err(OutboxError::InvalidQueueName(shown))
        }
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn partition_counts_are_the_powers_of_two_up_to_64() {
        let valid: Vec<i64> = (-100..1000)
            .filter(|n| Partitions::try_from(*n).is_ok())
            .collect();
        assert_eq!(valid, [1, 2, 4, 8, 16, 32, 64]);
        assert_eq!(Partitions::try_from(16).unwrap(), Partitions::of(16));
        assert_eq!(Partitions::of(64).count(), 64);
    }

    #[test]
    fn a_refused_partition_count_is_named_with_what_is_allowed() {
        for (error, shown) in [
            (Partitions::try_from(0_usize).unwrap_err(), "0"),
            (
                Partitions::try_from(u64::MAX).unwrap_err(),
                "18446744073709551615",
            ),
            (Partitions::try_from(-4_i32).unwrap_err(), "-4"),
        ] {
            let allowed = "allowed are 1, 2, 4, 8, 16, 32 and 64";
            let expected = format!("a queue cannot have {shown} partitions: {allowed}");
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn a_key_has_the_same_partition_in_every_language() {
        // From `printf %s KEY | sha256sum | cut -c1-8`, modulo 64.
        for (key, partition) in [
            ("", 0xe3b0_c442_u32 % 64),
            ("customer-17", 0xdb2f_1aab % 64),
            ("Žluťoučký kůň", 0x3e1f_e366 % 64),
        ] {
            assert_eq!(Partitions::of(64).of_key(key), partition, "{key:?}");
        }
    }

    #[test]
    fn queue_names_are_accepted_and_refused_as_documented() {
        let longest = "a".repeat(1024);
        for name in ["orders", "Orders.eu_west-1", "0", &longest] {
            assert_eq!(name.parse::<QueueName>().unwrap().as_str(), name);
        }
        let too_long = "a".repeat(1025);
        for name in [
            "", ".orders", "orders-", "_", "or ders", "žluť", "a;b", "a\0b", "a\n", &too_long,
        ] {
            assert!(name.parse::<QueueName>().is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_refused_name_of_megabytes_makes_a_short_message() {
        let error = "é".repeat(4 << 20).parse::<QueueName>().unwrap_err();
        assert!(error.to_string().len() < 4096);
    }

    proptest! {
        #[test]
        fn a_name_is_what_is_documented_and_nothing_else(
            name in "[A-Za-z0-9._-]{0,8}|[A-Za-z0-9._-]{0,3}(?s:.)[A-Za-z0-9._-]{0,3}|[a-z]{1020,1028}|(?s:.{0,20})",
        ) {
            let edge = |c: char| matches!(c, 'a'..='z' | 'A'..='Z' | '0'..='9');
            let good = (1..=1024).contains(&name.chars().count())
                && name.chars().all(|c| edge(c) || matches!(c, '.' | '_' | '-'))
                && name.starts_with(edge)
                && name.ends_with(edge);
            match name.parse::<QueueName>() {
                Ok(parsed) => {
                    prop_assert!(good);
                    prop_assert_eq!(parsed.as_str(), name);
                }
                Err(_) => prop_assert!(!good),
            }
        }

        #[test]
        fn a_key_of_few_partitions_is_its_key_of_many_folded(key in any::<String>()) {
            let of_64 = Partitions::of(64).of_key(&key);
            for count in [1_u16, 2, 4, 8, 16, 32] {
                prop_assert_eq!(Partitions::of(count).of_key(&key), of_64 % u32::from(count));
            }
        }
    }
}
