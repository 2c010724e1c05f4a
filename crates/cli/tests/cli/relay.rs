//! The relay, with the real command: what it delivers, what it is told, and what it says of bad files.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Stdio};
use std::time::{Duration, Instant};

use crate::command::{Command, on_every_database, tell};
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
    log: BufReader<ChildStderr>,
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
        let log = BufReader::new(process.stderr.take().unwrap());
        Self { process, log }
    }

    /// Reads its log until a line has this message.
    fn says(&mut self, message: &str) -> Value {
        let mut all = String::new();
        loop {
            let mut line = String::new();
            let read = self.log.read_line(&mut line).unwrap();
            assert!(read > 0, "it never said {message:?}: {all}");
            let said: Value = serde_json::from_str(&line).unwrap();
            if said["message"].as_str().unwrap().starts_with(message) {
                return said;
            }
            all.push_str(&line);
        }
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
    relay.says("not reloaded: there is no database \"postgre\"");
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

#[test]
fn a_configuration_to_begin_with_is_written_once_and_works() {
    let folder = Folder(tempfile::tempdir().unwrap());
    let command = sqlite(&folder, "shop.db");
    let init = ["relay", "--init", "--config", &folder.config()];
    assert!(command.run(&init).succeeds().starts_with("wrote "));
    assert!(command.run(&init).fails(5).contains("is there already"));
    let check = ["relay", "--check", "--config", &folder.config()];
    let ready = command.run(&check).succeeds();
    assert!(
        ready.contains("ready; it will get the queue \"orders\" with 8 partitions"),
        "{ready}"
    );
    let json = command.run(&[&check[..], &["--json"]].concat()).json();
    assert_eq!(json["checks"][1]["ok"], true);

    // Whatever is shown there as a possibility is one.
    let mut text = fs::read_to_string(folder.config()).unwrap();
    while let Some(begin) = text
        .rfind("${")
        .filter(|begin| !text[*begin..].starts_with("${OUTBOX_"))
    {
        let end = begin + text[begin..].find('}').unwrap() + 1;
        text.replace_range(begin..end, "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0");
    }
    let plain = |line: &str| match line.strip_prefix('#') {
        Some(rest)
            if rest.starts_with(|first: char| first.is_ascii_lowercase() || first == '[') =>
        {
            rest.to_owned()
        }
        _ => line.to_owned(),
    };
    let settings: Vec<String> = text.lines().map(plain).collect();
    let first = settings
        .iter()
        .position(|line| line.starts_with("[route."))
        .unwrap();
    let sections = settings[first..]
        .split(|line| line.starts_with("[route."))
        .skip(1);
    let titles = settings[first..]
        .iter()
        .filter(|line| line.starts_with("[route."));
    for (title, section) in titles.zip(sections) {
        let only = [&settings[..first], std::slice::from_ref(title), section]
            .concat()
            .join("\n");
        fs::write(
            folder.config(),
            only.replace("orders.jsonl", folder.path("o").to_str().unwrap()),
        )
        .unwrap();
        let checked = command.run(&check);
        let left_out = title == "[route.kafka]" && !cfg!(feature = "kafka");
        let possible: &[i32] = if left_out { &[2] } else { &[0, 6] };
        assert!(
            possible.contains(&checked.code().unwrap()),
            "{title}: {checked:?}"
        );
    }
}

#[test]
fn a_broker_that_cannot_be_reached_is_named_and_its_password_is_not() {
    let nobody = testbed::free_port();
    for broker in ["nats", "redis", "rabbitmq", "mqtt"] {
        let (scheme, more) = match broker {
            "nats" => ("nats", "stream = \"S\""),
            "rabbitmq" => ("amqp", ""),
            scheme => (scheme, ""),
        };
        let folder = Folder::with(&format!(
            "[[database]]\nname = \"shop\"\nurl = \"${{OUTBOX_DATABASE_URL}}\"\n\
             [[route]]\nqueues = [\"orders\"]\n\
             [route.{broker}]\nurl = \"{scheme}://me:s3cret@127.0.0.1:{nobody}\"\n{more}\n"
        ));
        let command = sqlite(&folder, "shop.db");
        let check = command.run(&["relay", "--check", "--config", &folder.config()]);
        let said = format!("{}{}", check.fails(6), check.printed());
        assert!(said.contains(&format!("orders → {broker}  ")), "{said}");
        assert!(!said.contains("s3cret"), "{said}");
    }
}

fn refused(config: &str) -> String {
    let folder = Folder::with(config);
    let nobody: Command<Sqlite> = Command::at("sqlite://nowhere.db");
    let refused = nobody
        .run(&["relay", "--check", "--config", &folder.config()])
        .fails(2);
    let here = folder.path("").to_str().unwrap().to_owned();
    refused.replace(&here, "").trim_end().to_owned()
}

#[test]
fn what_is_wrong_in_a_file_is_said_with_its_line_and_key() {
    const DATABASE: &str = "[[database]]\nname = \"shop\"\nurl = \"sqlite://x.db\"\n";
    let with = |rest: &str| refused(&format!("{DATABASE}{rest}"));
    let cases = [
        (refused(""), "outbox: outbox.toml: there is no [[database]]"),
        (with(""), "outbox: outbox.toml: there is no [[route]]"),
        (
            with("[[route]]\nqueues = [\"orders\"]\ncolour = \"red\"\n"),
            "outbox: outbox.toml, line 6, route.colour: unknown field `colour`, expected one of ",
        ),
        (
            with("[[route]]\nqueues = [\"no good\"]\n"),
            "outbox: outbox.toml, line 5, route.queues: \"no good\" is no name: ",
        ),
        (
            with("[[route]]\nqueues = [\"orders\"]\n"),
            "outbox: outbox.toml, line 5, route.queues: where to? It needs one of [route.stdout], ",
        ),
        (
            with("[[route]]\nqueues = [\"orders\"]\n[route.stdout]\n[route.file]\npath = \"x\"\n"),
            "outbox: outbox.toml, line 7, route.file: it goes to stdout already; ",
        ),
        (
            with("[[route]]\nqueues = [\"a\", \"a\"]\n[route.stdout]\n"),
            "outbox: outbox.toml, line 5, route.queues: \"a\" has a route already: ",
        ),
        (
            with("[[route]]\nqueues = [\"a\"]\ndatabases = [\"shoe\"]\n[route.stdout]\n"),
            "outbox: outbox.toml, line 6, route.databases: there is no database with the name \"shoe\"",
        ),
        (
            with("[[route]]\nqueues = [\"a\"]\nlease = \"soon\"\n[route.stdout]\n"),
            "outbox: outbox.toml, line 6, route.lease: ",
        ),
        (
            with("[[route]]\nqueues = [\"a\"]\n[route.http]\nurl = \"https://x.example/{id}\"\n"),
            "outbox: outbox.toml, line 7, route.http.url: template \"…\": there is no {id}; ",
        ),
        (
            with(
                "[[route]]\nqueues = [\"a\"]\n[route.http]\ntimeout = \"1s\"\nurl = \"ftp://x\"\n",
            ),
            "outbox: outbox.toml, line 8, route.http.url: url is \"…\", but must be an http",
        ),
        (
            with("[[route]]\nqueues = [\"a\"]\n[route.http]\nurl = \"${NO_SUCH_VARIABLE}\"\n"),
            "outbox: outbox.toml, line 7, route.http.url: the environment has no variable \"NO_SUCH_VARIABLE\"",
        ),
        (
            with(
                "[[database]]\nname = \"shop\"\nurl = \"x\"\n[[route]]\nqueues = [\"a\"]\n[route.stdout]\n",
            ),
            "outbox: outbox.toml, line 5, database.name: there are two databases with the name \"shop\"",
        ),
        (
            with(
                "[[database]]\nname = \"b\"\nurl = \"x\"\n[[route]]\nqueues = [\"a\"]\ndatabases = [\"b\"]\n[route.stdout]\n",
            ),
            "outbox: outbox.toml, line 2, database.name: no route has messages of this database",
        ),
        (with("[[route]\n"), "outbox: outbox.toml, line 4, "),
        (
            with("[route]\nqueues = [\"a\"]\n"),
            "outbox: outbox.toml, line 4, route: invalid type: map, expected a sequence; write it with two brackets",
        ),
        (
            with("[[route]]\nqueues = \"a\"\n"),
            "outbox: outbox.toml, line 5, route.queues: invalid type: text, expected a sequence; write a list",
        ),
        (
            with("[[route]]\nqueues = [\"a\"]\nlease = 30\n"),
            "outbox: outbox.toml, line 6, route.lease: invalid type: integer `30`, expected a string; write it in quotes",
        ),
        (
            with("[[route]]\nqueues = [\"a\"]\nlease = \"1ms\"\n[route.stdout]\n"),
            "outbox: outbox.toml, line 6, route.lease: 1ms is too short: it must be 5s or longer",
        ),
        (
            with(
                "[[route]]\nqueues = [\"a\"]\nlease = \"20s\"\n[route.redis]\nurl = \"redis://x\"\ntimeout = \"20s\"\n",
            ),
            "outbox: outbox.toml, line 9, route.redis.timeout: a broker's timeout of 20s is not shorter than 18s, the time for publishing within the route's lease of 20s",
        ),
        (
            with(
                "[[route]]\nqueues = [\"a\"]\nlease = \"5s\"\n[route.redis]\nurl = \"redis://x\"\n",
            ),
            "outbox: outbox.toml, line 7, route.redis: a broker's timeout of 10s is not shorter than 3.75s, ",
        ),
        (
            with(
                "[[route]]\nqueues = [\"a\"]\n[route.redis] # or [route.nats]\nurll = \"redis://x\"\n",
            ),
            "outbox: outbox.toml, line 7, route.redis.urll: unknown field `urll`",
        ),
        (
            with("[[route]]\nqueues = [\"a\"]\n[route.file]\npath = \"\"\n"),
            "outbox: outbox.toml, line 7, route.file.path: path is \"\", but must be one file",
        ),
        (
            with(
                "[[route]]\nqueues = [\"a\"]\n[route.file]\npath = \"x\"\n[[route]]\nqueues = [\"b\"]\n[route.file]\npath = \"x\"\n",
            ),
            "outbox: outbox.toml, line 11, route.file.path: another route writes to \"x\"",
        ),
        (
            with("[[route]]\nqueues = [\"a\"]\n[route.file]\npath = \"{queue}.jsonl\"\n"),
            "outbox: outbox.toml, line 7, route.file.path: path is \"{queue}.jsonl\", but must be one file",
        ),
        (
            with("[log]\nlevel = \"loud\"\n"),
            "outbox: outbox.toml, line 5, log.level: \"loud\" is no level",
        ),
        (
            with("[log]\nformat = \"xml\"\n"),
            "outbox: outbox.toml, line 5, log.format: unknown variant `xml`, expected `text` or `json`",
        ),
    ];
    for (said, expected) in cases {
        assert!(said.starts_with(expected), "{said}\nis not\n{expected}");
    }
    let nobody: Command<Sqlite> = Command::at("x");
    let missing = nobody.run(&["relay", "--config", "no-such.toml"]).fails(2);
    assert!(
        missing.contains("cannot read no-such.toml") && missing.contains("--init"),
        "{missing}"
    );
}

#[test]
fn what_has_no_effect_on_a_relay_is_refused() {
    let folder = Folder::with(
        "[[database]]\nname = \"shop\"\nurl = \"${OUTBOX_DATABASE_URL}\"\n\
         [[route]]\nqueues = [\"orders\"]\n[route.stdout]\n",
    );
    let command = sqlite(&folder, "shop.db");
    for (more, told) in [
        (&["--database-url", "sqlite://x.db"][..], "--database-url"),
        (&["--table-prefix", "other_"], "--table-prefix"),
        (&["--database", "shop"], "--database"),
        (&["--operator"], "--dashboard 127.0.0.1:8080"),
        (&["--users", "no-such-file"], "--dashboard 127.0.0.1:8080"),
        (
            &["--dashboard", "127.0.0.1:1", "--users", "no-such-file"],
            "cannot read the users",
        ),
        (&["--dashboard", "0.0.0.0:1"], "--users FILE"),
    ] {
        let check = ["relay", "--check", "--config", &folder.config()];
        let said = command.run(&[&check, more].concat()).fails(2);
        assert!(said.contains(told), "{more:?}: {said}");
    }
}

/// Whoever names a database means that one, whatever the environment says.
#[test]
fn the_command_line_goes_before_the_environment() {
    let folder =
        Folder::with("[[database]]\nname = \"b\"\nurl = \"sqlite://HERE/b.db?mode=rwc\"\n");
    let (a, b) = (sqlite(&folder, "a.db"), sqlite(&folder, "b.db"));
    for (command, queue) in [(&a, "of-a"), (&b, "of-b")] {
        command.run(&["migrate", "up"]).succeeds();
        let enqueue = ["enqueue", queue, "x", "--create", "1"];
        command.run(&enqueue).succeeds();
    }
    let config = folder.config();
    let status = ["status", "--json", "--config", &config];
    let of_b = a.run(&status).succeeds();
    assert!(of_b.contains("of-b") && !of_b.contains("of-a"), "{of_b}");
    let of_b = a
        .run(&[&status[..], &["--database", "b"]].concat())
        .succeeds();
    assert!(of_b.contains("of-b") && !of_b.contains("of-a"), "{of_b}");
    let of_a = a.run_named(&status).succeeds();
    assert!(of_a.contains("of-a") && !of_a.contains("of-b"), "{of_a}");
    let both = a.run_named(&[&status[..], &["--database", "b"]].concat());
    let error = both.fails(2);
    assert!(error.contains("each name a database"), "{error}");
}
