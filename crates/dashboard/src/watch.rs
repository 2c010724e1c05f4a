//! Looks at the outbox every two seconds, and remembers the last hour. Pages are made of what is remembered: a
//! page costs the database nothing, however many look at it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use outbox::{Finding, OutboxError, PartitionStats, ProcessStats, Severity};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::lock;
use crate::source::Source;

/// How often it looks.
const LOOK: Duration = Duration::from_secs(2);
/// Every how many looks it also measures how much room is taken, and looks for new queues: that is more work.
const THOROUGH: u32 = 5;
/// How old may be what the database said of itself.
const HEALTHY: Duration = Duration::from_secs(10);
/// How long it remembers.
pub(crate) const MEMORY: Duration = Duration::from_secs(3_600);
/// How many failed attempts of a partition it remembers.
const ATTEMPTS: usize = 50;

/// What was seen at one look.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    /// When; `None` before the first look.
    pub(crate) at: Option<SystemTime>,
    pub(crate) stats: Vec<PartitionStats>,
    pub(crate) processes: Vec<ProcessStats>,
    /// What needs attention, the worst first.
    pub(crate) attention: Vec<Finding>,
    pub(crate) storage: Option<u64>,
    /// Since when looks fail, and why.
    pub(crate) trouble: Option<(SystemTime, String)>,
}

impl Snapshot {
    /// The partitions of a queue.
    pub(crate) fn of_queue<'a>(
        &'a self,
        queue: &'a str,
    ) -> impl Iterator<Item = &'a PartitionStats> + Clone {
        self.stats.iter().filter(move |one| one.queue == queue)
    }

    pub(crate) fn partition(&self, queue: &str, partition: u32) -> Option<&PartitionStats> {
        let mut stats = self.stats.iter();
        stats.find(|one| one.partition == partition && one.queue == queue)
    }

    pub(crate) fn dead_letters(&self) -> u64 {
        self.stats.iter().map(|one| one.dead_letters).sum()
    }
}

/// What is remembered of a queue at one look.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct QueueSample {
    /// How many have arrived, and how many were settled, ever.
    pub(crate) arrived: i64,
    pub(crate) settled: i64,
    pub(crate) pending: i64,
    /// Of the oldest message that is not paused.
    pub(crate) oldest: Duration,
    /// Failed attempts and new dead letters, since the memory began.
    pub(crate) failures: i64,
}

/// What is remembered of one look.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    pub(crate) at: SystemTime,
    pub(crate) queues: HashMap<String, QueueSample>,
}

/// A failed attempt that was seen.
#[derive(Debug, Clone)]
pub(crate) struct Attempt {
    pub(crate) at: SystemTime,
    pub(crate) seq: i64,
    pub(crate) attempts: u32,
    pub(crate) error: String,
}

#[derive(Debug, Default)]
struct Memory {
    latest: Arc<Snapshot>,
    samples: VecDeque<Sample>,
    attempts: HashMap<(String, u32), VecDeque<Attempt>>,
    /// What the database said of itself, and when.
    health: Option<(SystemTime, Vec<Finding>)>,
}

/// The watch that is kept over an outbox. It ends with the last of those who share it.
pub(crate) struct Watch {
    guard: Arc<Guard>,
    end: CancellationToken,
}

impl Watch {
    pub(crate) fn begin(source: Arc<dyn Source>) -> Self {
        let end = CancellationToken::new();
        let guard = Arc::new(Guard {
            source: Mutex::new(source),
            memory: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            told: watch::Sender::new(0),
        });
        let (keeper, ended) = (Arc::clone(&guard), end.clone());
        tokio::spawn(async move { ended.run_until_cancelled(keeper.keep()).await });
        Self { guard, end }
    }

    /// The outbox, with the queues that are known by now.
    pub(crate) fn source(&self) -> Arc<dyn Source> {
        self.guard.source()
    }

    /// The names of its queues.
    pub(crate) fn queues(&self) -> Vec<String> {
        let queues = self.source().queues().into_iter();
        queues.map(|(name, _)| name).collect()
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        lock(&self.guard.memory)
    }

    pub(crate) fn latest(&self) -> Arc<Snapshot> {
        Arc::clone(&self.memory().latest)
    }

    /// Is told of every look.
    pub(crate) fn looks(&self) -> watch::Receiver<u64> {
        self.guard.told.subscribe()
    }

    /// Looks at once: somebody has done something, and wants to see it.
    pub(crate) async fn look_now(&self) {
        self.guard.look().await;
    }

    /// What is remembered of one queue, or of all together, of so long until the last look, oldest first.
    pub(crate) fn samples(
        &self,
        queue: Option<&str>,
        within: Duration,
    ) -> Vec<(SystemTime, QueueSample)> {
        let memory = self.memory();
        let last = memory.samples.back().map(|last| last.at);
        let old = |sample: &Sample| last.is_some_and(|last| sample.at + within < last);
        let samples = memory.samples.range(memory.samples.partition_point(old)..);
        samples
            .map(|sample| {
                if let Some(queue) = queue {
                    let own = sample.queues.get(queue).copied();
                    return (sample.at, own.unwrap_or_default());
                }
                let all = sample.queues.values();
                let together = all.fold(QueueSample::default(), |sum, one| QueueSample {
                    arrived: sum.arrived + one.arrived,
                    settled: sum.settled + one.settled,
                    pending: sum.pending + one.pending,
                    oldest: sum.oldest.max(one.oldest),
                    failures: sum.failures + one.failures,
                });
                (sample.at, together)
            })
            .collect()
    }

