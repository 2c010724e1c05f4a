//! What several processors want of the one writer there is, done in one transaction: they ask at the same
//! time, and each commit waits for the disk. Whoever's turn comes first does it for all who wait.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use sqlx::Sqlite;
use tokio::sync::oneshot;

use crate::backend::{
    Advance, Answer, Backend as _, Lease, OwnTransaction, ReadLimit, Settlement, Store,
};
use crate::engine::lock;

/// How long a transaction takes in further requests.
const LONG: Duration = Duration::from_millis(3);
/// And how much it may have read.
const MANY_BYTES: usize = 16 << 20;

/// Those who wait.
#[derive(Debug, Default)]
pub struct Together(Mutex<VecDeque<Request>>);

impl Together {
    fn push(&self, request: Request) {
        let mut waiting = lock(&self.0);
        // Who does not wait any more does not want it either.
        waiting.retain(|request| !request.reply.is_closed());
        waiting.push_back(request);
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
) -> Answer<Advance> {
    let (reply, mut answer) = oneshot::channel();
    store.shared.push(Request {
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
            transaction = Sqlite::begin(store, None) => do_some(store, transaction?).await?,
        }
    }
}

/// Does what is asked at this moment, or as much of it as does not keep others from writing, and answers
/// when it is committed. After an error nobody gets an answer.
async fn do_some(store: &Store<Sqlite>, mut transaction: OwnTransaction<Sqlite>) -> Answer<()> {
    let began = Instant::now();
    let mut answers = Vec::new();
    let mut bytes = 0;
    while began.elapsed() < LONG && bytes < MANY_BYTES {
        let Some(request) = lock(&store.shared.0).pop_front() else {
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
