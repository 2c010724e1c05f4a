//! A worker's place at the bed: one process after the other, each with a ledger of its own.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use anyhow::Result;

use crate::clock::Clock;
use crate::processes::{Process, Role, is_scripted};

/// The place of a worker.
pub(crate) struct Seat {
    role: Role,
    number: usize,
    url: String,
    folder: PathBuf,
    process: Process,
    clock: Option<Clock>,
    generation: u32,
}

impl Seat {
    pub(crate) fn start(mut role: Role, number: usize, url: String, folder: &Path) -> Result<Self> {
        let generation = 0;
        role.ledger = Some(ledger_of(folder, number, generation));
        let clock = Clock::new(folder, number)?;
        let process = Process::start(&role, &url, &log_of(folder, number), clock.as_ref())?;
        Ok(Self {
            role,
            number,
            url,
            folder: folder.to_owned(),
            process,
            clock,
            generation,
        })
    }

    /// `kill -9`, and another process.
    pub(crate) async fn replace(&mut self) -> Result<()> {
        self.process.kill().await;
        self.generation += 1;
        self.role.ledger = Some(ledger_of(&self.folder, self.number, self.generation));
        let log = log_of(&self.folder, self.number);
        self.process = Process::start(&self.role, &self.url, &log, self.clock.as_ref())?;
        Ok(())
    }

    /// An orderly stop, and another process. What was wrong with it: one that is told to stop while it dies
    /// of a message need not end well.
    pub(crate) async fn restart(&mut self) -> Result<Option<String>> {
        let stopped = self.process.stop().await.map(drop);
        let scripted = self.process.ended().is_some_and(is_scripted);
        self.replace().await?;
        let wrong = stopped.err().filter(|_| !scripted);
        Ok(wrong.map(|error| format!("worker {}: {error:#}", self.number)))
    }

    pub(crate) async fn kill(&mut self) {
        self.process.kill().await;
    }

    /// How its process has ended by itself, if it has, and not as it was asked to.
    pub(crate) fn ended(&mut self) -> Option<(ExitStatus, bool)> {
        self.process
            .ended()
            .map(|status| (status, is_scripted(status)))
    }

    pub(crate) async fn stop(&mut self) -> Result<()> {
        self.process.stop().await.map(drop)
    }

    pub(crate) fn freeze(&self) {
        let _ = self.process.freeze();
    }

    pub(crate) fn thaw(&self) {
        let _ = self.process.thaw();
    }

    /// Where its time comes from, if it can be set.
    pub(crate) fn clock(&self) -> Option<Clock> {
        self.clock.clone()
    }

    /// Says how much larger than its ledger any file that it writes may get.
    pub(crate) fn limit_files(&self, room: Option<u64>) {
        let ledger = self.role.ledger.as_ref();
        let size = ledger.and_then(|ledger| std::fs::metadata(ledger).ok());
        let size = size.map_or(0, |ledger| ledger.len());
        // One that has ended meanwhile writes nothing.
        let _ = self.process.limit_files(room.map(|room| size + room));
    }
}

fn ledger_of(folder: &Path, number: usize, generation: u32) -> PathBuf {
    folder.join(format!("ledger-{number}-{generation}.txt"))
}

/// Whose ledger a file is, going by its name.
pub(crate) fn worker_of(file: &str) -> Option<usize> {
    let (number, _) = file.strip_prefix("ledger-")?.split_once('-')?;
    number.parse().ok()
}

fn log_of(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("worker-{number}.log"))
}
