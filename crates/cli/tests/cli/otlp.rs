//! What a relay sends to an OpenTelemetry collector.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::command::Command;

const PATIENCE: Duration = Duration::from_secs(60);

/// Reads requests off a connection and says yes to each.
fn collect(stream: TcpStream, collected: &mpsc::Sender<(String, Vec<u8>)>) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut path = String::new();
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            if let Some(rest) = line.strip_prefix("POST ") {
                path = rest.split(' ').next().unwrap().to_owned();
            }
            let line = line.to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        reader.get_mut().write_all(answer.as_bytes()).unwrap();
        if collected.send((path, body)).is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_gets_traces_and_metrics() {
    testbed::with_database(testbed::Server::Sqlite, async |database| {
        let command = Command::<sqlx::Sqlite>::at(database.url());
        command.run(&["migrate", "up"]).succeeds();
        command
            .run(&[
                "enqueue", "orders", "a loom", "--create", "4", "--key", "ada",
            ])
            .succeeds();
        let collector = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", collector.local_addr().unwrap());
        let (sender, collected) = mpsc::channel();
        std::thread::spawn(move || {
            for stream in collector.incoming().flatten() {
                let sender = sender.clone();
                std::thread::spawn(move || collect(stream, &sender));
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("outbox.toml");
        let text = "[[database]]\nname = \"shop\"\nurl = \"${OUTBOX_DATABASE_URL}\"\n\
                    [[route]]\nqueues = [\"orders\"]\n[route.stdout]\n";
        std::fs::write(&config, text).unwrap();
        let mut relay = std::process::Command::new(env!("CARGO_BIN_EXE_outbox"))
            .args(["relay", "--config", config.to_str().unwrap()])
            .env("OUTBOX_DATABASE_URL", &command.url)
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)
            .env("OTEL_METRIC_EXPORT_INTERVAL", "300")
            .env("OTEL_BSP_SCHEDULE_DELAY", "300")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut wanted = vec![
            ("/v1/traces", "outbox.sequence"),
            ("/v1/traces", "outbox.claim"),
            ("/v1/traces", "outbox.handle"),
            ("/v1/traces", "outbox.settle"),
            ("/v1/metrics", "outbox_delivered_total"),
            ("/v1/metrics", "outbox_lag_seconds"),
            ("/v1/metrics", "outbox_handler_duration_seconds"),
        ];
        let until = Instant::now() + PATIENCE;
        while !wanted.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            let got = collected.recv_timeout(left);
            let (path, body) = got.unwrap_or_else(|_| panic!("these never came: {wanted:?}"));
            let has = |text: &str| body.windows(text.len()).any(|part| part == text.as_bytes());
            wanted.retain(|(where_to, text)| path != *where_to || !has(text));
        }
        let _ = relay.kill();
        let _ = relay.wait();
    })
    .await;
}
