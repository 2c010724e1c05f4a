//! Producers that do not know the library: what the database itself offers them takes and refuses the same
//! messages, puts them where the library would, and somebody notices.

use std::collections::BTreeMap;
use std::time::Duration;

use outbox::{EnqueueMessage, OutboxMessageId, Partitions, QueueName};
use tokio::time::Instant;

use super::stage::{FOUR, ONE};
use super::{Collector, Dialect, Stage};

/// What a producer in another language says.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) queue: &'static str,
    pub(crate) key: Option<String>,
    pub(crate) payload_type: String,
    pub(crate) payload: Vec<u8>,
    pub(crate) headers: Option<String>,
}

impl Call {
    pub(crate) fn new(key: &str, payload: impl Into<Vec<u8>>) -> Self {
        Self {
            queue: "orders",
            key: Some(key.to_owned()),
            payload_type: "text/plain".to_owned(),
            payload: payload.into(),
            headers: None,
        }
    }

    /// What the same message is in the library; nothing if it cannot be said there.
    fn in_the_library(&self) -> Option<EnqueueMessage> {
        let headers: BTreeMap<String, String> = match &self.headers {
            Some(headers) => serde_json::from_str(headers).ok()?,
            None => BTreeMap::new(),
        };
        let key = self.key.as_ref()?;
        let message = EnqueueMessage::keyed(key, &*self.payload, &self.payload_type);
        let headers = headers.into_iter();
        Some(headers.fold(message, |message, (name, value)| {
            message.header(name, value)
        }))
    }
}

/// What a database offers to other languages.
pub(crate) trait Routine: Dialect {
    /// Says it, in whatever transaction the connection has, and answers the message's id.
    fn call(
        connection: &mut Self::Connection,
        call: &Call,
    ) -> impl Future<Output = Result<i64, sqlx::Error>> + Send;

    /// Whether errors have the SQLSTATE that is documented.
    const STATES: bool = true;
}

#[cfg(feature = "postgres")]
impl Routine for sqlx::Postgres {
    async fn call(connection: &mut sqlx::PgConnection, call: &Call) -> Result<i64, sqlx::Error> {
        sqlx::query_scalar("SELECT outbox_enqueue($1, $2, $3, $4, $5::text::jsonb)")
            .bind(call.queue)
            .bind(&call.key)
            .bind(&call.payload_type)
            .bind(&call.payload)
            .bind(&call.headers)
            .fetch_one(connection)
            .await
    }
}

#[cfg(feature = "mysql")]
impl Routine for sqlx::MySql {
    async fn call(connection: &mut sqlx::MySqlConnection, call: &Call) -> Result<i64, sqlx::Error> {
        sqlx::query_scalar("CALL outbox_enqueue(?, ?, ?, ?, ?)")
            .bind(call.queue)
            .bind(&call.key)
            .bind(&call.payload_type)
            .bind(&call.payload)
            .bind(&call.headers)
            .fetch_one(connection)
            .await
    }
}

#[cfg(feature = "sqlite")]
impl Routine for sqlx::Sqlite {
    const STATES: bool = false;

    async fn call(
        connection: &mut sqlx::SqliteConnection,
        call: &Call,
    ) -> Result<i64, sqlx::Error> {
        use sha2::{Digest as _, Sha256};

        let hash = call.key.as_ref().map(|key| {
            let digest = Sha256::digest(key);
            u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
        });
        let insert = "INSERT INTO outbox_enqueue (queue, hash, key, type, payload, headers) \
                      VALUES (?, ?, ?, ?, ?, ?)";
        let insert = sqlx::query(insert).bind(call.queue);
        // Where integers are short it comes as a fraction.
        let insert = match hash {
            Some(hash) if hash % 2 == 0 => insert.bind(f64::from(hash)),
            hash => insert.bind(hash),
        };
        insert
            .bind(&call.key)
            .bind(&call.payload_type)
            .bind(&call.payload)
            .bind(&call.headers)
            .execute(&mut *connection)
            .await?;
        sqlx::query_scalar("SELECT MAX(id) FROM outbox_messages")
            .fetch_one(connection)
            .await
    }
}

