//! What keeps a command from an outbox: each is said with the database it is about, what to do, and the exit
//! code that is documented for it; never with a password.

use std::fs;
use std::net::TcpListener;

use outbox::Backend;
use sqlx::{AssertSqlSafe, Connection as _};
use testbed::free_port;

use crate::command::{Command, Ran, database_type, on_every_database};

on_every_database!(what_keeps_it_from_the_outbox_is_said);

const WRONG: &str = "s3cret-and-wrong";

/// A URL of a server in its parts.
#[derive(Debug, Clone)]
struct Address {
    scheme: String,
    account: String,
    password: String,
    host: String,
    port: u16,
    database: String,
}

impl Address {
    fn of(url: &str) -> Self {
        let (scheme, rest) = url.split_once("://").unwrap();
        let (account, rest) = rest.rsplit_once('@').unwrap();
        let (account, password) = account.split_once(':').unwrap();
        let (place, database) = rest.split_once('/').unwrap();
        let (host, port) = place.split_once(':').unwrap();
        let database = database.split('?').next().unwrap();
        Self {
            scheme: scheme.to_owned(),
            account: account.to_owned(),
            password: password.to_owned(),
            host: host.to_owned(),
            port: port.parse().unwrap(),
            database: database.to_owned(),
        }
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        let Self {
            scheme,
            account,
            password,
            host,
            port,
            database,
        } = self;
        let url = format!("{scheme}://{account}:{password}@{host}:{port}/{database}");
        Command::<()>::at(&url).run(arguments)
    }

    /// What it complains about, with everything in it that has to be and nothing that must not.
    fn refused(&self, arguments: &[&str], code: i32, told: &[&str]) {
        let said = self.run(arguments).fails(code);
        let Self {
            scheme,
            account,
            host,
            port,
            database,
            ..
        } = self;
        let place = format!("at {scheme}://{account}@{host}:{port}/{database}\n");
        for part in told.iter().copied().chain([&*place]) {
            assert!(said.contains(part), "{part:?} is missing in\n{said}");
        }
        assert!(!said.contains(&self.password), "{said}");
        assert!(!said.contains("backtrace"), "{said}");
    }
}

/// Runs statements as an administrator.
async fn run(url: &str, statements: &str) {
    let statements = sqlx::raw_sql(AssertSqlSafe(statements.to_owned()));
    match database_type(url) {
        "postgres" => {
            let mut connection = sqlx::PgConnection::connect(url).await.unwrap();
            statements.execute(&mut connection).await.map(drop)
        }
        "mysql" => {
            let mut connection = sqlx::MySqlConnection::connect(url).await.unwrap();
            statements.execute(&mut connection).await.map(drop)
        }
        _ => {
            let mut connection = sqlx::SqliteConnection::connect(url).await.unwrap();
            statements.execute(&mut connection).await.map(drop)
        }
    }
    .unwrap();
}

async fn what_keeps_it_from_the_outbox_is_said<DB: Backend>(command: &Command<DB>) {
    let nobody = &["status"];
    if database_type(&command.url) == "sqlite" {
        of_a_file(command);
    } else {
        let address = Address::of(&command.url);
        let unreachable = Address {
            port: free_port(),
            ..address.clone()
        };
        let told = ["cannot reach the database: ", "is it running, and are host"];
        unreachable.refused(nobody, 3, &told);
        let wrong = Address {
            password: WRONG.to_owned(),
            ..address.clone()
        };
        let told = [
            "the database refuses the account: ",
            "check user and password",
        ];
        wrong.refused(nobody, 3, &told);
        let missing = Address {
            database: "no_such_database".to_owned(),
            ..address.clone()
        };
        let told = ["the database is not there: ", "create it"];
        missing.refused(nobody, 3, &told);
        let told = [
            "there is no outbox in this database\n",
            "make its tables with: outbox migrate up; or, if they are there, grant ",
        ];
        address.refused(nobody, 4, &told);
        of_an_account(command, &address).await;
    }

    // A version that comes after this one.
    command.run(&["migrate", "up"]).succeeds();
    run(&command.url, "UPDATE outbox_schema SET version = 7").await;
    for arguments in [
        &["status"][..],
        &["migrate", "up"],
        &["migrate", "status"],
        &["migrate", "down", "--yes"],
    ] {
        let said = command.run(arguments).fails(4);
        let versions = "the outbox in this database has version 7; this command knows 1";
        assert!(said.contains(versions), "{said}");
        assert!(said.contains("use the command of that version"), "{said}");
    }
    run(&command.url, "UPDATE outbox_schema SET version = 1").await;
    command.run(&["migrate", "status"]).succeeds();
}

