//! Which database servers take part in this run, and where they are.

use std::fmt;
use std::io::Write as _;
use std::sync::Once;

/// A kind of database the tests run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Server {
    /// PostgreSQL.
    Postgres,
    /// MariaDB.
    MariaDb,
    /// MySQL.
    MySql,
    /// SQLite, embedded: a file, no server.
    Sqlite,
}

impl Server {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Postgres, Self::MariaDb, Self::MySql, Self::Sqlite];

    /// The name used on command lines and in the environment.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::MariaDb => "mariadb",
            Self::MySql => "mysql",
            Self::Sqlite => "sqlite",
        }
    }

    fn url_variable(self) -> String {
        format!("OUTBOX_TEST_{}_URL", self.name().to_uppercase())
    }

    /// The URL of the administrator's database. SQLite has none.
    pub(crate) fn admin_url(self) -> Option<String> {
        std::env::var(self.url_variable())
            .ok()
            .filter(|url| !url.is_empty())
    }

    /// Whether it takes part in this run. One that does not is named on standard error, past the
    /// test runner's capture: a test that was skipped in silence would look like one that passed.
    ///
    /// # Panics
    ///
    /// When it is asked for but nobody says where it is.
    pub fn takes_part(self) -> bool {
        let reachable = self == Self::Sqlite || self.admin_url().is_some();
        let wanted = match std::env::var("OUTBOX_TEST_DATABASES") {
            Ok(list) => list.split(',').any(|name| name.trim() == self.name()),
            Err(_) => reachable,
        };
        assert!(
            !wanted || reachable,
            "{self} is in OUTBOX_TEST_DATABASES but {} is not set: run scripts/test, which starts \
             one, or name a server of yours",
            self.url_variable()
        );
        if !wanted {
            self.announce_absence();
        }
        wanted
    }
}

impl Server {
    /// Once per test binary; its tests would say the same.
    fn announce_absence(self) {
        static SAID: [Once; 4] = [const { Once::new() }; 4];
        SAID[self as usize].call_once(|| {
            announce(&format!(
                "SKIPPED on {self}: it takes no part (scripts/test starts it)"
            ));
        });
    }
}

/// Says something on standard error, past the test runner's capture.
pub fn announce(line: &str) {
    // One write, so that tests that run at once do not tear each other's lines. If nobody listens
    // there is nobody to tell.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
