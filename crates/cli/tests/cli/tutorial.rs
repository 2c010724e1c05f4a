//! Walks through `docs/tutorial.md`: writes the files it shows, runs what it runs, and wants to see what it
//! shows.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use testbed::{Program, Server, announce, broker_takes_part, free_port, with_database};

const TUTORIAL: &str = include_str!("../../../../docs/tutorial.md");
/// How long the walk may take, on a busy machine, and what `timeout` says if it takes longer.
const PATIENCE: Duration = Duration::from_secs(180);
const OVERDUE: i32 = 124;
/// Between what two blocks print.
const MARK: &str = "-- the next block --";
/// A virtual environment's interpreter: scripts/any-language makes it.
const PYTHON: &str = "OUTBOX_TEST_PYTHON";

/// A fenced block: what stands behind its fence, and its lines.
struct Block<'a> {
    info: &'a str,
    text: String,
}

fn blocks(document: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        if let Some(info) = line.strip_prefix("```") {
            let inside = lines.by_ref().take_while(|line| *line != "```");
            let text = inside.map(|line| format!("{line}\n")).collect();
            blocks.push(Block { info, text });
        }
    }
    blocks
}

/// Whether a line is as shown, where `…` stands for anything.
fn is_as_shown(line: &str, shown: &str) -> bool {
    let mut parts = shown.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else {
        return false;
    };
    let mut last = None;
    for part in parts {
        let Some((_, after)) = rest.split_once(part) else {
            return false;
        };
        (rest, last) = (after, Some(part));
    }
    last == Some("") || rest.is_empty()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tutorial_shows_what_happens() {
    let Some(python) = std::env::var_os(PYTHON) else {
        announce("SKIPPED the tutorial: it needs Python (scripts/any-language gets what it needs)");
        return;
    };
    if !broker_takes_part("nats", "nats-server") {
        return;
    }
    with_database(Server::Postgres, async |database| {
        walk(database.url(), Path::new(&python)).await;
    })
    .await;
}

async fn walk(database: &str, python: &Path) {
    let (folder, server) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let port = free_port();
    let arguments = [
        "-a",
        "127.0.0.1",
        "-p",
        &port.to_string(),
        "-js",
        "-sd",
        "data",
    ];
    let _nats = Program::start("nats-server", arguments, [], server.path(), port).await;

    let (mut script, mut shown) = ("exec 2>&1\n".to_owned(), Vec::new());
    for Block { info, text } in blocks(TUTORIAL) {
        match info.split_once(' ').unwrap_or((info, "")) {
            ("sh", _) => {
                script.push_str(&format!("echo '{MARK}'\n{text}"));
                shown.push(String::new());
            }
            ("text", _) => *shown.last_mut().unwrap() = text,
            ("console", _) => {}
            (_, "") => panic!("what is to be done with ```{info}?"),
            (_, file) => fs::write(folder.path().join(file), text).unwrap(),
        }
    }
    let command = Path::new(env!("CARGO_BIN_EXE_outbox"));
    let programs = [command, python].map(|program| program.parent().unwrap().to_path_buf());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(programs.into_iter().chain(std::env::split_paths(&path)));
    // It waits for what the relay says, which a relay that cannot start never does.
    let limit = PATIENCE.as_secs().to_string();
    let walked = Command::new("timeout")
        .args([&*limit, "bash", "-c", &script])
        .env("PATH", path.unwrap())
        .env("OUTBOX_DATABASE_URL", database)
        .env("NATS_URL", format!("nats://127.0.0.1:{port}"))
        .env_remove("OUTBOX_CONFIG")
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let printed = String::from_utf8(walked.stdout).unwrap();
    let log = fs::read_to_string(folder.path().join("relay.log")).unwrap_or_default();
    let in_time = walked.status.code() != Some(OVERDUE);
    assert!(in_time, "not within {PATIENCE:?}: {printed}\n{log}");
    let printed: Vec<&str> = printed.split(&format!("{MARK}\n")).skip(1).collect();
    assert_eq!(printed.len(), shown.len(), "{printed:?}");
    for (printed, shown) in printed.iter().zip(&shown) {
        let (lines, wanted) = (printed.lines(), shown.lines());
        let same = lines.clone().count() == wanted.clone().count()
            && lines
                .zip(wanted)
                .all(|(line, wanted)| is_as_shown(line, wanted));
        assert!(
            same,
            "it printed\n{printed}\nand the tutorial says\n{shown}"
        );
    }
}
