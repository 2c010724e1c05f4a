//! What several processors want of the one writer there is, done in one transaction: they ask at the same
//! time, and each commit waits for the disk. Whoever's turn comes first does it for all who wait.

use std::sync::Mutex;

use sqlx::Sqlite;
use tokio::sync::oneshot;

use crate::backend::{
    Advance, Answer, Backend as _, Lease, OwnTransaction, ReadLimit, Settlement, Store,
};
use crate::engine::lock;

/// Those who wait.
#[derive(Debug, Default)]
pub struct Together(Mutex<Vec<Request>>);

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
    lock(&store.shared.0).push(Request {
        lease,
        settlement: settlement.cloned(),
        limit,
        reply,
    });
    let done_by_another = tokio::select! {
        biased;
        answer = &mut answer => answer.ok(),
        transaction = Sqlite::begin(store, None) => {
            do_all(store, transaction?).await?;
            // Somebody may have taken ours before, and be about to answer.
            answer.await.ok()
        }
    };
    match done_by_another {
        Some(advance) => Ok(advance),
        // Whoever took it failed, for another's sake or ours: by ourselves we shall see.
        None => alone(store, lease, settlement, limit).await,
    }
}

/// Does what is asked at this moment, and answers when it is committed. After an error nobody gets an
/// answer.
async fn do_all(store: &Store<Sqlite>, mut transaction: OwnTransaction<Sqlite>) -> Answer<()> {
    let requests = std::mem::take(&mut *lock(&store.shared.0));
    let mut answers = Vec::with_capacity(requests.len());
    for request in requests {
        let settlement = request.settlement.as_ref();
        let (lease, limit) = (request.lease, request.limit);
        let advance = Sqlite::advance(&store.sql, &mut transaction, lease, settlement, limit).await;
        match advance {
            Ok(advance) => answers.push((request.reply, advance)),
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
