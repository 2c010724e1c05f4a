//! From rows to values, for every database alike. Macros, because a row's type is its database's and
//! the bounds of a generic function would be longer than what it does.

#[cfg(any(feature = "postgres", feature = "mysql"))]
use super::{PartitionId, Seq};

/// Reads a [`DeadLetter`] from a row of any database.
macro_rules! dead_letter {
    ($row:expr) => {{
        let row = $row;
        let time = |millis: Option<i64>| millis.map(crate::message::time_of);
        let headers = crate::backend::decode::TextRow::text(&row, "headers")?;
        let status: String = row.try_get("status")?;
        Ok(crate::dead_letter::DeadLetter {
            id: row.try_get("id")?,
            queue: row.try_get("queue")?,
            partition: u32::try_from(row.try_get::<i32, _>("partition")?).unwrap_or(0),
            partition_id: row.try_get("partition_id")?,
            seq: row.try_get("seq")?,
            message_id: OutboxMessageId(row.try_get("message_id")?),
            payload: row.try_get("payload")?,
            payload_type: row.try_get("payload_type")?,
            key: crate::backend::decode::TextRow::text(&row, "key")?,
            headers: crate::message::decoded_headers(headers.as_deref()),
            created_at: crate::message::time_of(row.try_get("created_at")?),
            failed_at: crate::message::time_of(row.try_get("failed_at")?),
            last_error: row.try_get("last_error")?,
            attempts: u32::try_from(row.try_get::<i64, _>("attempts")?).unwrap_or(u32::MAX),
            status: status
                .parse()
                .map_err(|error| sqlx::Error::Decode(Box::new(error)))?,
            deadline: time(row.try_get("deadline")?),
            completed_at: time(row.try_get("completed_at")?),
            requeued_as: row
                .try_get::<Option<i64>, _>("requeued_as")?
                .map(OutboxMessageId),
            claim_token: row.try_get("claim_token")?,
        })
    }};
}
pub(crate) use dead_letter;

/// A row in which somebody else may have written text.
pub(crate) trait TextRow {
    fn text(&self, column: &str) -> Result<Option<String>, sqlx::Error>;
}

#[cfg(feature = "postgres")]
impl TextRow for sqlx::postgres::PgRow {
    fn text(&self, column: &str) -> Result<Option<String>, sqlx::Error> {
        sqlx::Row::try_get(self, column)
    }
}

#[cfg(feature = "mysql")]
impl TextRow for sqlx::mysql::MySqlRow {
    fn text(&self, column: &str) -> Result<Option<String>, sqlx::Error> {
        sqlx::Row::try_get(self, column)
    }
}

/// SQLite takes any bytes for text. A partition does not stop for a character that is none.
#[cfg(feature = "sqlite")]
impl TextRow for sqlx::sqlite::SqliteRow {
    fn text(&self, column: &str) -> Result<Option<String>, sqlx::Error> {
        let bytes: Option<&[u8]> = sqlx::Row::try_get_unchecked(self, column)?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
    }
}

/// Reads a [`Survey`](super::Survey) from a row of any database.
macro_rules! survey {
    ($row:expr) => {{
        let row = $row;
        Ok(crate::backend::Survey {
            partition_id: crate::backend::PartitionId(row.try_get("partition_id")?),
            unsequenced: row.try_get("unsequenced")?,
            pending: row.try_get("pending")?,
            last_seq: crate::backend::Seq(row.try_get("last_seq")?),
            holder: row
                .try_get::<Option<String>, _>("holder")?
                .map(crate::backend::Incarnation),
            pulse: crate::backend::Pulse {
                epoch: crate::backend::Epoch(row.try_get("epoch")?),
                renewals: row.try_get("renewals")?,
            },
            lease_millis: row.try_get("lease_millis")?,
            expired: row.try_get("expired")?,
        })
    }};
}
pub(crate) use survey;

/// Reads the [`StoredMessage`](super::StoredMessage) of this id and place from a row of any database.
macro_rules! stored_message {
    ($row:expr, $id:expr, $seq:expr) => {{
        let row = $row;
        crate::backend::StoredMessage {
            id: crate::message::OutboxMessageId($id),
            seq: crate::backend::Seq($seq),
            created_at: crate::backend::Millis(row.try_get("created_at")?),
            payload: row.try_get("payload")?,
            payload_type: row.try_get("payload_type")?,
            key: crate::backend::decode::TextRow::text(row, "key")?,
            headers: crate::backend::decode::TextRow::text(row, "headers")?,
        }
    }};
}
pub(crate) use stored_message;

