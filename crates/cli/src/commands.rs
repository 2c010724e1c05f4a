//! The subcommands, one file each, with its `Args` and its `run`.

pub(crate) mod demo;
