//! The conformance suite, and what is special here, on MySQL.
#![cfg(all(feature = "testing", feature = "mysql"))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod conformance;
mod markers;
mod wire;

conformance::suite!(sqlx::MySql, testbed::Server::MySql);
wire::suite!(sqlx::MySql, testbed::Server::MySql);
markers::suite!(testbed::Server::MySql);