/// The same, from the columns that begin at `first`: on the hot path, where looking up names takes
/// longer than reading what they name.
#[cfg(any(feature = "postgres", feature = "mysql"))]
macro_rules! numbered_message {
    ($row:expr, $first:expr, $id:expr, $seq:expr) => {{
        let (row, first) = ($row, $first);
        crate::backend::StoredMessage {
            id: crate::message::OutboxMessageId($id),
            seq: crate::backend::Seq($seq),
            created_at: crate::backend::Millis(row.try_get(first)?),
            payload_type: row.try_get(first + 1)?,
            key: row.try_get(first + 2)?,
            headers: row.try_get(first + 3)?,
            payload: row.try_get(first + 4)?,
        }
    }};
}
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) use numbered_message;

/// Reads a message that is not settled, and its partition, from a row of any database. Its place is
/// not known.
macro_rules! unsettled_message {
    ($row:expr) => {{
        let row = $row;
        let partition = u32::try_from(row.try_get::<i32, _>("partition")?).unwrap_or(0);
        Ok((
            partition,
            crate::backend::decode::stored_message!(&row, row.try_get("id")?, 0),
        ))
    }};
}
pub(crate) use unsettled_message;

/// Reads [`PartitionStats`](crate::stats::PartitionStats) from a row of any database.
macro_rules! partition_stats {
    ($row:expr) => {{
        let row = $row;
        let head_created_at: Option<i64> = row.try_get("head_created_at")?;
        let dead_letters: i64 = row.try_get("dead_letters")?;
        let holder: Option<String> = row.try_get("holder")?;
        Ok(crate::stats::PartitionStats {
            queue: row.try_get("queue")?,
            partition: u32::try_from(row.try_get::<i32, _>("partition")?).unwrap_or(0),
            partition_id: row.try_get("partition_id")?,
            last_seq: row.try_get("last_seq")?,
            processed_seq: row.try_get("processed_seq")?,
            unsequenced: row.try_get("unsequenced")?,
            head_created_at: head_created_at.map(crate::message::time_of),
            attempts: u32::try_from(row.try_get::<i64, _>("attempts")?).unwrap_or(u32::MAX),
            last_error: row.try_get("last_error")?,
            paused: row.try_get("paused")?,
            epoch: row.try_get("epoch")?,
            lease_until: holder
                .is_some()
                .then_some(crate::message::time_of(row.try_get("lease_until")?)),
            holder,
            dead_letters: u64::try_from(dead_letters).unwrap_or(0),
        })
    }};
}
pub(crate) use partition_stats;

/// Reads a [`Process`](super::Process) from a row of any database.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
macro_rules! process {
    ($row:expr) => {{
        let row = $row;
        let queues: String = row.try_get("queues")?;
        Ok(crate::backend::Process {
            incarnation: crate::backend::Incarnation(row.try_get("incarnation")?),
            queues: crate::backend::decode::queue_list(&queues),
        })
    }};
}
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use process;

/// Makes the verbs that are the same for any database: those that list queues, processes, what was done by hand and
/// what is not settled.
macro_rules! directory {
    ($row:ty) => {
        async fn unsettled(
            sql: &super::Statements,
            connection: &mut <Self as sqlx::Database>::Connection,
            queue: &str,
            limit: u32,
        ) -> Answer<Vec<(u32, StoredMessage)>> {
            let messages = query!(sql.unsettled)
                .bind(queue)
                .bind(i64::from(limit))
                .try_map(|row: $row| $crate::backend::decode::unsettled_message!(row))
                .fetch_all(connection)
                .await?;
            Ok(messages)
        }

        async fn vitals(store: &Store<Self>) -> Answer<crate::health::Vitals> {
            super::health::vitals(store).await
        }

        async fn queues(store: &Store<Self>) -> Answer<Vec<(String, i32)>> {
            let mut own = $crate::backend::OwnConnection::acquire(&store.workers).await?;
            let queues = query!(store.sql.queues)
                .try_map(|row: $row| Ok((row.try_get(0)?, row.try_get(1)?)))
                .fetch_all(&mut *own)
                .await?;
            own.give_back();
            Ok(queues)
        }

        async fn roster(store: &Store<Self>) -> Answer<Vec<crate::health::ProcessStats>> {
            let mut own = $crate::backend::OwnConnection::acquire(&store.workers).await?;
            let roster = query!(store.sql.roster)
                .try_map(|row: $row| {
                    let queues: String = row.try_get("queues")?;
                    Ok(crate::health::ProcessStats {
                        incarnation: row.try_get("incarnation")?,
                        queues: crate::backend::decode::queue_list(&queues),
                        host: row.try_get("host")?,
                        version: row.try_get("version")?,
                        started_at: crate::message::time_of(row.try_get("started_at")?),
                        seen_at: crate::message::time_of(row.try_get("seen_at")?),
                        asked_at: crate::message::time_of(row.try_get("asked_at")?),
                    })
                })
                .fetch_all(&mut *own)
                .await?;
            own.give_back();
            Ok(roster)
        }

        async fn storage(store: &Store<Self>) -> Answer<u64> {
            let mut own = $crate::backend::OwnConnection::acquire(&store.workers).await?;
            let row = query!(store.sql.storage).fetch_one(&mut *own).await?;
            own.give_back();
            Ok(u64::try_from(row.try_get::<i64, _>("bytes")?).unwrap_or(0))
        }

        async fn records(
            store: &Store<Self>,
            before: i64,
            limit: u32,
        ) -> Answer<Vec<crate::audit::AuditEntry>> {
            let mut own = $crate::backend::OwnConnection::acquire(&store.workers).await?;
            let records = query!(store.sql.records)
                .bind(before)
                .bind(i64::from(limit))
                .try_map(|row: $row| {
                    Ok(crate::audit::AuditEntry {
                        id: row.try_get("id")?,
                        at: crate::message::time_of(row.try_get("at")?),
                        actor: row.try_get("actor")?,
                        action: row.try_get("action")?,
                        target: row.try_get("target")?,
                        reason: row.try_get("reason")?,
                    })
                })
                .fetch_all(&mut *own)
                .await?;
            own.give_back();
            Ok(records)
        }
    };
}
pub(crate) use directory;

