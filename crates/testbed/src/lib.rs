//! Throw-away databases for this workspace's own tests.
//!
//! `scripts/with-servers` starts the servers and says in the environment where they are. Every test
//! gets a database of its own on them, so tests run in parallel and never see each other; it is
//! removed when the test ends, also when it fails. A test that needs to crash its server has a
//! [`PrivateServer`]; one that needs a bad network has a [`Wire`]; what else runs beside a test, such as a
//! broker, is a [`Program`]. This crate knows nothing of outboxes.
//!
//! | variable | meaning |
//! |---|---|
//! | `OUTBOX_TEST_DATABASES` | the databases that must take part: `postgres,mariadb,mysql,sqlite`. Unset: SQLite and those that have a URL |
//! | `OUTBOX_TEST_POSTGRES_URL`, `OUTBOX_TEST_MARIADB_URL`, `OUTBOX_TEST_MYSQL_URL` | an account that may create databases |
//! | `OUTBOX_TEST_BROKERS` | the brokers that must take part: `nats,rabbitmq,redis,mqtt`. Unset: those that are installed |

mod database;
mod private_server;
mod program;
mod server;
mod wire;

pub use database::{Database, with_database};
pub use private_server::PrivateServer;
pub use program::{Program, broker_takes_part, free_port};
pub use server::{Server, announce};
pub use wire::{After, Fault, Wire};
