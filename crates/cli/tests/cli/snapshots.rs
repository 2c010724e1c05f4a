//! What commands print, for people and for programs, as it is kept in tests/output. After a change: `TRYCMD=overwrite
//! cargo test -p outbox-cli --test cli snapshots`, and read the difference.

use std::fs;
use std::path::Path;

use sqlx::{AssertSqlSafe, Connection as _, Sqlite, SqliteConnection};

use crate::command::Command;
use crate::operations::{sum, until, worker};

/// What is printed of a file, and where that is kept.
const PAGES: [(&str, &[&[&str]]); 8] = [
    ("status", &[&["status"], &["status", "orders"]]),
    (
        "peek",
        &[
            &["peek", "orders"],
            &["peek", "orders", "--as", "hex", "--partition", "1"],
            &["peek", "mail"],
        ],
    ),
    (
        "dead-letters-list",
        &[
            &["dead-letters", "list"],
            &["dead-letters", "list", "--status", "discarded"],
            &["dead-letters", "list", "--limit", "1"],
        ],
    ),
    (
        "dead-letters-show",
        &[
            &["dead-letters", "show", "1"],
            &["dead-letters", "show", "2", "--as", "json"],
        ],
    ),
    (
        "dead-letters-cleanup",
        &[&["dead-letters", "cleanup", "--dry-run"]],
    ),
    ("doctor", &[&["doctor"]]),
    ("migrate-status", &[&["migrate", "status"]]),
    ("audit", &[&["audit"], &["audit", "--limit", "1"]]),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_printed_is_what_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shop.db");
    let url = format!("sqlite://{}", file.display());
    let command = Command::<Sqlite>::at(&format!("{url}?mode=rwc"));
    let operator = [("USER", "ada")];
    let run = |arguments: &[&str]| command.run_among(&operator, arguments);
    furnish(&command, &run).await;
    for (name, pages) in PAGES {
        let mut printed = String::new();
        for page in pages {
            for more in [&[][..], &["--json"]] {
                let arguments = [page, more].concat();
                let ran = run(&arguments);
                let (code, shown) = (ran.code().unwrap(), arguments.join(" "));
                let code = match code {
                    0 => String::new(),
                    code => format!("? {code}\n"),
                };
                let text = redacted(&format!("{}{}", ran.printed(), ran.complained()));
                printed.push_str(&format!("```\n$ outbox {shown}\n{code}{text}```\n\n"));
            }
        }
        assert_kept(name, printed.trim_end());
    }
}

/// Two queues, messages that wait, dead letters in two states, and an operator who has done something.
async fn furnish(command: &Command<Sqlite>, run: &impl Fn(&[&str]) -> crate::command::Ran) {
    run(&["migrate", "up"]).succeeds();
    run(&["enqueue", "mail", "--create", "1"]).succeeds();
    let worker = worker::<Sqlite>(&command.url).await;
    run(&["pause", "orders", "--reason", "ticket 7"]).succeeds();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), [0, 159, 146, 150]).unwrap();
    let file = file.path().to_str().unwrap();
    for message in [
        &["{\"order\": 41}", "--partition", "1"][..],
        &["{\"order\": [42, 1.10]}", "--partition", "1"],
        &[
            "{\"order\": 43}",
            "--partition",
            "1",
            "--header",
            "trace=a1",
        ],
        &["a loom", "--key", "ada", "--type", "text/plain"],
        &["--file", file, "--type", "image/png", "--partition", "3"],
    ] {
        run(&[&["enqueue", "orders"], message].concat()).succeeds();
    }
    until(command, "all have numbers", |all| sum(all, "pending") == 5).await;
    worker.stop().await;
    for reason in ["address unknown", "a\nsecond\u{1b}[2J line"] {
        let skip = ["skip", "orders", "--partition", "1", "--yes", "--reason"];
        run(&[&skip[..], &[reason]].concat()).succeeds();
    }
    let discard = ["dead-letters", "discard", "1", "--yes", "--reason", "sold"];
    run(&discard).succeeds();
    // All of it happened three and a half hours ago: ages have one unit, and stay what they are for a while.
    let url = command.url.split('?').next().unwrap();
    let mut connection = SqliteConnection::connect(url).await.unwrap();
    for (table, column) in [
        ("messages", "created_at"),
        ("dead_letters", "created_at"),
        ("dead_letters", "failed_at"),
        ("dead_letters", "completed_at"),
        ("audit", "at"),
    ] {
        let earlier = format!(
            "UPDATE outbox_{table} SET {column} = {column} - 12600000 WHERE {column} IS NOT NULL"
        );
        let earlier = sqlx::raw_sql(AssertSqlSafe(earlier));
        earlier.execute(&mut connection).await.unwrap();
    }
    // How often partitions changed hands until they were paused is left to chance.
    let epochs = sqlx::raw_sql("UPDATE outbox_processors SET epoch = partition_id");
    epochs.execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

/// What a text looks like that is another one every time, and what it is called. A 0 stands for any digit.
const PASSING: [(&str, &str); 2] = [
    ("0000-00-00T00:00:00.000Z", "[TIME]"),
    ("oldest for 00000 s", "oldest for [AGE]"),
];

/// The same with what is another every time named alike.
fn redacted(text: &str) -> String {
    let is_like = |some: &str, like: &str| {
        let mut pairs = some.chars().zip(like.chars());
        pairs.all(|(one, like)| match like {
            '0' => one.is_ascii_digit(),
            like => one == like,
        })
    };
    let (mut redacted, mut rest) = (String::new(), text);
    while let Some(first) = rest.chars().next() {
        let found = PASSING.iter().find(|(like, _)| {
            let some = rest.get(..like.len());
            some.is_some_and(|some| is_like(some, like))
        });
        let length = match found {
            Some((like, name)) => {
                redacted.push_str(name);
                like.len()
            }
            None => {
                redacted.push(first);
                first.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    redacted
}

fn assert_kept(name: &str, printed: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/output");
    let path = folder.join(format!("{name}.md"));
    let printed = format!("{printed}\n");
    if std::env::var("TRYCMD").as_deref() == Ok("overwrite") {
        fs::create_dir_all(&folder).unwrap();
        fs::write(&path, &printed).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == printed,
        "{name} prints\n{printed}\nand {} has\n{kept}",
        path.display()
    );
}
