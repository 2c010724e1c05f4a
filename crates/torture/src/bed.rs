//! The bed: a database, processes that work on it, wires between them, and someone who watches.

use std::convert::Infallible;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures_util::future::join_all;
use indicatif::{ProgressBar, ProgressStyle};
use outbox::{Outbox, OutboxHandle};
use sqlx::{Connection as _, Pool, Transaction};
use tempfile::TempDir;
use testbed::{After, Fault as WireFault, PrivateServer, Server, Wire};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::RunOptions;
use crate::clock;
use crate::dialect::Dialect;
use crate::evidence::{self, Evidence, Look};
use crate::faults::{Made, TRAP, WHILE, make_all};
use crate::ledger::now;
use crate::plan::{Fault, WORKERS, plan};
use crate::processes::{Mood, Process, Role, STOP};
use crate::producer::{OPEN, PROBE, Placed, producing, write};
use crate::prompt;
use crate::report;
use crate::script::{Order, Queue, Script};
use crate::seat::Seat;
use crate::verdict;
use crate::worker::{LEASE, builder, started};

/// How many producer processes there are.
const PRODUCERS: i64 = 2;
/// How long everything that was enqueued may take to be settled once nothing goes wrong any more.
const DRAIN: Duration = Duration::from_secs(60);
/// How many messages may wait before the producers have to, and when they go on.
const BACKLOG: (i64, i64) = (4_000, 2_000);
/// How often somebody looks how far it is.
const LOOKS: Duration = Duration::from_millis(250);
/// What the promise G8 grants beside the lease.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

/// Tortures one database. Whether every promise was kept.
pub(crate) async fn run(options: &RunOptions) -> Result<bool> {
    match options.db {
        Server::Postgres => run_on::<sqlx::Postgres>(options).await,
        Server::MariaDb | Server::MySql => run_on::<sqlx::MySql>(options).await,
        Server::Sqlite => run_on::<sqlx::Sqlite>(options).await,
    }
}

async fn run_on<DB: Dialect>(options: &RunOptions) -> Result<bool> {
    let seed = options.schedule.seed.unwrap_or_else(rand::random);
    let mut plan = plan(options.db, seed, options.schedule.duration());
    if clock::library().is_none() {
        eprintln!("no libfaketime here: the clocks of the workers stay as they are");
        plan.retain(|planned| !matches!(planned.fault, Fault::WorkerAhead | Fault::WorkerBehind));
    }
    eprintln!(
        "{}: seed {seed}, {} faults in {} s, {WORKERS} workers, {PRODUCERS} producers",
        options.db,
        plan.len(),
        options.schedule.seconds
    );
    let (bed, handle) = Bed::<DB>::make(options.db, seed, options.schedule.duration()).await?;
    let bed = Arc::new(bed);
    let evidence = torture(&bed, handle, &plan).await;
    bed.bar.finish_and_clear();
    let evidence = match evidence {
        Ok(evidence) => evidence,
        Err(error) => {
            let kept = keep_logs(&bed.folder, &options.schedule.reports)?;
            return Err(error.context(format!("the logs are in {}", kept.display())));
        }
    };
    let verdict = verdict::judge(&evidence);
    let summary = report::write(options, seed, &plan, &evidence, &verdict)?;
    print!("{summary}");
    if !verdict.is_kept() {
        let kept = keep_logs(&bed.folder, &options.schedule.reports)?;
        println!("the logs and ledgers are in {}", kept.display());
    }
    Ok(verdict.is_kept())
}

/// From the first process to the last.
async fn torture<DB: Dialect>(
    bed: &Arc<Bed<DB>>,
    handle: OutboxHandle<DB>,
    plan: &[crate::plan::Planned],
) -> Result<Evidence> {
    let mut producers = bed.start_producers()?;
    let over = CancellationToken::new();
    let supervisor = tokio::spawn(Arc::clone(bed).supervise(over.clone()));
    let watcher = tokio::spawn(Arc::clone(bed).watch(over.clone()));

    let mut faults = tokio::select! {
        faults = make_all(bed, plan) => faults?,
        never = bed.pace(&mut producers) => match never? {},
    };
    bed.say("no more trouble".to_owned());
    tell(&mut producers, Mood::Hushed).await?;
    let mut stuck = std::mem::take(&mut *bed.slow_stops.lock().await);
    stuck.extend(bed.settle_all("after the last fault").await);

    // The last fault of all: nobody is left. From here on the promise counts, for each partition's next
    // message, which has none before it to wait for.
    let from = now();
    let mut workers = join_all((0..WORKERS).map(|worker| bed.worker(worker))).await;
    for worker in &mut workers {
        worker.kill().await;
    }
    for worker in &mut workers {
        worker.replace().await?;
    }
    drop(workers);
    let healed = now();
    faults.push(Made {
        fault: Fault::KillWorker,
        from,
        to: healed,
    });
    let open = bed.open_everywhere().await?;
    bed.probe().await?;
    bed.say("everything moves again?".to_owned());
    sleep(LEASE.duration + GRACE).await;
    if let Some(open) = open {
        open.commit().await.context("commit what was open")?;
    }
    tell(&mut producers, Mood::Calm).await?;
    let since = now();
    // Long enough for others to find most leases that nobody renews.
    sleep(LEASE.duration * 5).await;
    let calm = (since, now());

    let mut said = Vec::new();
    for producer in &mut producers {
        said.append(&mut producer.stop().await.context("a producer")?);
    }
    let never = bed.settle_all("in the end").await;
    if never.is_none() {
        bed.wait_swept().await?;
    }
    stuck.extend(never);
    over.cancel();
    let looks = watcher.await?;
    supervisor.await??;
    for number in 0..WORKERS {
        let mut worker = bed.worker(number).await;
        if let Err(error) = worker.stop().await {
            stuck.push(format!("worker {number}: {error:#}"));
            worker.kill().await;
        }
    }
    handle.stop().await;
    let waits = prompt::waits(&bed.strangers).await?;
    bed.say("looking for losses".to_owned());
    Ok(Evidence {
        faults,
        said,
        looks,
        healed,
        calm,
        waits,
        stuck,
        ..evidence::gather(bed).await?
    })
}

