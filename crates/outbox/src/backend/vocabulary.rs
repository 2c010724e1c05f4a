//! What the verbs of a backend take and answer.

use std::time::Duration;

use crate::message::{EnqueueMessage, OutboxMessageId};

/// The database's number of a partition, unique over all queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartitionId(pub i64);

/// A place in a partition: 1, 2, 3 … without holes. 0 is before the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Seq(pub i64);

/// The number of a lease. Ever growing within a partition; whoever holds an older one settles
/// nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub i64);

/// Milliseconds of the database's clock, since 1970, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub i64);

/// A process, from its start to its end. Never reused, unlike host names and process ids.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Incarnation(pub String);

/// The right to settle one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The partition.
    pub partition_id: PartitionId,
    /// The number every settling write is checked against.
    pub epoch: Epoch,
}

/// What tells a lease that is being renewed from one that stands still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pulse {
    /// The lease.
    pub epoch: Epoch,
    /// How often it was renewed.
    pub renewals: i64,
}

/// Whose lease may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takeover {
    /// One that is free or has run out.
    Free,
    /// Also one that stands still here.
    Stale(Pulse),
    /// Anyone's: an operator says so.
    Force,
}

impl Takeover {
    pub(super) fn pulse(self) -> Option<Pulse> {
        match self {
            Self::Stale(pulse) => Some(pulse),
            Self::Free | Self::Force => None,
        }
    }
}

/// What a taker gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claimed {
    /// The new lease.
    pub lease: Lease,
    /// Whether the holder before did not release: it crashed, hangs or lost its connection.
    pub abandoned: bool,
}

/// What a survey tells of a partition that has something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// The partition.
    pub partition_id: PartitionId,
    /// Whether committed messages wait for a sequence number.
    pub unsequenced: bool,
    /// Whether sequenced messages wait for a handler, and the partition is not paused.
    pub pending: bool,
    /// The last number that was given.
    pub last_seq: Seq,
    /// Who holds it, if anybody does.
    pub holder: Option<Incarnation>,
    /// The holder's sign of life.
    pub pulse: Pulse,
    /// How long the lease was taken for.
    pub lease_millis: i64,
    /// Whether the lease has run out by the database's clock.
    pub expired: bool,
}

/// What a look at partitions found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// Those that have something to do.
    pub surveys: Vec<Survey>,
    /// How long it took, without the wait for a connection.
    pub took: Duration,
}

/// What one step of sequencing did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sequenced {
    /// Another sequencer has the partition; it will do what is to be done.
    Busy,
    /// The transaction ids stored here are not those of this cluster: only an operator can help.
    ForeignIds,
    /// So many messages got their number; `more` may be waiting.
    Done {
        /// How many.
        count: u32,
        /// Whether the step was full.
        more: bool,
    },
}

/// A message as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMessage {
    /// Its identity.
    pub id: OutboxMessageId,
    /// Its place.
    pub seq: Seq,
    /// When it was enqueued.
    pub created_at: Millis,
    /// What is delivered.
    pub payload: Vec<u8>,
    /// What that is.
    pub payload_type: String,
    /// The key it was enqueued with.
    pub key: Option<String>,
    /// Its headers, encoded.
    pub headers: Option<String>,
}

/// How much to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLimit {
    /// At most so many messages; 0 reads none.
    pub messages: u32,
    /// At most so many bytes of payload, at least 1; the message that goes over is the last.
    pub bytes: u64,
    /// Whether to read although the partition is paused.
    pub despite_pause: bool,
}

impl ReadLimit {
    /// Settle only.
    pub const NOTHING: Self = Self {
        messages: 0,
        bytes: 0,
        despite_pause: false,
    };
    /// The head, however large.
    pub const ONE: Self = Self {
        messages: 1,
        bytes: 1,
        despite_pause: false,
    };
}

/// A message that goes to the dead letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Burial {
    /// Its identity.
    pub id: OutboxMessageId,
    /// Its place.
    pub seq: Seq,
    /// How often it was tried.
    pub attempts: u32,
    /// Why it was rejected.
    pub reason: String,
}

/// What is settled: everything up to a place, and what is known of the message behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// Everything at or below this is settled.
    pub cursor: Seq,
    /// The message at the cursor; `None` when the cursor does not move.
    pub cursor_id: Option<OutboxMessageId>,
    /// How often the new head was tried.
    pub attempts: u32,
    /// Why the new head was not settled.
    pub last_error: Option<String>,
    /// What of it goes to the dead letters.
    pub dead_letters: Vec<Burial>,
}

/// What a server is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Habits {
    /// Whether a statement by itself would run in an isolation level that does not suit us: it needs a
    /// transaction around it that asks for READ COMMITTED.
    pub explicit_isolation: bool,
    /// Whether it refuses text that is not written in its own alphabet, and only ASCII is in all of them.
    pub ascii_only: bool,
}

