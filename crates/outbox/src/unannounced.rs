//! Where something was enqueued whose commit nobody has announced yet. A transaction of
//! `Outbox::transaction` announces its own when it has committed; others are announced by `flush`, or
//! found by probing. Plain state; whoever shares it puts a lock around it.

use std::collections::{HashMap, HashSet};

use crate::backend::PartitionId;

/// A connection, told from all others that live by its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionId(usize);

impl ConnectionId {
    pub(crate) fn of<C>(connection: &C) -> Self {
        Self(std::ptr::from_ref(connection).addr())
    }
}

/// How many producers are told from each other. Beyond, they are one.
const MAX_PRODUCERS: usize = 1024;

/// Who enqueued: a task of tokio's, or whoever runs outside of any.
type Producer = Option<tokio::task::Id>;

type Partitions = HashSet<PartitionId>;

#[derive(Debug, Default)]
pub(crate) struct Unannounced {
    in_transactions: HashMap<ConnectionId, Partitions>,
    elsewhere: HashMap<Producer, Partitions>,
}

impl Unannounced {
    /// A transaction begins that will announce what is enqueued on its connection.
    pub(crate) fn begin(&mut self, connection: ConnectionId) {
        self.in_transactions.insert(connection, Partitions::new());
    }

    /// It has ended. Answers what was enqueued in it.
    pub(crate) fn end(&mut self, connection: ConnectionId) -> Partitions {
        self.in_transactions.remove(&connection).unwrap_or_default()
    }

    /// Something was enqueued. Answers whether somebody should begin to look for it.
    pub(crate) fn note(
        &mut self,
        connection: ConnectionId,
        partitions: impl IntoIterator<Item = PartitionId>,
    ) -> bool {
        if let Some(own) = self.in_transactions.get_mut(&connection) {
            own.extend(partitions);
            return false;
        }
        self.look_for(partitions)
    }

    /// Something may be committed that nobody will announce. Answers whether nobody is looking yet.
    pub(crate) fn look_for(&mut self, partitions: impl IntoIterator<Item = PartitionId>) -> bool {
        let first = self.elsewhere.is_empty();
        let own = tokio::task::try_id();
        let producer = if self.elsewhere.len() < MAX_PRODUCERS {
            own
        } else {
            None
        };
        self.elsewhere
            .entry(producer)
            .or_default()
            .extend(partitions);
        first
    }

    /// The task that calls says that it has committed. If it has enqueued nothing itself it speaks for
    /// others, nobody knows for whom: for all.
    pub(crate) fn flush(&mut self) -> Partitions {
        let own = self.elsewhere.remove(&tokio::task::try_id());
        own.unwrap_or_else(|| self.elsewhere.values().flatten().copied().collect())
    }

    /// Whether there is anything to look for.
    pub(crate) fn is_empty(&self) -> bool {
        self.elsewhere.is_empty()
    }

    /// It was looked for long enough: what is still open is found later.
    pub(crate) fn give_up(&mut self) {
        self.elsewhere.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PartitionId = PartitionId(1);
    const B: PartitionId = PartitionId(2);

    #[test]
    fn a_transaction_announces_its_own_and_nobody_looks_for_it() {
        let (mut unannounced, one, other) = (Unannounced::default(), 1_u8, 2_u8);
        let (one, other) = (ConnectionId::of(&one), ConnectionId::of(&other));
        unannounced.begin(one);
        assert!(!unannounced.note(one, [A]));
        assert!(unannounced.is_empty());
        assert!(unannounced.note(other, [B]), "nobody will announce this");
        assert_eq!(unannounced.end(one), Partitions::from([A]));
        assert!(!unannounced.is_empty());
        assert!(!unannounced.note(one, [A]), "somebody is looking already");
        assert_eq!(unannounced.flush(), Partitions::from([A, B]));
    }

    #[tokio::test]
    async fn a_task_flushes_its_own_and_others_only_if_it_has_none() {
        let mut unannounced = Unannounced::default();
        let connection = ConnectionId::of(&0_u8);
        unannounced.note(connection, [A]);
        let mut unannounced = tokio::spawn(async move {
            unannounced.note(connection, [B]);
            assert_eq!(unannounced.flush(), Partitions::from([B]));
            assert_eq!(unannounced.flush(), Partitions::from([A]), "for all");
            unannounced
        })
        .await
        .unwrap();
        assert!(!unannounced.is_empty(), "somebody still looks for it");
        unannounced.give_up();
        assert!(unannounced.is_empty());
    }
}
