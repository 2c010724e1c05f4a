//! What the relay says of its file, of what is wrong in it, and of options beside it.

use std::fs;

use crate::command::Command;
use sqlx::Sqlite;

use super::{Folder, sqlite};

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
    let nobody = format!("127.0.0.1:{}", testbed::free_port());
    let url = |scheme: &str| format!("url = \"{scheme}://me:s3cret@{nobody}\"");
    let mut brokers = vec![
        ("http", url("http")),
        ("nats", format!("{}\nstream = \"S\"", url("nats"))),
        ("rabbitmq", url("amqp")),
        ("redis", url("redis")),
        ("mqtt", url("mqtt")),
    ];
    if cfg!(feature = "kafka") {
        let password = "set = { \"sasl.password\" = \"s3cret\" }";
        let kafka = format!("servers = \"{nobody}\"\ntimeout = \"3s\"\n{password}");
        brokers.push(("kafka", kafka));
    }
    for (broker, settings) in brokers {
        let folder = Folder::with(&format!(
            "[[database]]\nname = \"shop\"\nurl = \"${{OUTBOX_DATABASE_URL}}\"\nmigrate = true\n\
             [[route]]\nqueues = [\"orders\"]\n[route.{broker}]\n{settings}\n"
        ));
        let command = sqlite(&folder, "shop.db");
        let check = command.run(&["relay", "--check", "--config", &folder.config()]);
        let complaint = check.fails(6);
        let expected = format!("{}: 1 of 2 cannot be used yet", folder.config());
        assert!(complaint.contains(&expected), "{complaint}");
        let printed = check.printed();
        let start = format!("orders → {broker}  ");
        let line = printed.lines().find(|line| line.starts_with(&start));
        let line = line.unwrap_or_else(|| panic!("{broker}: {printed}"));
        assert!(line.contains(&nobody), "{line}");
        let said = format!("{complaint}{printed}");
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
        (
            refused(
                "[[database]]\nname = \"b\"\nurl = \"postgre://me:s3cret@x/y\"\n[[route]]\nqueues = [\"a\"]\n[route.stdout]\n",
            ),
            "outbox: outbox.toml, line 3, database.url: there is no database \"postgre\"; it begins with ",
        ),
        (
            refused(
                "[[database]]\nname = \"b\"\nurl = \"mysql://me:s3/cret@x/y\"\n[[route]]\nqueues = [\"a\"]\n[route.stdout]\n",
            ),
            "outbox: outbox.toml, line 3, database.url: the database's URL cannot be read: invalid port number; ",
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
        assert!(!said.contains("s3"), "{said}");
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
    // Whoever says it, says it, also if the environment says the same.
    for (variable, option, value) in [
        ("OUTBOX_DATABASE_URL", "--database-url", &*command.url),
        ("OUTBOX_TABLE_PREFIX", "--table-prefix", "other_"),
        ("OUTBOX_USERS", "--users", "no-such-file"),
    ] {
        let check = ["relay", "--check", "--config", &folder.config()];
        let said = command.run_among(
            &[(variable, value)],
            &[&check[..], &[option, value]].concat(),
        );
        let said = said.fails(2);
        assert!(said.contains(option), "{option}: {said}");
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

    // What the environment says too is said all the same.
    let same = [("OUTBOX_CONFIG", &*config)];
    let of_b = a.run_among(&same, &status).succeeds();
    assert!(of_b.contains("of-b") && !of_b.contains("of-a"), "{of_b}");
    let of_a = a.run_among(&same, &["status", "--json"]).succeeds();
    assert!(of_a.contains("of-a") && !of_a.contains("of-b"), "{of_a}");
    let named = ["--database-url", &a.url];
    let of_a = a.run(&[&status[..], &named].concat()).succeeds();
    assert!(of_a.contains("of-a") && !of_a.contains("of-b"), "{of_a}");
    let left = ["migrate", "up", "--table-prefix", "outbox_demo_"];
    a.run(&left).succeeds();
    let demo = ["demo", "--seconds", "1", "--database-url", &a.url];
    let refused = a.run(&demo).fails(1);
    assert!(refused.contains("outbox migrate down"), "{refused}");
}

#[test]
fn a_variable_that_is_empty_says_nothing() {
    let folder =
        Folder::with("[[database]]\nname = \"b\"\nurl = \"sqlite://HERE/b.db?mode=rwc\"\n");
    let b = sqlite(&folder, "b.db");
    b.run(&["enqueue", "of-b", "x", "--create", "1"]).succeeds();
    let empty = [
        "OUTBOX_DATABASE_URL",
        "OUTBOX_CONFIG",
        "OUTBOX_TABLE_PREFIX",
    ];
    let empty = empty.map(|variable| (variable, ""));
    let of_b = b.run_among(&empty, &["status", "--config", &folder.config()]);
    assert!(of_b.succeeds().contains("of-b"), "{of_b:?}");
    let which = b.run_among(&empty, &["status"]).fails(2);
    assert!(which.contains("which database? "), "{which}");
}
