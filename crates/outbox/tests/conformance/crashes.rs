//! Real processes that really die. The test binary starts itself again as a worker: see `worker`.

use std::process::Stdio;
use std::time::Duration;

use outbox::{
    LeaseConfig, LeasedMessageHandler, MessageResult, OutboxMessage, TransactionalMessageHandler,
};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::Instant;

use super::outcomes::Ledger;
use super::peers::{MANY, Peer};
use super::stage::{ONE, text_of};
use super::{Collector, Dialect, Stage};

const URL: &str = "OUTBOX_TEST_WORKER_URL";
const MODE: &str = "OUTBOX_TEST_WORKER_MODE";

/// Short, for the tests wait for it to run out.
const LEASE: LeaseConfig = LeaseConfig {
    duration: Duration::from_millis(1500),
    headroom: Duration::from_millis(300),
};

/// What a worker process does with a message: says so, then obeys its text.
async fn obey(message: &OutboxMessage) {
    println!("handling {}", text_of(message));
    match &*text_of(message) {
        "hang" => std::future::pending().await,
        "die" => std::process::abort(),
        _ => {}
    }
}

struct Obedient;

impl LeasedMessageHandler for Obedient {
    async fn handle(&self, message: &OutboxMessage) -> MessageResult {
        obey(message).await;
        MessageResult::Ok
    }
}

impl<DB: Dialect> TransactionalMessageHandler<DB> for Obedient {
    async fn handle(
        &self,
        connection: &mut DB::Connection,
        message: &OutboxMessage,
    ) -> MessageResult {
        let effect = format!("INSERT INTO effects VALUES ({}, 'child')", message.seq);
        DB::run(connection, effect)
            .await
            .expect("insert the effect");
        obey(message).await;
        MessageResult::Ok
    }
}

/// The worker process: runs until it is killed.
pub(crate) async fn worker<DB: Dialect>() {
    let Ok(url) = std::env::var(URL) else { return };
    let pool = DB::connect(&url, 4).await;
    let builder = super::stage::quick(outbox::Outbox::<DB>::builder(pool));
    let builder = match std::env::var(MODE).as_deref() {
        Ok("transactional") => builder.queue("orders", ONE).transactional(Obedient),
        Ok("peer") => builder.queue("orders", MANY).transactional(Peer("child")),
        Ok("glutton") => super::bounds::glutton(builder),
        _ => builder.queue("orders", ONE).leased(Obedient),
    };
    let _handle = builder.lease(LEASE).max_attempts(2).start().await.unwrap();
    println!("started");
    std::future::pending().await
}

/// A worker process and what it says.
pub(crate) struct Worker {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    pub(crate) fn start<DB: Dialect>(stage: &Stage<DB>, mode: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["worker_process", "--exact", "--ignored", "--nocapture"])
            .env(URL, &stage.url)
            .env(MODE, mode)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Waits until it says one of these, and answers which; what it says before does not matter.
    async fn says_either<'a>(&mut self, this: &'a str, that: &'a str) -> &'a str {
        let listen = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                if let Some(said) = [this, that].into_iter().find(|said| line.ends_with(said)) {
                    return said;
                }
            }
            panic!("the worker ended without saying {this:?} or {that:?}");
        };
        let patience = Duration::from_secs(30);
        tokio::time::timeout(patience, listen)
            .await
            .expect("the worker says something")
    }

    /// Waits for the first line with this in it, and answers what comes after.
    pub(crate) async fn tells(&mut self, what: &str) -> String {
        let listen = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                if let Some((_, rest)) = line.split_once(what) {
                    return rest.to_owned();
                }
            }
            panic!("the worker ended without telling {what:?}");
        };
        let patience = Duration::from_secs(30);
        tokio::time::timeout(patience, listen)
            .await
            .expect("the worker says something")
    }

    pub(crate) async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }
}

/// An empty schema, and messages in it.
async fn enqueued<DB: Dialect>(stage: &Stage<DB>, texts: &[&str]) {
    let producer = stage
        .outbox()
        .queue("orders", ONE)
        .produce_only()
        .start()
        .await
        .unwrap();
    stage.enqueue(producer.outbox(), 0, texts).await;
    stage
        .until(
            "SELECT MAX(last_seq) FROM outbox_partitions",
            texts.len() as i64,
        )
        .await;
    producer.stop().await;
}

pub(crate) async fn a_killed_process_is_replaced_when_its_lease_runs_out<DB: Dialect>(
    stage: &Stage<DB>,
) {
    enqueued(stage, &["a", "hang", "b"]).await;
    let mut worker = Worker::start(stage, "leased");
    worker.says_either("handling hang", "handling hang").await;
    worker.kill().await;
    let killed = Instant::now();

    let heir = Collector::new();
    let handle = stage
        .outbox()
        .queue("orders", ONE)
        .leased(heir.clone())
        .lease(LEASE);
    let handle = handle.start().await.unwrap();
    let delivered = heir.wait_for(3).await;
    let took = killed.elapsed();
    handle.stop().await;
    assert_eq!(
        heir.texts(),
        ["a", "hang", "b"],
        "all again, in order: nothing was settled"
    );
    assert!(
        took < LEASE.duration + Duration::from_secs(5),
        "taken over after {took:?}"
    );
    let attempts: Vec<_> = delivered.iter().map(|message| message.attempts).collect();
    assert_eq!(
        attempts,
        [0, 0, 0],
        "a crash in a larger batch is charged to nobody"
    );
    let epochs: Vec<_> = delivered.iter().map(|message| message.epoch).collect();
    assert!(
        epochs.iter().all(|epoch| *epoch == 2),
        "a new lease: {epochs:?}"
    );
}

pub(crate) async fn a_killed_transaction_leaves_one_effect_each<DB: Dialect>(stage: &Stage<DB>) {
    enqueued(stage, &["a", "b", "hang", "c"]).await;
    let mut worker = Worker::start(stage, "transactional");
    worker.says_either("handling hang", "handling hang").await;
    worker.kill().await;

    let heir = Collector::new();
    let queue = stage.outbox().queue("orders", ONE);
    let handle = queue
        .transactional(Ledger(heir.clone()))
        .lease(LEASE)
        .start()
        .await
        .unwrap();
    stage.until("SELECT COUNT(*) FROM effects", 4).await;
    handle.stop().await;
    assert_eq!(
        stage
            .number("SELECT COUNT(DISTINCT seq) FROM effects")
            .await,
        4
    );
    let undone = "SELECT COUNT(*) FROM effects WHERE note = 'child'";
    assert_eq!(
        stage.number(undone).await,
        0,
        "what the dead process wrote is gone"
    );
}

pub(crate) async fn a_message_that_kills_its_process_ends_in_the_dead_letters<DB: Dialect>(
    stage: &Stage<DB>,
) {
    enqueued(stage, &["a", "die", "b"]).await;
    let buried = "SELECT COUNT(*) FROM outbox_dead_letters WHERE seq = 2";
    let mut deaths = 0;
    loop {
        // Each worker waits for the lease of the one before to run out.
        let mut worker = Worker::start(stage, "leased");
        if worker.says_either("handling die", "handling b").await == "handling b" {
            break;
        }
        deaths += 1;
        worker.child.wait().await.unwrap();
        assert!(deaths < 10, "the message kills for ever");
    }
    stage.until(buried, 1).await;
    assert_eq!(
        stage
            .number("SELECT COUNT(*) FROM outbox_dead_letters")
            .await,
        1
    );
    assert_eq!(
        deaths, 4,
        "twice in a batch, charged to nobody; then alone, two attempts"
    );
}