async fn tell(processes: &mut [Process], mood: Mood) -> Result<()> {
    for process in processes {
        process.tell(mood).await?;
    }
    Ok(())
}

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
    slow_stops: Mutex<Vec<String>>,
    /// How many messages waited at the last look.
    backlog: AtomicI64,
    pub(crate) bar: ProgressBar,
}

impl<DB: Dialect> Bed<DB> {
    async fn make(db: Server, seed: u64, duration: Duration) -> Result<(Self, OutboxHandle<DB>)> {
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

    fn start_producers(&self) -> Result<Vec<Process>> {
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
    async fn supervise(self: Arc<Self>, over: CancellationToken) -> Result<()> {
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
    async fn watch(self: Arc<Self>, over: CancellationToken) -> Vec<Look> {
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
    async fn pace(&self, producers: &mut [Process]) -> Result<Infallible> {
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

    /// Waits until everything that is committed now is settled. What there is to say if it never is.
    async fn settle_all(&self, when: &str) -> Option<String> {
        let until = Instant::now() + DRAIN;
        let mut committed = None;
        let mut wanted: Option<Look> = None;
        loop {
            let found = self.progress(&mut committed).await;
            if let (Ok(found), Some(committed)) = (&found, committed) {
                if found.sequenced() >= committed && wanted.is_none() {
                    wanted = Some(found.clone());
                }
                let settled = |wanted: &Look| {
                    let mut pairs = wanted.partitions.iter().zip(&found.partitions);
                    pairs.all(|(wanted, found)| found.processed_seq >= wanted.last_seq)
                };
                if wanted.as_ref().is_some_and(settled) {
                    return None;
                }
            }
            if Instant::now() > until {
                return Some(format!(
                    "{when} {committed:?} committed, wanted {wanted:?}, after {DRAIN:?} {found:?}"
                ));
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn progress(&self, committed: &mut Option<i64>) -> Result<Look> {
        if committed.is_none() {
            *committed = Some(evidence::committed(&self.strangers).await?);
        }
        evidence::look(&self.strangers).await
    }

    /// Waits until what was settled is removed.
    async fn wait_swept(&self) -> Result<()> {
        let until = Instant::now() + DRAIN;
        while Instant::now() < until {
            if evidence::left_behind(&self.strangers).await?.is_empty() {
                return Ok(());
            }
            sleep(Duration::from_millis(100)).await;
        }
        // The verdict says what it is.
        Ok(())
    }

    /// A transaction that has a message for every partition and does not end; where others can write
    /// beside it. Nobody may have to wait for it.
    async fn open_everywhere(&self) -> Result<Option<Transaction<'static, DB>>> {
        if !DB::CONCURRENT {
            return Ok(None);
        }
        let mut transaction = self.strangers.begin_with(DB::BEGIN_WRITING).await?;
        let opened = write(&self.outbox, &mut transaction, &everywhere(OPEN)).await;
        match opened {
            Ok(()) => Ok(Some(transaction)),
            Err(error) => bail!("a transaction beside the probe failed: {error:?}"),
        }
    }

    /// A message for every partition.
    async fn probe(&self) -> Result<()> {
        for placed in everywhere(PROBE) {
            let probe = self
                .outbox
                .transaction(async |connection| write(&self.outbox, connection, &[placed]).await);
            if let Err(error) = probe.await {
                bail!("the probe was not enqueued: {error:?}");
            }
        }
        Ok(())
    }
}

/// A message for every partition.
fn everywhere(producer: i64) -> Vec<Placed> {
    let partitions = 0..u32::from(Queue::PARTITIONS.count());
    let places = Queue::ALL
        .into_iter()
        .flat_map(|queue| partitions.clone().map(move |partition| (queue, partition)));
    let place = |(number, (queue, partition)): (i64, (Queue, u32))| Placed {
        order: Order {
            producer,
            number,
            script: Script::Fine,
        },
        queue,
        key: i64::from(partition),
        partition: Some(partition),
    };
    (0..).zip(places).map(place).collect()
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

/// Puts what the processes wrote where it stays.
fn keep_logs(folder: &TempDir, reports: &Path) -> Result<PathBuf> {
    let kept = reports.join("kept");
    std::fs::create_dir_all(&kept)?;
    for entry in std::fs::read_dir(folder.path())? {
        let entry = entry?;
        std::fs::copy(entry.path(), kept.join(entry.file_name()))?;
    }
    Ok(kept)
}