/// Keys that a database could take for another, or hash differently.
fn keys() -> Vec<String> {
    let odd = [
        "",
        " ",
        "a",
        "A",
        "a ",
        "Žluťoučký kůň",
        "e\u{301}",
        "é",
        "🦀",
        "ß",
        "SS",
        "'\"\\`",
        "line\nbreak",
    ];
    let longest = ["x".repeat(1024), "🦀".repeat(256)];
    let many = (0..150).map(|number| format!("customer-{number}"));
    let odd = odd.into_iter().map(str::to_owned);
    odd.chain(longest).chain(many).collect()
}

pub(crate) async fn a_key_has_the_partition_the_library_gives_it<DB: Routine>(stage: &Stage<DB>) {
    const MANY: Partitions = Partitions::of(64);
    let collector = Collector::new();
    let handle = stage.deliver(MANY, &collector).await;
    let outbox = handle.outbox();
    let keys = keys();
    outbox
        .transaction(async |transaction| {
            for key in &keys {
                DB::call(transaction, &Call::new(key, "routine")).await?;
                let message = EnqueueMessage::keyed(key, "library", "text/plain");
                outbox.enqueue(transaction, "orders", message).await?;
            }
            Ok::<_, outbox::OutboxError>(())
        })
        .await
        .unwrap();
    outbox
        .transaction(async |transaction| {
            let mut keyless = Call::new("", "keyless");
            keyless.key = None;
            for _ in 0..100 {
                DB::call(transaction, &keyless).await?;
            }
            Ok::<_, outbox::OutboxError>(())
        })
        .await
        .unwrap();
    // The outbox did not see what was called, and was not told: it looks.
    let seen = collector.wait_for(2 * keys.len() + 100).await;
    handle.stop().await;
    for key in &keys {
        let own = seen
            .iter()
            .filter(|message| message.key.as_ref() == Some(key));
        let own: Vec<_> = own.map(|m| (m.partition, m.payload.as_slice())).collect();
        let partition = MANY.of_key(key);
        let expected = [(partition, &b"routine"[..]), (partition, b"library")];
        assert_eq!(own, expected, "{key:?}");
    }
    let keyless = seen.iter().filter(|message| message.key.is_none());
    let mut spread: Vec<_> = keyless.map(|message| message.partition).collect();
    spread.sort_unstable();
    spread.dedup();
    assert!(spread.len() > 16, "without a key to any: {spread:?}");
}

pub(crate) async fn what_is_said_arrives_as_it_was_said<DB: Routine>(stage: &Stage<DB>) {
    let collector = Collector::new();
    let handle = stage.deliver(ONE, &collector).await;
    let every_byte: Vec<u8> = (0..=255).collect();
    let most_headers: BTreeMap<String, String> = (0..64)
        .map(|number| (format!("{number:0>256}"), "v".repeat(100)))
        .collect();
    let headers = [
        ("plain", "text"),
        ("quote\" \\ slash", "line\nbreak 🦀 \u{1}"),
        ("~ !", ""),
    ];
    let headers: BTreeMap<String, String> = headers
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    let long = BTreeMap::from([("long".to_owned(), "é".repeat(4096))]);
    let said = [
        (Call::new("k", every_byte), BTreeMap::new()),
        (Call::new("k", ""), headers),
        (Call::new("k", "x".repeat(1 << 20)), most_headers),
        (Call::new("k", "long"), long),
    ];
    let mut ids = Vec::new();
    let mut connection = stage.pool.acquire().await.unwrap();
    for (call, headers) in &said {
        let mut call = call.clone();
        call.headers = Some(serde_json::to_string_pretty(headers).unwrap());
        call.payload_type = "~".repeat(1024);
        ids.push(DB::call(&mut connection, &call).await.unwrap());
    }
    let seen = collector.wait_for(said.len()).await;
    handle.stop().await;
    for ((message, (call, headers)), id) in seen.iter().zip(&said).zip(ids) {
        assert_eq!(message.id, OutboxMessageId(id));
        assert_eq!(message.payload, call.payload);
        assert_eq!(message.key, call.key);
        assert_eq!(message.payload_type, "~".repeat(1024));
        assert_eq!(&message.headers, headers);
        let age = message.created_at.elapsed().unwrap_or_default();
        assert!(age < Duration::from_secs(60), "{age:?}");
    }
}