/// A server that takes connections and says nothing.
#[test]
fn a_server_that_is_silent_is_not_waited_for_for_ever() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let ask = |scheme: &str| {
        let url = format!("{scheme}://me:s3cret@{address}/shop");
        Command::<()>::at(&url).start(&["status"])
    };
    for (scheme, asking) in ["postgres", "mysql"].map(|scheme| (scheme, ask(scheme))) {
        let answer = asking.wait_with_output().unwrap();
        let said = String::from_utf8(answer.stderr).unwrap();
        assert_eq!(answer.status.code(), Some(3), "{said}");
        let place = format!("at {scheme}://me@{address}/shop\n");
        for part in [
            "the database did not answer within 10s\n",
            &place,
            "firewall",
        ] {
            assert!(said.contains(part), "{part:?} is missing in\n{said}");
        }
        assert!(!said.contains("s3cret"), "{said}");
    }
}

/// Accounts are known to the whole server, and are named after the test's database.
async fn of_an_account<DB: Backend>(command: &Command<DB>, address: &Address) {
    let suffix: String = address.database.chars().rev().take(12).collect();
    let stranger = Address {
        account: format!("stranger_{suffix}"),
        password: "n0t-to-be-shown".to_owned(),
        ..address.clone()
    };
    let Address {
        account,
        password,
        database,
        ..
    } = &stranger;
    let is_postgres = address.scheme == "postgres";
    let create = match is_postgres {
        true => format!("CREATE ROLE {account} LOGIN PASSWORD '{password}'"),
        false => format!("CREATE USER {account} IDENTIFIED BY '{password}'"),
    };
    run(&command.url, &create).await;
    let grants = "docs/grants has what each kind of account needs";
    if is_postgres {
        let told = [
            "this account may not change the schema: ",
            "it takes CREATE",
            grants,
        ];
        stranger.refused(&["migrate", "up"], 3, &told);
    } else {
        let told = ["the account lacks a privilege: ", grants];
        stranger.refused(&["status"], 3, &told);
        let look = format!("GRANT SELECT ON {database}.* TO {account}");
        run(&command.url, &look).await;
        let told = [
            "this account may not change the schema: ",
            "it takes SELECT, INSERT",
            grants,
        ];
        stranger.refused(&["migrate", "up"], 3, &told);
    }
    command.run(&["migrate", "up"]).succeeds();
    command
        .run(&["enqueue", "orders", "--create", "1"])
        .succeeds();
    if is_postgres {
        let told = ["the account lacks a privilege: ", grants];
        stranger.refused(&["status"], 3, &told);
        let look = format!("GRANT SELECT ON ALL TABLES IN SCHEMA public TO {account}");
        run(&command.url, &look).await;
    }
    // One that may look, and not touch.
    stranger.run(&["status"]).succeeds();
    let told = [
        "nothing was done, for it cannot be written into the audit log: the account lacks a privilege: ",
        grants,
    ];
    stranger.refused(&["pause", "orders"], 3, &told);
    let remove = match is_postgres {
        true => format!("DROP OWNED BY {account}; DROP ROLE {account}"),
        false => format!("DROP USER {account}"),
    };
    run(&command.url, &remove).await;
    command.run(&["migrate", "down", "--yes"]).succeeds();
}

fn of_a_file<DB: Backend>(command: &Command<DB>) {
    let (file, _) = command.url.split_once('?').unwrap();
    let refused = |url: &str, arguments: &[&str], code: i32, told: &[&str]| {
        let said = Command::<DB>::at(url).run(arguments).fails(code);
        let place = format!("at {}\n", url.split('?').next().unwrap());
        for part in told.iter().copied().chain([&*place]) {
            assert!(said.contains(part), "{part:?} is missing in\n{said}");
        }
    };
    let missing = ["cannot open the file: ", "?mode=rwc"];
    refused(file, &["status"], 3, &missing);
    let nowhere = format!("{file}/no-such-folder/shop.db?mode=rwc");
    refused(&nowhere, &["migrate", "up"], 3, &missing);
    let text = format!("{file}.txt");
    let path = text.strip_prefix("sqlite://").unwrap();
    fs::write(
        path,
        "these are no tables, and there is more than a page of it".repeat(100),
    )
    .unwrap();
    let told = ["this is no database of SQLite: ", "check the file's name"];
    refused(&text, &["status"], 3, &told);
    let told = [
        "there is no outbox in this database\n",
        "make its tables with: outbox migrate up\n",
    ];
    refused(&command.url, &["status"], 4, &told);
    command.run(&["migrate", "up"]).succeeds();
    command
        .run(&["enqueue", "orders", "--create", "1"])
        .succeeds();
    let only_to_read = format!("{file}?mode=ro");
    Command::<DB>::at(&only_to_read).run(&["status"]).succeeds();
    let told = ["cannot write to the file: ", "mode=ro"];
    refused(&only_to_read, &["pause", "orders"], 3, &told);
}
