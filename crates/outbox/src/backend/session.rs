//! Where a verb of one statement runs: by itself, or, where the pool's sessions have a default that does
//! not suit us, in a transaction that asks for READ COMMITTED. Under SERIALIZABLE our statements and the
//! producers' would keep failing each other on PostgreSQL; under READ UNCOMMITTED, on MySQL, we would take
//! what somebody has written for what is committed.

use super::{Answer, Backend, OwnConnection, OwnTransaction, Store};

pub(crate) enum Session<DB: Backend> {
    Plain(OwnConnection<DB>),
    Explicit(OwnTransaction<DB>),
}

impl<DB: Backend> Session<DB> {
    pub(crate) async fn open(store: &Store<DB>) -> Answer<Self> {
        Ok(if store.habits.explicit_isolation {
            Self::Explicit(DB::begin(store, None).await?)
        } else {
            Self::Plain(OwnConnection::acquire(&store.workers).await?)
        })
    }

    pub(crate) fn connection(&mut self) -> &mut DB::Connection {
        match self {
            Self::Plain(connection) => connection,
            Self::Explicit(transaction) => transaction,
        }
    }

    pub(crate) async fn end(self) -> Answer<()> {
        match self {
            Self::Plain(connection) => {
                connection.give_back();
                Ok(())
            }
            Self::Explicit(transaction) => transaction.commit().await,
        }
    }
}
