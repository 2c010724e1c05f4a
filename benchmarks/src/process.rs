//! One process of a system under measurement: spawned, told to go and to stop, asked how it went.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bench_contract::{Event, Progress, Report, Task};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::{Instant, timeout, timeout_at};

use crate::systems::System;

/// How long connecting, and printing a report, may take.
const MANNERS: Duration = Duration::from_secs(60);

/// Connections for creating a schema; a full pool takes longer to open than that takes.
const FEW: u32 = 4;

#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    commands: ChildStdin,
    events: Lines<BufReader<ChildStdout>>,
    pub(crate) progress: Progress,
}

fn command(system: &System, task: &Task) -> Result<Command> {
    let (program, arguments) = system.command()?;
    let mut command = Command::new(program);
    command.args(arguments).arg(serde_json::to_string(task)?);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    Ok(command)
}

/// Lets a system create its schema.
pub(crate) async fn prepare(system: &System, task: &Task) -> Result<()> {
    let task = Task {
        prepare: true,
        pool: FEW,
        ..task.clone()
    };
    let status = timeout(MANNERS, command(system, &task)?.status()).await??;
    if !status.success() {
        bail!("{} could not prepare its database", system.name);
    }
    Ok(())
}

impl Process {
    /// Starts a process and waits until it is connected.
    pub(crate) async fn spawn(system: &System, task: &Task) -> Result<Self> {
        let mut child = command(system, task)?.spawn().context(system.name)?;
        let commands = child.stdin.take().context("its standard input")?;
        let events = BufReader::new(child.stdout.take().context("its standard output")?).lines();
        let progress = Progress::default();
        let mut process = Self {
            child,
            commands,
            events,
            progress,
        };
        match timeout(MANNERS, process.next())
            .await
            .context("connecting took too long")??
        {
            Event::Ready => Ok(process),
            other => bail!("expected ready, got {other:?}"),
        }
    }

    pub(crate) fn id(&self) -> Option<u32> {
        self.child.id()
    }

    pub(crate) async fn go(&mut self) -> Result<()> {
        Ok(self.commands.write_all(b"go\n").await?)
    }

    async fn next(&mut self) -> Result<Event> {
        let line = self
            .events
            .next_line()
            .await?
            .context("a process ended before its time")?;
        Ok(serde_json::from_str(&line)?)
    }

    /// Waits until its progress is as wanted. `false` when that takes too long.
    pub(crate) async fn wait(
        &mut self,
        patience: Duration,
        mut wanted: impl FnMut(&Progress) -> bool,
    ) -> Result<bool> {
        let until = Instant::now() + patience;
        while !wanted(&self.progress) {
            let Ok(event) = timeout_at(until, self.next()).await else {
                return Ok(false);
            };
            if let Event::Progress(progress) = event? {
                self.progress = progress;
            }
        }
        Ok(true)
    }

    /// Ends it at once, as a crash would.
    pub(crate) async fn kill(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Stops it and hears how it went.
    pub(crate) async fn stop(mut self) -> Result<Report> {
        self.commands.write_all(b"stop\n").await?;
        let report = async {
            loop {
                if let Event::Report(report) = self.next().await? {
                    return anyhow::Ok(*report);
                }
            }
        };
        let report = timeout(MANNERS, report)
            .await
            .context("it did not stop")??;
        timeout(MANNERS, self.child.wait())
            .await
            .context("it did not end")??;
        Ok(report)
    }
}

/// Waits until all of them together handled so many, and returns whether they did in time.
pub(crate) async fn handled_together(
    processes: &mut [Process],
    count: u64,
    patience: Duration,
) -> Result<bool> {
    let until = Instant::now() + patience;
    while processes
        .iter()
        .map(|process| process.progress.handled)
        .sum::<u64>()
        < count
    {
        if Instant::now() >= until {
            return Ok(false);
        }
        for process in &mut *processes {
            let before = process.progress;
            process
                .wait(Duration::from_millis(50), |now| *now != before)
                .await?;
        }
    }
    Ok(true)
}
