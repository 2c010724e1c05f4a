//! The shop's own tables: what was ordered, and what was delivered. No column is unique, so that nobody
//! but the outbox keeps an order from being delivered twice.

use std::future::Future;

use outbox::Backend;
use sqlx::{AssertSqlSafe, MySql, Postgres, Row as _, Sqlite};

use super::Order;

/// A database that a shop can keep its books in.
pub(super) trait Shop: Backend {
    /// Makes the tables.
    fn open(connection: &mut Self::Connection) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Removes them, if they are there.
    fn close(connection: &mut Self::Connection) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Writes down an order.
    fn order(
        connection: &mut Self::Connection,
        order: Order,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Writes down a delivery.
    fn deliver(
        connection: &mut Self::Connection,
        order: Order,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// What was ordered, or delivered, in that order.
    fn book(
        connection: &mut Self::Connection,
        delivered: bool,
    ) -> impl Future<Output = sqlx::Result<Vec<Order>>> + Send;
}

macro_rules! shop {
    ($database:ty, $connection:ty, $numbered:literal) => {
        impl Shop for $database {
            async fn open(connection: &mut $connection) -> sqlx::Result<()> {
                for table in ["orders", "deliveries"] {
                    let create = format!(
                        "CREATE TABLE outbox_demo_{table} (place {}, number BIGINT NOT NULL, \
                         customer BIGINT NOT NULL)",
                        $numbered
                    );
                    let create = sqlx::raw_sql(AssertSqlSafe(create));
                    create.execute(&mut *connection).await?;
                }
                Ok(())
            }

            async fn close(connection: &mut $connection) -> sqlx::Result<()> {
                for table in ["orders", "deliveries"] {
                    let drop = format!("DROP TABLE IF EXISTS outbox_demo_{table}");
                    let drop = sqlx::raw_sql(AssertSqlSafe(drop));
                    drop.execute(&mut *connection).await?;
                }
                Ok(())
            }

            async fn order(connection: &mut $connection, order: Order) -> sqlx::Result<()> {
                let insert = AssertSqlSafe(row("orders", order));
                sqlx::raw_sql(insert).execute(connection).await.map(drop)
            }

            async fn deliver(connection: &mut $connection, order: Order) -> sqlx::Result<()> {
                let insert = AssertSqlSafe(row("deliveries", order));
                sqlx::raw_sql(insert).execute(connection).await.map(drop)
            }

            async fn book(
                connection: &mut $connection,
                delivered: bool,
            ) -> sqlx::Result<Vec<Order>> {
                let table = if delivered { "deliveries" } else { "orders" };
                let select =
                    format!("SELECT number, customer FROM outbox_demo_{table} ORDER BY place");
                let select = sqlx::query(AssertSqlSafe(select));
                let mut book = Vec::new();
                for row in select.fetch_all(connection).await? {
                    let number = |column: usize| {
                        let number: i64 = row.try_get(column)?;
                        u32::try_from(number).map_err(|error| sqlx::Error::Decode(error.into()))
                    };
                    book.push(Order {
                        number: number(0)?,
                        customer: number(1)?,
                    });
                }
                Ok(book)
            }
        }
    };
}

shop!(
    Postgres,
    sqlx::PgConnection,
    "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
);
shop!(
    MySql,
    sqlx::MySqlConnection,
    "BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY"
);
shop!(
    Sqlite,
    sqlx::SqliteConnection,
    "INTEGER PRIMARY KEY AUTOINCREMENT"
);

fn row(table: &str, order: Order) -> String {
    let Order { number, customer } = order;
    format!("INSERT INTO outbox_demo_{table} (number, customer) VALUES ({number}, {customer})")
}
