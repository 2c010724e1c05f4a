//! What a command does beside its answer: colours, files, what it prints for shells and for `man`, and how it
//! goes on until somebody has seen enough.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;

use sqlx::Sqlite;
use tempfile::TempDir;

use crate::command::{Command, Lines, tell};

const INTERRUPT: i32 = 2;

/// An outbox with a queue, in a folder.
fn outbox() -> (TempDir, Command<Sqlite>) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shop.db");
    let command = Command::at(&format!("sqlite://{}?mode=rwc", file.display()));
    command.run(&["migrate", "up"]).succeeds();
    command
        .run(&["enqueue", "orders", "--create", "1"])
        .succeeds();
    (folder, command)
}

#[test]
fn colours_are_for_whoever_wants_them() {
    let (_folder, command) = outbox();
    let coloured = |variables: &[(&str, &str)], more: &[&str]| {
        let shown = command.run_among(variables, &[&["status"], more].concat());
        shown.succeeds().contains('\u{1b}')
    };
    let (no, force) = (("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1"));
    assert!(!coloured(&[], &[]), "a pipe");
    assert!(coloured(&[], &["--color", "always"]));
    assert!(coloured(&[no], &["--color", "always"]), "said is said");
    assert!(coloured(&[force], &[]));
    assert!(!coloured(&[no, force], &[]));
    assert!(!coloured(&[force], &["--color", "never"]));
    assert!(
        !coloured(&[force], &["--json"]),
        "nothing in JSON is a colour"
    );
}

/// A log is coloured as everything else is.
#[test]
fn a_log_has_colours_for_whoever_wants_them() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("outbox.toml");
    let nowhere = "[[database]]\nname = \"shop\"\nurl = \"sqlite:///no/such/file\"\n";
    let route = "[[route]]\nqueues = [\"orders\"]\n[route.stdout]\n";
    fs::write(&config, format!("{nowhere}{route}")).unwrap();
    let relay = ["relay", "--config", config.to_str().unwrap()];
    let nobody: Command<Sqlite> = Command::at("");
    for (when, coloured) in [("always", true), ("auto", false), ("never", false)] {
        let mut running = nobody.start(&[&relay[..], &["--color", when]].concat());
        let log = Lines::of(running.stderr.take().unwrap());
        let line = log.until("a line", |line| Some(line.to_owned()));
        running.kill().unwrap();
        running.wait().unwrap();
        assert!(line.contains("cannot start"), "{line}");
        assert_eq!(line.contains('\u{1b}'), coloured, "{when}: {line}");
    }
}

#[test]
fn a_demo_shows_how_fast_it_is() {
    let nobody: Command<Sqlite> = Command::at("");
    let demo = nobody.run_without_url(&["demo", "--seconds", "4"]);
    let shown = demo.complained();
    assert_eq!(demo.code(), Some(0), "{demo:?}");
    let counted = |line: &&str| line.contains(" per second, ") && !line.contains(" 0 per second");
    assert!(shown.lines().any(|line| counted(&line)), "{shown}");
    assert!(demo.printed().contains("nothing lost"), "{demo:?}");
}

#[test]
fn a_status_that_is_watched_comes_again_until_it_is_interrupted() {
    let (_folder, command) = outbox();
    for (more, head) in [(&["--json"][..], "{\"at\":"), (&[], "queue ")] {
        let watch = ["status", "--watch", "--every", "100ms"];
        let mut watching = command.start(&[&watch[..], more].concat());
        let lines = Lines::of(watching.stdout.take().unwrap());
        for time in ["once", "again"] {
            lines.until(time, |line| line.starts_with(head).then_some(()));
        }
        tell(&watching, "INT");
        let ended = watching.wait().unwrap();
        assert_eq!(ended.signal(), Some(INTERRUPT), "{ended}");
    }
}

#[test]
fn a_file_is_enqueued_as_it_is() {
    let (folder, command) = outbox();
    let path = folder.path().join("cat.png");
    fs::write(&path, [0x89, b'P', b'N', b'G', 0, 255]).unwrap();
    let enqueue = ["enqueue", "orders", "--type", "image/png", "--file"];
    let file = path.to_str().unwrap();
    let done = command.run(&[&enqueue[..], &[file]].concat());
    assert_eq!(done.succeeds(), "1 message enqueued\n");
    let done = command.run_with(&[&enqueue[..], &["-"]].concat(), "from a pipe");
    assert_eq!(done.succeeds(), "1 message enqueued\n");
    let missing = command.run(&[&enqueue[..], &["/no/such/file"]].concat());
    let missing = missing.fails(2);
    assert!(missing.contains("cannot read /no/such/file: "), "{missing}");
    let both = command.run(&[&enqueue[..], &[file, "--json-lines"]].concat());
    assert!(both.complains(2).contains("cannot be used with"));
    let database = command.url.strip_prefix("sqlite://").unwrap();
    let database = database.split('?').next().unwrap();
    let stored = fs::read(database).unwrap();
    let wal = fs::read(format!("{database}-wal")).unwrap_or_default();
    let stored = [stored, wal].concat();
    let holds = |wanted: &[u8]| stored.windows(wanted.len()).any(|some| some == wanted);
    assert!(holds(&[0x89, b'P', b'N', b'G', 0, 255]) && holds(b"from a pipe"));
}

#[test]
fn shells_and_man_know_every_command() {
    let nobody: Command<Sqlite> = Command::at("");
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = nobody.run_without_url(&["completions", shell]).succeeds();
        for word in ["dead-letters", "requeue", "relay", "--database-url"] {
            let word = word.trim_start_matches("--");
            assert!(script.contains(word), "{shell} lacks {word}");
        }
    }
    let refused = nobody.run_without_url(&["completions", "cmd"]);
    assert!(refused.complains(2).contains("possible values: bash"));
    let folder = tempfile::tempdir().unwrap();
    let man = ["man", folder.path().to_str().unwrap()];
    nobody.run_without_url(&man).succeeds();
    for (page, told) in [
        ("outbox.1", "transactional outbox"),
        ("outbox-relay.1", "SIGTERM"),
        ("outbox-dead-letters-cleanup.1", "dry"),
    ] {
        let text = fs::read_to_string(folder.path().join(page)).unwrap();
        assert!(
            text.starts_with(".ie") && text.contains(told),
            "{page}: {text}"
        );
    }
    let nowhere = nobody.run_without_url(&["man", "/no/such/folder"]);
    let nowhere = nowhere.fails(2);
    assert!(
        nowhere.contains("cannot write to /no/such/folder"),
        "{nowhere}"
    );
}
