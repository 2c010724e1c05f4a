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

use crate::dialect::{Dialect, Ping};
use crate::evidence::{self, Look};
use crate::faults::{Made, WHILE, sprung};
use crate::ledger::now;
use crate::plan::{Fault, WORKERS};
use crate::processes::{Mood, Process, Role};
use crate::producer::producing;
use crate::seat::Seat;
use crate::verdict::Invariant;
use crate::worker::{builder, started};

/// How many producer processes there are.
pub(crate) const PRODUCERS: usize = 2;
/// How many connections everybody's pool has: each worker's, of whom one has to make do with a single
/// one; a producer's; the bed's own; and the one that scripts/private-server puts before PostgreSQL.
const WORKERS_POOLS: [u32; WORKERS] = [1, 6, 6];
const PRODUCERS_POOL: u32 = 4;
const STRANGERS_POOL: u32 = 12;
const POOLERS_POOL: u32 = 10;
/// How many sessions there may be while all run: an outbox listens or looks by one more connection, and
/// hands one on to the next.
pub(crate) const SESSIONS: u32 = WORKERS_POOLS[0]
    + WORKERS_POOLS[1]
    + WORKERS_POOLS[2]
    + PRODUCERS_POOL * PRODUCERS as u32
    + STRANGERS_POOL
    + POOLERS_POOL
    + 2 * 6;
