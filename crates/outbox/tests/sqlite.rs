//! The conformance suite on SQLite.
#![cfg(all(feature = "testing", feature = "sqlite"))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod conformance;

conformance::suite!(sqlx::Sqlite, testbed::Server::Sqlite);

#[tokio::test]
async fn a_transaction_can_run_in_a_spawned_task() {
    use conformance::Stage;
    use conformance::stage::{ONE, text_message};

    testbed::with_database(testbed::Server::Sqlite, async |database| {
        let stage = Stage::<sqlx::Sqlite>::set(database).await;
        let queue = stage.outbox().queue("orders", ONE);
        let handle = queue.produce_only().start().await.unwrap();
        let outbox = handle.outbox().clone();
        // As every web framework does it: the whole future has to be `Send`.
        let request = tokio::spawn(async move {
            let work = async |connection: &mut sqlx::SqliteConnection| {
                let effect = "INSERT INTO effects VALUES (1, 'spawned')";
                sqlx::query(effect).execute(&mut *connection).await?;
                outbox
                    .enqueue(connection, "orders", text_message(0, "spawned"))
                    .await
            };
            outbox.transaction(work).await
        });
        request.await.unwrap().unwrap();
        assert_eq!(stage.number("SELECT COUNT(*) FROM effects").await, 1);
        handle.stop().await;
    })
    .await;
}
