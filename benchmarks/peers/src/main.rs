//! Other queues on PostgreSQL, as the benchmark measures them: one file each, through their public APIs,
//! tuned as their documentation suggests for throughput.

mod graphile_worker;
mod oxide_outbox;
mod pgmq;
mod pgq;
mod pool;

use anyhow::{Context as _, Result, bail};

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().context("a system")?;
    let task = arguments.next().context("a task")?;
    match name.as_str() {
        "pgmq" => bench_contract::main::<pgmq::Pgmq>(&task).await,
        "graphile_worker" => bench_contract::main::<graphile_worker::GraphileWorker>(&task).await,
        "oxide-outbox" => bench_contract::main::<oxide_outbox::OxideOutbox>(&task).await,
        "pgq" => bench_contract::main::<pgq::Pgq>(&task).await,
        other => bail!("unknown system {other:?}"),
    }
}
