//! Least privilege: each account gets by with the grants that the documentation gives it, and can do
//! nothing else. On every database that has accounts.
#![cfg(all(feature = "testing", any(feature = "postgres", feature = "mysql")))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

#[expect(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "the stage is shared with the suite, which is not run here"
)]
mod conformance;
#[expect(dead_code, reason = "shared with tests that wait for leases")]
mod servers;

use std::time::Duration;

use conformance::any_language::{Call, Routine};
use conformance::stage::{ONE, quick, text_message};
use conformance::{Collector, Dialect, Stage};
use outbox::{DeadLetterFilter, MessageResult, Outbox, OutboxError, Schema, Severity, TablePrefix};
use servers::on_every_server;
use sqlx::Pool;
use testbed::{Database, Server, with_database};

on_every_server!(
    each_account_gets_by_with_its_grants,
    a_process_without_workers_needs_a_registered_queue,
    whoever_may_not_migrate_is_told_what_it_takes,
);

const ACCOUNTS: [&str; 3] = ["outbox_migrations", "outbox_worker", "outbox_producer"];
const PASSWORD: &str = "only-for-this-test";

/// The statements of both parts, with this test's names for the accounts.
fn grants(server: Server, suffix: &str) -> [Vec<String>; 2] {
    let text = match server {
        Server::Postgres => include_str!("../../../docs/grants/postgres.sql"),
        _ => include_str!("../../../docs/grants/mysql.sql"),
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
fn url_for(database: &Database, account: &str) -> String {
    let (scheme, rest) = database.url().split_once("://").unwrap();
    let (_, place) = rest.split_once('@').unwrap();
    format!("{scheme}://{account}:{PASSWORD}@{place}")
}

struct Accounts<DB: Dialect> {
    admin: Pool<DB>,
    suffix: String,
    migrations: Pool<DB>,
    worker: Pool<DB>,
    producer: Pool<DB>,
}

impl<DB: Dialect> Accounts<DB> {
    async fn make(database: &Database) -> Self {
        let admin = DB::connect(database.url(), 2).await;
        let name = database.url().rsplit('/').next().unwrap();
        let suffix: String = name.chars().rev().take(12).collect();
        for account in ACCOUNTS {
            let name = account_name(account, &suffix);
            let create = match database.server() {
                Server::Postgres => format!("CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}'"),
                _ => format!("CREATE USER {name} IDENTIFIED BY '{PASSWORD}'"),
            };
            run(&admin, &create).await.unwrap();
        }
        let pool = async |account| {
            let url = url_for(database, &account_name(account, &suffix));
            DB::connect(&url, 6).await
        };
        let [before, after] = grants(database.server(), &suffix);
        for statement in before {
            run(&admin, &statement).await.unwrap();
        }
        let migrations = pool(ACCOUNTS[0]).await;
        schema(&migrations).up().await.unwrap();
        for statement in after {
            run(&admin, &statement).await.unwrap();
        }
        Self {
            migrations,
            worker: pool(ACCOUNTS[1]).await,
            producer: pool(ACCOUNTS[2]).await,
            admin,
            suffix,
        }
    }

    /// Accounts are not part of the database, and would stay.
    async fn remove(self, server: Server) {
        schema(&self.migrations).down().await.unwrap();
        for pool in [self.migrations, self.worker, self.producer] {
            pool.close().await;
        }
        for account in ACCOUNTS {
            let name = account_name(account, &self.suffix);
            if server == Server::Postgres {
                run(&self.admin, &format!("DROP OWNED BY {name}"))
                    .await
                    .unwrap();
            }
            let kind = if server == Server::Postgres {
                "ROLE"
            } else {
                "USER"
            };
            run(&self.admin, &format!("DROP {kind} {name}"))
                .await
                .unwrap();
        }
        self.admin.close().await;
    }
}

fn schema<DB: Dialect>(pool: &Pool<DB>) -> Schema<DB> {
    Schema::new(pool.clone(), &TablePrefix::default())
}

async fn run<DB: Dialect>(pool: &Pool<DB>, sql: &str) -> Result<(), sqlx::Error> {
    let mut connection = pool.acquire().await.unwrap();
    DB::run(&mut connection, sql.to_owned()).await
}

async fn each_account_gets_by_with_its_grants<DB: Routine>(server: Server) {
    if !server.takes_part() {
        return;
    }
    with_database(server, async |database| {
        let accounts = Accounts::<DB>::make(database).await;
        let (refused, collector) = (
            "refused",
            Collector::answering(|message| match message.payload.as_slice() {
                b"refused" => MessageResult::Reject("no".to_owned()),
                _ => MessageResult::Ok,
            }),
        );
        let worker = quick(Outbox::builder(accounts.worker.clone()))
            .queue("orders", ONE)
            .leased(collector.clone())
            .start()
            .await
            .unwrap();
        let producer = quick(Outbox::builder(accounts.producer.clone()))
            .without_workers()
            .queue("orders", ONE)
            .produce_only()
            .start()
            .await
            .unwrap();

        for text in ["one", refused, "two"] {
            let enqueue = async |connection: &mut DB::Connection| {
                let message = text_message(0, text);
                producer
                    .outbox()
                    .enqueue(connection, "orders", message)
                    .await
            };
            producer.outbox().transaction(enqueue).await.unwrap();
        }
        let mut connection = accounts.producer.acquire().await.unwrap();
        let call = Call::new("k", "three");
        DB::call(&mut connection, &call).await.unwrap();
        drop(connection);
        collector.wait_for(4).await;
        assert_eq!(collector.texts(), ["one", refused, "two", "three"]);

        // Everything an operator does.
        let outbox = worker.outbox();
        let stage = Stage::<DB> {
            url: database.url().to_owned(),
            pool: accounts.admin.clone(),
        };
        stage
            .until("SELECT COUNT(*) FROM outbox_dead_letters", 1)
            .await;
        let all = DeadLetterFilter::new();
        let letters = outbox.dead_letter_list(&all).await.unwrap();
        outbox.dead_letter_requeue(letters[0].id).await.unwrap();
        collector.wait_for(5).await;
        stage
            .until("SELECT COUNT(*) FROM outbox_dead_letters", 2)
            .await;
        let minute = Duration::from_secs(60);
        let claimed = outbox.dead_letter_replay(&all, minute).await.unwrap();
        assert_eq!(outbox.dead_letter_resolve(&claimed).await.unwrap(), 1);
        assert_eq!(outbox.dead_letter_cleanup(&all).await.unwrap(), 2);
        outbox.pause("orders", None).await.unwrap();
        outbox.pause("orders", Some(0)).await.unwrap();
        stage.enqueue(outbox, 0, &["skipped"]).await;
        stage
            .until("SELECT last_seq FROM outbox_partitions", 6)
            .await;
        assert!(outbox.skip("orders", 0, "no").await.unwrap().is_some());
        outbox.resume("orders", Some(0)).await.unwrap();
        outbox.resume("orders", None).await.unwrap();
        assert_eq!(outbox.stats().await.unwrap().len(), 1);
        outbox.peek("orders", 0, None, 10).await.unwrap();
        for finding in outbox.health().await.unwrap() {
            let lacking = finding.check == "privileges" && finding.severity != Severity::Fine;
            assert!(!lacking, "{finding:?}");
        }
        for table in DB::PASSING {
            stage
                .until(&format!("SELECT COUNT(*) FROM {table}"), 0)
                .await;
        }

        // After a restore: whoever owns the tables.
        let owner = Outbox::builder(accounts.migrations.clone()).without_workers();
        let owner = owner.queue("orders", ONE).produce_only().start().await;
        let owner = owner.unwrap();
        owner.outbox().repair().await.unwrap();
        owner.stop().await;

        // And nothing else.
        for statement in [
            "SELECT payload FROM outbox_messages",
            "DELETE FROM outbox_messages",
            "UPDATE outbox_processors SET processed_seq = 0",
            "INSERT INTO outbox_queues (queue, partitions) VALUES ('mine', 1)",
            "SELECT * FROM outbox_dead_letters",
            "DROP TABLE outbox_messages",
        ] {
            let refused = run(&accounts.producer, statement).await;
            assert!(refused.is_err(), "a producer may {statement}");
        }
        for statement in ["CREATE TABLE mine (a INT)", "DROP TABLE outbox_messages"] {
            let refused = run(&accounts.worker, statement).await;
            assert!(refused.is_err(), "a worker may {statement}");
        }
        producer.stop().await;
        worker.stop().await;
        assert_eq!(
            stage.number("SELECT COUNT(*) FROM outbox_processes").await,
            0
        );
        drop(stage);
        accounts.remove(server).await;
    })
    .await;
}

async fn a_process_without_workers_needs_a_registered_queue<DB: Dialect>(server: Server) {
    if !server.takes_part() {
        return;
    }
    with_database(server, async |database| {
        let accounts = Accounts::<DB>::make(database).await;
        let producer = || Outbox::builder(accounts.producer.clone()).without_workers();
        let unregistered = producer().queue("orders", ONE).produce_only().start().await;
        assert!(
            matches!(unregistered, Err(OutboxError::Database(_))),
            "{unregistered:?}"
        );
        let handled = producer().queue("orders", ONE).leased(Collector::new());
        let error = handled.start().await.unwrap_err();
        assert!(error.to_string().contains("without_workers"), "{error}");
        accounts.remove(server).await;
    })
    .await;
}

async fn whoever_may_not_migrate_is_told_what_it_takes<DB: Dialect>(server: Server) {
    if !server.takes_part() {
        return;
    }
    with_database(server, async |database| {
        let accounts = Accounts::<DB>::make(database).await;
        schema(&accounts.migrations).down().await.unwrap();
        if server != Server::Postgres {
            // All but routines.
            let worker = account_name(ACCOUNTS[1], &accounts.suffix);
            let most = format!("GRANT SELECT, INSERT, UPDATE, CREATE, DROP ON * TO {worker}");
            run(&accounts.admin, &most).await.unwrap();
        }
        let error = schema(&accounts.worker).up().await.unwrap_err();
        let denied = matches!(error, OutboxError::MissingPrivilege { .. });
        assert!(denied, "{error:?}");
        accounts.remove(server).await;
    })
    .await;
}
