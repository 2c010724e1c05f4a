//! The producers: as many as asked, each in a loop of transactions, until the count or the time is up.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::clock::now_nanos;
use crate::order::Lane;
use crate::payload::Message;
use crate::system::System;
use crate::task::{Production, Task};

/// How long a producer waits after a failure.
const AFTER_ERROR: Duration = Duration::from_millis(1);

/// What the producers of a process share.
#[derive(Debug, Default)]
pub(crate) struct Produced {
    pub(crate) count: AtomicU64,
    pub(crate) id_sum: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) first_error: Mutex<Option<String>>,
    pub(crate) times: Mutex<Vec<(u64, u64)>>,
    pub(crate) stop: AtomicBool,
}

impl Produced {
    fn note(&self, ids: &[u64], timestamps: bool) {
        self.count.fetch_add(ids.len() as u64, Relaxed);
        self.id_sum.fetch_add(ids.iter().sum(), Relaxed);
        if timestamps {
            let now = now_nanos();
            let mut times = self
                .times
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner());
            times.extend(ids.iter().map(|id| (*id, now)));
        }
    }

    fn note_error(&self, error: &anyhow::Error) {
        self.errors.fetch_add(1, Relaxed);
        let mut first = self
            .first_error
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        first.get_or_insert_with(|| format!("{error:#}"));
    }
}

/// Runs all producers to their end.
pub(crate) async fn produce<S: System>(
    system: &Arc<S>,
    task: &Task,
    production: Production,
    produced: &Arc<Produced>,
) {
    let until = production
        .millis
        .map(|millis| Instant::now() + Duration::from_millis(millis));
    let producers: Vec<_> = (0..production.producers)
        .map(|producer| {
            let (system, produced) = (Arc::clone(system), Arc::clone(produced));
            let task = task.clone();
            tokio::spawn(async move {
                one_producer(&*system, &task, production, producer, until, &produced).await;
            })
        })
        .collect();
    for producer in producers {
        if let Err(panic) = producer.await {
            produced.note_error(&panic.into());
        }
    }
}

async fn one_producer<S: System>(
    system: &S,
    task: &Task,
    production: Production,
    producer: u64,
    until: Option<Instant>,
    produced: &Produced,
) {
    let mut lane = Lane::new(producer, production.producers, u64::from(task.partitions));
    let limit = production.count.unwrap_or(task.capacity);
    let step = production.rate.map(|rate| {
        let each = production.per_transaction as f64 * production.producers as f64 / rate;
        Duration::from_secs_f64(each)
    });
    let mut due = Instant::now() + step.unwrap_or_default().mul_f64(pseudo_random(producer));
    let mut sent = 0;
    let over = |at: Instant| until.is_some_and(|until| at >= until) || produced.stop.load(Relaxed);
    while !over(Instant::now()) {
        if let Some(step) = step {
            if over(due) {
                return;
            }
            sleep_until(due).await;
            // Uneven steps: producers must not march in time with anybody's polling.
            sent += 1;
            due += step.mul_f64(0.5 + pseudo_random(producer + sent * 8));
            due = due.max(Instant::now());
        }
        let mut messages = Vec::new();
        while (messages.len() as u64) < production.per_transaction
            && let Some((id, partition)) = lane.next_below(limit)
        {
            messages.push(Message::new(id, partition, task.payload_bytes));
        }
        if messages.is_empty() {
            return;
        }
        let ids: Vec<u64> = messages.iter().map(|message| message.id).collect();
        // Tried again as an application would; a process that cannot commit is told to stop.
        while let Err(error) = system.produce(messages.clone()).await {
            produced.note_error(&error);
            if over(Instant::now()) {
                return;
            }
            tokio::time::sleep(AFTER_ERROR).await;
        }
        produced.note(&ids, task.timestamps);
    }
}

/// Between 0 and 1, the same in every run.
fn pseudo_random(seed: u64) -> f64 {
    let mut state = seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    state ^= state >> 32;
    state = state.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    (state >> 40) as f64 / (1_u64 << 24) as f64
}
