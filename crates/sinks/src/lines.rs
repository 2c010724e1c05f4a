//! JSON lines, to a file or to standard output: for a look, for a pipe, for an archive.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outbox::OutboxMessage;
use serde_json::json;
use tokio::sync::{Mutex, oneshot};

use crate::{Published, Refusal, Sink, lock};

/// Writes each message as a line of JSON. A file's lines are on disk before they count as delivered. What several
/// partitions want to write meanwhile is written together: the disk is asked once for all of it.
#[derive(Debug, Clone)]
pub struct LinesSink(Arc<Writer>);

#[derive(Debug)]
struct Writer {
    target: Arc<Mutex<Target>>,
    /// In the order in which they came.
    waiting: std::sync::Mutex<Vec<Waiting>>,
}

/// Lines that are not written yet, and who is told when they are.
#[derive(Debug)]
struct Waiting {
    lines: String,
    written: oneshot::Sender<Result<(), String>>,
}

#[derive(Debug)]
enum Target {
    Stdout,
    File { path: PathBuf, file: Option<File> },
}

impl LinesSink {
    /// To standard output.
    pub fn stdout() -> Self {
        Self::to(Target::Stdout)
    }

    /// To the end of a file. It is opened, and made if it is not there, when there is something to write;
    /// then it belongs to this sink as long as there is one: others could not tell whose half a line is.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        let (path, file) = (path.into(), None);
        Self::to(Target::File { path, file })
    }

    fn to(target: Target) -> Self {
        Self(Arc::new(Writer {
            target: Arc::new(Mutex::new(target)),
            waiting: std::sync::Mutex::default(),
        }))
    }
}

/// Where the file's name is kept.
fn folder_of(path: &Path) -> &Path {
    let folder = path.parent();
    let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let mut file = options.read(true).create(true).append(true).open(path)?;
    file.try_lock().map_err(|error| match error {
        TryLockError::Error(error) => error,
        TryLockError::WouldBlock => io::Error::other("another process writes to it"),
    })?;
    // Otherwise a crash may leave the lines and no name to find them by.
    File::open(folder_of(path))?.sync_all()?;
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
        let lines = messages.iter().map(line).collect();
        let (written, mut is_written) = oneshot::channel();
        lock(&self.0.waiting).push(Waiting { lines, written });
        // Before there is a thread: whoever waits for a reader that has stalled costs none.
        let target = Arc::clone(&self.0.target).lock_owned();
        let written = tokio::select! {
            // Somebody else may have written it.
            biased;
            written = &mut is_written => written,
            mut target = target => {
                let writer = Arc::clone(&self.0);
                let writing = tokio::task::spawn_blocking(move || writer.write(&mut target));
                // Until it has let go of the file. If it fails, nobody is told that it is written.
                let _ = writing.await;
                is_written.await
            }
        };
        let written = written.map_err(|_| "the thread that writes has ended".to_owned());
        match written.flatten() {
            Ok(()) => Published::all(messages),
            Err(problem) => Published::until(0, Refusal::later(problem)),
        }
    }

    /// Leaves no file behind where there was none, and locks out nobody who writes.
    async fn check(&self) -> Result<(), String> {
        let target = self.0.target.lock().await;
        let Target::File { path, .. } = &*target else {
            return Ok(());
        };
        let tried = match OpenOptions::new().append(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::metadata(folder_of(path)).map(drop)
            }
            opened => opened.map(drop),
        };
        tried.map_err(|error| problem(path, &error))
    }
}

impl Writer {
    /// Writes what waits, in one go, and tells those who wait for it.
    fn write(&self, target: &mut Target) {
        let mut waiting = std::mem::take(&mut *lock(&self.waiting));
        // Those who have gone send it again, and it need not be there twice.
        waiting.retain(|one| !one.written.is_closed());
        let lines: String = waiting.iter().map(|one| one.lines.as_str()).collect();
        let done = match lines.is_empty() {
            true => Ok(()),
            false => write(target, lines.as_bytes()),
        };
        for one in waiting {
            // If nobody waits any more, so be it.
            let _ = one.written.send(done.clone());
        }
    }
}

fn problem(path: &Path, error: &io::Error) -> String {
    format!("cannot write {}: {error}", path.display())
}

fn write(target: &mut Target, lines: &[u8]) -> Result<(), String> {
    match target {
        Target::Stdout => {
            let mut stdout = io::stdout().lock();
            let written = stdout.write_all(lines).and_then(|()| stdout.flush());
            written.map_err(|error| format!("cannot write to standard output: {error}"))
        }
        Target::File { path, file } => {
            append(path, file, lines).map_err(|error| problem(path, &error))
        }
    }
}

fn append(path: &Path, slot: &mut Option<File>, lines: &[u8]) -> io::Result<()> {
    // Opening it again finds half a line, and one that somebody has removed.
    let mut file = match slot.take() {
        Some(file) if is_there(path, &file) => file,
        _ => open(path)?,
    };
    let before = file.metadata()?.len();
    let written = file.write_all(lines).and_then(|()| file.sync_data());
    if written.is_err() {
        // Half a line would spoil the next one. If that fails too, so be it.
        let _ = file.set_len(before);
        return written;
    }
    *slot = Some(file);
    Ok(())
}

/// Whether a path still leads to this file.
#[cfg(unix)]
fn is_there(path: &Path, file: &File) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let place = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let (there, own) = (fs::metadata(path).map(place), file.metadata().map(place));
    matches!((there, own), (Ok(there), Ok(own)) if there == own)
}

#[cfg(not(unix))]
fn is_there(path: &Path, _: &File) -> bool {
    path.exists()
}

fn line(message: &OutboxMessage) -> String {
    let (payload, encoding) = match std::str::from_utf8(&message.payload) {
        Ok(text) => (text.to_owned(), "payload"),
        Err(_) => (STANDARD.encode(&message.payload), "payload_base64"),
    };
    let mut line = json!({
        "id": message.id.to_string(),
        "identity": message.identity(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_name_is_in_the_working_directory() {
        for (path, folder) in [
            ("orders.jsonl", "."),
            ("archive/orders.jsonl", "archive"),
            ("/orders.jsonl", "/"),
        ] {
            assert_eq!(folder_of(Path::new(path)), Path::new(folder));
        }
    }
}
