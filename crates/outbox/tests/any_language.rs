//! Real producers in other languages: the examples of `docs/any-language.md` as they stand there, and many
//! transactions of theirs beside the library's. `scripts/any-language` gets their database drivers and says
//! where they are; without, this is skipped.
#![cfg(all(
    feature = "testing",
    feature = "postgres",
    feature = "mysql",
    feature = "sqlite"
))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

#[expect(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "the stage is shared with the suite, which is not run here"
)]
mod conformance;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::Once;

use conformance::stage::{EIGHT, text_of};
use conformance::{Collector, Dialect, Stage};
use outbox::{EnqueueMessage, OutboxMessage, Schema, TablePrefix};
use tempfile::TempDir;
use testbed::{Database, Server, announce, with_database};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// A virtual environment's interpreter, and a folder of packages.
const PYTHON: &str = "OUTBOX_TEST_PYTHON";
const NODE_MODULES: &str = "OUTBOX_TEST_NODE_MODULES";

const DOCUMENT: &str = include_str!("../../../docs/any-language.md");
const TRANSACTIONS: usize = 120;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Language {
    Python,
    Node,
}

impl Language {
    const ALL: [Self; 2] = [Self::Python, Self::Node];

    fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Node => "node",
        }
    }

    fn extension(self) -> &'static str {
        match self {
            Self::Python => "py",
            Self::Node => "mjs",
        }
    }

    /// Whether its drivers are here. One that is not is named, once.
    fn takes_part(self) -> bool {
        static SAID: [Once; 2] = [const { Once::new() }; 2];
        let variable = match self {
            Self::Python => PYTHON,
            Self::Node => NODE_MODULES,
        };
        let there = std::env::var(variable).is_ok_and(|value| !value.is_empty());
        if !there {
            SAID[self as usize].call_once(|| {
                announce(&format!(
                    "SKIPPED in {}: {variable} is not set (scripts/any-language sets it)",
                    self.name()
                ));
            });
        }
        there
    }

    fn interpreter(self) -> String {
        match self {
            Self::Python => std::env::var(PYTHON).unwrap(),
            Self::Node => "node".to_owned(),
        }
    }
}

/// The examples of the document, as files that can run.
struct Examples(TempDir);

impl Examples {
    fn write() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let blocks = DOCUMENT.split("<!-- ").skip(1);
        for block in blocks {
            let (name, rest) = block.split_once(" -->\n").unwrap();
            let (_, code) = rest.split_once('\n').unwrap();
            let (code, _) = code.split_once("```").unwrap();
            std::fs::write(folder.path().join(name), code).unwrap();
        }
        let (python, node) = (
            include_str!("any_language/produce.py"),
            include_str!("any_language/produce.mjs"),
        );
        std::fs::write(folder.path().join("produce.py"), python).unwrap();
        std::fs::write(folder.path().join("produce.mjs"), node).unwrap();
        if let Ok(modules) = std::env::var(NODE_MODULES) {
            let link = folder.path().join("node_modules");
            std::os::unix::fs::symlink(modules, link).unwrap();
        }
        Self(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Runs one of the files.
    async fn run(&self, language: Language, file: &str, arguments: &[&str], database: &Database) {
        let file = format!("{file}.{}", language.extension());
        let ran = Command::new(language.interpreter())
            .arg(self.path().join(&file))
            .args(arguments)
            .env("DATABASE_URL", database.url())
            .env("DATABASE_FILE", file_of(database.url()))
            .env("PYTHONPATH", self.path())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{file}: {said}");
    }
}

/// SQLite's file; nothing for other databases.
fn file_of(url: &str) -> &str {
    let file = url.strip_prefix("sqlite://").unwrap_or_default();
    file.split('?').next().unwrap()
}

/// How the document calls the examples of a database.
fn example_of(server: Server) -> &'static str {
    match server {
        Server::Postgres => "postgres",
        Server::MariaDb | Server::MySql => "mysql",
        Server::Sqlite => "sqlite",
    }
}

