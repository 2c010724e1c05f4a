//! What several processors want of the one writer there is, done in one transaction: they ask at the same
//! time, and each commit waits for the disk. Whoever's turn comes first does it for all who wait.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use sqlx::Sqlite;
use tokio::sync::oneshot;

use super::relaxed::{self, Relaxed};
use crate::backend::{
    Advance, Answer, Backend as _, Commit, Lease, OwnTransaction, ReadLimit, Settlement, Store,
};
use crate::engine::lock;

/// How long a transaction takes in further requests.
const LONG: Duration = Duration::from_millis(3);
/// And how much it may have read.
const MANY_BYTES: usize = 16 << 20;

/// Those who wait.
#[derive(Debug, Default)]
pub struct Together {
    for_the_disk: Waiting,
    /// Whose commit need not wait for the disk.
    at_ease: Waiting,
    pub(super) relaxed: Relaxed,
}

#[derive(Debug, Default)]
struct Waiting(Mutex<VecDeque<Request>>);

impl Waiting {
    fn push(&self, request: Request) {
        let mut waiting = lock(&self.0);
        // Who does not wait any more does not want it either.
        waiting.retain(|request| !request.reply.is_closed());
        waiting.push_back(request);
    }

    fn next(&self) -> Option<Request> {
        lock(&self.0).pop_front()
    }
}

impl Together {
    fn waiting(&self, commit: Commit) -> &Waiting {
        match commit {
            Commit::Durable => &self.for_the_disk,
            Commit::Relaxed => &self.at_ease,
        }
    }

    /// Whom a transaction can do something for: one that waits for the disk is good enough for all.
    fn next(&self, commit: Commit) -> Option<Request> {
        let first = self.waiting(commit).next();
        match commit {
            Commit::Durable => first.or_else(|| self.at_ease.next()),
            Commit::Relaxed => first,
        }
    }
}

#[derive(Debug)]
struct Request {
    lease: Lease,
    settlement: Option<Settlement>,
    limit: ReadLimit,
    reply: oneshot::Sender<Advance>,
}

/// [`Backend::advance`](crate::Backend) in a transaction of its own, or in one with others.
pub(super) async fn advance(
    store: &Store<Sqlite>,
    lease: Lease,
    settlement: Option<&Settlement>,
    limit: ReadLimit,
    commit: Commit,
) -> Answer<Advance> {
    let (reply, mut answer) = oneshot::channel();
    store.shared.waiting(commit).push(Request {
        lease,
        settlement: settlement.cloned(),
        limit,
        reply,
    });
    loop {
        tokio::select! {
            biased;
            answer = &mut answer => match answer {
                Ok(advance) => return Ok(advance),
                // Whoever took it failed, for another's sake or ours: by ourselves we shall see.
                Err(_) => return alone(store, lease, settlement, limit).await,
            },
            transaction = begin(store, commit) => do_some(store, transaction?, commit).await?,
        }
    }
}

async fn begin(store: &Store<Sqlite>, commit: Commit) -> Answer<OwnTransaction<Sqlite>> {
    match commit {
        Commit::Durable => Sqlite::begin(store, None).await,
        Commit::Relaxed => relaxed::begin(store).await,
    }
}

/// Does what is asked at this moment, or as much of it as does not keep others from writing, and answers
/// when it is committed. After an error nobody gets an answer.
async fn do_some(
    store: &Store<Sqlite>,
    mut transaction: OwnTransaction<Sqlite>,
    commit: Commit,
) -> Answer<()> {
    let began = Instant::now();
    let mut answers = Vec::new();
    let mut bytes = 0;
    while began.elapsed() < LONG && bytes < MANY_BYTES {
        let Some(request) = store.shared.next(commit) else {
            break;
        };
        if request.reply.is_closed() {
            continue;
        }
        let settlement = request.settlement.as_ref();
        let (lease, limit) = (request.lease, request.limit);
        match Sqlite::advance(&store.sql, &mut transaction, lease, settlement, limit).await {
            Ok(advance) => {
                if let Advance::Held(head) = &advance {
                    bytes += head
                        .messages
                        .iter()
                        .map(|one| one.payload.len())
                        .sum::<usize>();
                }
                answers.push((request.reply, advance));
            }
            Err(error) => {
                tracing::debug!(%error, "not together");
                return transaction.roll_back().await;
            }
        }
    }
    transaction.commit().await?;
    for (reply, advance) in answers {
        // Who does not wait any more has lost the reply.
        let _ = reply.send(advance);
    }
    Ok(())
}

async fn alone(
    store: &Store<Sqlite>,
    lease: Lease,
    settlement: Option<&Settlement>,
    limit: ReadLimit,
) -> Answer<Advance> {
    let mut transaction = Sqlite::begin(store, None).await?;
    let advance = Sqlite::advance(&store.sql, &mut transaction, lease, settlement, limit).await?;
    transaction.commit().await?;
    Ok(advance)
}
