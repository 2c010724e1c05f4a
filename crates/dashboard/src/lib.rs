//! The operator's dashboard of an [outbox]: what is stuck, since when, why, and what to press. Pages
//! that are made on the server, with a little script that keeps them current; nothing is fetched from
//! elsewhere.
//!
//! ```
//! # async fn serve<DB: outbox::Backend>(outbox: outbox::Outbox<DB>) -> Result<(), outbox_dashboard::DashboardError> {
//! use outbox_dashboard::{Access, Dashboard, Rights};
//!
//! let operator = Rights { operate: true, payloads: true };
//! let dashboard = Dashboard::new(outbox)
//!     .name("shop")
//!     .access(Access::nobody().user("ada", "a long secret of hers", operator)?);
//! let application: axum::Router = axum::Router::new().nest("/outbox", dashboard.router());
//! # Ok(())
//! # }
//! ```
//!
//! Without [`access`](Dashboard::access) everybody who reaches it may look, and nobody may act or see a
//! payload. An application that knows its users puts an [`Identity`] into the request's extensions in a layer
//! around it.
//!
//! It looks at the database every two seconds, whoever watches, and shows what it saw. What it cannot know it
//! says: its memory begins when it starts.

mod access;
mod assets;
mod chart;
mod form;
mod guard;
mod jobs;
mod limits;
mod live;
mod pages;
mod payload;
mod source;
mod watch;
mod words;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use outbox::{Backend, Outbox};

use access::Seal;
pub use access::{Access, Identity, Rights};
pub use guard::is_for_loopback;
use jobs::Jobs;
use limits::Limits;
pub use payload::indented_json;
use source::Source;
use watch::Watch;

/// What is behind a lock is whole at every step, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a dashboard cannot be set up as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DashboardError {
    /// A user whose name nobody could type.
    #[error("{0:?} is no user's name: it is not empty, and has no colon and no control character")]
    InvalidUserName(String),
    /// A secret that is guessed too soon.
    #[error("the secret of {name} has {length} bytes, and needs {shortest} at least")]
    ShortSecret {
        /// The user's name.
        name: String,
        /// What it has.
        length: usize,
        /// What it needs.
        shortest: usize,
    },
    /// Two users of one name.
    #[error("there are two users {0:?}")]
    UserTwice(String),
}

/// A dashboard that is being set up.
#[must_use = "it is seen once its router is served"]
pub struct Dashboard {
    source: Arc<dyn Source>,
    name: String,
    access: Access,
    local: bool,
}

impl std::fmt::Debug for Dashboard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dashboard")
            .field("name", &self.name)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

/// What the pages share.
pub(crate) struct Office {
    name: String,
    watch: Watch,
    access: Access,
    seal: Seal,
    limits: Limits,
    jobs: Jobs,
    /// Whether only this machine may be what the browser thinks it talks to.
    local: bool,
}

impl Dashboard {
    /// A dashboard of this outbox, of all queues that it knows.
    pub fn new<DB: Backend>(outbox: Outbox<DB>) -> Self {
        Self {
            source: Arc::new(outbox),
            name: "outbox".to_owned(),
            access: Access::everybody(Rights::LOOK),
            local: false,
        }
    }

    /// What it is called on every page: the database, or the environment.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Who may come in, and do what.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// It is served on a loopback address: a request that was meant for another host, as a site makes them
    /// that has its name point here, is refused.
    pub fn local(mut self) -> Self {
        self.local = true;
        self
    }

    /// Begins to look, and answers what serves the pages. It looks until the router is dropped.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn router(self) -> Router {
        let office = Office {
            name: self.name,
            watch: Watch::begin(self.source),
            access: self.access,
            seal: Seal::new(),
            limits: Limits::new(),
            jobs: Jobs::default(),
            local: self.local,
        };
        pages::router(Arc::new(office))
    }
}
