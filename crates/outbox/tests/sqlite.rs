//! The conformance suite on SQLite.
#![cfg(feature = "sqlite")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod conformance;

conformance::suite!(sqlx::Sqlite, testbed::Server::Sqlite);
