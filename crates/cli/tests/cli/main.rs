//! The real command, at work.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod command;
mod dashboard;
mod letters;
mod odds;
mod operations;
#[cfg(feature = "otlp")]
mod otlp;
mod refusals;
mod relay;
mod snapshots;
mod tutorial;
