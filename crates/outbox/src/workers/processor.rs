//! One partition's processor: takes the lease, reads, hands to the handler, settles, and decides when
//! to go on. One per partition and process; the lease decides which of them works.

mod charge;
mod conclude;
mod leased;
mod telling;
mod transactional;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use taskward::{Directive, WorkerAction};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use crate::backend::{
    Advance, Backend, Claimed, Commit, Lease, PartitionId, ReadLimit, Seq, Settlement,
    StoredMessage, Takeover,
};
use crate::engine::{ClaimPermit, Desk, Engine, Queue};
use crate::error::OutboxError;
use crate::handler::{Handler, HandlerResult, Transactional};
use crate::message::OutboxMessage;
use crate::partition_mode::PartitionMode;
use crate::patience::{FIRST, LONGEST, answer_in_contact};
use leased::{Ahead, SETTLE_WITHIN};
use telling::Telling;

/// The most messages that have a savepoint each in a transaction: PostgreSQL keeps 64 subtransactions in
/// memory.
const MAX_SAVEPOINTS: u32 = 60;
/// The most bytes of payload in one batch.
const MAX_BATCH_BYTES: u64 = 16 * 1024 * 1024;
/// How long one execution goes on while there is more, before the pace applies.
const DRAIN: Duration = Duration::from_millis(500);

/// What a processor did in one execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessorReport {
    /// The partition.
    pub partition_id: i64,
    /// How many messages were settled.
    pub messages_processed: u32,
    /// How the last batch ended.
    pub handler_result: HandlerResult,
}

/// A readable name for a worker of a queue: the queue's, and six of A–Z and 0–9.
pub(crate) fn worker_name(queue: &str) -> String {
    const LETTERS: &[u8; 36] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    let mut random = uuid::Uuid::new_v4().as_u128();
    let suffix: String = (0..6)
        .map(|_| {
            let letter = LETTERS[(random % 36) as usize];
            random /= 36;
            char::from(letter)
        })
        .collect();
    format!("{queue}-{suffix}")
}

/// A lease, and how to treat what lies under it.
#[derive(Debug, Clone, Copy)]
struct Held {
    lease: Lease,
    /// The holder before did not release: whatever stopped it may be the head's doing. One message,
    /// and its attempt is written down before its handler runs.
    careful: bool,
    /// Whether that attempt is written down.
    charged: bool,
    /// The message and the number that is written down for it: the same if it has to be tried again,
    /// for it may be there although nobody heard so.
    charging: Option<(Seq, u32)>,
    /// Another process should have it but did not take it: work off what is there, then release.
    borrowed: bool,
}

#[derive(Debug)]
pub(crate) struct Processor<DB: Backend> {
    engine: Arc<Engine<DB>>,
    queue: Arc<Queue<DB>>,
    partition: u32,
    partition_id: PartitionId,
    mode: PartitionMode,
    held: Option<Held>,
    /// What was read and not handed out yet.
    ahead: Option<Ahead>,
    /// How many messages to read at once.
    stride: u32,
    /// Not before this: a retry's backoff, which no arrival cuts short.
    resume_at: Option<Instant>,
    /// Database errors in a row, until when to rest after the last, and which contact it was in.
    errors: u32,
    error_rest: Option<(Instant, u64)>,
    /// How often in a row a handler's connection was gone although it had answered that all is well.
    losses: u32,
    telling: Telling,
    /// The process stops.
    stop: CancellationToken,
}

/// How one batch ended.
enum Step {
    /// Nothing to do.
    Nothing,
    /// The lease is gone.
    Lost,
    /// A batch was delivered and settled.
    Settled {
        messages: u32,
        full: bool,
        result: HandlerResult,
    },
}

impl<DB: Backend> Processor<DB> {
    pub(crate) fn new(engine: Arc<Engine<DB>>, queue: Arc<Queue<DB>>, partition: u32) -> Self {
        let partition_id = queue.partition_ids[partition as usize];
        Self {
            engine,
            queue,
            partition,
            partition_id,
            mode: PartitionMode::new(),
            held: None,
            ahead: None,
            stride: 1,
            resume_at: None,
            errors: 0,
            error_rest: None,
            losses: 0,
            telling: Telling::default(),
            stop: CancellationToken::new(),
        }
    }

    fn desk(&self) -> &Desk {
        &self.engine.desks[&self.partition_id]
    }

    fn hold(&mut self, held: Option<Held>) {
        self.held = held;
        self.ahead = None;
        let mut note = self.desk().note();
        note.lease = held.map(|held| held.lease);
        note.owed = None;
    }

