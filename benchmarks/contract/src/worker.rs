//! The process a system runs in: task in, events out, `go` and `stop` on the standard input.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines, Stdin};

use crate::clock::now_nanos;
use crate::produce::{Produced, produce};
use crate::protocol::{Event, Progress, Report};
use crate::sink::Sink;
use crate::system::{Start, System};
use crate::task::{Handler, Task};

/// How often to say how far we are, and how often at most if nothing happens: a process that should be
/// idle must not be kept busy by that.
const PROGRESS_EVERY: Duration = Duration::from_millis(20);
const NO_PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// Runs one task, given as JSON.
pub async fn main<S: System>(task: &str) -> Result<()> {
    let task: Task = serde_json::from_str(task).context("the task")?;
    let mut system = S::connect(&task).await.context("connect")?;
    if task.prepare {
        system.prepare(&task).await.context("prepare")?;
        return system.stop().await;
    }
    let mut commands = BufReader::new(tokio::io::stdin()).lines();
    say(&Event::Ready)?;
    expect(&mut commands, "go").await?;

    let mut report = Report {
        go_nanos: now_nanos(),
        ..Report::default()
    };
    let sink = Arc::new(Sink::new(task.capacity, task.partitions, task.timestamps));
    let start = match task.handler {
        Handler::None if task.background => Start::Background,
        Handler::None => Start::Nothing,
        Handler::Leased | Handler::Transactional => Start::Handlers(Arc::clone(&sink)),
    };
    system.start(&task, start).await.context("start")?;
    let system = Arc::new(system);
    let produced = Arc::new(Produced::default());
    let mut producers = tokio::spawn(run_producers(
        Arc::clone(&system),
        task.clone(),
        Arc::clone(&produced),
        Arc::clone(&sink),
    ));

    let (mut every, mut said) = (PROGRESS_EVERY, None);
    let mut production = None;
    loop {
        tokio::select! {
            ended = &mut producers, if production.is_none() => production = Some(ended?),
            line = commands.next_line() => match line?.as_deref() {
                Some("stop") | None => break,
                Some(other) => bail!("unknown command {other:?}"),
            },
            () = tokio::time::sleep(every) => {
                let progress = Progress {
                    produced: produced.count.load(Relaxed),
                    handled: sink.handled(),
                    production_done: production.is_some(),
                };
                if said.replace(progress) == Some(progress) {
                    every = (every * 2).min(NO_PROGRESS_EVERY);
                } else {
                    every = PROGRESS_EVERY;
                    say(&Event::Progress(progress))?;
                }
            }
        }
    }
    produced.stop.store(true, Relaxed);
    let (nanos, handled) = match production {
        Some(production) => production,
        None => producers.await?,
    };
    report.production_nanos = nanos;
    report.handled_during_production = handled;
    fill(&mut report, &sink, &produced);
    // A system that takes long to stop must not change what was measured.
    if let Some(system) = Arc::into_inner(system) {
        tokio::time::timeout(Duration::from_secs(10), system.stop())
            .await
            .ok();
    }
    say(&Event::Report(Box::new(report)))
}

async fn run_producers<S: System>(
    system: Arc<S>,
    task: Task,
    produced: Arc<Produced>,
    sink: Arc<Sink>,
) -> (u64, u64) {
    let began = now_nanos();
    if let Some(production) = task.production {
        produce(&system, &task, production, &produced).await;
    }
    (now_nanos() - began, sink.handled())
}

fn fill(report: &mut Report, sink: &Sink, produced: &Produced) {
    let tally = sink.tally();
    report.produced = produced.count.load(Relaxed);
    report.produced_id_sum = produced.id_sum.load(Relaxed);
    report.producer_errors = produced.errors.load(Relaxed);
    report.first_error = produced
        .first_error
        .lock()
        .ok()
        .and_then(|first| first.clone());
    report.committed_at = produced
        .times
        .lock()
        .map(|times| times.clone())
        .unwrap_or_default();
    report.handled = tally.handled;
    report.duplicates = tally.duplicates;
    report.strangers = tally.strangers;
    report.out_of_order = tally.out_of_order;
    report.handled_id_sum = tally.id_sum;
    report.first_handled_nanos = tally.first_nanos;
    report.last_handled_nanos = tally.last_nanos;
    report.handled_at = sink.times();
    report.peak_rss_kib = status_kib("VmHWM:").unwrap_or(0);
    report.cpu_millis = cpu_millis().unwrap_or(0);
}

async fn expect(commands: &mut Lines<BufReader<Stdin>>, word: &str) -> Result<()> {
    match commands.next_line().await? {
        Some(line) if line == word => Ok(()),
        other => bail!("expected {word:?}, got {other:?}"),
    }
}

fn say(event: &Event) -> Result<()> {
    let mut line = serde_json::to_string(event)?;
    line.push('\n');
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())?;
    Ok(out.flush()?)
}

/// A figure of the kernel's about this process.
fn status_kib(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn cpu_millis() -> Option<u64> {
    // Nanoseconds on a processor, first field; of this process's main thread and all others.
    let mut nanos = 0;
    for thread in std::fs::read_dir("/proc/self/task").ok()? {
        let stat = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        nanos += stat.split_whitespace().next()?.parse::<u64>().ok()?;
    }
    Some(nanos / 1_000_000)
}
