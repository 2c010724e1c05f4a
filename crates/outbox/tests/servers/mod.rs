//! What the tests that attack servers and networks have in common. They run on every database that
//! has a server; SQLite has none.

use std::time::Duration;

use outbox::LeaseConfig;
use tokio::time::Instant;

/// Short, for the tests wait for it to run out.
pub(crate) const LEASE: LeaseConfig = LeaseConfig {
    duration: Duration::from_millis(1000),
    headroom: Duration::from_millis(200),
};

/// After the last fault everything goes on within this time.
pub(crate) const RESUMED: Duration = LEASE.duration.saturating_add(Duration::from_secs(5));

/// Looks until a condition holds, at most so long, and answers how long it took.
pub(crate) async fn until(
    what: &str,
    limit: Duration,
    mut condition: impl AsyncFnMut() -> bool,
) -> Duration {
    let started = Instant::now();
    let mut looks = tokio::time::interval(Duration::from_millis(5));
    loop {
        looks.tick().await;
        if condition().await {
            return started.elapsed();
        }
        assert!(started.elapsed() < limit, "{what}: not within {limit:?}");
    }
}

/// Makes a `#[tokio::test]` per database of every function named.
macro_rules! on_every_server {
    ($($(#[$attribute:meta])* $test:ident),* $(,)?) => {
        #[cfg(feature = "postgres")]
        mod postgres {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                $(#[$attribute])*
                async fn $test() {
                    super::$test::<sqlx::Postgres>(testbed::Server::Postgres).await;
                }
            )*
        }
        #[cfg(feature = "mysql")]
        mod mariadb {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                $(#[$attribute])*
                async fn $test() {
                    super::$test::<sqlx::MySql>(testbed::Server::MariaDb).await;
                }
            )*
        }
        #[cfg(feature = "mysql")]
        mod mysql {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                $(#[$attribute])*
                async fn $test() {
                    super::$test::<sqlx::MySql>(testbed::Server::MySql).await;
                }
            )*
        }
    };
}
pub(crate) use on_every_server;
