//! `outbox demo`: shows the idea. Until the engine is there it shows where messages will go.

use std::process::ExitCode;

use outbox::{EnqueueMessage, Partitions};

/// Show what the outbox does, on embedded SQLite, without any set-up
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// The shop's queue.
const ORDERS: Partitions = Partitions::of(4);

pub(crate) fn run(_: &Args) -> ExitCode {
    println!("Every order of a customer goes to the customer's partition, so it stays in order:\n");
    for customer in ["ada", "grace", "linus", "margaret"] {
        let order = EnqueueMessage::keyed(customer, r#"{"item": "book"}"#, "order.placed");
        println!("  {customer:<10} partition {}", order.partition_in(ORDERS));
    }
    println!("\nThe engine that commits and delivers these orders comes with the next version.");
    ExitCode::SUCCESS
}
