//! The relay, with the real command: what it delivers, and what it is told.

mod files;

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::command::{Command, Lines, on_every_database, tell};
use serde_json::Value;
use sqlx::Sqlite;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);

on_every_database!(a_relay_delivers_in_order_until_it_is_told_to_stop);

/// A folder with a configuration.
struct Folder(TempDir);

impl Folder {
    fn with(config: &str) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.write(config);
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn config(&self) -> String {
        self.path("outbox.toml").to_str().unwrap().to_owned()
    }

    fn write(&self, config: &str) {
        let here = self.0.path().to_str().unwrap();
        fs::write(self.path("outbox.toml"), config.replace("HERE", here)).unwrap();
    }

    /// The lines that were delivered to a file, once there are so many.
    fn delivered(&self, name: &str, count: usize) -> Vec<Value> {
        let until = Instant::now() + PATIENCE;
        loop {
            let text = fs::read_to_string(self.path(name)).unwrap_or_default();
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            let lines: Vec<Value> = whole
                .lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect();
            if lines.len() >= count {
                assert_eq!(lines.len(), count, "none twice when nothing fails");
                return lines;
            }
            assert!(Instant::now() < until, "{} of {count} came", lines.len());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A relay that runs.
struct Relay {
    process: Child,
    log: Lines,
}

impl Relay {
    fn start(config: &str, url: &str) -> Self {
        Self::start_to(Stdio::null(), config, url)
    }

    fn start_to(stdout: Stdio, config: &str, url: &str) -> Self {
        let mut process = std::process::Command::new(env!("CARGO_BIN_EXE_outbox"))
            .args(["relay", "--json", "--config", config])
            .env("OUTBOX_DATABASE_URL", url)
            .env_remove("RUST_LOG")
            .stderr(Stdio::piped())
            .stdout(stdout)
            .spawn()
            .unwrap();
        let log = Lines::of(process.stderr.take().unwrap());
        Self { process, log }
    }

    /// Reads its log until a line has this message.
    fn says(&mut self, message: &str) -> Value {
        self.log.until(message, |line| {
            let said: Value = serde_json::from_str(line).unwrap();
            let is_it = said["message"].as_str().unwrap().starts_with(message);
            is_it.then_some(said)
        })
    }

    fn stops(mut self) {
        tell(&self.process, "TERM");
        self.says("stopped");
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const TO_A_FILE: &str = r#"
[[database]]
name = "shop"
url = "${OUTBOX_DATABASE_URL}"

[[route]]
queues = ["orders"]
partitions = 4
[route.file]
path = "HERE/orders.jsonl"
"#;

/// Numbered messages of four keys.
fn enqueue<DB>(command: &Command<DB>, numbers: std::ops::Range<u32>) {
    let line = |number: u32| {
        let key = number % 4;
        format!("{{\"key\": \"k{key}\", \"type\": \"order.placed\", \"payload\": \"{number}\"}}\n")
    };
    let lines: String = numbers.map(line).collect();
    command
        .run_with(&["enqueue", "orders", "--json-lines"], &lines)
        .succeeds();
}

fn assert_in_order(delivered: &[Value], count: u32) {
    let mut keys = vec![Vec::new(); 4];
    for message in delivered {
        let number: u32 = message["payload"].as_str().unwrap().parse().unwrap();
        keys[number as usize % 4].push(number);
    }
    for (key, numbers) in keys.iter().enumerate() {
        let expected: Vec<u32> = (0..count)
            .filter(|number| *number as usize % 4 == key)
            .collect();
        assert_eq!(*numbers, expected);
    }
}

async fn a_relay_delivers_in_order_until_it_is_told_to_stop<DB>(command: &Command<DB>) {
    let folder = Folder::with(TO_A_FILE);
    let check = ["relay", "--check", "--config", &folder.config()];
    let refused = command.run(&check);
    assert!(refused.fails(4).contains("1 of 2 cannot be used yet"));
    assert!(
        refused
            .printed()
            .contains("make its tables with: outbox migrate up"),
        "{refused:?}"
    );

    let mut relay = Relay::start(&folder.config(), &command.url);
    relay.says("cannot start: there is no outbox in this database");
    command.run(&["migrate", "up"]).succeeds();
    let relaying = relay.says("relaying");
    assert_eq!(relaying["to"], "file");
    assert_eq!(relaying["database"], "shop");
    enqueue(command, 0..400);
    assert_in_order(&folder.delivered("orders.jsonl", 400), 400);
    relay.stops();

    enqueue(command, 400..500);
    assert_eq!(folder.delivered("orders.jsonl", 400).len(), 400);
    let relay = Relay::start(&folder.config(), &command.url);
    let delivered = folder.delivered("orders.jsonl", 500);
    assert_in_order(&delivered, 500);
    assert!(
        delivered[0]["identity"]
            .as_str()
            .unwrap()
            .starts_with("shop-")
    );
    relay.stops();
    command.run(&check).succeeds();
}

/// A database that needs no server.
fn sqlite(folder: &Folder, name: &str) -> Command<Sqlite> {
    let path = folder.path(name);
    let command = Command::at(&format!("sqlite://{}?mode=rwc", path.display()));
    command.run(&["migrate", "up"]).succeeds();
    command
}

#[test]
fn a_file_that_has_changed_is_followed_and_one_that_makes_no_sense_is_not() {
    let folder = Folder::with(TO_A_FILE);
    let command = sqlite(&folder, "shop.db");
    let mut relay = Relay::start(&folder.config(), &command.url);
    relay.says("relaying");
    enqueue(&command, 0..10);
    folder.delivered("orders.jsonl", 10);

    folder.write(&TO_A_FILE.replace("partitions = 4", "partitions = 3"));
    tell(&relay.process, "HUP");
    let refused = relay.says("not reloaded: ");
    let refused = refused["message"].as_str().unwrap();
    assert!(
        refused.contains("outbox.toml, line 8, route.partitions: "),
        "{refused}"
    );

    folder.write(&TO_A_FILE.replace("${OUTBOX_DATABASE_URL}", "postgre://shop"));
    tell(&relay.process, "HUP");
    let refused = relay.says("not reloaded: ");
    let refused = refused["message"].as_str().unwrap();
    let expected = "outbox.toml, line 4, database.url: there is no database \"postgre\"; ";
    assert!(refused.contains(expected), "{refused}");
    folder.write(TO_A_FILE);
    tell(&relay.process, "HUP");
    relay.says("reloaded: nothing has changed");
    enqueue(&command, 10..20);
    folder.delivered("orders.jsonl", 20);

    folder.write(&TO_A_FILE.replace("orders.jsonl", "others.jsonl"));
    tell(&relay.process, "HUP");
    relay.says("reloaded");
    relay.says("relaying");
    enqueue(&command, 20..30);
    folder.delivered("others.jsonl", 10);
    relay.stops();
}

#[test]
fn what_fails_is_logged_and_so_is_its_end() {
    let folder = Folder::with(&TO_A_FILE.replace("orders.jsonl", "later/orders.jsonl"));
    let command = sqlite(&folder, "shop.db");
    let mut relay = Relay::start(&folder.config(), &command.url);
    relay.says("relaying");
    enqueue(&command, 0..40);
    let failed = relay.says("a delivery failed and is tried again");
    assert_eq!(
        (&failed["queue"], &failed["attempts"]),
        (&"orders".into(), &1.into())
    );
    assert!(
        failed["error"]
            .as_str()
            .unwrap()
            .contains("later/orders.jsonl"),
        "{failed}"
    );
    fs::create_dir(folder.path("later")).unwrap();
    relay.says("deliveries go on");
    assert_in_order(&folder.delivered("later/orders.jsonl", 40), 40);
    relay.stops();
}

#[test]
fn a_reader_that_has_stalled_does_not_keep_the_relay() {
    let to_stdout = TO_A_FILE.replace(
        "[route.file]\npath = \"HERE/orders.jsonl\"",
        "[route.stdout]",
    );
    let folder = Folder::with(&format!("stop_deadline = \"1s\"\n{to_stdout}"));
    let command = sqlite(&folder, "shop.db");
    let mut relay = Relay::start_to(Stdio::piped(), &folder.config(), &command.url);
    relay.says("relaying");
    // More than a pipe holds.
    enqueue(&command, 0..2_000);
    let until = Instant::now() + PATIENCE;
    loop {
        let status = command.run(&["status", "--json"]).json();
        let cursors = status["partitions"].as_array().unwrap().iter();
        let settled: i64 = cursors
            .map(|one| one["processed_seq"].as_i64().unwrap())
            .sum();
        if settled > 0 {
            break;
        }
        assert!(Instant::now() < until, "nothing is written: {status}");
    }
    relay.stops();
}

#[test]
fn shards_are_served_together_and_one_that_is_away_holds_up_none() {
    let folder = Folder::with(
        r#"
[[database]]
name = "east"
url = "sqlite://HERE/east.db"
[[database]]
name = "west"
url = "sqlite://HERE/west.db"
[[route]]
queues = ["orders"]
partitions = 4
[route.file]
path = "HERE/orders.jsonl"
"#,
    );
    let east = sqlite(&folder, "east.db");
    let mut relay = Relay::start(&folder.config(), "");
    assert_eq!(relay.says("relaying")["database"], "east");
    enqueue(&east, 0..20);
    folder.delivered("orders.jsonl", 20);
    let west = sqlite(&folder, "west.db");
    assert_eq!(relay.says("relaying")["database"], "west");
    enqueue(&west, 0..20);
    let delivered = folder.delivered("orders.jsonl", 40);
    let mut identities: Vec<&str> = delivered
        .iter()
        .map(|line| line["identity"].as_str().unwrap())
        .collect();
    identities.sort_unstable();
    identities.dedup();
    assert_eq!(
        identities.len(),
        40,
        "numbers are those of a database, identities are not"
    );
    relay.stops();

    // Whoever operates one of them says which.
    let config = ["--config", &folder.config()];
    let nobody: Command<Sqlite> = Command::at("");
    let which = nobody.run_without_url(&[&["status"], &config[..]].concat());
    assert!(which.fails(2).contains("which database? "), "{which:?}");
    let west = nobody
        .run_without_url(&[&["status", "--json", "--database", "west"], &config[..]].concat());
    assert_eq!(west.json()["partitions"].as_array().unwrap().len(), 4);
    let north = nobody.run_without_url(&[&["status", "--database", "north"], &config[..]].concat());
    assert!(north.fails(2).contains("there are: east, west"));
}
