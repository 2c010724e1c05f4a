//! A program that runs beside a test, such as a broker: with a port and a folder of its own, killed when
//! the test ends, however that comes.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::server::announce;

/// RabbitMQ takes ten seconds, and several times that beside others.
const START_LIMIT: Duration = Duration::from_secs(120);
/// Below those that the kernel gives to outgoing connections: a client that knocks where nobody listens
/// could be given that very port, and talk to itself.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// A port that nobody has at the moment.
///
/// # Panics
///
/// When there is none.
pub fn free_port() -> u16 {
    let random = RandomState::new();
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let mut tried = (0..1_000).map(|n: u32| {
        let place = random.hash_one(n) % u64::from(PORTS.end - PORTS.start);
        PORTS.start + u16::try_from(place).unwrap_or(0)
    });
    tried.find(is_free).expect("a free port")
}

/// Whether a broker takes part in this run. One that does not is named on standard error, as servers
/// are.
///
/// # Panics
///
/// When it is asked for and not installed.
pub fn broker_takes_part(name: &'static str, program: &str) -> bool {
    static ABSENT: Mutex<Option<HashSet<&str>>> = Mutex::new(None);
    let installed = find(program).is_some();
    let wanted = match std::env::var("OUTBOX_TEST_BROKERS") {
        Ok(list) => list.split(',').any(|one| one.trim() == name),
        Err(_) => installed,
    };
    assert!(
        !wanted || installed,
        "{name} is in OUTBOX_TEST_BROKERS but there is no {program}: scripts/install-servers --brokers \
         installs it"
    );
    if !wanted {
        let mut absent = ABSENT.lock().unwrap_or_else(PoisonError::into_inner);
        if absent.get_or_insert_default().insert(name) {
            announce(&format!(
                "SKIPPED on {name}: it takes no part (scripts/install-servers --brokers installs it)"
            ));
        }
    }
    wanted
}

/// Where a program is: Debian keeps servers in `/usr/sbin`, which is not on everybody's path.
fn find(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|path| path.exists());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    let mut places = folders.map(|folder| folder.join(program));
    places.find(|place| place.exists())
}

/// A running program. Dropping it kills it and whatever it has started.
#[derive(Debug)]
pub struct Program {
    child: Child,
    log: PathBuf,
}

impl Program {
    /// Starts a program in a folder and waits until somebody listens at the port. What it says goes to
    /// `log` there. The kernel kills it when the thread that calls this ends: call it from the test's own.
    ///
    /// # Panics
    ///
    /// When it is not there, or ends, or does not listen in time.
    pub async fn start<A: AsRef<OsStr>>(
        program: &str,
        arguments: impl IntoIterator<Item = A>,
        variables: impl IntoIterator<Item = (&str, String)>,
        folder: &Path,
        port: u16,
    ) -> Self {
        let log = folder.join("log");
        let file = File::create(&log).expect("a log");
        let place = find(program).unwrap_or_else(|| panic!("there is no {program}"));
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(place)
            .args(arguments)
            .envs(variables)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("the log"))
            .stderr(file)
            // What ends the test with its group is not what ends this one, and it takes its own along.
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("start {program}: {error}"));
        let mut program = Self { child, log };
        program.wait_for(port).await;
        program
    }

    async fn wait_for(&mut self, port: u16) {
        let until = Instant::now() + START_LIMIT;
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            let ended = self.child.try_wait().expect("ask for the program");
            assert!(
                ended.is_none() && Instant::now() < until,
                "it does not listen at {port}, {ended:?}: {}",
                std::fs::read_to_string(&self.log).unwrap_or_default()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Kills it: it gets no chance to write anything down.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
    }

    /// Asks it to end, and waits until it has.
    pub fn end(&mut self) {
        self.signal(Signal::TERM);
    }

    fn signal(&mut self, signal: Signal) {
        // Until it is waited for, its number is nobody else's.
        if let Ok(None) = self.child.try_wait()
            && let Some(group) = Pid::from_raw(self.child.id().cast_signed())
        {
            let _ = kill_process_group(group, signal);
        }
        let _ = self.child.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}