/// Which of the producers' processes a fault befalls, going by the worker that was drawn.
pub(crate) const fn producers_process(worker: usize) -> usize {
    worker % PRODUCERS
}

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
    /// The workers', then the producers'.
    wires: Vec<Wire>,
    workers: Vec<Mutex<Seat>>,
    /// Connections of others, who have nothing to do with the outbox, and of the bed itself.
    pub(crate) strangers: Pool<DB>,
    pub(crate) outbox: Outbox<DB>,
    late: AtomicI64,
    /// What was seen at once to be wrong.
    blamed: Mutex<Vec<(Invariant, String)>>,
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
        let strangers = DB::pool(&url, STRANGERS_POOL, Ping::AtCheckout).await?;
        set_up(&strangers).await?;
        let start = async || {
            let builder = builder(strangers.clone()).auto_migrate();
            producing(builder).start().await
        };
        let handle = started(start).await?;
        DB::run(&mut *strangers.acquire().await?, DB::SETBACKS.to_owned()).await?;
        let mut wires = Vec::new();
        let mut workers = Vec::new();
        for (number, connections) in WORKERS_POOLS.into_iter().enumerate() {
            if server.is_some() {
                let behind_pooler = pooled.as_ref().filter(|_| number == WORKERS - 1);
                wires.push(Wire::to(behind_pooler.unwrap_or(&url)).await);
            }
            let url = wires.get(number).map_or(&*url, Wire::url);
            let role = Role {
                db,
                producer: None,
                ledger: None,
                connections,
                // One takes what it gets at once.
                batches: number == 1,
                seed,
            };
            let worker = Seat::start(role, number, url.to_owned(), folder.path())?;
            workers.push(Mutex::new(worker));
        }
        if server.is_some() {
            for _ in 0..PRODUCERS {
                wires.push(Wire::to(&url).await);
            }
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
            blamed: Mutex::default(),
            backlog: AtomicI64::new(0),
            bar: progress_bar(duration),
            server: server.map(Mutex::new),
        };
        Ok((bed, handle))
    }

    pub(crate) fn start_producers(&self) -> Result<Vec<Process>> {
        let start = |place| {
            let number = i64::try_from(place)?;
            let role = Role {
                db: self.db,
                producer: Some(number),
                ledger: None,
                connections: PRODUCERS_POOL,
                batches: false,
                seed: self.seed.wrapping_add(1 + number.cast_unsigned() * 1000),
            };
            let log = self.folder.path().join(format!("producer-{number}.log"));
            let wire = self.wires.get(WORKERS + place);
            let url = wire.map_or(&*self.url, Wire::url);
            Process::start(&role, url, &log, None)
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

    /// The wire of a producer; of one or the other as a number says.
    pub(crate) fn producers_wire(&self, number: usize) -> &Wire {
        &self.wires[WORKERS + producers_process(number)]
    }

    /// Ends all trouble with the network. What went silent would stay so for as long as the server's
    /// system believes in it.
    pub(crate) fn restore_wires(&self) {
        let (workers, producers) = self.wires.split_at(WORKERS.min(self.wires.len()));
        for wire in workers {
            wire.restore();
        }
        // A producer's never goes silent, and to be cut without a reason is more than it has to bear.
        for wire in producers {
            wire.disarm();
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
        let wrong = self.worker(worker).await.restart().await?;
        self.blame(Invariant::MovesAgain, wrong).await;
        Ok(())
    }

    /// Writes down what is wrong, if anything is.
    pub(crate) async fn blame(&self, broken: Invariant, what: impl IntoIterator<Item = String>) {
        let what = what.into_iter().map(|what| (broken, what));
        self.blamed.lock().await.extend(what);
    }

    /// All that was wrong.
    pub(crate) async fn blamed(&self) -> Vec<(Invariant, String)> {
        std::mem::take(&mut *self.blamed.lock().await)
    }

    /// Kills a worker at a request of its own.
    pub(crate) async fn kill_at(
        &self,
        worker: usize,
        request: u64,
        fault: WireFault,
    ) -> Result<bool> {
        let Some(wire) = self.wire(worker) else {
            return Ok(false);
        };
        wire.fail_at(request, fault, After::Silent);
        let sprung = sprung(wire).await;
        let mut worker = self.worker(worker).await;
        worker.kill().await;
        wire.cut();
        wire.heal();
        worker.replace().await?;
        Ok(sprung)
    }

    /// Ends the server one way or the other, and starts it again.
    pub(crate) async fn end_server(&self, end: impl AsyncFnOnce(&mut PrivateServer)) -> bool {
        let Some(server) = &self.server else {
            return false;
        };
        let mut server = server.lock().await;
        end(&mut server).await;
        sleep(Duration::from_millis(200)).await;
        server.start_again().await;
        true
    }

    /// Sets the clock of a worker, and corrects it after a while.
    pub(crate) async fn set_clock(&self, worker: usize, by: &str) -> Result<bool> {
        let clock = self.worker(worker).await.clock();
        let Some(clock) = clock else { return Ok(false) };
        clock.go_wrong(by, WHILE * 2).await?;
        Ok(true)
    }

    /// Says how much larger than its ledger any file of a worker may get.
    pub(crate) async fn limit_files(&self, room: Option<u64>) {
        for worker in &self.workers {
            worker.lock().await.limit_files(room);
        }
    }

    /// Starts again who ended by himself: workers, of whom only messages may ask that, and the server. How
    /// often that was the server.
    pub(crate) async fn supervise(self: Arc<Self>, over: CancellationToken) -> Result<Vec<Made>> {
        let mut looks = tokio::time::interval(Duration::from_millis(100));
        let mut crashes = Vec::new();
        let mut lived = now();
        while over.run_until_cancelled(looks.tick()).await.is_some() {
            for (number, worker) in self.workers.iter().enumerate() {
                // Whoever has it knows what it is doing.
                if let Ok(mut worker) = worker.try_lock()
                    && let Some((status, scripted)) = worker.ended()
                {
                    let wrong = format!("worker {number} ended by itself: {status}");
                    let wrong = Some(wrong).filter(|_| !scripted);
                    self.blame(Invariant::MovesAgain, wrong).await;
                    worker.replace().await?;
                }
            }
            let asked = now();
            crashes.extend(self.revive_server(lived).await);
            lived = asked;
        }
        Ok(crashes)
    }

    /// Starts the server again if it has crashed by itself since it lived for sure, which is no fault of ours
    /// and as good as any.
    async fn revive_server(&self, lived: i64) -> Option<Made> {
        let mut server = self.server.as_ref()?.try_lock().ok()?;
        if server.lives().await {
            return None;
        }
        server.start_again().await;
        Some(Made {
            fault: Fault::ServerCrash,
            worker: 0,
            from: lived,
            to: now(),
            hit: true,
        })
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
        "CREATE TABLE setbacks (part BIGINT, epoch_before BIGINT, epoch_after BIGINT, \
         cursor_before BIGINT, cursor_after BIGINT)",
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
