//! Accounts with the grants that the documentation gives them, on a server where PUBLIC may do nothing.

pub(crate) mod duties;
pub(crate) mod grant;

use std::time::Duration;

use outbox::{Schema, TablePrefix};
use sqlx::Pool;
use testbed::{Database, Server};

use super::conformance::Dialect;
use super::conformance::stage::PATIENCE;
use grant::Grant;

pub(crate) const MIGRATIONS: &str = "outbox_migrations";
pub(crate) const WORKER: &str = "outbox_worker";
pub(crate) const PRODUCER: &str = "outbox_producer";
const ACCOUNTS: [&str; 3] = [MIGRATIONS, WORKER, PRODUCER];
const PASSWORD: &str = "only-for-this-test";
/// How long something is waited for that should not happen.
const SOON: Duration = Duration::from_millis(500);

/// The statements of both parts, with this test's names for the accounts.
fn grants(server: Server, suffix: &str) -> [Vec<String>; 2] {
    let text = match server {
        Server::Postgres => include_str!("../../../../docs/grants/postgres.sql"),
        _ => include_str!("../../../../docs/grants/mysql.sql"),
    };
    let (before, after) = text.split_once("-- 2.").unwrap();
    [before, after].map(|part| {
        let lines: String = part
            .lines()
            .filter(|line| line.starts_with("GRANT") || line.starts_with("    "))
            .map(|line| format!("{line}\n"))
            .collect();
        let named = ACCOUNTS.iter().fold(lines, |lines, account| {
            lines.replace(account, &account_name(account, suffix))
        });
        let statements = named.split(";\n").filter(|one| !one.is_empty());
        statements.map(str::to_owned).collect()
    })
}

/// Accounts are known to the whole server.
fn account_name(account: &str, suffix: &str) -> String {
    format!("{}_{suffix}", &account["outbox_".len()..][..6])
}

/// The database's address for another account.
fn url_for(url: &str, account: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap();
    let (_, place) = rest.split_once('@').unwrap();
    format!("{scheme}://{account}:{PASSWORD}@{place}")
}

pub(crate) struct Accounts<DB: Dialect> {
    server: Server,
    url: String,
    suffix: String,
    pub(crate) admin: Pool<DB>,
    pub(crate) migrations: Pool<DB>,
    pub(crate) worker: Pool<DB>,
    pub(crate) producer: Pool<DB>,
}

impl<DB: Dialect> Accounts<DB> {
    pub(crate) async fn make(database: &Database) -> Self {
        let (server, url) = (database.server(), database.url().to_owned());
        let admin = DB::connect(&url, 2).await;
        let name = url.rsplit('/').next().unwrap();
        let suffix: String = name.chars().rev().take(12).collect();
        for account in ACCOUNTS {
            let name = account_name(account, &suffix);
            let create = match server {
                Server::Postgres => format!("CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}'"),
                _ => format!("CREATE USER {name} IDENTIFIED BY '{PASSWORD}'"),
            };
            run(&admin, &create).await.unwrap();
        }
        if server == Server::Postgres {
            // What everybody may do would hide what an account needs.
            let migrations = account_name(MIGRATIONS, &suffix);
            let functions = format!(
                "ALTER DEFAULT PRIVILEGES FOR ROLE {migrations} REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC"
            );
            for revoke in ["REVOKE ALL ON SCHEMA public FROM PUBLIC", &functions] {
                run(&admin, revoke).await.unwrap();
            }
        }
        let pool = async |account| {
            let url = url_for(&url, &account_name(account, &suffix));
            DB::connect(&url, 6).await
        };
        let [before, after] = grants(server, &suffix);
        for statement in before {
            run(&admin, &statement).await.unwrap();
        }
        let migrations = pool(MIGRATIONS).await;
        schema(&migrations).up().await.unwrap();
        for statement in after {
            run(&admin, &statement).await.unwrap();
        }
        Self {
            migrations,
            worker: pool(WORKER).await,
            producer: pool(PRODUCER).await,
            server,
            url,
            suffix,
            admin,
        }
    }

    /// An account as the server knows it.
    pub(crate) fn name(&self, account: &str) -> String {
        account_name(account, &self.suffix)
    }

    /// Sessions that know of every grant as it is now. Elsewhere they learn it with the next statement, but on
    /// MySQL what is granted on a whole database only when they begin.
    pub(crate) async fn fresh(&self, account: &str) -> Pool<DB> {
        DB::connect(&url_for(&self.url, &self.name(account)), 2).await
    }

    /// Everything that the documentation grants to an account, one by one.
    pub(crate) fn grants_of(&self, account: &str) -> Vec<Grant> {
        let name = self.name(account);
        let statements = grants(self.server, &self.suffix).concat();
        let grants = statements
            .iter()
            .flat_map(|statement| Grant::all(statement));
        grants.filter(|grant| grant.account == name).collect()
    }

    /// Which of its grants an account can do its duty without. The duty is told how long to wait for what happens by
    /// itself.
    pub(crate) async fn unneeded(
        &self,
        account: &str,
        mut duty: impl AsyncFnMut(&Self, Duration) -> duties::Done,
    ) -> Vec<Grant> {
        let mut unneeded = Vec::new();
        let with_all = duty(self, PATIENCE).await;
        with_all.unwrap_or_else(|error| panic!("{account} with all its grants: {error}"));
        for grant in self.grants_of(account) {
            run(&self.admin, &grant.revoke()).await.unwrap();
            if duty(self, SOON).await.is_ok() {
                unneeded.push(grant.clone());
            }
            run(&self.admin, &grant.give()).await.unwrap();
        }
        let at_last = duty(self, PATIENCE).await;
        at_last.unwrap_or_else(|error| panic!("{account} with all its grants again: {error}"));
        unneeded
    }

    /// Accounts are not part of the database, and would stay.
    pub(crate) async fn remove(self) {
        schema(&self.migrations).down().await.unwrap();
        for pool in [&self.migrations, &self.worker, &self.producer] {
            pool.close().await;
        }
        for account in ACCOUNTS {
            let name = self.name(account);
            let kind = match self.server {
                Server::Postgres => {
                    let drop = format!("DROP OWNED BY {name}");
                    run(&self.admin, &drop).await.unwrap();
                    "ROLE"
                }
                _ => "USER",
            };
            let drop = format!("DROP {kind} {name}");
            run(&self.admin, &drop).await.unwrap();
        }
        self.admin.close().await;
    }
}

pub(crate) fn schema<DB: Dialect>(pool: &Pool<DB>) -> Schema<DB> {
    Schema::new(pool.clone(), &TablePrefix::default())
}

pub(crate) async fn run<DB: Dialect>(pool: &Pool<DB>, sql: &str) -> Result<(), sqlx::Error> {
    let mut connection = pool.acquire().await.unwrap();
    DB::run(&mut connection, sql.to_owned()).await
}
