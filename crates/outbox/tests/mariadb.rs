//! The conformance suite, and what is special here, on MariaDB.
#![cfg(all(feature = "testing", feature = "mysql"))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod conformance;
mod markers;
mod wire;

conformance::suite!(sqlx::MySql, testbed::Server::MariaDb);
wire::suite!(sqlx::MySql, testbed::Server::MariaDb);
markers::suite!(testbed::Server::MariaDb);
