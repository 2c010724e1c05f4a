//! The pulse of the machine: somebody who only looks at the clock and writes to the disk, and has nothing to
//! do with any database. What he does not get done in time nobody can be blamed for.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::ledger::now;

/// From one beat to the next.
const BEAT: Duration = Duration::from_millis(250);
/// Who stands still for so long may lose a lease, in milliseconds.
const HALT: i64 = 1_000;

/// Feels it until it is over, in a thread of its own. When the machine went on that had stood still.
pub(crate) fn feel(folder: &Path, over: CancellationToken) -> JoinHandle<Result<Vec<i64>>> {
    let file = folder.join("pulse");
    tokio::task::spawn_blocking(move || {
        let mut halts = Vec::new();
        let mut from = now();
        while !over.is_cancelled() {
            std::thread::sleep(BEAT);
            beat(&file)?;
            let to = now();
            if to - from > HALT {
                halts.push(to);
            }
            from = to;
        }
        Ok(halts)
    })
}

fn beat(file: &PathBuf) -> Result<()> {
    let mut file = File::create(file).context("feel the pulse")?;
    file.write_all(b"beat\n").context("feel the pulse")?;
    file.sync_data().context("feel the pulse")
}
