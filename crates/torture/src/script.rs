//! What a message is: who sent it, and what it does to whoever handles it.

use std::fmt;

use outbox::Partitions;

/// The queue whose handlers work inside the settling transaction, and the one whose handlers do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Queue {
    Transactional,
    Leased,
}

impl Queue {
    pub(crate) const ALL: [Self; 2] = [Self::Transactional, Self::Leased];
    pub(crate) const PARTITIONS: Partitions = Partitions::of(8);

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Transactional => "transactional",
            Self::Leased => "leased",
        }
    }

    pub(crate) const fn number(self) -> i64 {
        self as i64
    }

    pub(crate) fn of(number: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|queue| queue.number() == number)
    }
}

/// What handling it does. Whatever goes wrong goes wrong at the first attempt only, unless said
/// otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Script {
    Fine,
    /// Asks for a retry, twice.
    Retry,
    /// Always rejected.
    Poison,
    Panic,
    /// A statement that fails, inside the transaction if there is one.
    BadSql,
    /// Takes longer than the lease.
    Slow,
    /// Takes longer than the lease, and keeps its thread.
    Block,
    /// Never ends.
    Hang,
    /// Takes its process along.
    Abort,
    /// A payload of 1 MiB.
    Large,
    /// A payload with every byte there is in it.
    Bytes,
    /// Wants rows in its transaction that others want too, in one order or the other.
    Accounts,
}

impl Script {
    pub(crate) const ALL: [Self; 12] = [
        Self::Fine,
        Self::Retry,
        Self::Poison,
        Self::Panic,
        Self::BadSql,
        Self::Slow,
        Self::Block,
        Self::Hang,
        Self::Abort,
        Self::Large,
        Self::Bytes,
        Self::Accounts,
    ];

    pub(crate) const fn number(self) -> i64 {
        self as i64
    }

    pub(crate) fn of(number: i64) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|script| script.number() == number)
    }

    /// How many attempts fail by themselves.
    pub(crate) const fn failures(self) -> u32 {
        match self {
            Self::Retry => 2,
            Self::Panic | Self::BadSql | Self::Slow | Self::Block | Self::Hang | Self::Abort => 1,
            Self::Fine | Self::Poison | Self::Large | Self::Bytes | Self::Accounts => 0,
        }
    }

    /// One in so many; the rest is fine.
    const fn rarity(self) -> u32 {
        match self {
            Self::Fine => 0,
            Self::Retry | Self::Poison | Self::Panic | Self::BadSql | Self::Bytes => 150,
            Self::Accounts => 300,
            Self::Large => 1_000,
            Self::Slow | Self::Hang => 3_000,
            Self::Block | Self::Abort => 6_000,
        }
    }

    /// Draws one: `draw` is true once in so many times.
    pub(crate) fn drawn(mut draw: impl FnMut(u32) -> bool) -> Self {
        let odd = Self::ALL
            .into_iter()
            .find(|script| script.rarity() > 0 && draw(script.rarity()));
        odd.unwrap_or(Self::Fine)
    }
}

/// A message's identity, as its producer knows it, and its script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Order {
    pub(crate) producer: i64,
    pub(crate) number: i64,
    pub(crate) script: Script,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            producer,
            number,
            script,
        } = self;
        write!(f, "{producer}/{number} ({script:?})")
    }
}

impl Order {
    pub(crate) fn payload(&self) -> Vec<u8> {
        let Self {
            producer,
            number,
            script,
        } = self;
        let mut payload = format!("{producer} {number} {};", script.number()).into_bytes();
        match script {
            Script::Large => payload.resize(1 << 20, b'x'),
            Script::Bytes => payload.extend(0..=u8::MAX),
            _ => {}
        }
        payload
    }

    /// Reads a payload, and checks that it arrived as it was sent.
    pub(crate) fn read(payload: &[u8]) -> Option<Self> {
        let end = payload.iter().position(|byte| *byte == b';')?;
        let head = std::str::from_utf8(&payload[..end]).ok()?;
        let mut numbers = head.split(' ').map(|number| number.parse::<i64>().ok());
        let order = Self {
            producer: numbers.next()??,
            number: numbers.next()??,
            script: Script::of(numbers.next()??)?,
        };
        (order.payload() == payload).then_some(order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_arrives_as_it_was_sent_or_not_at_all() {
        for script in Script::ALL {
            let order = Order {
                producer: 3,
                number: 71,
                script,
            };
            let mut payload = order.payload();
            assert_eq!(Order::read(&payload), Some(order));
            payload.push(b'!');
            assert_eq!(Order::read(&payload), None);
        }
        assert_eq!(Order::read(b"1 2 99;"), None);
        assert_eq!(Order::read(b""), None);
    }

    #[test]
    fn most_orders_are_fine() {
        assert_eq!(Script::drawn(|_| false), Script::Fine);
        assert_eq!(Script::drawn(|rarity| rarity == 1_000), Script::Large);
    }
}
