//! What a process says on its standard output, one JSON object per line.

use serde::{Deserialize, Serialize};

/// One line.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// Connected; waits for `go`.
    Ready,
    /// How far it is.
    Progress(Progress),
    /// How it went; the last line.
    Report(Box<Report>),
}

/// How far a process is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Messages committed.
    pub produced: u64,
    /// Messages handled.
    pub handled: u64,
    /// Whether all that was to be produced is committed.
    pub production_done: bool,
}

impl Progress {
    /// Whether all that was to be produced is handled, too.
    pub fn all_arrived(&self) -> bool {
        self.production_done && self.handled >= self.produced
    }
}

/// How it went.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Report {
    /// When work began.
    pub go_nanos: u64,
    /// Messages committed.
    pub produced: u64,
    /// The sum of their ids.
    pub produced_id_sum: u64,
    /// How long the producers took.
    pub production_nanos: u64,
    /// Transactions that failed and were tried again.
    pub producer_errors: u64,
    /// What the first of them said.
    pub first_error: Option<String>,
    /// Messages handled, doubles included.
    pub handled: u64,
    /// Those that were handled when the producers ended.
    pub handled_during_production: u64,
    /// Messages that this process handled before.
    pub duplicates: u64,
    /// Payloads nobody produced.
    pub strangers: u64,
    /// Messages that came after a later one of their partition.
    pub out_of_order: u64,
    /// The sum of the ids handled.
    pub handled_id_sum: u64,
    /// When the first message was handled.
    pub first_handled_nanos: u64,
    /// When the last message was handled.
    pub last_handled_nanos: u64,
    /// When each message was committed, if asked.
    pub committed_at: Vec<(u64, u64)>,
    /// When each message was handled, if asked.
    pub handled_at: Vec<(u64, u64)>,
    /// The most memory the process ever had, in KiB.
    pub peak_rss_kib: u64,
    /// Processor time of the process, user and system.
    pub cpu_millis: u64,
}
