//! Tables for a while: what `demo` and `bench` do in a user's database leaves nothing behind.

use std::future::Future;

use outbox::{Backend, Schema};
use sqlx::Pool;

use crate::failure::{Code, Failure};
use crate::signals::Signals;

/// An outbox that was not there before, and will not be there afterwards.
#[derive(Debug)]
pub(super) struct OwnTables<DB: Backend>(Schema<DB>);

impl<DB: Backend> OwnTables<DB> {
    /// Refuses if there are tables with this prefix: they are somebody's. `rest` is what else to do about them.
    pub(super) async fn claim(pool: &Pool<DB>, prefix: &str, rest: &str) -> Result<Self, Failure> {
        let schema = Schema::new(pool.clone(), &prefix.parse()?);
        if schema.version().await? == 0 {
            return Ok(Self(schema));
        }
        let message = format!("there are tables that begin with {prefix} already");
        Err(Failure::new(Code::No, message).way_out(format!(
            "another one runs, or was cut short; remove them with: outbox migrate down --table-prefix \
             {prefix}{rest}"
        )))
    }

    /// Does something with them and removes them, also after Ctrl-C or SIGTERM.
    pub(super) async fn lend(
        self,
        work: impl Future<Output = Result<(), Failure>>,
    ) -> Result<(), Failure> {
        let mut signals = Signals::new()?;
        let done = tokio::select! {
            done = work => done,
            _ = signals.next() => {
                Err(Failure::new(Code::No, "interrupted; its tables are removed"))
            }
        };
        self.0.down().await?;
        done
    }
}
