//! An operator at work, with the real command, on every database.

use std::time::Duration;

use crate::command::{Command, database_type, on_every_database, tell};
use outbox::{
    Backend, MessageResult, Outbox, OutboxHandle, OutboxMessage, OutboxProfile, Partitions,
};
use serde_json::{Value, json};
use sqlx::Pool;
use testbed::{After, Fault, Server, Wire, with_database};

on_every_database!(
    an_operator_sees_and_decides,
    json_lines_are_enqueued_in_order_and_errors_name_their_line,
    tables_come_and_go,
    the_bench_measures_and_leaves_nothing_behind,
    the_demo_keeps_its_books_and_leaves_nothing_behind,
    the_doctor_names_what_is_wrong,
    what_is_not_there_is_named,
);

/// A process that rejects what says so.
pub(crate) async fn worker<DB: Backend>(url: &str) -> OutboxHandle<DB> {
    let pool = Pool::<DB>::connect(url).await.unwrap();
    let handler = |message: OutboxMessage| async move {
        match message.payload_type.as_str() {
            "poison" => MessageResult::Reject("it is poison".to_owned()),
            "stubborn" => MessageResult::Retry,
            _ => MessageResult::Ok,
        }
    };
    Outbox::builder(pool)
        .profile(OutboxProfile::low_latency())
        .queue("orders", Partitions::of(4))
        .leased(handler)
        .start()
        .await
        .unwrap()
}

