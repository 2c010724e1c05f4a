//! The bed's processes: this program once more, as a worker or as a producer.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use testbed::Server;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines, Stdin};
use tokio::process::{Child, ChildStdin, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::clock::{self, Clock};
use crate::dialect::Dialect;
use crate::{producer, worker};

/// Where the database is: not an argument, for it holds a password.
const URL: &str = "OUTBOX_TORTURE_URL";

/// What a process is told.
#[derive(Debug, Clone, Args)]
pub(crate) struct Role {
    #[arg(long, value_parser = crate::server)]
    pub(crate) db: Server,
    /// A producer's number; a worker if there is none.
    #[arg(long)]
    pub(crate) producer: Option<i64>,
    /// Where a worker writes down what it handles.
    #[arg(long)]
    pub(crate) ledger: Option<PathBuf>,
    #[arg(long)]
    pub(crate) connections: u32,
    /// A worker takes batches instead of one message after the other.
    #[arg(long)]
    pub(crate) batches: bool,
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
}

impl Role {
    /// Does it, until standard input ends.
    pub(crate) async fn run(self) -> Result<()> {
        let url = std::env::var(URL).context("the bed says where the database is")?;
        match self.db {
            Server::Postgres => self.run_on::<sqlx::Postgres>(&url).await,
            Server::MariaDb | Server::MySql => self.run_on::<sqlx::MySql>(&url).await,
            Server::Sqlite => self.run_on::<sqlx::Sqlite>(&url).await,
        }
    }

    async fn run_on<DB: Dialect>(self, url: &str) -> Result<()> {
        match self.producer {
            Some(_) => producer::run::<DB>(&self, url).await,
            None => worker::run::<DB>(&self, url).await,
        }
    }

    fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            "process".to_owned(),
            format!("--db={}", self.db),
            format!("--connections={}", self.connections),
            format!("--seed={}", self.seed),
        ];
        let ledger = self.ledger.as_ref();
        arguments.extend(ledger.map(|ledger| format!("--ledger={}", ledger.display())));
        arguments.extend(self.batches.then(|| "--batches".to_owned()));
        arguments.extend(self.producer.map(|number| format!("--producer={number}")));
        arguments
    }
}

/// What a process is to do: said on its standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    /// As at the start: messages may do anything.
    Wild,
    /// No more trouble.
    Calm,
    /// Nothing, until another word comes.
    Hushed,
    /// The bed wants it to stop, or is gone.
    Over,
}

impl Mood {
    const SAID: [(Self, &'static str); 3] = [
        (Self::Wild, "wild"),
        (Self::Calm, "calm"),
        (Self::Hushed, "hush"),
    ];

    /// Waits for the next word.
    pub(crate) async fn hear(lines: &mut Lines<BufReader<Stdin>>) -> Self {
        let line = lines.next_line().await.ok().flatten();
        let mut said = Self::SAID.into_iter();
        let said = said.find(|(_, word)| line.as_deref() == Some(*word));
        said.map_or(Self::Over, |(mood, _)| mood)
    }
}

/// How long an orderly stop may take: the outbox's own deadline and some more.
pub(crate) const STOP: Duration = Duration::from_secs(20);

/// What a message takes its process along with: nothing that goes wrong by itself ends like that.
const TAKES_ALONG: Signal = Signal::USR2;

/// Ends this process, as a message asks.
pub(crate) fn end_as_scripted() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), TAKES_ALONG);
}

/// Whether a process has ended as a message asked it to.
pub(crate) fn is_scripted(status: ExitStatus) -> bool {
    status.signal() == Some(TAKES_ALONG.as_raw())
}

/// A process that runs. It is killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    number: Option<u32>,
    /// Closing it asks the process to stop.
    input: Option<ChildStdin>,
    /// Ends with the process, with what it said.
    said: Option<JoinHandle<Vec<String>>>,
}

impl Process {
    pub(crate) fn start(role: &Role, url: &str, log: &Path, clock: Option<&Clock>) -> Result<Self> {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .context("open a log")?;
        // A write beyond the limit of a file's size shall fail, and not end the process.
        let mut command = Command::new("sh");
        command
            .args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""])
            .arg(std::env::current_exe()?)
            .args(role.arguments());
        if let Some(clock) = clock {
            clock.apply(&mut command);
        }
        let mut child = command
            .env(URL, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .context("start a process of the bed")?;
        let input = child.stdin.take();
        let output = child.stdout.take().context("its output")?;
        let said = tokio::spawn(async move {
            let (mut lines, mut said) = (BufReader::new(output).lines(), Vec::new());
            while let Ok(Some(line)) = lines.next_line().await {
                said.push(line);
            }
            said
        });
        Ok(Self {
            number: child.id(),
            child,
            input,
            said: Some(said),
        })
    }

    /// Says what it is to do from now on.
    pub(crate) async fn tell(&mut self, mood: Mood) -> Result<()> {
        let mut said = Mood::SAID.into_iter();
        let said = said.find(|(one, _)| *one == mood);
        let (_, word) = said.context("a mood that is not said")?;
        let input = self.input.as_mut().context("it was told to stop")?;
        Ok(input.write_all(format!("{word}\n").as_bytes()).await?)
    }

    fn pid(&self) -> Result<Pid> {
        let id = self.child.id().context("the process has ended")?;
        Pid::from_raw(id.cast_signed()).context("a process has a number")
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(self.pid()?, signal).context("signal a process")
    }

    /// How large the files that it writes may get.
    pub(crate) fn limit_files(&self, bytes: Option<u64>) -> Result<()> {
        let limit = Rlimit {
            current: bytes,
            maximum: None,
        };
        prlimit(Some(self.pid()?), Resource::Fsize, limit).context("limit a process")?;
        Ok(())
    }

    /// Stops it in its tracks.
    pub(crate) fn freeze(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on.
    pub(crate) fn thaw(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// `kill -9`, and waits for the end.
    pub(crate) async fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill().await;
        clock::clear(self.number);
    }

    /// How it has ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// What each of its threads waits for, as far as the system tells.
    fn threads(&self) -> String {
        let tasks = self.number.map(|pid| format!("/proc/{pid}/task"));
        let tasks = tasks.and_then(|tasks| std::fs::read_dir(tasks).ok());
        let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
        let thread = |task: std::fs::DirEntry| {
            let [name, waits] = ["comm", "wchan"].map(|file| read(task.path().join(file)));
            format!("{} in {waits}", name.trim())
        };
        let threads = tasks.into_iter().flatten().flatten().map(thread);
        threads.collect::<Vec<_>>().join(", ")
    }

    /// Asks it to stop, and waits for the end. What it said.
    pub(crate) async fn stop(&mut self) -> Result<Vec<String>> {
        drop(self.input.take());
        let Ok(status) = timeout(STOP, self.child.wait()).await else {
            bail!("a process does not stop; its threads: {}", self.threads());
        };
        let status = status?;
        clock::clear(self.number);
        if !status.success() {
            bail!("a process that was asked to stop ended with {status}");
        }
        let said = self.said.take().context("it has stopped already")?;
        Ok(said.await?)
    }
}
