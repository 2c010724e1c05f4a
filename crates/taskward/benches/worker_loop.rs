//! What the loop itself costs: time and allocations per execution of an action that does nothing.
//!
//! * `saturated`: every worker always has more to do (`Proceed` at a zero pace).
//! * `idle`: every worker waits; each execution is one `notify_one` and one wake-up.
//!
//! `cargo bench -p taskward` prints criterion's figures and, at the end, the table that stands in
//! `docs/benchmarks.md`.

use std::alloc::System;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use taskward::{Directive, PacingConfig, TaskSet, WorkerAction, WorkerBuilder};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const WORKERS: [usize; 4] = [1, 16, 256, 4096];

/// Counts executions down to zero, then says so.
struct Countdown {
    left: AtomicI64,
    reached: Notify,
}

struct Count {
    countdown: Arc<Countdown>,
    directive: Directive,
}

impl WorkerAction for Count {
    type Payload = ();
    type Error = std::convert::Infallible;

    async fn execute(&mut self, _: &CancellationToken) -> Result<Directive, Self::Error> {
        let left = self.countdown.left.fetch_sub(1, Ordering::Relaxed);
        if left == 1 {
            self.countdown.reached.notify_one();
        }
        // The countdown is over: a saturated worker rests until the next one.
        if left <= 1 {
            return Ok(Directive::idle());
        }
        Ok(self.directive)
    }
}

struct Crew {
    countdown: Arc<Countdown>,
    notifiers: Vec<Arc<Notify>>,
    workers: TaskSet,
}

impl Crew {
    fn hire(workers: usize, directive: Directive) -> Self {
        let cancel = CancellationToken::new();
        let mut crew = Self {
            countdown: Arc::new(Countdown {
                left: AtomicI64::new(0),
                reached: Notify::new(),
            }),
            notifiers: Vec::new(),
            workers: TaskSet::new(cancel.clone()),
        };
        let pacing = PacingConfig {
            min_interval: Duration::ZERO,
            active_interval: Duration::ZERO,
            ramp_step: Duration::ZERO,
        };
        for _ in 0..workers {
            let notify = Arc::new(Notify::new());
            let action = Count {
                countdown: Arc::clone(&crew.countdown),
                directive,
            };
            let worker = WorkerBuilder::new("bench", cancel.clone())
                .notifier(Arc::clone(&notify))
                .pacing(pacing)
                .build(action);
            crew.workers.spawn("bench", worker.run());
            crew.notifiers.push(notify);
        }
        crew
    }

    /// Every worker knows it has more to do until the countdown is over.
    async fn saturated(&self, executions: u64) {
        self.countdown
            .left
            .store(executions as i64, Ordering::Relaxed);
        for notify in &self.notifiers {
            notify.notify_one();
        }
        self.countdown.reached.notified().await;
    }

    /// Every execution needs a wake-up: rounds of one `notify_one` per worker.
    async fn idle(&self, executions: u64) {
        let mut left = executions;
        while left > 0 {
            let round = left.min(self.notifiers.len() as u64);
            self.countdown.left.store(round as i64, Ordering::Relaxed);
            for notify in &self.notifiers[..round as usize] {
                notify.notify_one();
            }
            self.countdown.reached.notified().await;
            left -= round;
        }
    }
}

/// One sample of one row of the table.
struct Sample {
    mode: &'static str,
    workers: usize,
    nanos: f64,
    allocations: f64,
}

fn measure(criterion: &mut Criterion, runtime: &Runtime, samples: &mut Vec<Sample>) {
    for (mode, directive) in [
        ("saturated", Directive::proceed()),
        ("idle", Directive::idle()),
    ] {
        let mut group = criterion.benchmark_group(mode);
        for workers in WORKERS {
            let crew = runtime.block_on(async { Crew::hire(workers, directive) });
            let id = BenchmarkId::from_parameter(workers);
            group.bench_function(id, |bencher| {
                bencher.iter_custom(|iterations| {
                    // A round for every worker at least, or the sample says nothing about them.
                    let executions = iterations.max(workers as u64);
                    let region = Region::new(ALLOCATOR);
                    let started = Instant::now();
                    runtime.block_on(async {
                        if mode == "saturated" {
                            crew.saturated(executions).await;
                        } else {
                            crew.idle(executions).await;
                        }
                    });
                    let elapsed = started.elapsed();
                    let nanos = elapsed.as_nanos() as f64 / executions as f64;
                    let allocations = region.change().allocations as f64 / executions as f64;
                    samples.push(Sample {
                        mode,
                        workers,
                        nanos,
                        allocations,
                    });
                    Duration::from_secs_f64(nanos * 1e-9 * iterations as f64)
                });
            });
            runtime.block_on(crew.workers.shutdown());
        }
        group.finish();
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn print_table(samples: &[Sample]) {
    println!("| loop | workers | ns per execution | allocations per execution |");
    println!("|---|---|---|---|");
    for mode in ["saturated", "idle"] {
        for workers in WORKERS {
            let row = || {
                samples
                    .iter()
                    .filter(|s| s.mode == mode && s.workers == workers)
            };
            if row().next().is_none() {
                continue; // filtered out on the command line
            }
            let nanos = median(row().map(|sample| sample.nanos).collect());
            let allocations = median(row().map(|sample| sample.allocations).collect());
            println!("| {mode} | {workers} | {nanos:.0} | {allocations:.4} |");
        }
    }
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .expect("a runtime");
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    let mut samples = Vec::new();
    measure(&mut criterion, &runtime, &mut samples);
    criterion.final_summary();
    print_table(&samples);
}
