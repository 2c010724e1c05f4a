//! The path of a message, one file per stage: enqueue → sequence → claim → deliver → settle → sweep.
//! Stages know messages and leases; when they run is decided in `workers/`.

pub(crate) mod deliver;
pub(crate) mod settle;
