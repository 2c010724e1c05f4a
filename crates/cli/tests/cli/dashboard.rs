//! The dashboard, the metrics and the health of a real process.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use outbox::metrics::{ALL, Kind};
use serde_json::Value;
use tempfile::TempDir;

use crate::command::{Command, Lines, on_every_database, tell};

/// How long something may take that should happen soon, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A process that serves, which ends with the test.
struct Serving {
    child: Child,
    address: String,
    lines: Lines,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Serving {
    fn start<DB>(command: &Command<DB>, arguments: &[&str]) -> Self {
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_outbox"))
            .args(["dashboard", "--listen", "127.0.0.1:0", "--json"])
            .args(arguments)
            .env("OUTBOX_DATABASE_URL", &command.url)
            .env_remove("OUTBOX_USERS")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = Lines::of(child.stdout.take().unwrap());
        let address = lines.until("its address", |line| {
            let said: Value = serde_json::from_str(line).expect(line);
            let address = said["url"].as_str().unwrap();
            Some(address.strip_prefix("http://").unwrap().to_owned())
        });
        Self {
            child,
            address,
            lines,
        }
    }

    /// A relay with a dashboard.
    fn relay(config: &Path) -> Self {
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_outbox"))
            .args(["relay", "--json", "--dashboard", "127.0.0.1:0", "--config"])
            .arg(config)
            .env_remove("RUST_LOG")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = Lines::of(child.stderr.take().unwrap());
        let address = lines.until("its address", |line| {
            let said: Value = serde_json::from_str(line).expect(line);
            (said["message"] == "serving").then(|| said["address"].as_str().unwrap().to_owned())
        });
        Self {
            child,
            address,
            lines,
        }
    }

    /// The status, and what it says.
    fn get(&self, path: &str, more: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let host = &self.address;
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n{more}connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer)
    }

    /// Waits until a page says something, however its status.
    fn until(&self, path: &str, text: &str) -> u16 {
        let until = Instant::now() + PATIENCE;
        loop {
            let (status, body) = self.get(path, "");
            if body.contains(text) {
                return status;
            }
            assert!(Instant::now() < until, "{path} never said {text:?}: {body}");
        }
    }
}