    /// Takes the lease, if it is our turn or nobody else takes it.
    async fn claim(&mut self) -> Result<Option<Held>, OutboxError> {
        let (ours, permit) = {
            let mut note = self.desk().note();
            (note.ours, note.permit.take())
        };
        if !ours && permit.is_none() {
            return Ok(None);
        }
        let takeover = match permit {
            Some(ClaimPermit::Stale(pulse)) => Takeover::Stale(pulse),
            Some(ClaimPermit::Unclaimed) | None => Takeover::Free,
        };
        let store = &self.engine.store;
        let (holder, lease_millis) = (&self.engine.incarnation, self.queue.lease_millis());
        let claim = DB::claim(store, self.partition_id, holder, lease_millis, takeover);
        let span = tracing::info_span!("outbox.claim", queue = %self.queue.name, partition = self.partition);
        let claimed = self.heard_in_turn(claim.instrument(span)).await?;
        let held = claimed.map(|Claimed { lease, abandoned }| Held {
            lease,
            careful: abandoned,
            charged: false,
            charging: None,
            borrowed: !ours,
        });
        if held.is_some_and(|held| held.careful) {
            self.queue.meters.takeovers.increment(1);
            self.mode = PartitionMode::cautious();
        }
        self.hold(held);
        Ok(held)
    }

    async fn release(&mut self) -> Result<(), OutboxError> {
        if let Some(held) = self.held {
            // Whatever comes of it, nothing of that is handed out any more.
            self.ahead = None;
            self.pay(held.lease).await?;
            self.heard_in_turn(DB::release(&self.engine.store, held.lease))
                .await?;
            self.hold(None);
        }
        Ok(())
    }

    /// Gives the lease back at a batch's end: when it is only borrowed, or belongs to another process
    /// by now.
    async fn rest(&mut self) -> Result<(), OutboxError> {
        let ours = self.desk().note().ours;
        match self.held {
            Some(held) if ours => self.pay(held.lease).await,
            _ => self.release().await,
        }
    }

    pub(crate) async fn drain(
        &mut self,
        cancel: &CancellationToken,
    ) -> Result<Directive<ProcessorReport>, OutboxError> {
        self.look_after_lease().await?;
        let started = self.engine.clock.now();
        let mut report = self.report();
        if let Some(rest) = self
            .resume_at
            .and_then(|at| at.checked_duration_since(started))
            && !rest.is_zero()
        {
            // That it was woken for nothing says nothing of how soon it wakes.
            self.desk().note().announced = None;
            return Ok(Directive::Sleep(rest, report));
        }
        self.resume_at = None;
        self.take_up();
        loop {
            let held = match self.held {
                Some(held) => held,
                None if cancel.is_cancelled() => return Ok(Directive::Idle(report)),
                None => match self.claim().await? {
                    Some(held) => held,
                    None => return Ok(Directive::Idle(report)),
                },
            };
            if cancel.is_cancelled() || !held.borrowed && !self.desk().note().ours {
                self.release().await?;
                return Ok(Directive::Idle(report));
            }
            self.note_handling(true);
            match self.step(held).await? {
                Step::Nothing => {
                    self.rest().await?;
                    return Ok(Directive::Idle(report));
                }
                Step::Lost => {
                    self.queue.meters.leases_lost.increment(1);
                    self.hold(None);
                }
                Step::Settled {
                    messages,
                    full,
                    result,
                } => {
                    report.messages_processed += messages;
                    report.handler_result = result;
                    if matches!(report.handler_result, HandlerResult::Retry { .. }) {
                        let backoff = self.backoff();
                        self.resume_at = Some(self.engine.clock.now() + backoff);
                        return Ok(Directive::Sleep(backoff, report));
                    }
                    if !full && report.handler_result == HandlerResult::Success {
                        let owes = self.desk().note().owed.is_some();
                        if owes && !held.borrowed && !self.engine.processors_limited {
                            // What comes meanwhile is read along with the settlement.
                            return Ok(Directive::Sleep(SETTLE_WITHIN, report));
                        }
                        self.rest().await?;
                        return Ok(Directive::Idle(report));
                    }
                }
            }
            if self.engine.clock.now() - started >= DRAIN {
                // The time of what was read ahead runs while we wait for our pace or a permit.
                self.ahead = None;
                self.pay(held.lease).await?;
                return Ok(Directive::Proceed(report));
            }
        }
    }

    /// Finds out whether the lease is still there, if somebody doubts it while the head rests. Whoever took it may
    /// have skipped that head, and its backoff is nobody else's.
    async fn look_after_lease(&mut self) -> Result<(), OutboxError> {
        let doubted = std::mem::take(&mut self.desk().note().doubted);
        let held = self.held.filter(|_| doubted && self.resume_at.is_some());
        let Some(Held { lease, .. }) = held else {
            return Ok(());
        };
        let looked = self.advance(lease, None, ReadLimit::NOTHING, Commit::Relaxed);
        if looked.await? == Advance::Lost {
            self.queue.meters.leases_lost.increment(1);
            self.hold(None);
            self.resume_at = None;
        }
        Ok(())
    }

