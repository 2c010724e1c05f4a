//! Decisions about many dead letters: made one after the other in the background, oldest first, while the
//! progress can be watched, and stopped.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use outbox::{DeadLetter, DeadLetterFilter, DeadLetterStatus, OutboxError};
use tokio_util::sync::CancellationToken;

use crate::lock;
use crate::source::{DeadLetterPages, Source};

/// Dead letters that are looked up or discarded at once.
const PAGE: u32 = 500;
/// The most dead letters of one job.
const MOST: usize = 1_000_000;
/// Jobs that are remembered.
const REMEMBERED: usize = 50;
/// Jobs that run at the same time.
const AT_ONCE: usize = 2;

/// What is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    Requeue,
    Resolve,
    Discard,
}

impl Decision {
    pub(crate) const ALL: [Self; 3] = [Self::Requeue, Self::Resolve, Self::Discard];

    pub(crate) fn verb(self) -> &'static str {
        match self {
            Self::Requeue => "requeue",
            Self::Resolve => "resolve",
            Self::Discard => "discard",
        }
    }

    pub(crate) fn done(self) -> &'static str {
        match self {
            Self::Requeue => "requeued",
            Self::Resolve => "resolved",
            Self::Discard => "discarded",
        }
    }

    pub(crate) fn of(verb: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.verb() == verb)
    }
}

/// About which dead letters.
#[derive(Debug, Clone)]
pub(crate) enum Scope {
    These(Vec<i64>),
    /// All pending ones that it lets through when the job begins.
    All(DeadLetterFilter),
}

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// It finds out how many there are.
    Counting,
    Running,
    Done,
    /// Somebody stopped it.
    Stopped,
    /// The database did not let it go on.
    Failed,
}

/// A job, as far as it is.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) id: u64,
    pub(crate) decision: Decision,
    /// What it is about, in words.
    pub(crate) target: String,
    pub(crate) by: String,
    pub(crate) reason: String,
    pub(crate) began: SystemTime,
    pub(crate) ended: Option<SystemTime>,
    pub(crate) state: State,
    /// Known once they are counted.
    pub(crate) total: u64,
    pub(crate) done: u64,
    /// Those that were not pending any more.
    pub(crate) missed: u64,
    pub(crate) error: Option<String>,
    stop: CancellationToken,
}

impl Job {
    pub(crate) fn is_over(&self) -> bool {
        !matches!(self.state, State::Counting | State::Running)
    }

    /// How much of it is done, in percent.
    pub(crate) fn percent(&self) -> u64 {
        match self.total {
            0 if self.is_over() => 100,
            0 => 0,
            total => 100 * (self.done + self.missed) / total,
        }
    }
}

/// Whether as many are at work as may be.
fn are_enough(jobs: &[Job]) -> bool {
    jobs.iter().filter(|job| !job.is_over()).count() >= AT_ONCE
}

/// The jobs of this process.
#[derive(Default)]
pub(crate) struct Jobs {
    jobs: Arc<Mutex<Vec<Job>>>,
    last: AtomicU64,
}

impl Drop for Jobs {
    fn drop(&mut self) {
        for job in lock(&self.jobs).iter() {
            job.stop.cancel();
        }
    }
}

impl Jobs {
    /// Begins a job; `None` while others are at work.
    pub(crate) fn begin(
        &self,
        source: Arc<dyn Source>,
        decision: Decision,
        scope: Scope,
        target: String,
        by: String,
        reason: String,
    ) -> Option<u64> {
        let mut jobs = lock(&self.jobs);
        if are_enough(&jobs) {
            return None;
        }
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let job = Job {
            id,
            decision,
            target,
            by,
            reason,
            began: SystemTime::now(),
            ended: None,
            state: State::Counting,
            total: 0,
            done: 0,
            missed: 0,
            error: None,
            stop: CancellationToken::new(),
        };
        let stop = job.stop.clone();
        jobs.push(job);
        if jobs.len() > REMEMBERED
            && let Some(over) = jobs.iter().position(Job::is_over)
        {
            jobs.remove(over);
        }
        let worker = Worker {
            source,
            jobs: Arc::clone(&self.jobs),
            id,
            stop,
        };
        tokio::spawn(worker.work(decision, scope));
        Some(id)
    }

    /// Whether another one would have to wait.
    pub(crate) fn is_full(&self) -> bool {
        are_enough(&lock(&self.jobs))
    }

    pub(crate) fn get(&self, id: u64) -> Option<Job> {
        lock(&self.jobs).iter().find(|job| job.id == id).cloned()
    }

    /// Newest first.
    pub(crate) fn list(&self) -> Vec<Job> {
        lock(&self.jobs).iter().rev().cloned().collect()
    }

