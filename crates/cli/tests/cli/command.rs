//! The real command, against a database of the test's own.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::marker::PhantomData;
use std::process::{Child, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

pub(crate) const URL: &str = "OUTBOX_DATABASE_URL";
/// What whoever runs the tests may have set, and the command would heed.
const OURS: [&str; 6] = [
    URL,
    "OUTBOX_TABLE_PREFIX",
    "OUTBOX_CONFIG",
    "OUTBOX_USERS",
    "NO_COLOR",
    "CLICOLOR_FORCE",
];

/// The command, told where the database is, and of which kind.
#[derive(Debug)]
pub(crate) struct Command<DB> {
    pub(crate) url: String,
    kind: PhantomData<DB>,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Ran {
    arguments: Vec<String>,
    output: Output,
}

impl<DB> Command<DB> {
    pub(crate) fn at(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            kind: PhantomData,
        }
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        self.run_with(arguments, "")
    }

    /// With the URL on the command line, and not in the environment.
    pub(crate) fn run_named(&self, arguments: &[&str]) -> Ran {
        let url = ["--database-url", &self.url];
        Self::spawn(&[arguments, &url].concat(), "", &[])
    }

    /// With no URL anywhere.
    pub(crate) fn run_without_url(&self, arguments: &[&str]) -> Ran {
        Self::spawn(arguments, "", &[])
    }

    pub(crate) fn run_with(&self, arguments: &[&str], input: &str) -> Ran {
        Self::spawn(arguments, input, &[(URL, &self.url)])
    }

    /// With the URL in the environment, and other variables beside it or in its place.
    pub(crate) fn run_among(&self, variables: &[(&str, &str)], arguments: &[&str]) -> Ran {
        let variables = [&[(URL, &*self.url)], variables].concat();
        Self::spawn(arguments, "", &variables)
    }

    /// Begins it.
    pub(crate) fn start(&self, arguments: &[&str]) -> Child {
        Self::begin(arguments, &[(URL, &self.url)])
    }

    fn begin(arguments: &[&str], variables: &[(&str, &str)]) -> Child {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_outbox"));
        for variable in OURS {
            command.env_remove(variable);
        }
        command
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn spawn(arguments: &[&str], input: &str, variables: &[(&str, &str)]) -> Ran {
        let mut child = Self::begin(arguments, variables);
        // One that fails does not read everything.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        Ran {
            arguments: arguments.iter().map(|&one| one.to_owned()).collect(),
            output: child.wait_with_output().unwrap(),
        }
    }
}

impl Ran {
    fn ends(&self, code: i32) -> (String, String) {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let (stdout, stderr) = (text(&self.output.stdout), text(&self.output.stderr));
        let status = self.output.status;
        assert_eq!(
            status.code(),
            Some(code),
            "{:?}: {stdout}{stderr}",
            self.arguments
        );
        assert!(!stderr.contains("panicked"), "{stderr}");
        (stdout, stderr)
    }

    /// What it printed, if all went well and nothing was complained about.
    pub(crate) fn succeeds(&self) -> String {
        let (stdout, stderr) = self.ends(0);
        assert_eq!(stderr, "", "{:?}", self.arguments);
        stdout
    }

    /// What it complained about.
    pub(crate) fn fails(&self, code: i32) -> String {
        let stderr = self.complains(code);
        assert!(stderr.starts_with("outbox: "), "{stderr}");
        stderr
    }

    /// The same, also where the arguments could not be read.
    pub(crate) fn complains(&self, code: i32) -> String {
        self.ends(code).1
    }

    pub(crate) fn code(&self) -> Option<i32> {
        self.output.status.code()
    }

    /// What it printed, however it ended.
    pub(crate) fn printed(&self) -> String {
        String::from_utf8(self.output.stdout.clone()).unwrap()
    }

    /// What it complained about, however it ended.
    pub(crate) fn complained(&self) -> String {
        String::from_utf8(self.output.stderr.clone()).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.succeeds()).unwrap()
    }

    pub(crate) fn json_lines(&self) -> Vec<Value> {
        let lines = self.succeeds();
        let values = lines.lines().map(serde_json::from_str);
        values.map(Result::unwrap).collect()
    }
}

/// How long a line may be waited for that should come soon, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The lines that a process writes. A thread reads them, also those that nobody wants: a process must not wait for
/// us, and we must not wait for ever for a line that never comes.
#[derive(Debug)]
pub(crate) struct Lines(Receiver<String>);

impl Lines {
    pub(crate) fn of(stream: impl Read + Send + 'static) -> Self {
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(stream).lines();
            // Nobody listens any more, and it is read all the same.
            lines
                .map_while(Result::ok)
                .for_each(|line| drop(sender.send(line)));
        });
        Self(lines)
    }

    /// The first line that is wanted. Panics, with all that came before it, if it does not come.
    pub(crate) fn until<T>(&self, what: &str, wanted: impl Fn(&str) -> Option<T>) -> T {
        let (mut before, until) = (String::new(), Instant::now() + PATIENCE);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = match self.0.recv_timeout(left) {
                Ok(line) => line,
                Err(RecvTimeoutError::Disconnected) => panic!("it ended without {what}: {before}"),
                Err(RecvTimeoutError::Timeout) => panic!("never {what}: {before}"),
            };
            if let Some(found) = wanted(&line) {
                return found;
            }
            before.push_str(&line);
            before.push('\n');
        }
    }

    /// Waits until there are no more.
    pub(crate) fn end(&self) {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.0.recv_timeout(left) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => panic!("it goes on"),
            }
        }
    }
}

/// Sends a signal.
pub(crate) fn tell(process: &Child, signal: &str) {
    let sent = std::process::Command::new("kill")
        .args([&format!("-{signal}"), &process.id().to_string()])
        .status();
    assert!(sent.unwrap().success());
}

/// As `outbox migrate print` calls it.
pub(crate) fn database_type(url: &str) -> &str {
    url.split_once(':').unwrap().0
}

/// Makes a `#[tokio::test]` per database of every function named.
macro_rules! on_every_database {
    ($($test:ident),* $(,)?) => {
        on_every_database!(@on postgres, sqlx::Postgres, Postgres, $($test)*);
        on_every_database!(@on mariadb, sqlx::MySql, MariaDb, $($test)*);
        on_every_database!(@on mysql, sqlx::MySql, MySql, $($test)*);
        on_every_database!(@on sqlite, sqlx::Sqlite, Sqlite, $($test)*);
    };
    (@on $module:ident, $database:ty, $server:ident, $($test:ident)*) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    testbed::with_database(testbed::Server::$server, async |database| {
                        let command = $crate::command::Command::<$database>::at(database.url());
                        super::$test(&command).await;
                    })
                    .await;
                }
            )*
        }
    };
}
pub(crate) use on_every_database;
