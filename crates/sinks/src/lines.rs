//! JSON lines, to a file or to standard output: for a look, for a pipe, for an archive.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outbox::OutboxMessage;
use serde_json::json;

use crate::error::SinkError;
use crate::{Published, Refusal, Sink};

/// Writes each message as a line of JSON. A file's lines are on disk before they count as delivered.
#[derive(Debug, Clone)]
pub struct LinesSink(Arc<Mutex<Target>>);

#[derive(Debug)]
enum Target {
    Stdout,
    File(File),
}

impl LinesSink {
    /// To standard output.
    pub fn stdout() -> Self {
        Self(Arc::new(Mutex::new(Target::Stdout)))
    }

    /// To the end of a file, which is made if it is not there, and belongs to this sink as long as there is
    /// one: others could not tell whose half a line is.
    pub fn file(path: impl AsRef<Path>) -> Result<Self, SinkError> {
        let path = path.as_ref();
        let file = open(path).map_err(|error| SinkError::File {
            path: path.display().to_string(),
            error,
        })?;
        Ok(Self(Arc::new(Mutex::new(Target::File(file)))))
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let mut file = options.read(true).create(true).append(true).open(path)?;
    file.try_lock()?;
    if file.metadata()?.len() > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            // A process that died in the middle of a line left it. What it said comes again.
            file.write_all(b"\n")?;
        }
    }
    Ok(file)
}

impl Sink for LinesSink {
    async fn publish(&self, messages: &[OutboxMessage]) -> Published {
        let lines: String = messages.iter().map(line).collect();
        let target = Arc::clone(&self.0);
        let written = tokio::task::spawn_blocking(move || {
            let mut target = target.lock().unwrap_or_else(PoisonError::into_inner);
            write(&mut target, lines.as_bytes())
        });
        match written.await {
            Ok(Ok(())) => Published::all(messages),
            Ok(Err(error)) => Published::until(0, Refusal::later(error.to_string())),
            Err(error) => Published::until(0, Refusal::later(error.to_string())),
        }
    }
}

fn write(target: &mut Target, lines: &[u8]) -> io::Result<()> {
    match target {
        Target::Stdout => {
            let mut stdout = io::stdout().lock();
            stdout.write_all(lines)?;
            stdout.flush()
        }
        Target::File(file) => {
            let before = file.metadata()?.len();
            let written = file.write_all(lines).and_then(|()| file.sync_data());
            if written.is_err() {
                // Half a line would spoil the next one. If that fails too, so be it.
                let _ = file.set_len(before);
            }
            written
        }
    }
}

fn line(message: &OutboxMessage) -> String {
    let (payload, encoding) = match std::str::from_utf8(&message.payload) {
        Ok(text) => (text.to_owned(), "payload"),
        Err(_) => (STANDARD.encode(&message.payload), "payload_base64"),
    };
    let mut line = json!({
        "id": message.id.to_string(),
        "queue": &*message.queue,
        "partition": message.partition,
        "seq": message.seq,
        "created_at": humantime::format_rfc3339_millis(message.created_at).to_string(),
        "key": message.key,
        "type": message.payload_type,
        "headers": message.headers,
    })
    .to_string();
    // Before the closing brace, so that the payload comes last.
    line.truncate(line.len() - 1);
    format!("{line},\"{encoding}\":{}}}\n", json!(payload))
}