/// The languages whose examples can run on this database, with what is here.
fn languages(server: Server) -> Vec<Language> {
    let mut languages = Language::ALL.to_vec();
    languages.retain(|language| language.takes_part());
    if server == Server::Sqlite && languages.contains(&Language::Node) && !node_has_sqlite() {
        announce("SKIPPED in node on sqlite: this Node brings no SQLite along, 22.13 does");
        languages.retain(|language| *language != Language::Node);
    }
    languages
}

fn node_has_sqlite() -> bool {
    let probe = std::process::Command::new("node")
        .args(["--input-type=module", "--eval", "import 'node:sqlite'"])
        .stderr(Stdio::null())
        .status();
    probe.is_ok_and(|status| status.success())
}

async fn the_examples_of_the_document_work<DB: Dialect>(server: Server) {
    with_database(server, async |database| {
        let examples = Examples::write();
        let stage = Stage::<DB>::set(database).await;
        stage
            .run("CREATE TABLE orders (customer VARCHAR(99), item VARCHAR(99))")
            .await;
        let collector = Collector::new();
        let handle = stage.deliver(EIGHT, &collector).await;
        let languages = languages(server);
        for (number, language) in (1..).zip(&languages) {
            examples
                .run(*language, example_of(server), &[], database)
                .await;
            let seen = collector.wait_for(number).await;
            let message = seen.last().unwrap();
            assert_eq!(message.key.as_deref(), Some("customer-7"));
            assert_eq!(message.payload_type, "order.placed");
            assert_eq!(message.headers["trace"], "4711");
            let payload: serde_json::Value = serde_json::from_slice(&message.payload).unwrap();
            assert_eq!(payload, serde_json::json!({ "item": "tea" }));
            let orders = i64::try_from(number).unwrap();
            assert_eq!(stage.number("SELECT COUNT(*) FROM orders").await, orders);
        }
        handle.stop().await;
    })
    .await;
}

/// What every producer does, by the library.
async fn produce<DB: Dialect>(stage: &Stage<DB>, outbox: &outbox::Outbox<DB>) {
    for n in 0..TRANSACTIONS {
        let undone = n % 3 == 0;
        let mut transaction = stage.pool.begin_with(DB::BEGIN_WRITING).await.unwrap();
        for part in ["a", "b"] {
            let kind = if undone { "undone" } else { "kept" };
            let payload = format!("library/{n:04}/{part}");
            let message = EnqueueMessage::keyed(format!("kůň-{}", n % 8), payload, kind);
            let message = message.header("n", n.to_string());
            outbox
                .enqueue(&mut transaction, "orders", message)
                .await
                .unwrap();
        }
        if undone {
            transaction.rollback().await.unwrap();
        } else {
            transaction.commit().await.unwrap();
        }
    }
}

/// What one producer must have had delivered: each key's, in order.
fn expected(producer: &str) -> BTreeMap<String, Vec<String>> {
    let mut expected = BTreeMap::<_, Vec<_>>::new();
    for n in (0..TRANSACTIONS).filter(|n| n % 3 != 0) {
        let texts = ["a", "b"].map(|part| format!("{producer}/{n:04}/{part}"));
        let key = format!("kůň-{}", n % 8);
        expected.entry(key).or_default().extend(texts);
    }
    expected
}

async fn producers_of_every_language_share_a_queue<DB: Dialect>(server: Server) {
    with_database(server, async |database| {
        let examples = Examples::write();
        let stage = Stage::<DB>::set(database).await;
        let collector = Collector::new();
        let handle = stage.deliver(EIGHT, &collector).await;
        let mut languages = languages(server);
        // Node's own SQLite is no client of a server, and looks different.
        languages.retain(|language| (server, *language) != (Server::Sqlite, Language::Node));
        let transactions = TRANSACTIONS.to_string();
        let foreign = languages.iter().map(|language| {
            let example = match language {
                Language::Python => example_of(server).to_owned(),
                Language::Node => format!("./{}.mjs", example_of(server)),
            };
            let (examples, transactions) = (&examples, &transactions);
            async move {
                let arguments = [&*example, &**transactions];
                examples
                    .run(*language, "produce", &arguments, database)
                    .await;
            }
        });
        let foreign = futures_util::future::join_all(foreign);
        futures_util::future::join(foreign, produce(&stage, handle.outbox())).await;

        let names = languages.iter().map(|language| language.name());
        let producers: Vec<_> = names.chain(["library"]).collect();
        let each = 2 * TRANSACTIONS * 2 / 3;
        let seen = collector.wait_for(each * producers.len()).await;
        handle.stop().await;
        assert_eq!(collector.seen().len(), each * producers.len());
        for producer in producers {
            let own = seen
                .iter()
                .filter(|message| text_of(message).starts_with(producer));
            let mut delivered = BTreeMap::<_, Vec<_>>::new();
            for message in own {
                let key = message.key.clone().unwrap();
                assert_is_as_enqueued(message, &key);
                delivered.entry(key).or_default().push(text_of(message));
            }
            assert_eq!(delivered, expected(producer));
        }
    })
    .await;
}

