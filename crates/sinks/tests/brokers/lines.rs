//! A file that is written to.

use std::path::PathBuf;
use std::time::Duration;

use outbox_sinks::{LinesSink, Published, Sink as _};
use serde_json::Value;
use tempfile::TempDir;

use super::{Arrived, Broker};

pub(crate) struct Lines {
    _folder: TempDir,
    path: PathBuf,
}

impl Broker for Lines {
    type Sink = LinesSink;

    async fn start() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("messages.jsonl");
        Some(Self {
            path,
            _folder: folder,
        })
    }

    fn url(&self) -> String {
        self.path.display().to_string()
    }

    fn sink_at(&self, path: &str, _: Duration) -> LinesSink {
        LinesSink::file(path)
    }

    async fn arrived(&self) -> Vec<Arrived> {
        let lines = std::fs::read_to_string(&self.path).unwrap_or_default();
        let arrived = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap();
            let text = |value: &Value| value.as_str().map(str::to_owned);
            Arrived {
                key: text(&line["key"]).unwrap(),
                seq: line["seq"].as_i64().unwrap(),
                payload: text(&line["payload"]).unwrap().into_bytes(),
                colour: text(&line["headers"]["colour"]),
            }
        };
        // The last one may be on its way.
        let whole = lines.rfind('\n').map_or("", |end| &lines[..end]);
        whole.lines().map(arrived).collect()
    }

    /// A file is always there.
    async fn stop(&mut self) {}

    async fn start_again(&mut self) {}
}

#[tokio::test]
async fn half_a_line_spoils_no_other_and_a_file_has_one_writer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("messages.jsonl");
    std::fs::write(&path, "{\"id\": \"1\"}\n{\"id\": ").unwrap();
    let message = [outbox::testing::message("body", "t")];
    let (first, second) = (LinesSink::file(&path), LinesSink::file(&path));
    assert_eq!(first.publish(&message).await, Published::all(&message));
    let lines = std::fs::read_to_string(&path).unwrap();
    assert!(
        lines.starts_with("{\"id\": \"1\"}\n{\"id\": \n{"),
        "{lines}"
    );
    assert_eq!(
        second.check().await,
        Ok(()),
        "whoever only looks locks out nobody"
    );
    let refused = format!("{:?}", second.publish(&message).await);
    assert!(
        refused.contains("messages.jsonl: another process writes"),
        "{refused}"
    );
    // Somebody removes it: what comes then is not lost with it.
    std::fs::remove_file(&path).unwrap();
    assert_eq!(first.publish(&message).await, Published::all(&message));
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1);
    drop(first);
    assert_eq!(second.publish(&message).await, Published::all(&message));

    let nowhere = folder.path().join("nowhere").join("messages.jsonl");
    assert!(LinesSink::file(nowhere).check().await.is_err());
    let new = folder.path().join("new.jsonl");
    assert_eq!(LinesSink::file(&new).check().await, Ok(()));
    assert!(!new.exists());
}