impl Habits {
    /// A reason as the server takes it: one that it refused would be refused for ever, with all that is
    /// settled along with it.
    pub(crate) fn writable(self, reason: String) -> String {
        if !self.ascii_only || reason.is_ascii() {
            return reason;
        }
        let mut written = String::with_capacity(reason.len());
        for letter in reason.chars() {
            match letter.is_ascii() {
                true => written.push(letter),
                false => written.extend(letter.escape_unicode()),
            }
        }
        written
    }
}

impl Settlement {
    /// The same, with reasons that the server takes.
    pub(crate) fn writable(mut self, habits: Habits) -> Self {
        self.last_error = self.last_error.map(|reason| habits.writable(reason));
        for dead in &mut self.dead_letters {
            dead.reason = habits.writable(std::mem::take(&mut dead.reason));
        }
        self
    }
}

/// What becomes of a write if the server crashes right after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commit {
    /// It stays.
    Durable,
    /// It may be undone, as if it had come a moment later; where the database can be told so. For an
    /// ack that is a redelivery.
    Relaxed,
}

/// What [`Backend::advance`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Advance {
    /// The lease is gone: nothing may be settled or handled any more. Nothing was written, unless
    /// the lease was taken right after the settlement and before the read.
    Lost,
    /// The lease is ours and was renewed.
    Held(Head),
}

/// A partition as its holder finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Everything at or below this is settled.
    pub cursor: Seq,
    /// How often the first message behind the cursor was tried.
    pub attempts: u32,
    /// Whether an operator has paused the partition or its queue: nothing was read then.
    pub paused: bool,
    /// The server's number of the connection that read it.
    pub session: Option<i64>,
    /// What comes next, in order, without holes.
    pub messages: Vec<StoredMessage>,
}

/// Which way a schema is migrated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To the version this library works with.
    Up,
    /// To nothing.
    Down,
}

/// Where `{now}` in a statement comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeSource {
    /// The database's clock.
    Clock,
    /// The database's clock, moved by what the table `{prefix}clock` says. For tests.
    MovedClock,
}

impl TimeSource {
    /// The expression, given that of the clock, and what the database calls integers: sums are none.
    pub(super) fn expression(self, clock: &str, integer: &str) -> String {
        match self {
            Self::Clock => clock.to_owned(),
            Self::MovedClock => {
                let moved = "(SELECT COALESCE(SUM(moved_millis), 0) FROM {prefix}clock)";
                format!("CAST({clock} + {moved} AS {integer})")
            }
        }
    }
}

/// A process that is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Which one.
    pub incarnation: Incarnation,
    /// The queues it has a handler for.
    pub queues: Vec<String>,
}

/// How much a step of the sequencer takes of a partition in which there is much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stride {
    /// More than the first did, where a step costs about the same.
    Growing,
    /// As much as the first: a larger one may be what failed.
    Even,
}

/// What the vacuum removed in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// Messages removed.
    pub messages: u64,
    /// Whether the step was full.
    pub more: bool,
    /// Whether nothing was looked at, because somebody else is at it.
    pub busy: bool,
}

/// What came of giving room back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reclaimed {
    /// After how many more removals it is worth while again.
    pub worth_while: u64,
    /// No message is left and their room is not free all the same: somebody still sees what has gone.
    pub held: bool,
}

/// What to do with the savepoint around one handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Savepoint {
    /// Set it.
    Set,
    /// Keep what was written since.
    Release,
    /// Undo what was written since, and release it.
    Undo,
}

impl Savepoint {
    /// The statement, the same on every database.
    pub(super) fn statement(self) -> &'static str {
        #[cfg(mutants)]
        if crate::mutants::Mutant::SavepointDropped.is_alive() {
            return "SELECT 1";
        }
        match self {
            Self::Set => "SAVEPOINT outbox_handler",
            Self::Release => "RELEASE SAVEPOINT outbox_handler",
            Self::Undo => "ROLLBACK TO SAVEPOINT outbox_handler",
        }
    }
}

/// How a dead letter is ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Conclusion {
    /// It was handled.
    Resolved,
    /// Handling it failed again, for this reason: it is pending once more.
    Rejected(String),
    /// Nobody will handle it.
    Discarded,
}

impl Conclusion {
    /// The status it leads to.
    pub(super) fn status(&self) -> &'static str {
        match self {
            Self::Resolved => "resolved",
            Self::Rejected(_) => "pending",
            Self::Discarded => "discarded",
        }
    }

    /// Why it failed again.
    pub(super) fn reason(&self) -> Option<&str> {
        match self {
            Self::Rejected(reason) => Some(reason),
            Self::Resolved | Self::Discarded => None,
        }
    }
}

/// A message on its way in, with the partition it goes to.
pub(crate) type Addressed<'a> = (PartitionId, &'a EnqueueMessage);
