//! The bed: a database, processes that work on it, wires between them, and someone who watches.

use std::convert::Infallible;
use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressStyle};
use outbox::{Outbox, OutboxHandle};
use sqlx::{Connection as _, Pool};
use tempfile::TempDir;
use testbed::{After, Fault as WireFault, PrivateServer, Server, Wire};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::dialect::Dialect;
use crate::evidence::{self, Look};
use crate::faults::{TRAP, WHILE};
use crate::plan::WORKERS;
use crate::processes::{Mood, Process, Role, STOP};
use crate::producer::producing;
use crate::seat::Seat;
use crate::worker::{builder, started};

/// How many producer processes there are.
pub(crate) const PRODUCERS: i64 = 2;
/// How many messages may wait before the producers have to, and when they go on.
const BACKLOG: (i64, i64) = (4_000, 2_000);
/// How often somebody looks how far it is.
const LOOKS: Duration = Duration::from_millis(250);

/// Where everything takes place.
pub(crate) struct Bed<DB: Dialect> {
    server: Option<Mutex<PrivateServer>>,
    url: String,
    pub(crate) db: Server,
    seed: u64,
    /// Ledgers and logs.
    pub(crate) folder: TempDir,
    wires: Vec<Wire>,
    workers: Vec<Mutex<Seat>>,
    /// Connections of others, who have nothing to do with the outbox, and of the bed itself.
    pub(crate) strangers: Pool<DB>,
    pub(crate) outbox: Outbox<DB>,
    late: AtomicI64,
    /// Workers that did not stop when they were asked to.
    pub(crate) slow_stops: Mutex<Vec<String>>,
    /// How many messages waited at the last look.
    backlog: AtomicI64,
    pub(crate) bar: ProgressBar,
}

impl<DB: Dialect> Bed<DB> {
    pub(crate) async fn make(
        db: Server,
        seed: u64,
        duration: Duration,
    ) -> Result<(Self, OutboxHandle<DB>)> {
        let folder = tempfile::Builder::new()
            .prefix("outbox-torture-")
            .tempdir()?;
        let mut server = match db {
            Server::Sqlite => None,
            _ => Some(
                PrivateServer::launch(db)
                    .await
                    .context("a server to torture")?,
            ),
        };
        let url = match &server {
            Some(server) => server.database().url().to_owned(),
            None => format!(
                "sqlite://{}?mode=rwc",
                folder.path().join("torture.db").display()
            ),
        };
        let pooled = match &mut server {
            Some(server) if db == Server::Postgres => server.pool().await,
            _ => None,
        };
        if db == Server::Postgres && pooled.is_none() {
            eprintln!("no pgbouncer here: nobody goes through a pooler");
        }
        let strangers = DB::pool(&url, 12).await?;
        set_up(&strangers).await?;
        let start = async || {
            let builder = builder(strangers.clone()).auto_migrate();
            producing(builder).start().await
        };
        let handle = started(start).await?;
        let mut wires = Vec::new();
        let mut workers = Vec::new();
        for number in 0..WORKERS {
            if server.is_some() {
                let behind_pooler = pooled.as_ref().filter(|_| number == WORKERS - 1);
                wires.push(Wire::to(behind_pooler.unwrap_or(&url)).await);
            }
            let url = wires.get(number).map_or(&*url, Wire::url);
            // One of them has to make do with a single connection.
            let connections = if number == 0 { 1 } else { 6 };
            let role = Role {
                db,
                producer: None,
                ledger: None,
                connections,
                seed,
            };
            let worker = Seat::start(role, number, url.to_owned(), folder.path())?;
            workers.push(Mutex::new(worker));
        }
        let bed = Self {
            url,
            db,
            seed,
            folder,
            wires,
            workers,
            outbox: handle.outbox().clone(),
            strangers,
            late: AtomicI64::new(0),
            slow_stops: Mutex::default(),
            backlog: AtomicI64::new(0),
            bar: progress_bar(duration),
            server: server.map(Mutex::new),
        };
        Ok((bed, handle))
    }

    pub(crate) fn start_producers(&self) -> Result<Vec<Process>> {
        let start = |number| {
            let role = Role {
                db: self.db,
                producer: Some(number),
                ledger: None,
                connections: 4,
                seed: self.seed.wrapping_add(1 + number.cast_unsigned() * 1000),
            };
            let log = self.folder.path().join(format!("producer-{number}.log"));
            Process::start(&role, &self.url, &log, None)
        };
        (0..PRODUCERS).map(start).collect()
    }

    pub(crate) fn say(&self, what: String) {
        self.bar.set_message(what);
    }

