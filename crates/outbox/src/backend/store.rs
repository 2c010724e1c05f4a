//! Where the verbs of a backend find their connections and statements.

use std::sync::Arc;

use sqlx::Pool;

use super::{Backend, Habits, Lane, StatementSet as _, TablePrefix, TimeSource};

/// A pool and the statements for it.
#[derive(Debug)]
pub struct Store<DB: Backend> {
    /// Where connections come from. Their session state is never changed.
    pub pool: Pool<DB>,
    /// For our own verbs.
    pub workers: Arc<Lane<DB>>,
    /// For the producers' transactions, which may leave a session as they like.
    pub producers: Arc<Lane<DB>>,
    /// What the verbs share.
    pub shared: DB::Shared,
    /// The statements, with the table prefix filled in.
    pub sql: DB::Statements,
    /// What all table names begin with.
    pub prefix: TablePrefix,
    /// What is known of the server.
    pub habits: Habits,
}

impl<DB: Backend> Store<DB> {
    pub(crate) fn new(pool: Pool<DB>, prefix: &TablePrefix, time: TimeSource) -> Self {
        let writers = Arc::default();
        Self {
            workers: Lane::new(&pool, &writers),
            producers: Lane::new(&pool, &writers),
            shared: Default::default(),
            pool,
            sql: DB::Statements::new(prefix, time),
            prefix: prefix.clone(),
            habits: Habits::default(),
        }
    }
}
