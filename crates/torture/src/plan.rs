//! Which faults come when: drawn from the seed and nothing else, so a seed repeats its plan.

use std::fmt;
use std::time::Duration;

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use testbed::Server;

/// How many worker processes there are.
pub(crate) const WORKERS: usize = 3;
/// What is left between two faults on average.
const PACE: Duration = Duration::from_millis(900);

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Fault {
    /// `kill -9`, and a new process in its place.
    KillWorker,
    /// `kill -9` when the nth request from now on is about to be sent.
    KillBeforeRequest(u64),
    /// `kill -9` when the server has done what the nth request from now on asks, and nobody was told.
    KillAfterRequest(u64),
    /// SIGSTOP until the lease has long run out, then SIGCONT.
    Freeze,
    /// An orderly stop, and a new process.
    Restart,
    /// `kill -9` of the server, which is started again.
    KillServer,
    /// The server is shut down in a hurry, and started again.
    StopServer,
    /// The server crashed by itself: in no plan.
    ServerCrash,
    /// All connections of a worker are closed.
    Cut,
    /// All connections of a worker are reset.
    Reset,
    /// All connections of a worker break in one direction.
    HalfClose,
    /// A worker's connections break in the middle of what they carry.
    CutAfterBytes(u64),
    /// Nothing arrives any more, in either direction, and nobody is told.
    Blackhole,
    /// Everything takes longer.
    Delay,
    /// A COMMIT is carried out, and its reply is lost.
    LoseCommit,
    /// The nth request is carried out, and its reply is lost.
    LoseReply(u64),
    /// All connections of a producer are reset.
    ResetProducer,
    /// A producer's COMMIT is carried out, and its reply is lost.
    LoseProducersCommit,
    /// A producer that enqueues first and commits last.
    LateCommit,
    /// A transaction that only reads, and stays.
    HeldSnapshot,
    /// The database's clock seems to have jumped ahead: every lease has run out.
    LeasesExpire,
    /// The database's clock seems to have jumped back: leases last for another hour.
    LeasesLast,
    /// The clock of a worker is an hour ahead for a while.
    WorkerAhead,
    /// The clock of a worker is an hour behind for a while.
    WorkerBehind,
    /// A stranger locks every row that the outbox works with.
    RowsLocked,
    /// Strangers deadlock each other, and handlers that want the same rows.
    Deadlocks,
    /// Every connection that the server has is taken.
    Crowd,
    /// Somebody holds the write lock of the file.
    Busy,
    /// Nothing can be written to the disk.
    DiskFull,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KillWorker => "worker killed",
            Self::KillBeforeRequest(_) => "worker killed before a request",
            Self::KillAfterRequest(_) => "worker killed after a request",
            Self::Freeze => "worker frozen past its lease",
            Self::Restart => "worker restarted",
            Self::KillServer => "server killed",
            Self::StopServer => "server shut down",
            Self::ServerCrash => "server crashed by itself",
            Self::Cut => "connections cut",
            Self::Reset => "connections reset",
            Self::HalfClose => "connections half closed",
            Self::CutAfterBytes(_) => "connections cut in the middle",
            Self::Blackhole => "network silent",
            Self::Delay => "network slow",
            Self::LoseCommit => "commit's reply lost",
            Self::LoseReply(_) => "a reply lost",
            Self::ResetProducer => "producer's connections reset",
            Self::LoseProducersCommit => "producer's commit's reply lost",
            Self::LateCommit => "late commit",
            Self::HeldSnapshot => "forgotten transaction",
            Self::LeasesExpire => "clock ahead",
            Self::LeasesLast => "clock back",
            Self::WorkerAhead => "worker's clock ahead",
            Self::WorkerBehind => "worker's clock behind",
            Self::RowsLocked => "rows locked by a stranger",
            Self::Deadlocks => "deadlocks",
            Self::Crowd => "no connection left",
            Self::Busy => "write lock held",
            Self::DiskFull => "disk full",
        })
    }
}

/// Whom a fault disturbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The worker that was drawn.
    Worker,
    /// A producer.
    Producer,
    /// All who work with the outbox.
    All,
    /// The server, and so all, and the producers.
    Server,
    /// Nobody, if all is well.
    Nobody,
}

