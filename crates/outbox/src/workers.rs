//! The background workers of a process, one file each: thin actions that run a stage of the pipeline
//! and answer when to run it again.

pub(crate) mod herald;
pub(crate) mod keeper;
pub(crate) mod processor;
pub(crate) mod reconciler;
pub(crate) mod scout;
pub(crate) mod sequencer;
pub(crate) mod stats;
pub(crate) mod vacuum;