fn assert_is_as_enqueued(message: &OutboxMessage, key: &str) {
    let text = text_of(message);
    let number: usize = text.split('/').nth(1).unwrap().parse().unwrap();
    assert_eq!(message.partition, EIGHT.of_key(key), "{text}");
    assert_eq!(message.payload_type, "kept", "{text} was rolled back");
    assert_eq!(message.headers["n"], number.to_string());
}

/// How an administrator runs a migration on this server.
fn shell(server: Server, url: &str) -> Command {
    let program = match server {
        Server::Postgres => "psql",
        Server::MariaDb | Server::MySql => "mysql",
        Server::Sqlite => "sqlite3",
    };
    let mut shell = Command::new(program);
    match server {
        Server::Postgres => {
            shell.args(["--no-psqlrc", "--quiet", "--single-transaction"]);
            shell.args(["--set=ON_ERROR_STOP=1", url]);
        }
        Server::MariaDb | Server::MySql => {
            let (account, place) = url.split_once("://").unwrap().1.split_once('@').unwrap();
            let (user, password) = account.split_once(':').unwrap();
            let (address, name) = place.split_once('/').unwrap();
            let (host, port) = address.split_once(':').unwrap();
            shell.args([format!("--user={user}"), format!("--host={host}")]);
            shell.args([format!("--port={port}"), name.to_owned()]);
            shell.env("MYSQL_PWD", password);
        }
        Server::Sqlite => {
            shell.args(["-bail", file_of(url)]);
        }
    }
    shell
}

async fn a_shell_runs_the_printed_migration<DB: Dialect>(server: Server) {
    with_database(server, async |database| {
        let stage = Stage::<DB>::set(database).await;
        let prefix = TablePrefix::default();
        let schema = Schema::new(stage.pool.clone(), &prefix);
        let (up, down) = (
            Schema::<DB>::up_sql(&prefix),
            Schema::<DB>::down_sql(&prefix),
        );
        for (script, version) in [(up, Schema::<DB>::VERSION), (down, 0)] {
            let mut shell = shell(server, database.url());
            shell.stdin(Stdio::piped()).stderr(Stdio::piped());
            let Ok(mut child) = shell.spawn() else {
                announce(&format!("SKIPPED on {server}: its shell is not installed"));
                return;
            };
            let mut input = child.stdin.take().unwrap();
            input.write_all(script.as_bytes()).await.unwrap();
            drop(input);
            let ended = child.wait_with_output().await.unwrap();
            let said = String::from_utf8_lossy(&ended.stderr);
            assert!(ended.status.success(), "{said}");
            assert_eq!(schema.version().await.unwrap(), version, "{said}");
        }
    })
    .await;
}

/// Makes a `#[tokio::test]` of every test, on one server.
macro_rules! on {
    ($module:ident, $database:ty, $server:ident) => {
        on!(@tests $module, $database, $server, [
            the_examples_of_the_document_work,
            producers_of_every_language_share_a_queue,
            a_shell_runs_the_printed_migration,
        ]);
    };
    (@tests $module:ident, $database:ty, $server:ident, [$($test:ident),* $(,)?]) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::$test::<$database>(testbed::Server::$server).await;
                }
            )*
        }
    };
}

on!(postgres, sqlx::Postgres, Postgres);
on!(mariadb, sqlx::MySql, MariaDb);
on!(mysql, sqlx::MySql, MySql);
on!(sqlite, sqlx::Sqlite, Sqlite);
