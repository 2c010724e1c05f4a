//! Least privilege: each account gets by with the grants that the documentation gives it, can do nothing
//! else, and needs every one of them. On every database that has accounts.
#![cfg(all(feature = "testing", any(feature = "postgres", feature = "mysql")))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod accounts;
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

use accounts::{Accounts, MIGRATIONS, PRODUCER, WORKER, duties, run, schema};
use conformance::any_language::{Call, Routine};
use conformance::stage::{ONE, quick, text_message};
use conformance::{Collector, Dialect, Stage};
use outbox::{DeadLetterFilter, MessageResult, Outbox, OutboxError, Severity};
use servers::on_every_server;
use testbed::{Server, with_database};

on_every_server!(
    each_account_gets_by_with_its_grants,
    a_process_without_workers_needs_a_registered_queue,
    whoever_may_not_migrate_is_told_what_it_takes,
    a_producer_needs_each_of_its_grants,
    a_worker_needs_each_of_its_grants,
    migrations_need_each_of_their_grants,
);

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
        accounts.remove().await;
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
        accounts.remove().await;
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
            let worker = accounts.name(WORKER);
            let most = format!("GRANT SELECT, INSERT, UPDATE, CREATE, DROP ON * TO {worker}");
            run(&accounts.admin, &most).await.unwrap();
        }
        let error = schema(&accounts.worker).up().await.unwrap_err();
        let denied = matches!(error, OutboxError::MissingPrivilege { .. });
        assert!(denied, "{error:?}");
        accounts.remove().await;
    })
    .await;
}

async fn a_producer_needs_each_of_its_grants<DB: Routine>(server: Server) {
    if !server.takes_part() {
        return;
    }
    with_database(server, async |database| {
        let accounts = Accounts::<DB>::make(database).await;
        let worker = Outbox::builder(accounts.worker.clone()).without_workers();
        let worker = worker.queue("orders", ONE).produce_only().start().await;
        worker.unwrap().stop().await;
        // A payload without a type is taken for text.
        let by_hand = match server {
            Server::Postgres => "SELECT outbox_enqueue('orders', NULL, 't', 'text')",
            _ => "CALL outbox_enqueue('orders', NULL, 't', 'text', NULL)",
        };
        let duty =
            async |accounts: &Accounts<DB>, _| duties::produce(&accounts.producer, by_hand).await;
        let unneeded = accounts.unneeded(PRODUCER, duty).await;
        assert!(unneeded.is_empty(), "{unneeded:#?}");
        accounts.remove().await;
    })
    .await;
}

async fn a_worker_needs_each_of_its_grants<DB: Dialect>(server: Server) {
    if !server.takes_part() {
        return;
    }
    with_database(server, async |database| {
        let accounts = Accounts::<DB>::make(database).await;
        let stage = Stage::<DB> {
            url: database.url().to_owned(),
            pool: accounts.admin.clone(),
        };
        // Whoever goes step by step has a clock that can be moved. It is there, and would be made if it were not.
        let worker = accounts.name(WORKER);
        let place = match server {
            Server::Postgres => "SCHEMA public",
            _ => "outbox_clock",
        };
        for statement in [
            "CREATE TABLE outbox_clock (moved_millis BIGINT NOT NULL)".to_owned(),
            format!("GRANT SELECT ON outbox_clock TO {worker}"),
            format!("GRANT CREATE ON {place} TO {worker}"),
        ] {
            stage.run(statement).await;
        }
        let mut round = 0;
        let duty = async |accounts: &Accounts<DB>, patience| {
            round += 1;
            // A queue of its own, whatever the round before has left undone.
            duties::work(&accounts.worker, &format!("orders-{round}")).await?;
            duties::take_part(&stage, &accounts.worker, patience).await
        };
        let unneeded = accounts.unneeded(WORKER, duty).await;
        assert!(unneeded.is_empty(), "{unneeded:#?}");
        stage.run("DROP TABLE outbox_clock").await;
        drop(stage);
        accounts.remove().await;
    })
    .await;
}

async fn migrations_need_each_of_their_grants<DB: Dialect>(server: Server) {
    if !server.takes_part() {
        return;
    }
    with_database(server, async |database| {
        let accounts = Accounts::<DB>::make(database).await;
        let duty = async |accounts: &Accounts<DB>, _| {
            // Whatever the round before has left.
            schema(&accounts.admin).down().await?;
            let sessions = accounts.fresh(MIGRATIONS).await;
            let done = duties::migrate(&sessions).await;
            sessions.close().await;
            done
        };
        let unneeded = accounts.unneeded(MIGRATIONS, duty).await;
        assert!(unneeded.is_empty(), "{unneeded:#?}");
        accounts.remove().await;
    })
    .await;
}