    /// Begins to work under the lease, if nobody has given it back: a stop does so with what is idle, and
    /// settles what is owed under it.
    fn take_up(&mut self) {
        let mut note = self.desk().note();
        note.handling = true;
        if let Some(announced) = note.announced.take() {
            let woken = &self.engine.meters.processor_woken;
            woken.record(announced.elapsed());
        }
        let given_back = note.lease.is_none();
        drop(note);
        if given_back {
            self.hold(None);
        }
    }

    /// Nothing done yet.
    fn report(&self) -> ProcessorReport {
        ProcessorReport {
            partition_id: self.partition_id.0,
            messages_processed: 0,
            handler_result: HandlerResult::Success,
        }
    }

    fn backoff(&self) -> Duration {
        let tuning = &self.engine.profile.processor;
        self.mode
            .current_backoff(tuning.retry_base, tuning.retry_max)
    }

    /// Reads, delivers and settles one batch.
    async fn step(&mut self, mut held: Held) -> Result<Step, OutboxError> {
        if held.careful && !held.charged {
            if let Some(step) = self.charge(held).await? {
                return Ok(step);
            }
            // Until its handler runs: whatever fails before is not another attempt.
            held.charged = true;
            if let Some(own) = &mut self.held {
                own.charged = true;
            }
        }
        let queue = Arc::clone(&self.queue);
        match &queue.handler {
            None => Ok(Step::Nothing),
            Some(Handler::Leased { handler, each }) => {
                Box::pin(self.leased(handler.as_ref(), *each, held)).await
            }
            Some(Handler::Transactional(handler)) => {
                Box::pin(self.transactional(handler, held)).await
            }
        }
    }

    fn transition(&mut self, result: &HandlerResult, processed: Option<u32>) {
        let tuning = &self.engine.profile.processor;
        let (configured, threshold) = (tuning.batch_size, tuning.degradation_threshold);
        self.mode
            .transition(result, configured, processed, threshold);
    }

    /// The head got through: the lease is treated like any other from now on.
    fn went_on(&mut self, step: Step) -> Step {
        if let Some(held) = &mut self.held {
            held.careful = false;
        }
        step
    }

    /// What a handler gets at once.
    fn limit(&self) -> ReadLimit {
        let configured = self.engine.profile.processor.batch_size;
        let mut messages = self.mode.effective_batch_size(configured);
        if let Some(Handler::Transactional(Transactional::Message(_))) = self.queue.handler {
            messages = messages.min(MAX_SAVEPOINTS);
        }
        ReadLimit {
            messages,
            bytes: MAX_BATCH_BYTES,
            despite_pause: false,
        }
    }

    /// What is read at once: more than a handler gets, if it is quick and all is well.
    fn read_limit(&self) -> ReadLimit {
        let mut limit = self.limit();
        if limit.messages == self.engine.profile.processor.batch_size {
            limit.messages = limit.messages.max(self.stride);
        }
        limit
    }

    /// The budget counts from before the statement that renews the lease is sent.
    fn deadline(&self) -> Instant {
        Instant::now() + self.queue.handler_budget()
    }

    /// Says whether a handler is at work, and how long its lease may be renewed meanwhile. Not under a
    /// transaction: that holds the partition by itself.
    fn note_handling(&self, handling: bool) {
        let leased = matches!(self.queue.handler, Some(Handler::Leased { .. }));
        let renew_up_to = self.queue.renew_up_to.filter(|_| handling && leased);
        let mut note = self.desk().note();
        note.handling = handling;
        note.renew_until = renew_up_to.map(|longest| self.engine.clock.now() + longest);
    }

    /// How long to wait for an answer: as long as a lease lasts, within reason. What comes later is of no
    /// use.
    fn patience(&self) -> Duration {
        self.queue.lease.duration.clamp(FIRST, LONGEST)
    }

    /// Waits for the database to answer.
    fn heard<T>(
        &self,
        verb: impl Future<Output = Result<T, OutboxError>>,
    ) -> impl Future<Output = Result<T, OutboxError>> {
        let (limit, mut contact) = (self.patience(), self.engine.contact.subscribe());
        // A verb's future is large, and would be moved from one to the next on the stack.
        let verb = Box::pin(verb);
        async move { answer_in_contact(limit, &mut contact, verb).await }
    }

    /// The same for a verb that takes a connection of the pool: all processors together leave the
    /// application its share.
    fn heard_in_turn<T>(
        &self,
        verb: impl Future<Output = Result<T, OutboxError>>,
    ) -> impl Future<Output = Result<T, OutboxError>> {
        self.heard(async {
            let _seat = self.engine.store.workers.seat().await;
            verb.await
        })
    }

