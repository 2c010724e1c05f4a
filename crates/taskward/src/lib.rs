//! Supervised worker loops.
//!
//! A worker is one [`action::WorkerAction`] run again and again by a [`task::WorkerTask`]. Each run
//! answers with a [`action::Directive`] that says when the next one is due: at once, after a time,
//! or when somebody knocks. The loop around it does what every background worker needs and nobody
//! wants to write twice:
//!
//! | concern | module |
//! |---|---|
//! | what one run does, and when the next is due | [`action`] |
//! | how fast a busy worker goes | [`pacing`] |
//! | how many run at once, and how long a failing one rests | [`bulkhead`] |
//! | a periodic knock | [`mod@poker`] |
//! | what observers see | [`listener`] |
//! | the loop itself: wake-ups, errors, panics, cancellation | [`task`] |
//! | many workers: spawning them, stopping them within a deadline | [`task_set`] |
//!
//! # What it promises
//!
//! * **A worker never dies of what it runs.** An error or a panic, of the action, of a listener, of
//!   an error's `Display`, is reported and survived. Only cancellation ends the loop, or
//!   [`task::PanicPolicy::Propagate`] where that was asked for.
//! * **No wake-up is lost.** A notification that arrives while the worker waits, runs, backs off or
//!   queues for a permit leads to an execution that starts after it.
//! * **No allocation per execution** on the way from one execution to the next.
//! * **Time is tokio's.** Under a paused clock hours pass in milliseconds.
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use taskward::{Directive, TaskSet, TracingListener, WorkerAction, WorkerBuilder, poker};
//! use tokio::sync::Notify;
//! use tokio_util::sync::CancellationToken;
//!
//! /// Empties a mailbox, one letter per run.
//! struct Postman {
//!     letters: u32,
//!     done: Arc<Notify>,
//! }
//!
//! impl WorkerAction for Postman {
//!     type Payload = ();
//!     type Error = std::io::Error;
//!
//!     async fn execute(&mut self, _: &CancellationToken) -> Result<Directive, Self::Error> {
//!         if self.letters == 0 {
//!             self.done.notify_one();
//!             return Ok(Directive::idle()); // until somebody notifies
//!         }
//!         self.letters -= 1;
//!         Ok(Directive::proceed()) // there may be more
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! let cancel = CancellationToken::new();
//! let (every_minute, _) = poker(Duration::from_secs(60), cancel.clone());
//! let mail = Arc::new(Notify::new());
//! let done = Arc::new(Notify::new());
//!
//! let mut workers = TaskSet::new(cancel.clone());
//! workers.spawn(
//!     "postman",
//!     WorkerBuilder::new("postman", cancel)
//!         .notifier(mail.clone())
//!         .notifier(every_minute)
//!         .listener(TracingListener)
//!         .build(Postman { letters: 3, done: done.clone() })
//!         .run(),
//! );
//!
//! mail.notify_one();
//! done.notified().await;
//! assert!(workers.shutdown().await.is_clean());
//! # }
//! ```

pub mod action;
pub mod bulkhead;
pub mod listener;
pub mod pacing;
pub mod panic;
pub mod poker;
mod runtime;
pub mod task;
pub mod task_set;
mod wakeup;

pub use action::{Directive, WorkerAction};
pub use bulkhead::{BackoffConfig, Bulkhead, BulkheadConfig, ConcurrencyLimit, Permit};
pub use listener::{TracingListener, WorkerListener};
pub use pacing::{Pace, PacingConfig};
pub use poker::poker;
pub use task::{PanicPolicy, WorkerBuilder, WorkerTask};
pub use task_set::{ShutdownReport, TaskOutcome, TaskSet};