/// Makes the functions that read which partitions of a queue are registered, for any database.
macro_rules! registered {
    ($database:ty, $connection:ty, $row:ty, $count:ty) => {
        /// The ids of a queue's partitions as far as they are registered. An error if the queue has
        /// another number of them.
        async fn registered(
            sql: &Statements,
            connection: &mut $connection,
            queue: &QueueName,
            partitions: Partitions,
        ) -> Answer<Vec<PartitionId>> {
            let found = query!(sql.queue_partitions)
                .bind(queue.as_str())
                .fetch_optional(&mut *connection)
                .await?;
            let Some(found) = found else {
                return Ok(Vec::new());
            };
            let found: $count = found.try_get(0)?;
            if found != <$count>::from(partitions.count()) {
                return Err(OutboxError::PartitionCountMismatch {
                    queue: queue.to_string(),
                    expected: partitions.count(),
                    found: usize::try_from(found).unwrap_or(0),
                });
            }
            let ids = query!(sql.partition_ids)
                .bind(queue.as_str())
                .try_map(|row: $row| row.try_get(0).map(PartitionId))
                .fetch_all(connection)
                .await?;
            Ok(ids)
        }

        /// All of them, if all are there. It only reads: a start beside running processes locks nothing,
        /// and an account that may only enqueue can start.
        async fn all_registered(
            store: &Store<$database>,
            queue: &QueueName,
            partitions: Partitions,
        ) -> Answer<Option<Vec<PartitionId>>> {
            let mut connection = store.pool.acquire().await?;
            let ids = registered(&store.sql, &mut connection, queue, partitions).await?;
            Ok(Some(ids).filter(|ids| ids.len() == usize::from(partitions.count())))
        }
    };
}
pub(crate) use registered;

/// The queues of a process as they are stored. Whatever cannot be read is not handled.
pub(super) fn queue_list(text: &str) -> Vec<String> {
    serde_json::from_str(text).unwrap_or_default()
}

/// Cuts off what does not follow the cursor number by number: where the cursor goes is counted, so what
/// lies behind a hole would be taken for what is missing. It comes when that is there.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(super) fn cut_at_a_hole<T>(
    partition_id: PartitionId,
    cursor: Seq,
    messages: &mut Vec<T>,
    seq: impl Fn(&T) -> Seq,
) {
    let follows = |(expected, message): &(i64, &T)| seq(message).0 == *expected;
    let next = cursor.0.saturating_add(1)..;
    let whole = next.zip(&*messages).take_while(follows).count();
    if whole < messages.len() {
        let missing = cursor.0 + 1 + whole as i64;
        tracing::warn!(
            partition_id = partition_id.0,
            missing,
            "a number is missing: the rest waits"
        );
        messages.truncate(whole);
    }
}

#[cfg(all(test, any(feature = "postgres", feature = "mysql")))]
mod tests {
    use super::*;

    #[test]
    fn what_lies_behind_a_hole_waits() {
        let left = |cursor, numbers: &[i64]| -> Vec<i64> {
            let mut numbers = numbers.to_vec();
            cut_at_a_hole(PartitionId(1), Seq(cursor), &mut numbers, |seq| Seq(*seq));
            numbers
        };
        assert_eq!(left(0, &[1, 2, 3]), [1, 2, 3]);
        assert_eq!(left(7, &[8, 9, 11, 12]), [8, 9]);
        assert_eq!(left(7, &[8, 8, 9]), [8]);
        assert!(left(7, &[9, 10]).is_empty());
        assert!(left(7, &[7, 8]).is_empty());
        assert!(left(7, &[]).is_empty());
    }
}