/// Asks for the status until it is as wanted.
pub(crate) async fn until<DB>(
    command: &Command<DB>,
    what: &str,
    wanted: impl Fn(&[Value]) -> bool,
) -> Vec<Value> {
    for _ in 0..200 {
        let status = command.run(&["status", "--json"]).json();
        let partitions = status["partitions"].as_array().unwrap().clone();
        if wanted(&partitions) {
            return partitions;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what}: never");
}

pub(crate) fn sum(partitions: &[Value], field: &str) -> i64 {
    let values = partitions.iter().map(|partition| partition[field].as_i64());
    values.map(Option::unwrap).sum()
}

async fn an_operator_sees_and_decides<DB: Backend>(command: &Command<DB>) {
    command.run(&["migrate", "up"]).succeeds();
    let worker = worker::<DB>(&command.url).await;
    let paused = command.run(&["pause", "orders"]).succeeds();
    assert_eq!(paused, "orders is paused\n");
    for (payload, kind) in [
        ("{\"a\":1}", "fine"),
        ("\u{1b}[2J", "poison"),
        ("c", "fine"),
    ] {
        let enqueue = [
            "enqueue",
            "orders",
            payload,
            "--partition",
            "3",
            "--type",
            kind,
        ];
        assert_eq!(command.run(&enqueue).succeeds(), "1 message enqueued\n");
    }
    let partitions = until(command, "all have numbers", |all| sum(all, "pending") == 3).await;
    assert_eq!(partitions.len(), 4);
    assert_eq!(partitions[3]["paused"], true);

    let peeked = command.run(&["peek", "orders", "--json"]).json_lines();
    let seen: Vec<_> = peeked
        .iter()
        .map(|one| (&one["seq"], &one["payload"]))
        .collect();
    assert_eq!(
        json!(seen),
        json!([[1, "{\"a\":1}"], [2, "\u{1b}[2J"], [3, "c"]])
    );
    let shown = command.run(&["peek", "orders", "--from", "2", "--partition", "3"]);
    let shown = shown.succeeds();
    assert!(
        shown.contains("\u{fffd}[2J") && !shown.contains('\u{1b}'),
        "{shown}"
    );

    let skip = ["skip", "orders", "--partition", "3", "--reason", "by hand"];
    assert!(command.run(&skip).fails(2).contains("--yes"));
    let skipped = command
        .run(&[&skip[..], &["--yes", "--json"]].concat())
        .json();
    assert_eq!(skipped["skipped"], peeked[0]["id"]);
    let within = command.run(&["resume", "orders", "--partition", "3", "--json"]);
    assert_eq!(within.json()["paused"], true, "its queue is");
    command
        .run(&["pause", "orders", "--partition", "1"])
        .succeeds();
    let queue = command.run(&["resume", "orders"]).succeeds();
    let still = "still paused by themselves: partitions [1]; resume them with --partition";
    assert_eq!(queue, format!("orders goes on\n{still}\n"));
    let partition = command.run(&["resume", "orders", "--partition", "1"]);
    assert_eq!(partition.succeeds(), "partition 1 of orders goes on\n");
    let done = command
        .run(&["audit", "--limit", "3", "--json"])
        .json_lines();
    let done: Vec<_> = done
        .iter()
        .map(|one| json!([one["action"], one["target"]]))
        .collect();
    assert_eq!(
        json!(done),
        json!([
            ["resume", "orders/1"],
            ["resume", "orders"],
            ["pause", "orders/1"]
        ])
    );
    until(command, "all are settled", |all| sum(all, "pending") == 0).await;
    worker.stop().await;

    let letters = command
        .run(&["dead-letters", "list", "--json"])
        .json_lines();
    let why = json!([letters[0]["last_error"], letters[1]["last_error"]]);
    assert_eq!(why, json!(["it is poison", "by hand"]), "newest first");
    let [poison, skipped] = [0, 1].map(|place| letters[place]["id"].to_string());
    let shown = command.run(&["dead-letters", "show", &skipped]).succeeds();
    for part in ["orders, partition 3", "by hand", "pending", "{\"a\":1}"] {
        assert!(shown.contains(part), "{part} is missing in {shown}");
    }

    // A claim is needed to resolve, and kept from others.
    let claim = ["dead-letters", "replay", "--type", "poison", "--json"];
    let claimed = command.run(&claim).json_lines();
    let token = claimed[0]["claim_token"].as_str().unwrap();
    assert!(command.run(&claim).json_lines().is_empty(), "it is taken");
    let resolve = |token| ["dead-letters", "resolve", &*poison, "--token", token];
    command.run(&resolve("another's")).fails(5);
    assert_eq!(command.run(&resolve(token)).succeeds(), "1 resolved\n");

    let dry = command.run(&["dead-letters", "requeue", "--dry-run", "--json"]);
    assert_eq!(dry.json_lines().len(), 1, "only the pending one");
    command.run(&["dead-letters", "requeue"]).fails(2);
    // The other one is resolved: it stays as it is, and holds up none.
    let requeue = command.run(&["dead-letters", "requeue", &poison, &skipped]);
    let left = requeue.fails(5);
    assert!(left.contains("1 of 2 could not be requeued"), "{left}");
    assert!(left.contains(&format!("{poison} is resolved")), "{left}");
    assert_eq!(requeue.printed(), "1 requeued\n");
    command.run(&["dead-letters", "requeue", &skipped]).fails(5);
    let cleanup = command.run(&["dead-letters", "cleanup", "--yes"]);
    assert_eq!(cleanup.succeeds(), "2 deleted\n");
    let none = command.run(&["dead-letters", "list"]).succeeds();
    assert_eq!(none, "no dead letters\n");
}

async fn json_lines_are_enqueued_in_order_and_errors_name_their_line<DB: Backend>(
    command: &Command<DB>,
) {
    command.run(&["migrate", "up"]).succeeds();
    let enqueue = [
        "enqueue",
        "orders",
        "--json-lines",
        "--key",
        "k",
        "--create",
        "4",
    ];
    let lines: String = (0..1_203)
        .map(|number| format!("{{\"payload\":{number}}}\n"))
        .collect();
    let enqueued = command.run_with(&enqueue, &lines).succeeds();
    assert_eq!(enqueued, "1203 messages enqueued\n");
    let broken = lines.replacen("{\"payload\":777}", "{\"paiload\":777}", 1);
    let error = command.run_with(&enqueue, &broken).fails(2);
    assert!(
        error.contains("line 778: unknown field `paiload`"),
        "{error}"
    );
    assert!(
        error.contains("500 messages of the lines before it were enqueued"),
        "{error}"
    );
    let refused = "{\"payload\": 1, \"type\": \"ä\"}\n{\"payload\": 2}\n";
    let error = command.run_with(&enqueue, refused).fails(2);
    assert!(
        error.contains("line 1: invalid payload type \"ä\""),
        "{error}"
    );

    let worker = worker::<DB>(&command.url).await;
    let all = until(command, "all are settled", |all| {
        sum(all, "processed_seq") == 1_703
    })
    .await;
    let busy = all.iter().filter(|partition| partition["last_seq"] != 0);
    assert_eq!(busy.count(), 1, "one key, one partition");
    worker.stop().await;
}

async fn the_doctor_names_what_is_wrong<DB: Backend>(command: &Command<DB>) {
    command.run(&["migrate", "up"]).succeeds();
    let well = command.run(&["doctor", "--json"]).json();
    assert_eq!(well["healthy"], true, "{well}");
    // What was not measured is not called fine.
    let of_a_server = database_type(&command.url) != "sqlite";
    for check in ["isolation", "transactions", "connections"] {
        let mut findings = well["findings"].as_array().unwrap().iter();
        let found = findings.find(|finding| finding["check"] == check);
        assert_eq!(found.is_some(), of_a_server, "{check}: {well}");
        assert!(
            found.is_none_or(|found| found["severity"] == "fine"),
            "{well}"
        );
    }
    if database_type(&command.url) == "postgres" {
        let option = "options[default_transaction_isolation]=serializable";
        let strict = Command::<DB>::at(&format!("{}?{option}", command.url));
        let told = strict.run(&["doctor"]).succeeds();
        let expected = "note     isolation: transactions of this account are serializable unless";
        assert!(told.contains(expected), "{told}");
    }
    let worker = worker::<DB>(&command.url).await;
    let enqueue = ["enqueue", "orders", "x", "--key", "k", "--type"];
    command
        .run(&[&enqueue[..], &["poison"]].concat())
        .succeeds();
    until(command, "it is buried", |all| sum(all, "dead_letters") == 1).await;
    let noted = command.run(&["doctor"]).succeeds();
    assert!(
        noted.contains("note     dead letters: 1 wait for a decision"),
        "{noted}"
    );
    assert!(noted.contains("ok       processes: 1 alive"), "{noted}");
    command
        .run(&[&enqueue[..], &["stubborn"]].concat())
        .succeeds();
    until(command, "it fails", |all| sum(all, "attempts") > 0).await;
    let ill = command.run(&["doctor"]);
    assert!(ill.fails(1).contains("there is a problem"));
    let told = ill.printed();
    assert!(
        told.starts_with("PROBLEM  failing: partition "),
        "the worst first: {told}"
    );
    assert!(told.contains("of orders has failed"), "{told}");
    assert!(told.contains("outbox skip"), "what to do: {told}");
    worker.stop().await;
    let failing = command.run(&["status", "--json"]).json();
    let mut partitions = failing["partitions"].as_array().unwrap().iter();
    let failing = partitions.find(|one| one["attempts"] != 0).unwrap();
    let partition = failing["partition"].to_string();
    let skip = [
        "skip",
        "orders",
        "--partition",
        &partition,
        "--reason",
        "ticket 7",
        "--yes",
    ];
    command.run(&skip).succeeds();
    let letters = command
        .run(&["dead-letters", "list", "--json"])
        .json_lines();
    let before = failing["last_error"].as_str().unwrap();
    let why = format!("ticket 7 (it had failed: {before})");
    assert_eq!(
        letters[0]["last_error"], why,
        "nothing that was known is lost"
    );
}

async fn the_demo_keeps_its_books_and_leaves_nothing_behind<DB: Backend>(command: &Command<DB>) {
    let books = command
        .run_named(&["demo", "--seconds", "3", "--json"])
        .json();
    assert_eq!(books["agree"], true, "{books}");
    let count = |what: &str| books["counts"][what].as_i64().unwrap();
    assert!(count("orders committed") > 0, "{books}");
    assert_eq!(count("lost") + count("delivered twice"), 0, "{books}");
    let prefix = ["--table-prefix", "outbox_demo_"];
    command
        .run(&[&["migrate", "status"], &prefix[..]].concat())
        .fails(4);
    // A demo that was cut short is not taken over by the next.
    command
        .run(&[&["migrate", "up"], &prefix[..]].concat())
        .succeeds();
    let refused = command.run_named(&["demo"]).fails(1);
    assert!(refused.contains("outbox migrate down"), "{refused}");
}

async fn the_bench_measures_and_leaves_nothing_behind<DB: Backend>(command: &Command<DB>) {
    let bench = ["bench", "--seconds", "1", "--batch", "3", "--json"];
    let measured = command.run(&bench).json();
    assert_eq!(measured["enqueued"], measured["delivered"], "{measured}");
    assert!(
        measured["enqueued_per_second"].as_f64().unwrap() > 0.0,
        "{measured}"
    );
    let prefix = ["--table-prefix", "outbox_bench_"];
    command
        .run(&[&["migrate", "status"], &prefix[..]].concat())
        .fails(4);
    let mut long = command.start(&["bench", "--seconds", "600"]);
    while command
        .run(&[&["migrate", "status"], &prefix[..]].concat())
        .code()
        != Some(0)
    {
        assert_eq!(long.try_wait().unwrap(), None, "it goes on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tell(&long, "TERM");
    assert_eq!(long.wait().unwrap().code(), Some(1), "interrupted");
    command
        .run(&[&["migrate", "status"], &prefix[..]].concat())
        .fails(4);
    let refused = command.run(&["bench", "--partitions", "3"]);
    assert!(refused.complains(2).contains("allowed are 1, 2, 4, 8"));
}

async fn tables_come_and_go<DB: Backend>(command: &Command<DB>) {
    let error = command.run(&["status"]).fails(4);
    assert!(error.contains("outbox migrate up"), "{error}");
    command.run(&["migrate", "status"]).fails(4);
    let up = command.run(&["migrate", "up"]).succeeds();
    assert_eq!(up, "version 0 → 1\n");
    assert_eq!(command.run(&["migrate", "up"]).succeeds(), "version 1\n");
    command.run(&["migrate", "status"]).succeeds();
    let other = ["--table-prefix", "other_"];
    for of_another in [&["migrate", "status"][..], &["status"]] {
        let error = command.run(&[&other[..], of_another].concat()).fails(4);
        assert!(
            error.contains("migrate up --table-prefix other_"),
            "{error}"
        );
    }
    command.run(&["migrate", "down"]).fails(2);
    let down = command.run(&["migrate", "down", "--yes"]).succeeds();
    assert_eq!(down, "removed\n");
    let kind = database_type(&command.url);
    let sql = command.run(&["migrate", "print", kind]).succeeds();
    assert!(
        sql.contains("CREATE TABLE") && sql.contains("outbox_messages"),
        "{sql}"
    );
}

async fn what_is_not_there_is_named<DB: Backend>(command: &Command<DB>) {
    command.run(&["migrate", "up"]).succeeds();
    command
        .run(&["enqueue", "orders", "x", "--create", "4"])
        .succeeds();
    for arguments in [
        &["peek", "Orders"][..],
        &["status", "Orders"],
        &["pause", "Orders"],
        &["enqueue", "Orders", "x"],
        &["skip", "Orders", "--partition", "0", "--reason", "x"],
        &["dead-letters", "list", "--queue", "Orders"],
    ] {
        let error = command.run(arguments).fails(5);
        assert!(error.contains("there is no queue \"Orders\""), "{error}");
        assert!(error.contains("there are: orders"), "{error}");
    }
    let error = command
        .run(&["peek", "orders", "--partition", "4"])
        .fails(5);
    assert!(error.contains("the highest is 3"), "{error}");
    let error = command.run(&["top"]).fails(2);
    assert!(error.contains("top needs a terminal"), "{error}");
    let error = command.run(&["dead-letters", "show", "7"]).fails(5);
    assert!(error.contains("there is no dead letter 7"), "{error}");
    command
        .run(&["skip", "orders", "--partition", "0", "--reason", "x"])
        .fails(5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demo_waits_for_orders_that_are_placed_late() {
    with_database(Server::Postgres, async |database| {
        let command = Command::<sqlx::Postgres>::at(database.url());
        let pool = Pool::<sqlx::Postgres>::connect(database.url()).await;
        let pool = pool.unwrap();
        // For longer than orders are placed: those that are under way are the last ones, and late. The table
        // is looked for by a scan, for a name that was not there once may be remembered as missing.
        let lock = "DO $$ BEGIN \
                    FOR tick IN 1..3000 LOOP \
                    EXIT WHEN EXISTS (SELECT FROM pg_class WHERE relname = 'outbox_demo_orders'); \
                    PERFORM pg_sleep(0.01); END LOOP; \
                    PERFORM pg_sleep(0.5); \
                    LOCK TABLE outbox_demo_orders IN SHARE MODE; \
                    PERFORM pg_sleep(2); END $$";
        let stranger = tokio::spawn(async move { sqlx::raw_sql(lock).execute(&pool).await });
        let demo = command.run_named(&["demo", "--seconds", "1", "--json"]);
        stranger.await.unwrap().unwrap();
        assert_eq!(demo.json()["agree"], true, "{demo:?}");
    })
    .await;
}

/// What is in the middle of its commit when the connection is lost may be there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_claims_to_know_of_a_commit_without_a_reply() {
    with_database(Server::Postgres, async |database| {
        let command = Command::<sqlx::Postgres>::at(database.url());
        command.run(&["migrate", "up"]).succeeds();
        let create = ["enqueue", "orders", "--create", "1"];
        command.run(&create).succeeds();
        let wire = Wire::to(database.url()).await;
        let command = Command::<sqlx::Postgres>::at(wire.url());
        wire.fail_on(b"COMMIT", Fault::LostReply, After::Cut);
        let lines = "{\"payload\": 1}\n{\"payload\": 2}\n";
        let error = command
            .run_with(&["enqueue", "orders", "--json-lines"], lines)
            .fails(3);
        let expected = "0 messages were enqueued; nobody knows about the 2 up to line 2";
        assert!(error.contains(expected), "{error}");
        let pool = Pool::<sqlx::Postgres>::connect(database.url()).await;
        let there = sqlx::query_scalar("SELECT COUNT(*) FROM outbox_messages");
        let there: i64 = there.fetch_one(&pool.unwrap()).await.unwrap();
        assert_eq!(there, 2);
    })
    .await;
}
