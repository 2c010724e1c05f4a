//! An outbox with some trouble in it, and a dashboard of it.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use outbox::{
    EnqueueMessage, MessageResult, Outbox, OutboxHandle, OutboxMessage, OutboxProfile, Partitions,
};
use outbox_dashboard::{Access, Dashboard, Identity, Rights};
use sqlx::Sqlite;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use tempfile::TempDir;
use tower::ServiceExt as _;

/// How long something may take that should happen soon, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// May do everything.
pub(crate) const ALL: Rights = Rights {
    operate: true,
    payloads: true,
};

/// Partition 0 has a dead letter, 1 fails, 2 is paused, and 3 is empty.
pub(crate) struct Site {
    handle: OutboxHandle<Sqlite>,
    pool: sqlx::SqlitePool,
    router: Router,
    _folder: TempDir,
}

type Answer = (StatusCode, HeaderMap, String);

async fn handle(message: OutboxMessage) -> MessageResult {
    match &*message.payload_type {
        "stuck" => MessageResult::Retry,
        "reject" => MessageResult::Reject("<b>not bold</b>".to_owned()),
        "again" if !message.headers.contains_key("outbox-requeued-from") => {
            MessageResult::Reject("rejected: try again".to_owned())
        }
        "bad" => MessageResult::Reject("rejected: no such address".to_owned()),
        _ => MessageResult::Ok,
    }
}

impl Site {
    pub(crate) async fn open(access: Access) -> Self {
        Self::made(|dashboard| dashboard.access(access).router()).await
    }

    pub(crate) async fn open_local() -> Self {
        Self::made(|dashboard| dashboard.local().router()).await
    }

    /// In an application, under a path of its own.
    pub(crate) async fn open_at(path: &str, access: Access) -> Self {
        Self::made(|dashboard| Router::new().nest(path, dashboard.access(access).router())).await
    }

    /// In an application that knows its users.
    pub(crate) async fn open_as(access: Access, identity: Identity) -> Self {
        Self::made(|dashboard| {
            let router = dashboard.access(access).router();
            router.layer(axum::Extension(identity))
        })
        .await
    }

    async fn made(router: impl FnOnce(Dashboard) -> Router) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteConnectOptions::new()
            .filename(folder.path().join("shop.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal);
        let pool = SqlitePoolOptions::new()
            .acquire_timeout(Duration::from_secs(2))
            .connect_with(options)
            .await
            .unwrap();
        let handle = Outbox::builder(pool.clone())
            .auto_migrate()
            .profile(OutboxProfile::low_latency())
            .queue("orders", Partitions::of(4))
            .leased(handle)
            .start()
            .await
            .unwrap();
        let outbox = handle.outbox().clone();
        outbox.pause("orders", Some(2)).await.unwrap();
        let site = Self {
            router: router(Dashboard::new(outbox).name("shop")),
            handle,
            pool,
            _folder: folder,
        };
        site.enqueue(0, "nobody must see", "bad").await;
        site.enqueue(1, "nobody must see", "stuck").await;
        let key = "customer-2";
        let waits = EnqueueMessage::to(2, r#"{"amount":7}"#, "fine").header(
            "traceparent",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        );
        site.send(waits).await;
        // The same partition, by luck and by key.
        assert_eq!(Partitions::of(4).of_key(key), 2, "choose another key");
        site.send(EnqueueMessage::keyed(key, "by key", "fine"))
            .await;
        site
    }

    pub(crate) fn outbox(&self) -> &Outbox<Sqlite> {
        self.handle.outbox()
    }

    pub(crate) async fn enqueue(&self, partition: u32, payload: &str, kind: &str) {
        self.send(EnqueueMessage::to(partition, payload, kind))
            .await;
    }

    async fn send(&self, message: EnqueueMessage) {
        let outbox = self.outbox();
        outbox
            .transaction(async |connection| outbox.enqueue(connection, "orders", message).await)
            .await
            .unwrap();
    }

    /// Makes so many dead letters that a second try would deliver.
    pub(crate) async fn bury(&self, count: i64) {
        let outbox = self.outbox();
        let messages: Vec<_> = (0..count)
            .map(|number| EnqueueMessage::to(3, number.to_string(), "again"))
            .collect();
        outbox
            .transaction(async |connection| {
                outbox.enqueue_batch(connection, "orders", &messages).await
            })
            .await
            .unwrap();
        let all = outbox::DeadLetterFilter::new().payload_type("again");
        let mut looks = tokio::time::interval(Duration::from_millis(20));
        tokio::time::timeout(PATIENCE, async {
            while outbox.dead_letter_count(&all).await.unwrap() < count as u64 {
                looks.tick().await;
            }
        })
        .await
        .expect("all are buried");
    }

    /// As another process does when it starts.
    pub(crate) async fn make_queue(&self, queue: &str) {
        let other = Outbox::builder(self.pool.clone()).without_workers();
        let other = other.queue(queue, Partitions::of(2)).produce_only();
        other.start().await.unwrap().stop().await;
    }

    /// From now on the database does not answer.
    pub(crate) async fn cut_off(&self) {
        self.pool.close().await;
    }

    async fn ask(&self, request: Request<Body>) -> Answer {
        let path = request.uri().to_string();
        let asked = self.router.clone().oneshot(request);
        let answer = tokio::time::timeout(PATIENCE, asked).await;
        let (parts, body) = answer.expect(&path).unwrap().into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let body = String::from_utf8(body.to_vec()).unwrap();
        (parts.status, parts.headers, body)
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.get_with(path, &[]).await
    }

    pub(crate) async fn get_as(&self, authorization: &str, path: &str) -> Answer {
        self.get_with(path, &[("authorization", authorization)])
            .await
    }

    pub(crate) async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = Request::builder().uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.ask(request.body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, form: &str) -> Answer {
        self.post_with(path, form, &[]).await
    }

    pub(crate) async fn post_with(
        &self,
        path: &str,
        form: &str,
        headers: &[(&str, &str)],
    ) -> Answer {
        let mut request = Request::builder().method(Method::POST).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.ask(request.body(Body::from(form.to_owned())).unwrap())
            .await
    }

    /// What a form has to bring along.
    pub(crate) async fn seal(&self) -> String {
        self.seal_at("/queues/orders").await
    }

    pub(crate) async fn seal_at(&self, path: &str) -> String {
        let (_, _, body) = self.get(path).await;
        let (_, rest) = body.split_once("name=\"seal\" value=\"").expect("a form");
        let (seal, _) = rest.split_once('"').unwrap();
        let seal = seal.replace("&#43;", "+").replace("&#61;", "=");
        seal.replace('+', "%2B").replace('=', "%3D")
    }

    /// Waits until a page says something.
    pub(crate) async fn until(&self, path: &str, text: &str) {
        let mut looks = tokio::time::interval(Duration::from_millis(50));
        let mut last = String::new();
        let said = async {
            loop {
                looks.tick().await;
                let (_, _, body) = self.get(path).await;
                if body.contains(text) {
                    return;
                }
                last = body;
            }
        };
        if tokio::time::timeout(PATIENCE, said).await.is_err() {
            panic!("{path} never said {text:?}:\n{last}");
        }
    }

    pub(crate) async fn close(self) {
        drop(self.router);
        self.handle.stop().await;
    }
}
