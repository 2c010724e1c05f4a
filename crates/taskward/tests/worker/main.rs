//! What the worker loop promises, under tokio's paused clock: hours pass in milliseconds.
#![cfg(not(shuttle))]

mod panics;
mod promises;
mod scripted;
