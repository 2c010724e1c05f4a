//! From one execution to the next the loop allocates nothing. A binary of its own: the counter
//! counts for the whole process.
#![cfg(not(shuttle))]

use std::alloc::System;
use std::sync::Arc;
use std::time::Duration;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use taskward::{Directive, PacingConfig, TracingListener, WorkerAction, WorkerBuilder};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const WARM_UP: u32 = 1_000;
const EXECUTIONS: u32 = 10_000;

/// Answers every execution alike, and counts allocations once warm.
struct Metered {
    directive: Directive,
    executions: u32,
    region: Region<'static, System>,
    cancel: CancellationToken,
    wake: Arc<Notify>,
}

impl WorkerAction for Metered {
    type Payload = ();
    type Error = std::convert::Infallible;

    async fn execute(&mut self, _: &CancellationToken) -> Result<Directive, Self::Error> {
        self.executions += 1;
        if self.executions == WARM_UP {
            self.region.reset();
        }
        if self.executions == WARM_UP + EXECUTIONS {
            let counted = self.region.change().allocations;
            assert_eq!(counted, 0, "{:?} allocates", self.directive);
            self.cancel.cancel();
        }
        self.wake.notify_one();
        Ok(self.directive)
    }
}

fn run(directive: Directive, pace: Duration) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let cancel = CancellationToken::new();
    let wake = Arc::new(Notify::new());
    wake.notify_one();
    let action = Metered {
        directive,
        executions: 0,
        region: Region::new(ALLOCATOR),
        cancel: cancel.clone(),
        wake: wake.clone(),
    };
    let worker = WorkerBuilder::new("metered", cancel)
        .notifier(Arc::new(Notify::new()))
        .notifier(wake)
        .pacing(PacingConfig {
            min_interval: pace,
            active_interval: pace,
            ramp_step: pace,
        })
        .listener(TracingListener)
        .on_panic(taskward::PanicPolicy::Propagate)
        .build(action);
    runtime.block_on(worker.run());
}

#[test]
fn an_execution_allocates_nothing() {
    let millisecond = Duration::from_millis(1);
    run(Directive::proceed(), Duration::ZERO);
    run(Directive::proceed(), millisecond);
    run(Directive::idle(), millisecond);
    run(Directive::sleep(millisecond), millisecond);
}