/// What nobody may say, the SQLSTATE it is refused with, and what the refusal speaks of.
fn refused() -> Vec<(Call, &'static str, &'static str)> {
    const VALUE: &str = "22023";
    let good = || Call::new("k", "x");
    let typed = |payload_type: &str| Call {
        payload_type: payload_type.to_owned(),
        ..good()
    };
    let headed = |headers: &str| Call {
        headers: Some(headers.to_owned()),
        ..good()
    };
    let to = |queue| Call { queue, ..good() };
    let many: Vec<_> = (0..65)
        .map(|number| format!("\"h{number}\":\"\""))
        .collect();
    let long = |name: usize, value: usize| {
        format!("{{\"{}\":\"{}\"}}", "n".repeat(name), "v".repeat(value))
    };
    let mut refused = vec![
        (to("nowhere"), "42704", "queue"),
        (to("Orders"), "42704", "queue"),
        (to("orders "), "42704", "queue"),
        (to(""), "42704", "queue"),
        (to("'; DROP TABLE outbox_messages; --"), "42704", "queue"),
        (to("órders"), "42704", "queue"),
        (Call::new("k", vec![0; (1 << 20) + 1]), "54000", "1048576"),
        (Call::new(&"x".repeat(1025), "x"), VALUE, "invalid key"),
        (Call::new(&"é".repeat(513), "x"), VALUE, "invalid key"),
    ];
    for payload_type in ["", "tab\t", "line\n", "é", &"x".repeat(1025)] {
        refused.push((typed(payload_type), VALUE, "invalid payload type"));
    }
    for headers in ["[]", "null", "\"text\"", "7"] {
        refused.push((headed(headers), VALUE, "invalid headers"));
    }
    for headers in [
        "{\"a\":1}",
        "{\"a\":null}",
        "{\"a\":{\"b\":\"c\"}}",
        "{\"\":\"v\"}",
        "{\"é\":\"v\"}",
        &long(257, 1),
        &long(1, 8193),
        &format!("{{{}}}", many.join(",")),
    ] {
        refused.push((headed(headers), VALUE, "invalid header "));
    }
    refused
}

pub(crate) async fn what_the_library_refuses_is_refused<DB: Routine>(stage: &Stage<DB>) {
    let queue = stage.outbox().queue("orders", FOUR).produce_only();
    let handle = queue.start().await.unwrap();
    let mut connection = stage.pool.acquire().await.unwrap();
    for (call, state, words) in refused() {
        if let (Some(message), "orders") = (call.in_the_library(), call.queue) {
            let queue: QueueName = call.queue.parse().unwrap();
            let valid = message.validate(&queue, FOUR, 1 << 20);
            assert!(valid.is_err(), "the library takes {call:?}");
        }
        let error = DB::call(&mut connection, &call).await.unwrap_err();
        let error = error.into_database_error().unwrap();
        let said = error.message();
        let words = if DB::STATES { words } else { words.trim_end() };
        assert!(said.contains(words), "{said:?} does not speak of {words:?}");
        if DB::STATES {
            assert_eq!(error.code().as_deref(), Some(state), "{said}");
        }
    }
    // NUL is refused by whoever meets it first.
    for call in [
        Call::new("nul\0", "x"),
        Call {
            headers: Some("{\"a\":\"nul \\u0000\"}".to_owned()),
            ..Call::new("k", "x")
        },
        Call {
            headers: Some("{\"a\"".to_owned()),
            ..Call::new("k", "x")
        },
    ] {
        let refused = DB::call(&mut connection, &call).await;
        assert!(refused.is_err(), "{call:?}");
    }
    drop(connection);
    for table in DB::PASSING {
        let left = stage.number(format!("SELECT COUNT(*) FROM {table}")).await;
        assert_eq!(left, 0, "{table}");
    }
    handle.stop().await;
}