    /// The failed attempts of a partition that were seen, newest first.
    pub(crate) fn attempts(&self, queue: &str, partition: u32) -> Vec<Attempt> {
        let memory = self.memory();
        let attempts = memory.attempts.get(&(queue.to_owned(), partition));
        attempts
            .map(|attempts| attempts.iter().rev().cloned().collect())
            .unwrap_or_default()
    }

    /// What the database says of itself, and when it did: it is asked if that was a while ago.
    pub(crate) async fn health(&self) -> Result<(SystemTime, Vec<Finding>), OutboxError> {
        let known = self.memory().health.clone();
        let fresh = |at: SystemTime| at.elapsed().is_ok_and(|age| age < HEALTHY);
        if let Some(known) = known.filter(|(at, _)| fresh(*at)) {
            return Ok(known);
        }
        let findings = self.source().health().await?;
        let health = (SystemTime::now(), findings);
        self.memory().health = Some(health.clone());
        Ok(health)
    }

    /// When the memory begins.
    pub(crate) fn since(&self) -> Option<SystemTime> {
        self.memory().samples.front().map(|sample| sample.at)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

/// Who keeps the watch.
struct Guard {
    source: Mutex<Arc<dyn Source>>,
    memory: Mutex<Memory>,
    /// Whose turn it is to look: an earlier look is not remembered after a later one.
    turn: tokio::sync::Mutex<()>,
    told: watch::Sender<u64>,
}

impl Guard {
    fn source(&self) -> Arc<dyn Source> {
        Arc::clone(&lock(&self.source))
    }

    async fn keep(&self) {
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        for round in 0_u32.. {
            looks.tick().await;
            if round.is_multiple_of(THOROUGH) {
                self.look_thoroughly().await;
            }
            self.look().await;
        }
    }

    /// What a page can do without, should it fail.
    async fn look_thoroughly(&self) {
        let source = self.source();
        if let Ok(bytes) = source.storage().await {
            Arc::make_mut(&mut lock(&self.memory).latest).storage = Some(bytes);
        }
        if let Ok(Some(renewed)) = source.renewed().await {
            *lock(&self.source) = renewed;
        }
    }

    async fn look(&self) {
        let _turn = self.turn.lock().await;
        let seen = self.seen().await;
        self.remember(seen, SystemTime::now());
        self.told.send_modify(|looks| *looks += 1);
    }

    async fn seen(&self) -> Result<(Vec<PartitionStats>, Vec<ProcessStats>), OutboxError> {
        let source = self.source();
        Ok((source.stats().await?, source.processes().await?))
    }

    fn remember(
        &self,
        seen: Result<(Vec<PartitionStats>, Vec<ProcessStats>), OutboxError>,
        now: SystemTime,
    ) {
        let mut memory = lock(&self.memory);
        let before = Arc::clone(&memory.latest);
        let (stats, processes) = match seen {
            Ok(seen) => seen,
            Err(error) => {
                let since = before.trouble.as_ref().map_or(now, |(since, _)| *since);
                Arc::make_mut(&mut memory.latest).trouble = Some((since, error.to_string()));
                return;
            }
        };
        let sample = Self::sample(&before, &stats, memory.samples.back(), now);
        memory.samples.push_back(sample);
        while memory
            .samples
            .front()
            .is_some_and(|first| first.at + MEMORY < now)
        {
            memory.samples.pop_front();
        }
        for one in stats.iter().filter(|one| one.attempts > 0) {
            let place = (one.queue.clone(), one.partition);
            let attempts = memory.attempts.entry(place).or_default();
            let seq = one.processed_seq + 1;
            let known = attempts
                .back()
                .is_some_and(|last| (last.seq, last.attempts) == (seq, one.attempts));
            if !known {
                attempts.push_back(Attempt {
                    at: now,
                    seq,
                    attempts: one.attempts,
                    error: one.last_error.clone().unwrap_or_default(),
                });
                if attempts.len() > ATTEMPTS {
                    attempts.pop_front();
                }
            }
        }
        let attention = outbox::findings(&stats, &processes, now)
            .into_iter()
            .filter(|finding| finding.severity > Severity::Fine)
            .collect();
        memory.latest = Arc::new(Snapshot {
            at: Some(now),
            stats,
            processes,
            attention,
            storage: before.storage,
            trouble: None,
        });
    }

    fn sample(
        before: &Snapshot,
        stats: &[PartitionStats],
        last: Option<&Sample>,
        now: SystemTime,
    ) -> Sample {
        let mut queues: HashMap<String, QueueSample> = HashMap::new();
        for one in stats {
            let queue = queues.entry(one.queue.clone()).or_insert_with(|| {
                let earlier = last.and_then(|last| last.queues.get(&one.queue));
                QueueSample {
                    failures: earlier.map_or(0, |earlier| earlier.failures),
                    ..QueueSample::default()
                }
            });
            queue.arrived += one.last_seq;
            queue.settled += one.processed_seq;
            queue.pending += one.pending();
            queue.oldest = queue.oldest.max(one.waits(now).unwrap_or_default());
            if let Some(earlier) = before.partition(&one.queue, one.partition) {
                let same_head = earlier.processed_seq == one.processed_seq;
                let known = if same_head { earlier.attempts } else { 0 };
                queue.failures += i64::from(one.attempts.saturating_sub(known));
                let buried = one.dead_letters.saturating_sub(earlier.dead_letters);
                queue.failures += i64::try_from(buried).unwrap_or(0);
            }
        }
        Sample { at: now, queues }
    }
}
