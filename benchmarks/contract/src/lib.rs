//! The contract between the benchmark and the systems it measures.
//!
//! Every system runs in a process of its own, so that no two of them share a runtime, an allocator or a
//! version of a library. Such a process gets one [`Task`] as its argument, connects, says `ready`, waits
//! for `go`, tells its progress fifty times a second, and after `stop` prints a [`Report`]. All a new
//! system has to do is implement [`System`] and call [`main`].

mod clock;
mod order;
mod payload;
mod produce;
mod protocol;
mod sink;
mod system;
mod task;
mod worker;

pub use clock::now_nanos;
pub use order::Lane;
pub use payload::Message;
pub use protocol::{Event, Progress, Report};
pub use sink::Sink;
pub use system::{Start, System};
pub use task::{Database, Handler, Production, Task};
pub use worker::main;