    /// Whether there was something to stop.
    pub(crate) fn stop(&self, id: u64) -> bool {
        let jobs = lock(&self.jobs);
        let job = jobs.iter().find(|job| job.id == id && !job.is_over());
        job.map(|job| job.stop.cancel()).is_some()
    }
}

/// Who does a job.
struct Worker {
    source: Arc<dyn Source>,
    jobs: Arc<Mutex<Vec<Job>>>,
    id: u64,
    stop: CancellationToken,
}

impl Worker {
    fn note(&self, change: impl FnOnce(&mut Job)) {
        if let Some(job) = lock(&self.jobs).iter_mut().find(|job| job.id == self.id) {
            change(job);
        }
    }

    async fn work(self, decision: Decision, scope: Scope) {
        let done = self.decide(decision, scope).await;
        self.note(|job| {
            job.ended = Some(SystemTime::now());
            job.state = match &done {
                Err(_) => State::Failed,
                Ok(()) if self.stop.is_cancelled() => State::Stopped,
                Ok(()) => State::Done,
            };
            job.error = done.err().map(|error| error.to_string());
        });
        let Some((by, target, told)) = self.told() else {
            return;
        };
        let recorded = self.source.audit(&by, "end", &target, &told);
        if let Err(error) = recorded.await {
            tracing::warn!(by, target, told, %error, "what was done could not be written down");
        }
    }

    /// How it ended, for the audit log.
    fn told(&self) -> Option<(String, String, String)> {
        let jobs = lock(&self.jobs);
        let job = jobs.iter().find(|job| job.id == self.id)?;
        let told = format!(
            "{} {}, {} not pending any more, of {}{}",
            job.done,
            job.decision.done(),
            job.missed,
            job.total,
            match (&job.error, job.state) {
                (Some(error), _) => format!("; then {error}"),
                (None, State::Stopped) => "; then stopped".to_owned(),
                (None, _) => String::new(),
            }
        );
        let target = format!("{} of {}", job.decision.verb(), job.target);
        Some((job.by.clone(), target, told))
    }

    async fn decide(&self, decision: Decision, scope: Scope) -> Result<(), OutboxError> {
        let ids = match scope {
            Scope::These(mut ids) => {
                ids.sort_unstable();
                ids.dedup();
                ids
            }
            Scope::All(filter) => self.find(filter).await?,
        };
        self.note(|job| (job.state, job.total) = (State::Running, ids.len() as u64));
        // In the order in which they failed, so that keys keep their order.
        for some in ids.chunks(PAGE as usize) {
            if decision == Decision::Discard {
                self.discard(some).await?;
                continue;
            }
            for id in some {
                if self.stop.is_cancelled() {
                    return Ok(());
                }
                let found = match decision {
                    Decision::Requeue => match self.source.requeue(*id).await {
                        Ok(()) => true,
                        Err(OutboxError::DeadLetterNotPending(_)) => false,
                        Err(error) => return Err(error),
                    },
                    Decision::Resolve | Decision::Discard => self.source.resolve(*id).await?,
                };
                self.note(|job| {
                    job.done += u64::from(found);
                    job.missed += u64::from(!found);
                });
            }
        }
        Ok(())
    }

    /// The numbers of all that a filter lets through, oldest first.
    async fn find(&self, filter: DeadLetterFilter) -> Result<Vec<i64>, OutboxError> {
        let filter = filter.status(DeadLetterStatus::Pending);
        let mut pages = DeadLetterPages::new(filter, i64::MIN..=i64::MAX, PAGE);
        let mut ids = Vec::new();
        while !self.stop.is_cancelled()
            && ids.len() < MOST
            && let Some(page) = pages.next(&*self.source).await?
        {
            ids.extend(page.iter().map(|letter| letter.id));
            self.note(|job| job.total = ids.len() as u64);
        }
        ids.reverse();
        Ok(ids)
    }

    async fn discard(&self, ids: &[i64]) -> Result<(), OutboxError> {
        let (Some(first), Some(last), false) = (ids.first(), ids.last(), self.stop.is_cancelled())
        else {
            return Ok(());
        };
        let mut letters: Vec<DeadLetter> = Vec::new();
        let mut pages = DeadLetterPages::new(DeadLetterFilter::new(), *first..=*last, PAGE);
        while let Some(page) = pages.next(&*self.source).await? {
            let wanted = page.into_iter();
            letters.extend(wanted.filter(|letter| ids.binary_search(&letter.id).is_ok()));
        }
        let done = self.source.discard(&letters).await?;
        self.note(|job| {
            job.done += done;
            job.missed += (ids.len() as u64).saturating_sub(done);
        });
        Ok(())
    }
}