    pub(crate) async fn worker(&self, number: usize) -> MutexGuard<'_, Seat> {
        self.workers[number].lock().await
    }

    /// The wire of a worker, where there is a network.
    pub(crate) fn wire(&self, worker: usize) -> Option<&Wire> {
        self.wires.get(worker)
    }

    /// What went silent would stay so for as long as the server's system believes in it.
    pub(crate) fn cut_wires(&self) {
        for wire in &self.wires {
            wire.cut();
        }
    }

    pub(crate) fn next_late(&self) -> i64 {
        self.late.fetch_add(1, Ordering::Relaxed)
    }

    /// A connection of a stranger's own.
    pub(crate) async fn connect(&self) -> Result<DB::Connection> {
        Ok(DB::Connection::connect(&self.url).await?)
    }

    /// An orderly stop of a worker, whatever state its database is in, and another one.
    pub(crate) async fn restart(&self, worker: usize) -> Result<()> {
        if !self.worker(worker).await.restart().await? {
            let slow = format!("worker {worker} did not stop within {STOP:?}");
            self.slow_stops.lock().await.push(slow);
        }
        Ok(())
    }

    /// Kills a worker at a request of its own.
    pub(crate) async fn kill_at(
        &self,
        worker: usize,
        request: u64,
        fault: WireFault,
    ) -> Result<()> {
        let Some(wire) = self.wire(worker) else {
            return Ok(());
        };
        wire.fail_at(request, fault, After::Silent);
        let _ = timeout(TRAP, wire.wait_tripped()).await;
        let mut worker = self.worker(worker).await;
        worker.kill().await;
        wire.cut();
        wire.heal();
        worker.replace().await
    }

    pub(crate) async fn kill_server(&self) -> Result<()> {
        let Some(server) = &self.server else {
            return Ok(());
        };
        let mut server = server.lock().await;
        server.kill().await;
        sleep(Duration::from_millis(200)).await;
        server.start_again().await;
        Ok(())
    }

    /// Sets the clock of a worker, and corrects it after a while.
    pub(crate) async fn set_clock(&self, worker: usize, by: &str) -> Result<()> {
        let clock = self.worker(worker).await.clock();
        let Some(clock) = clock else { return Ok(()) };
        clock.set(by)?;
        sleep(WHILE * 2).await;
        clock.correct()
    }

    /// Says how much larger than its ledger any file of a worker may get.
    pub(crate) async fn limit_files(&self, room: Option<u64>) {
        for worker in &self.workers {
            worker.lock().await.limit_files(room);
        }
    }

    /// Starts workers again that ended by themselves.
    pub(crate) async fn supervise(self: Arc<Self>, over: CancellationToken) -> Result<()> {
        let mut looks = tokio::time::interval(Duration::from_millis(100));
        while over.run_until_cancelled(looks.tick()).await.is_some() {
            for worker in &self.workers {
                // Whoever has it knows what it is doing.
                if let Ok(mut worker) = worker.try_lock()
                    && worker.has_ended()
                {
                    worker.replace().await?;
                }
            }
        }
        Ok(())
    }

    /// Looks how far it is, again and again.
    pub(crate) async fn watch(self: Arc<Self>, over: CancellationToken) -> Vec<Look> {
        let mut looks = Vec::new();
        let mut ticks = tokio::time::interval(LOOKS);
        let loud = !std::io::stderr().is_terminal();
        let mut said = Instant::now();
        while over.run_until_cancelled(ticks.tick()).await.is_some() {
            let look = timeout(Duration::from_secs(2), evidence::look(&self.strangers)).await;
            let Ok(Ok(look)) = look else { continue };
            let backlog = look.sequenced() - look.settled();
            self.backlog.store(backlog, Ordering::Relaxed);
            self.bar
                .set_position(u64::try_from(look.settled()).unwrap_or(0));
            if loud && said.elapsed() > Duration::from_secs(10) {
                said = Instant::now();
                eprintln!(
                    "  {} enqueued, {} settled; {}",
                    look.sequenced(),
                    look.settled(),
                    self.bar.message()
                );
            }
            looks.push(look);
        }
        looks
    }

    /// Makes the producers wait for the workers: what they cannot keep up with only piles up.
    pub(crate) async fn pace(&self, producers: &mut [Process]) -> Result<Infallible> {
        let (most, least) = BACKLOG;
        let mut mood = Mood::Wild;
        let mut ticks = tokio::time::interval(LOOKS);
        loop {
            ticks.tick().await;
            let next = match self.backlog.load(Ordering::Relaxed) {
                backlog if backlog > most => Mood::Hushed,
                backlog if backlog < least => Mood::Wild,
                _ => mood,
            };
            if next != mood {
                mood = next;
                tell(producers, mood).await?;
            }
        }
    }
}

pub(crate) async fn tell(processes: &mut [Process], mood: Mood) -> Result<()> {
    for process in processes {
        process.tell(mood).await?;
    }
    Ok(())
}

/// The tables of the application.
async fn set_up<DB: Dialect>(pool: &Pool<DB>) -> Result<()> {
    let mut connection = pool.acquire().await?;
    let effects = format!(
        "CREATE TABLE effects (place {}, part BIGINT NOT NULL, seq BIGINT NOT NULL, \
         epoch BIGINT NOT NULL, attempts BIGINT NOT NULL, producer BIGINT NOT NULL, \
         number BIGINT NOT NULL, made_at BIGINT NOT NULL)",
        DB::NUMBERED
    );
    for statement in [
        &*effects,
        "CREATE TABLE business (producer BIGINT NOT NULL, number BIGINT NOT NULL, \
         queue BIGINT NOT NULL, key_number BIGINT NOT NULL, script BIGINT NOT NULL, \
         message_id BIGINT NOT NULL, PRIMARY KEY (producer, number))",
        "CREATE TABLE accounts (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL)",
        "INSERT INTO accounts VALUES (1, 0), (2, 0)",
    ] {
        DB::run(&mut connection, statement.to_owned()).await?;
    }
    Ok(())
}

fn progress_bar(duration: Duration) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    let style = ProgressStyle::with_template("[{elapsed_precise}] {pos} settled; {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar.set_message(format!("{} s of trouble", duration.as_secs()));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
