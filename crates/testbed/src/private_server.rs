//! A server that belongs to one test, which may crash it and start it again. `scripts/private-server`
//! does the work; this is its other end.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::database::Database;
use crate::server::{Server, announce};

/// The script's exit code when the server's programs are not on this machine.
const PROGRAMS_MISSING: i32 = 3;

/// A server of its own, with an empty database in it. Dropping it stops the server and removes its
/// data; so does the end of the test's process, however it comes.
#[derive(Debug)]
pub struct PrivateServer {
    database: Database,
    script: Script,
}

impl PrivateServer {
    /// Starts one, if this kind of server takes part in the run. A machine on which the servers are
    /// elsewhere may lack the programs: that is said, as for servers that take no part.
    ///
    /// # Panics
    ///
    /// When it does not start, and for SQLite, which is no server.
    pub async fn start(server: Server) -> Option<Self> {
        assert_ne!(server, Server::Sqlite, "there is nothing to start");
        if !server.takes_part() {
            return None;
        }
        Self::launch(server).await
    }

    /// Starts one, whoever takes part in the run; none where the programs are missing, which is said.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub async fn launch(server: Server) -> Option<Self> {
        let mut script = Script::start(server);
        match script.answer().await.strip_prefix("ready ") {
            Some(url) => Some(Self {
                database: Database::given(server, url.to_owned()),
                script,
            }),
            None => {
                let status = script.child.wait().expect("wait for the script");
                let missing = status.code() == Some(PROGRAMS_MISSING);
                assert!(missing, "the private {server} did not start: {status}");
                announce(&format!("SKIPPED on a {server} of its own: see above"));
                None
            }
        }
    }

    /// The administrator's database on it. Its URL stays the same over restarts.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Crashes the server: connections break, and what it had not made durable is lost.
    pub async fn kill(&mut self) {
        let answer = self.script.ask("kill").await;
        assert_eq!(answer, "killed");
    }

    /// Shuts the server down as an administrator in a hurry does: PostgreSQL at once, MySQL and MariaDB in
    /// order.
    pub async fn stop(&mut self) {
        let answer = self.script.ask("stop").await;
        assert_eq!(answer, "stopped");
    }

    /// Starts the server again with the data that it left, and waits until it answers.
    pub async fn start_again(&mut self) {
        let answer = self.script.ask("start").await;
        assert_eq!(answer, format!("ready {}", self.database.url()));
    }

    /// Whether it still runs. One that has died by itself has said why, and can be started again.
    pub async fn lives(&mut self) -> bool {
        self.script.ask("lives").await == "lives"
    }

    /// Puts a pooler in transaction mode before a PostgreSQL, which is crashed and started with it from
    /// now on. Its address; none where there is no pooler.
    pub async fn pool(&mut self) -> Option<String> {
        let answer = self.script.ask("pool").await;
        answer.strip_prefix("pooled ").map(str::to_owned)
    }

    /// Where the server's own programs are: on PostgreSQL the folder that holds `pg_dump` and `psql`.
    pub async fn programs(&mut self) -> PathBuf {
        let answer = self.script.ask("programs").await;
        let place = answer.strip_prefix("programs ");
        place.expect("a place").into()
    }
}

/// The script, and the two ends of its attention.
#[derive(Debug)]
struct Script {
    child: Child,
    /// The script ends when this is closed; nobody else has it, so it is closed when we die.
    input: Option<ChildStdin>,
    output: Option<BufReader<ChildStdout>>,
}

impl Script {
    fn start(server: Server) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/private-server");
        let mut child = Command::new(script)
            .arg(server.name())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // What ends a test with all its process group must not end those who clean up after it.
            .process_group(0)
            .spawn()
            .expect("start scripts/private-server");
        Self {
            input: child.stdin.take(),
            output: child.stdout.take().map(BufReader::new),
            child,
        }
    }

    async fn ask(&mut self, word: &str) -> String {
        let input = self.input.as_mut().expect("open until dropped");
        writeln!(input, "{word}").expect("the script listens");
        self.answer().await
    }

    /// The script's next line; empty when it has ended.
    async fn answer(&mut self) -> String {
        let mut output = self.output.take().expect("one question at a time");
        let read = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            output.read_line(&mut line).expect("read from the script");
            (output, line.trim_end().to_owned())
        });
        let (output, line) = read.await.expect("reading does not panic");
        self.output = Some(output);
        line
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        drop(self.input.take());
        // Until it has cleaned up, which it does within a bound of its own.
        let _ = self.child.wait();
    }
}
