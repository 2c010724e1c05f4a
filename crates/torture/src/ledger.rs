//! What the leased handlers did, written down where nobody who is killed or cut off can take it back: a
//! line in a file, made durable, when a message comes and when it is done.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use outbox::OutboxMessage;

use crate::script::Order;

/// Milliseconds of a clock that all processes share and that nobody can set.
pub(crate) fn now() -> i64 {
    now_nanos() / NANOS
}

/// The same clock, as finely as it tells what comes first.
fn now_nanos() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec * 1_000 * NANOS + time.tv_nsec
}

/// A duration in milliseconds of that clock.
pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Nanoseconds of a millisecond.
pub(crate) const NANOS: i64 = 1_000_000;

/// A delivery, as its handler saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delivery {
    /// Who handled it.
    pub(crate) worker: usize,
    pub(crate) partition: i64,
    pub(crate) seq: i64,
    pub(crate) id: i64,
    pub(crate) epoch: i64,
    pub(crate) attempts: i64,
    /// `None` if the payload was not what any producer sends.
    pub(crate) order: Option<(i64, i64)>,
    pub(crate) started_nanos: i64,
    /// Neither with success nor without if the handler was stopped or killed.
    pub(crate) end: Option<End>,
}

/// When a handler was done, and whether with success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) nanos: i64,
    pub(crate) success: bool,
}

impl Delivery {
    /// When it began, in milliseconds.
    pub(crate) fn start(&self) -> i64 {
        self.started_nanos / NANOS
    }

    pub(crate) fn succeeded(&self) -> bool {
        self.end.is_some_and(|end| end.success)
    }
}

impl End {
    /// In milliseconds.
    pub(crate) fn at(self) -> i64 {
        self.nanos / NANOS
    }
}

/// The file of one process.
#[derive(Debug)]
pub(crate) struct Ledger {
    file: Mutex<File>,
}

impl Ledger {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.with_context(|| format!("open the ledger {}", path.display()))?;
        Ok(Self {
            file: Mutex::new(file),
        })
    }

    /// A message has come.
    pub(crate) fn start(&self, message: &OutboxMessage, order: Option<Order>) -> Result<()> {
        let OutboxMessage {
            partition,
            seq,
            id,
            epoch,
            attempts,
            ..
        } = message;
        let (producer, number) = order.map_or((-1, -1), |order| (order.producer, order.number));
        let now = now_nanos();
        self.write(&format!(
            "S {partition} {seq} {} {epoch} {attempts} {producer} {number} {now}\n",
            id.0
        ))
    }

    /// It is done.
    pub(crate) fn end(&self, message: &OutboxMessage, success: bool) -> Result<()> {
        let OutboxMessage {
            partition,
            seq,
            epoch,
            attempts,
            ..
        } = message;
        let (now, success) = (now_nanos(), i64::from(success));
        self.write(&format!(
            "E {partition} {seq} {epoch} {attempts} {success} {now}\n"
        ))
    }

    fn write(&self, line: &str) -> Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(line.as_bytes())?;
        file.sync_data()?;
        Ok(())
    }
}

/// What is in the file of a worker; a line that was cut off says nothing.
pub(crate) fn read(path: &Path, worker: usize) -> Result<Vec<Delivery>> {
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let (mut file, mut line) = (BufReader::new(file), Vec::new());
    let mut deliveries = Vec::new();
    let mut open = HashMap::new();
    while file.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
        let text = String::from_utf8_lossy(&line);
        let (kind, numbers) = text.trim_end().split_once(' ').unwrap_or_default();
        let numbers: Vec<i64> = numbers.split(' ').filter_map(|n| n.parse().ok()).collect();
        match (kind, &numbers[..]) {
            (
                "S",
                &[
                    partition,
                    seq,
                    id,
                    epoch,
                    attempts,
                    producer,
                    number,
                    started_nanos,
                ],
            ) => {
                open.insert((partition, seq, epoch, attempts), deliveries.len());
                deliveries.push(Delivery {
                    worker,
                    partition,
                    seq,
                    id,
                    epoch,
                    attempts,
                    order: (producer >= 0).then_some((producer, number)),
                    started_nanos,
                    end: None,
                });
            }
            ("E", &[partition, seq, epoch, attempts, success, nanos]) => {
                if let Some(place) = open.remove(&(partition, seq, epoch, attempts)) {
                    let delivery: &mut Delivery = &mut deliveries[place];
                    delivery.end = Some(End {
                        nanos,
                        success: success == 1,
                    });
                }
            }
            _ => bail!(
                "the ledger {} has a line nobody wrote: {text}",
                path.display()
            ),
        }
        line.clear();
    }
    Ok(deliveries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_cut_off_was_never_said() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let text = "S 1 7 70 2 0 3 4 1000\nE 1 7 2 0 1 1001\nS 1 8 71 2 0 3 5 1002\nE 1 8 2 0 1 10";
        std::fs::write(&path, text).unwrap();
        let deliveries = read(&path, 0).unwrap();
        let ends: Vec<_> = deliveries.iter().map(|delivery| delivery.end).collect();
        let end = End {
            nanos: 1001,
            success: true,
        };
        assert_eq!(ends, [Some(end), None]);
        assert_eq!(deliveries[1].order, Some((3, 5)));
    }
}