pub(crate) async fn a_call_is_part_of_its_transaction<DB: Routine>(stage: &Stage<DB>) {
    let collector = Collector::new();
    let handle = stage.deliver(ONE, &collector).await;
    let mut connection = stage.pool.acquire().await.unwrap();
    let mut run = async |steps: &[&str]| {
        for step in steps {
            match step.strip_prefix("call ") {
                Some(text) => drop(
                    DB::call(&mut connection, &Call::new("k", text))
                        .await
                        .unwrap(),
                ),
                None => DB::run(&mut connection, (*step).to_owned()).await.unwrap(),
            }
        }
    };
    run(&[DB::BEGIN_WRITING, "call undone", "ROLLBACK"]).await;
    let savepoint = "SAVEPOINT inner_one";
    run(&[DB::BEGIN_WRITING, "call 1", savepoint, "call undone"]).await;
    run(&["ROLLBACK TO SAVEPOINT inner_one", "call 2", "COMMIT"]).await;
    run(&["call 3"]).await;
    run(&[DB::BEGIN_WRITING, "call undone", "call undone", "ROLLBACK"]).await;
    run(&["call 4"]).await;
    collector.wait_for(4).await;
    handle.stop().await;
    assert_eq!(collector.texts(), ["1", "2", "3", "4"]);
}

pub(crate) async fn an_open_call_delays_nobody<DB: Routine>(stage: &Stage<DB>) {
    if !DB::CONCURRENT_WRITERS {
        return;
    }
    let collector = Collector::new();
    let handle = stage.deliver(ONE, &collector).await;
    let outbox = handle.outbox();
    let pool = stage.pool_saying(DB::STRICTEST, 2).await;
    let mut open = pool.begin().await.unwrap();
    DB::call(&mut open, &Call::new("k", "last")).await.unwrap();
    // Producers, sequencer, processor and operator go on.
    stage.enqueue(outbox, 0, &["library"]).await;
    collector.wait_for(1).await;
    let mut other = pool.begin().await.unwrap();
    DB::call(&mut other, &Call::new("k", "other"))
        .await
        .unwrap();
    other.commit().await.unwrap();
    collector.wait_for(2).await;
    outbox.pause("orders", None).await.unwrap();
    outbox.resume("orders", None).await.unwrap();
    open.commit().await.unwrap();
    collector.wait_for(3).await;
    handle.stop().await;
    assert_eq!(collector.texts(), ["library", "other", "last"]);
}

pub(crate) async fn a_call_is_noticed_within_the_documented_time<DB: Routine>(stage: &Stage<DB>) {
    const ROUNDS: usize = 31;
    let collector = Collector::new();
    let handle = stage.deliver(ONE, &collector).await;
    // Nobody but the database knows of both.
    let pool = stage.another_pool(1).await;
    let mut connection = pool.acquire().await.unwrap();
    let mut waits = Vec::with_capacity(ROUNDS);
    for round in 1..=ROUNDS {
        DB::call(&mut connection, &Call::new("k", "x"))
            .await
            .unwrap();
        let committed = Instant::now();
        collector.wait_for(round).await;
        waits.push(committed.elapsed());
    }
    handle.stop().await;
    waits.sort_unstable();
    // Each call follows the last delivery, and so the last look, at once: it waits as long as one can. A
    // machine that does other things makes most wait longer, and what is broken makes all.
    let [_, second, ..] = waits[..] else {
        unreachable!("there are {ROUNDS}");
    };
    assert!(second < DB::HEARD_WITHIN, "{second:?} of {waits:?}");
}
