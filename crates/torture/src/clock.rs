//! The clock of a worker, which can be set: libfaketime reads from a file what to add to the time. The
//! clock that cannot be set stays as it is.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::time::sleep;

const NOTHING: &str = "+0s";

#[derive(Debug, Clone)]
pub(crate) struct Clock {
    library: PathBuf,
    file: PathBuf,
    /// Whoever sets it has it until it is right again.
    setting: Arc<Mutex<()>>,
}

impl Clock {
    /// The clock of a process, where the library is installed.
    pub(crate) fn new(folder: &Path, worker: usize) -> Result<Option<Self>> {
        let Some(library) = library() else {
            return Ok(None);
        };
        let clock = Self {
            library,
            file: folder.join(format!("clock-{worker}")),
            setting: Arc::default(),
        };
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

    /// Adds to the time for a while. Faults that wait for one worker go on all at once: one after the
    /// other, nobody corrects what another has set.
    pub(crate) async fn go_wrong(&self, by: &str, duration: Duration) -> Result<()> {
        let _setting = self.setting.lock().await;
        self.set(by)?;
        sleep(duration).await;
        self.set(NOTHING)
    }

    fn set(&self, by: &str) -> Result<()> {
        // Whoever reads it meanwhile finds the old or the new.
        let new = self.file.with_extension("new");
        std::fs::write(&new, format!("{by}\n")).context("set a clock")?;
        std::fs::rename(new, &self.file).context("set a clock")
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

#[cfg(test)]
mod tests {
    use super::*;

    use futures_util::future::try_join_all;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_clock_that_many_set_at_once_is_right_in_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Clock {
            library: PathBuf::new(),
            file: folder.path().join("clock-0"),
            setting: Arc::default(),
        };
        let set = (0..100).map(|_| {
            let clock = clock.clone();
            tokio::spawn(async move { clock.go_wrong("+3600s", Duration::ZERO).await })
        });
        for set in try_join_all(set).await.unwrap() {
            set.unwrap();
        }
        assert_eq!(std::fs::read_to_string(&clock.file).unwrap(), "+0s\n");
    }
}