    /// The handler runs now: an attempt that was written down before is used up. Answers what tells it
    /// that its lease is lost.
    fn tried(&mut self, messages: &[OutboxMessage]) -> CancellationToken {
        if messages.first().is_some_and(|first| first.attempts > 0) {
            self.queue.meters.redelivered.increment(1);
        }
        if let Some(held) = &mut self.held {
            held.charged = false;
        }
        let lost = CancellationToken::new();
        self.desk().note().lost = lost.clone();
        lost
    }

    /// The span in which something is settled.
    fn settling(&self, settlement: &Settlement) -> Span {
        tracing::info_span!(
            "outbox.settle",
            queue = %self.queue.name,
            partition = self.partition,
            upto = settlement.cursor.0,
            dead_letters = settlement.dead_letters.len(),
        )
    }

    async fn advance(
        &self,
        lease: Lease,
        settlement: Option<&Settlement>,
        limit: ReadLimit,
        commit: Commit,
    ) -> Result<Advance, OutboxError> {
        let advanced = self.advance_in_time(lease, settlement, limit, commit);
        Ok(advanced.await?.0)
    }

    /// The same, and until when a handler may work under the lease that was renewed: the wait for others
    /// before it is not the handler's time.
    async fn advance_in_time(
        &self,
        lease: Lease,
        settlement: Option<&Settlement>,
        limit: ReadLimit,
        commit: Commit,
    ) -> Result<(Advance, Instant), OutboxError> {
        let span = match settlement {
            None => Span::none(),
            Some(settlement) => self.settling(settlement),
        };
        let store = &self.engine.store;
        let advance = async {
            let deadline = self.deadline();
            let advance = DB::advance_alone(store, lease, settlement, limit, commit).await?;
            Ok((advance, deadline))
        };
        self.heard_in_turn(advance.instrument(span)).await
    }

    /// Messages that were read, as the handler gets them; the first was tried so often.
    fn messages(
        &self,
        held: Held,
        attempts: u32,
        read: impl Iterator<Item = StoredMessage>,
    ) -> Vec<OutboxMessage> {
        // A careful holder has written this very attempt down already.
        let attempts = attempts.saturating_sub(u32::from(held.charged));
        let message = |(place, stored): (usize, StoredMessage)| OutboxMessage {
            attempts: if place == 0 { attempts } else { 0 },
            epoch: held.lease.epoch.0,
            ..OutboxMessage::stored(stored, &self.queue, self.partition, self.partition_id)
        };
        read.enumerate().map(message).collect()
    }
}

/// How long to rest after so many errors in a row. What only this partition meets, such as a row that
/// somebody has locked, may be over without anybody noticing: no longer than a lease.
fn rest_after(errors: u32, lease: Duration) -> Duration {
    Duration::from_millis(100 << errors.min(8)).min(lease)
}

impl<DB: Backend> WorkerAction for Processor<DB> {
    type Payload = ProcessorReport;
    type Error = OutboxError;

    async fn execute(
        &mut self,
        cancel: &CancellationToken,
    ) -> Result<Directive<ProcessorReport>, OutboxError> {
        self.stop = cancel.clone();
        let contact = *self.engine.contact.borrow();
        // A new contact with the database ends the rest; a bell does not.
        if let Some((until, _)) = self.error_rest.filter(|(_, seen)| *seen == contact)
            && let Some(rest) = until.checked_duration_since(Instant::now())
            && !cancel.is_cancelled()
        {
            return Ok(Directive::Sleep(rest, self.report()));
        }
        let drained = match self.drain(cancel).await {
            // Whoever stops gives back at once what is not being handled.
            Ok(directive) if cancel.is_cancelled() => self.release().await.map(|()| directive),
            drained => drained,
        };
        // Not before: whoever stops everything gives back what nobody is at work on.
        self.note_handling(false);
        match drained {
            Ok(directive) => {
                self.errors = 0;
                self.error_rest = None;
                Ok(directive)
            }
            Err(error) => {
                self.errors = self.errors.saturating_add(1);
                let rest = rest_after(self.errors, self.queue.lease.duration);
                self.error_rest = Some((Instant::now() + rest, contact));
                let partition_id = self.partition_id.0;
                tracing::warn!(partition_id, %error, ?rest, "the processor could not go on");
                let mut report = self.report();
                report.handler_result = HandlerResult::Retry {
                    reason: error.to_string(),
                };
                Ok(Directive::Sleep(rest, report))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_rests_for_longer_than_a_lease_after_errors() {
        let rest = |errors, lease| rest_after(errors, Duration::from_secs(lease)).as_millis();
        assert_eq!(rest(1, 30), 200);
        assert_eq!(rest(u32::MAX, 30), 25_600);
        assert_eq!(rest(u32::MAX, 2), 2_000);
    }
}