async fn every_page_works_beside_metrics_and_health<DB>(command: &Command<DB>) {
    command.run(&["migrate", "up"]).succeeds();
    let enqueue = [
        "enqueue", "orders", "a loom", "--create", "4", "--key", "ada",
    ];
    command.run(&enqueue).succeeds();
    let serving = Serving::start(command, &["--name", "shop"]);
    // Nothing gives it its number, for no process works here.
    assert_eq!(serving.until("/", "none is alive, and messages wait"), 200);
    for path in [
        "/queues/orders",
        "/queues/orders/0",
        "/messages",
        "/dead-letters",
        "/dead-letters?search=x&status=all",
        "/workers",
        "/health",
        "/audit",
        "/jobs",
    ] {
        let (status, body) = serving.get(path, "");
        assert_eq!(status, 200, "{path}: {body}");
        assert!(body.contains("· shop</title>"), "{path}: {body}");
        assert!(body.contains("read-only"), "{path}: {body}");
    }
    let lag = r#"outbox_lag_messages{origin="outbox",queue="orders"} 0"#;
    assert_eq!(serving.until("/metrics", lag), 200);
    let (_, metrics) = serving.get("/metrics", "");
    for metric in ALL.iter().filter(|metric| metric.kind == Kind::Gauge) {
        assert!(metrics.contains(metric.name), "{}", metric.name);
        assert!(metrics.contains(metric.help), "{}", metric.name);
    }
    assert_eq!(serving.get("/healthz", "").0, 200);
    assert_eq!(serving.until("/readyz", r#""ready":true"#), 200);
}

/// A dashboard of a new outbox.
fn of_a_new_outbox(folder: &TempDir) -> Serving {
    let url = format!("sqlite://{}/shop.db?mode=rwc", folder.path().display());
    let command = Command::<sqlx::Sqlite>::at(&url);
    command.run(&["migrate", "up"]).succeeds();
    Serving::start(&command, &[])
}

/// More than are served at once.
const IDLERS: usize = 300;

#[test]
fn who_only_stands_in_the_door_keeps_out_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let serving = of_a_new_outbox(&folder);
    let idle = |_| {
        let mut stream = TcpStream::connect(&serving.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET / HT").unwrap();
        stream
    };
    let mut idlers: Vec<_> = (0..IDLERS).map(idle).collect();
    assert_eq!(serving.get("/healthz", "").0, 200);
    let mut said = String::new();
    idlers[0].read_to_string(&mut said).expect("sent away");
    assert!(!said.contains("200 OK"), "{said}");
}

#[test]
fn the_end_of_its_terminal_is_the_end_of_a_dashboard() {
    let folder = tempfile::tempdir().unwrap();
    let mut serving = of_a_new_outbox(&folder);
    tell(&serving.child, "HUP");
    serving.lines.end();
    assert!(serving.child.wait().unwrap().success());
}

on_every_database!(
    every_page_works_beside_metrics_and_health,
    pages_are_quick_over_a_large_backlog,
);

/// How many messages wait, where pages are timed. Otherwise there are few, beside other tests, and only what pages
/// answer is judged.
const BACKLOG: &str = "OUTBOX_TEST_BACKLOG";
/// How long a page may take.
const QUICK: Duration = Duration::from_millis(200);
/// How long nothing may happen while the backlog is made.
const STALLED: Duration = Duration::from_secs(120);
/// How often each is looked at; what counts is the median.
const LOOKS: usize = 7;

/// Makes a dead letter of every fiftieth message, and nothing of the others: they are paused by then.
async fn fill<DB: outbox::Backend>(url: &str, backlog: u64) {
    let pool = sqlx::pool::PoolOptions::<DB>::new()
        .max_connections(12)
        .connect(url)
        .await
        .unwrap();
    let buried = backlog / 50;
    let reject = async |_: outbox::OutboxMessage| {
        outbox::MessageResult::Reject("no such address: 7 Nowhere Lane".to_owned())
    };
    let handle = outbox::Outbox::builder(pool)
        .auto_migrate()
        .profile(outbox::OutboxProfile::high_throughput())
        .queue("orders", outbox::Partitions::of(64))
        .leased(reject)
        .start()
        .await
        .unwrap();
    let outbox = handle.outbox();
    let enqueue = async |count: u64| {
        let message = |number: u64| {
            let payload = format!(r#"{{"order":{number},"item":"a loom"}}"#);
            outbox::EnqueueMessage::keyed(format!("customer-{number}"), payload, "order.placed")
        };
        for first in (0..count).step_by(1_000) {
            let messages: Vec<_> = (first..count.min(first + 1_000)).map(message).collect();
            outbox
                .transaction(async |connection| {
                    outbox.enqueue_batch(connection, "orders", &messages).await
                })
                .await
                .unwrap();
        }
    };
    let until = async |done: &dyn Fn(&[outbox::PartitionStats]) -> u64, wanted: u64| {
        let mut looks = tokio::time::interval(Duration::from_millis(100));
        let (mut most, mut since) = (0, Instant::now());
        while most < wanted {
            looks.tick().await;
            let now = done(&outbox.stats().await.unwrap());
            if now > most {
                (most, since) = (now, Instant::now());
            }
            assert!(since.elapsed() < STALLED, "{most} of {wanted}, and no more");
        }
    };
    enqueue(buried).await;
    until(
        &|stats| stats.iter().map(|one| one.dead_letters).sum(),
        buried,
    )
    .await;
    outbox.pause("orders", None).await.unwrap();
    enqueue(backlog).await;
    let pending = |stats: &[outbox::PartitionStats]| {
        stats.iter().map(|one| one.pending().unsigned_abs()).sum()
    };
    until(&pending, backlog).await;
    handle.stop().await;
}

/// With five million messages, 64 partitions and 100 000 dead letters every night, and with fewer by day.
async fn pages_are_quick_over_a_large_backlog<DB: outbox::Backend>(command: &Command<DB>) {
    let large: Option<u64> = std::env::var(BACKLOG)
        .ok()
        .map(|text| text.parse().unwrap());
    let backlog = large.unwrap_or(20_000);
    fill::<DB>(&command.url, backlog).await;
    let serving = Serving::start(command, &["--payloads"]);
    serving.until("/", "Partitions</th>");
    serving.until("/", "wait for a decision");
    let mut slow = Vec::new();
    for path in [
        "/",
        "/queues/orders",
        "/queues/orders/7",
        "/messages?queue=orders&partition=7",
        "/messages?queue=orders&partition=7&from=1000",
        "/messages?queue=orders&key=customer-77",
        "/dead-letters",
        "/dead-letters?queue=orders&partition=7&status=all",
        "/dead-letters?before=1000",
        "/dead-letters?search=nowhere-to-be-found",
        "/dead-letters/1",
        "/workers",
        "/health",
        "/audit",
        "/metrics",
    ] {
        let mut times: Vec<_> = (0..LOOKS)
            .map(|_| {
                let asked = Instant::now();
                let (status, body) = serving.get(path, "");
                assert_eq!(status, 200, "{path}: {body}");
                asked.elapsed()
            })
            .collect();
        times.sort();
        let median = times[LOOKS / 2];
        println!("{path}: {median:?}, at most {:?}", times[LOOKS - 1]);
        if median > QUICK {
            slow.push((path, median));
        }
    }
    assert!(
        slow.is_empty() || large.is_none(),
        "slower than {QUICK:?}: {slow:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beyond_this_machine_nobody_comes_in_without_a_secret() {
    testbed::with_database(testbed::Server::Sqlite, async |database| {
        let command = Command::<sqlx::Sqlite>::at(database.url());
        command.run(&["migrate", "up"]).succeeds();
        let open = command
            .run(&["dashboard", "--listen", "0.0.0.0:0"])
            .fails(2);
        assert!(open.contains("--users"), "{open}");
        let folder = tempfile::tempdir().unwrap();
        let users = folder.path().join("users");
        std::fs::write(&users, "ada:a long secret:operator\n").unwrap();
        let users = users.to_str().unwrap();
        let serving = Serving::start(&command, &["--users", users]);
        for path in ["/", "/metrics", "/events"] {
            assert_eq!(serving.get(path, "").0, 401, "{path}");
        }
        let (_, ready) = serving.get("/readyz", "");
        assert!(!ready.contains("databases"), "{ready}");
        // Whoever asks whether it is well need not say who it is.
        assert_eq!(serving.get("/healthz", "").0, 200);
        let secret = "authorization: Bearer a long secret\r\n";
        assert_eq!(serving.get("/metrics", secret).0, 200);
        let (status, body) = serving.get("/", secret);
        assert!(status == 200 && body.contains("ada, operator"), "{body}");
        // Guessing is guessing, wherever it is tried.
        let guess = "authorization: Bearer a wrong secret\r\n";
        for _ in 0..20 {
            assert_eq!(serving.get("/metrics", guess).0, 401);
        }
        assert_eq!(serving.get("/", guess).0, 429);
        let missing = command.run(&["dashboard", "--users", "/nowhere"]).fails(2);
        assert!(missing.contains("/nowhere"), "{missing}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_has_a_dashboard_of_every_database() {
    let folder = tempfile::tempdir().unwrap();
    let url = |name: &str| format!("sqlite://{}/{name}.db?mode=rwc", folder.path().display());
    let config = |names: &[&str]| {
        let database = |name: &&str| {
            let url = url(name);
            format!("[[database]]\nname = \"{name}\"\nurl = \"{url}\"\nmigrate = true\n")
        };
        let databases: String = names.iter().map(database).collect();
        format!("{databases}[[route]]\nqueues = [\"orders\"]\n[route.stdout]\n")
    };
    let file = folder.path().join("outbox.toml");
    std::fs::write(&file, config(&["mail", "shop"])).unwrap();
    let relay = Serving::relay(&file);
    assert_eq!(relay.until("/", r#"<a href="/shop">"#), 200);
    relay.until("/", r#"<a href="/mail">"#);
    for name in ["mail", "shop"] {
        relay.until(&format!("/{name}"), "/queues/orders\">orders</a>");
        let (status, body) = relay.get(&format!("/{name}/workers"), "");
        assert_eq!(status, 200, "{body}");
        let links = body.matches("href=\"/").count();
        assert_eq!(links, body.matches(&format!("href=\"/{name}")).count());
        let lag = format!(r#"outbox_lag_messages{{origin="{name}",queue="orders"}} 0"#);
        relay.until("/metrics", &lag);
    }
    assert_eq!(relay.until("/readyz", r#""ready":true"#), 200);
    assert_eq!(relay.get("/nowhere", "").0, 404);
    assert_eq!(relay.get("/shop/", "").0, 308);
    let (_, metrics) = relay.get("/metrics", "");
    assert!(!metrics.contains(r#"origin="outbox""#), "{metrics}");

    // Another file, at the same address.
    std::fs::write(&file, config(&["shop"])).unwrap();
    tell(&relay.child, "HUP");
    assert_eq!(relay.until("/", "· shop</title>"), 200);
    relay.until("/", "/queues/orders\">orders</a>");
    assert_eq!(relay.until("/readyz", r#""ready":true"#), 200);
    let (_, ready) = relay.get("/readyz", "");
    assert!(!ready.contains("mail"), "{ready}");
}

/// The names of metrics in a text.
fn named(text: &str) -> Vec<String> {
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    let names = text.split(word).filter(|word| word.starts_with("outbox_"));
    names.map(str::to_owned).collect()
}

#[test]
fn what_is_drawn_and_alarmed_about_is_measured() {
    let promised = |name: &str| {
        let suffixes: &[&str] = &["_bucket", "_sum", "_count"];
        ALL.iter().any(|metric| match metric.kind {
            Kind::Histogram => suffixes
                .iter()
                .any(|suffix| name.strip_suffix(suffix) == Some(metric.name)),
            _ => metric.name == name,
        })
    };
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let read = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap();
    let grafana = read("grafana/outbox.json");
    let document: Value = serde_json::from_str(&grafana).unwrap();
    assert!(document["panels"].as_array().unwrap().len() > 10);
    let alerts = read("prometheus/outbox-alerts.yml");
    let prose = |line: &&str| line.trim_start().starts_with("runbook:");
    for (file, text) in [("outbox.json", &grafana), ("outbox-alerts.yml", &alerts)] {
        let asked: Vec<_> = text.lines().filter(|line| !prose(line)).collect();
        let names = named(&asked.join("\n"));
        assert!(names.len() > 5, "{file}");
        for name in names {
            assert!(promised(&name), "{file}: there is no {name}");
        }
        for name in text.lines().filter(prose).flat_map(named) {
            let known = ALL.iter().any(|metric| metric.name == name);
            assert!(known, "{file}: there is no {name}");
        }
    }
    // And nothing is measured that nobody looks at.
    let seen = named(&grafana);
    for metric in ALL {
        let drawn = seen.iter().any(|name| name.starts_with(metric.name));
        assert!(drawn, "{} is on no panel", metric.name);
    }
}
