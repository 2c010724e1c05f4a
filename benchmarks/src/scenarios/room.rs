//! What a scenario works with: a system, a kind of database, and how much time there is.

use anyhow::{Result, bail};
use bench_contract::{Database, Production, Report, Task};

use super::Sample;
use crate::budget::Budget;
use crate::fresh::Fresh;
use crate::process::{Process, prepare};
use crate::systems::System;

/// Producers that make a backlog, and messages in each of their transactions.
const PRELOAD: (u64, u64) = (8, 500);

#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) system: System,
    pub(crate) database: Database,
    pub(crate) budget: Budget,
}

impl Room {
    /// A database with the system's schema, and a task on it for others to complete.
    pub(crate) async fn furnish(&self, partitions: u16) -> Result<(Fresh, Task)> {
        let fresh = Fresh::create(self.database).await?;
        let task = Task {
            partitions,
            floor_batch: self.budget.floor_batch,
            ..Task::new(self.database, &fresh.url)
        };
        prepare(&self.system, &task).await?;
        Ok((fresh, task))
    }

    pub(crate) async fn spawn(&self, task: &Task) -> Result<Process> {
        Process::spawn(&self.system, task).await
    }

    /// Enqueues a backlog that nobody touches yet.
    pub(crate) async fn preload(&self, task: &Task, count: u64) -> Result<()> {
        let (producers, per_transaction) = PRELOAD;
        let task = Task {
            production: Some(Production {
                producers: producers.min(u64::from(task.partitions)),
                per_transaction,
                count: Some(count),
                millis: None,
                rate: None,
            }),
            capacity: count,
            ..task.clone()
        };
        let mut process = self.spawn(&task).await?;
        process.go().await?;
        // A backlog takes the time it takes; what comes after is measured.
        let patience = self.budget.patience * 10;
        if !process
            .wait(patience, |progress| progress.production_done)
            .await?
        {
            bail!("{} could not enqueue {count} messages", self.system.name);
        }
        let report = process.stop().await?;
        if report.produced != count {
            bail!(
                "{} enqueued {} of {count}",
                self.system.name,
                report.produced
            );
        }
        Ok(())
    }

    /// Notes on a sample whatever was not as it should be: every message once, in order, no errors.
    pub(crate) fn verify(&self, sample: &mut Sample, produced: (u64, u64), reports: &[Report]) {
        let sum = |field: fn(&Report) -> u64| reports.iter().map(field).sum::<u64>();
        let (count, id_sum) = produced;
        let handled = sum(|report| report.handled);
        let remarks = &mut sample.remarks;
        let distinct = handled - sum(|report| report.duplicates) - sum(|report| report.strangers);
        if distinct < count {
            remarks.push(format!(
                "{} messages were not handled in time",
                count - distinct
            ));
        } else if handled > count {
            remarks.push(format!("{} messages came again", handled - count));
        } else if sum(|report| report.handled_id_sum) != id_sum {
            remarks.push("not every message was handled once".to_owned());
        }
        let strangers = sum(|report| report.strangers);
        if strangers > 0 {
            remarks.push(format!("{strangers} messages nobody sent"));
        }
        let out_of_order = sum(|report| report.out_of_order);
        if self.system.ordered && out_of_order > 0 {
            remarks.push(format!("{out_of_order} messages out of order"));
        }
        self.note_errors(sample, reports);
    }

    pub(crate) fn note_errors(&self, sample: &mut Sample, reports: &[Report]) {
        let errors = reports
            .iter()
            .map(|report| report.producer_errors)
            .sum::<u64>();
        sample.producer_errors += errors;
        let first = reports.iter().find_map(|report| report.first_error.clone());
        if let Some(first) = first {
            let short: String = first.chars().take(120).collect();
            sample
                .remarks
                .push(format!("{errors} errors to producers, the first: {short}"));
        }
    }
}

/// The count of a backlog and the sum of its ids.
pub(crate) fn backlog(count: u64) -> (u64, u64) {
    (count, count * count.saturating_sub(1) / 2)
}