impl Fault {
    pub(crate) const fn reach(self) -> Reach {
        match self {
            Self::KillWorker
            | Self::KillBeforeRequest(_)
            | Self::KillAfterRequest(_)
            | Self::Freeze
            | Self::Restart
            | Self::Cut
            | Self::Reset
            | Self::HalfClose
            | Self::CutAfterBytes(_)
            | Self::Blackhole
            | Self::Delay
            | Self::LoseCommit
            | Self::LoseReply(_)
            | Self::WorkerAhead
            | Self::WorkerBehind => Reach::Worker,
            Self::ResetProducer | Self::LoseProducersCommit => Reach::Producer,
            Self::KillServer | Self::StopServer | Self::ServerCrash | Self::Crowd => Reach::Server,
            Self::LeasesExpire
            | Self::LeasesLast
            | Self::RowsLocked
            | Self::Deadlocks
            | Self::Busy
            | Self::DiskFull => Reach::All,
            Self::LateCommit | Self::HeldSnapshot => Reach::Nobody,
        }
    }
}

/// A fault and its time, from the beginning of the torture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) at: Duration,
    pub(crate) fault: Fault,
    /// Whom it befalls, if it befalls a worker.
    pub(crate) worker: usize,
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.as_secs_f64();
        write!(f, "{at:>7.1} s  {:?}", self.fault)?;
        if self.fault.reach() == Reach::Worker {
            write!(f, " of worker {}", self.worker)?;
        }
        Ok(())
    }
}

/// The faults that this database knows, the frequent ones more than once.
fn known(server: Server, random: &mut ChaCha8Rng) -> Vec<Fault> {
    let mut faults = vec![
        Fault::KillWorker,
        Fault::KillWorker,
        Fault::Freeze,
        Fault::Restart,
        Fault::HeldSnapshot,
        Fault::LeasesExpire,
        Fault::LeasesLast,
        Fault::WorkerAhead,
        Fault::WorkerBehind,
    ];
    if server == Server::Sqlite {
        faults.extend([Fault::Busy, Fault::Busy, Fault::DiskFull]);
    } else {
        let mut n = || random.random_range(1..40);
        faults.extend([
            Fault::KillBeforeRequest(n()),
            Fault::KillBeforeRequest(n()),
            Fault::KillAfterRequest(n()),
            Fault::KillAfterRequest(n()),
            Fault::LoseReply(n()),
            Fault::LoseReply(n()),
            Fault::LoseCommit,
            Fault::LoseCommit,
            Fault::CutAfterBytes(n() * 97),
            Fault::Cut,
            Fault::Reset,
            Fault::HalfClose,
            Fault::ResetProducer,
            Fault::LoseProducersCommit,
            Fault::LateCommit,
            Fault::Blackhole,
            Fault::Delay,
            Fault::Deadlocks,
            Fault::RowsLocked,
            Fault::Crowd,
            Fault::KillServer,
            Fault::StopServer,
        ]);
    }
    faults
}

/// The plan of a run. It has every fault there is, as far as there is time.
pub(crate) fn plan(server: Server, seed: u64, duration: Duration) -> Vec<Planned> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut plan = Vec::new();
    let mut at = Duration::from_secs(2).min(duration / 10);
    let mut deck = Vec::new();
    while at < duration {
        if deck.is_empty() {
            deck = known(server, &mut random);
        }
        // Without putting back: what is rare comes all the same.
        let place = random.random_range(0..deck.len());
        plan.push(Planned {
            at,
            fault: deck.swap_remove(place),
            worker: random.random_range(0..WORKERS),
        });
        at += PACE.mul_f64(random.random_range(0.2..1.8));
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_plan() {
        let minute = Duration::from_secs(60);
        for server in Server::ALL {
            let once = plan(server, 7, minute);
            assert_eq!(once, plan(server, 7, minute));
            assert_ne!(once, plan(server, 8, minute));
            assert!(once.len() > 40, "{} faults on {server}", once.len());
        }
    }
}
