//! The clock of a worker, which can be set: libfaketime reads from a file what to add to the time. The
//! clock that cannot be set stays as it is.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tokio::process::Command;

const NOTHING: &str = "+0s";

#[derive(Debug, Clone)]
pub(crate) struct Clock {
    library: PathBuf,
    file: PathBuf,
}

impl Clock {
    /// The clock of a process, where the library is installed.
    pub(crate) fn new(folder: &Path, worker: usize) -> Result<Option<Self>> {
        let Some(library) = library() else {
            return Ok(None);
        };
        let file = folder.join(format!("clock-{worker}"));
        let clock = Self { library, file };
        clock.set(NOTHING)?;
        Ok(Some(clock))
    }

    /// A process that is started has this clock.
    pub(crate) fn apply(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", &self.library)
            .env("FAKETIME_TIMESTAMP_FILE", &self.file)
            .env("FAKETIME_CACHE_DURATION", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("NO_FAKE_STAT", "1");
    }

    /// Adds to the time, until it is corrected.
    pub(crate) fn set(&self, by: &str) -> Result<()> {
        // Whoever reads it meanwhile finds the old or the new.
        let new = self.file.with_extension("new");
        std::fs::write(&new, format!("{by}\n")).context("set a clock")?;
        std::fs::rename(new, &self.file).context("set a clock")
    }

    pub(crate) fn correct(&self) -> Result<()> {
        self.set(NOTHING)
    }
}

/// Removes what the library leaves behind. It is named after the process, and another one of that number
/// might find a lock there that a killed one took, and hang.
pub(crate) fn clear(pid: Option<u32>) {
    let Some(pid) = pid else { return };
    for name in [
        format!("faketime_shm_{pid}"),
        format!("sem.faketime_sem_{pid}"),
    ] {
        let _ = std::fs::remove_file(Path::new("/dev/shm").join(name));
    }
}

/// Where Debian and others put it.
pub(crate) fn library() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?;
    let places = folders.flatten().map(|folder| folder.path());
    let places = places.chain([PathBuf::from("/usr/lib"), PathBuf::from("/usr/local/lib")]);
    let libraries = places.map(|place| place.join("faketime/libfaketime.so.1"));
    libraries.into_iter().find(|library| library.exists())
}
