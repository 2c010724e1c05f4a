//! `outbox dead-letters`: what was rejected, and what becomes of it.

mod decide;
mod look;

use clap::Subcommand;
use outbox::{DeadLetter, DeadLetterFilter, DeadLetterStatus};

use crate::Context;
use crate::connection::{AnyOutbox, on};
use crate::failure::{Code, Failure};
use crate::output::Output;

/// See rejected messages, and decide what becomes of them
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  outbox dead-letters list --queue orders
  outbox dead-letters show 17
  outbox dead-letters requeue 17 18
  outbox dead-letters requeue --queue orders --type order.placed --dry-run
  outbox dead-letters cleanup --queue orders --yes

A dead letter is pending until it is requeued (a new message, behind everything that is there),
discarded, or replayed: claimed for a while to be handled by hand, and then resolved or rejected again.")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List them, newest first
    List(look::List),
    /// Show one with everything that is known of it
    Show(look::Show),
    /// Put them back into their queues as new messages
    Requeue(decide::Requeue),
    /// Claim some to handle them by hand; nobody else gets them meanwhile
    Replay(decide::Replay),
    /// Say that claimed ones were handled
    Resolve(decide::Resolve),
    /// Say that claimed ones failed again
    Reject(decide::Reject),
    /// Say that nobody will handle them
    Discard(decide::Discard),
    /// Delete those that were resolved or discarded
    Cleanup(decide::Cleanup),
}

pub(crate) async fn run(
    args: &Args,
    context: &Context,
    output: &mut Output,
) -> Result<(), Failure> {
    let outbox = context.target.outbox().await?;
    match &args.what {
        What::List(list) => list.run(&outbox, output).await,
        What::Show(show) => show.run(&outbox, output).await,
        What::Requeue(requeue) => requeue.run(&outbox, output).await,
        What::Replay(replay) => replay.run(&outbox, output).await,
        What::Resolve(resolve) => resolve.run(&outbox, output).await,
        What::Reject(reject) => reject.run(&outbox, output).await,
        What::Discard(discard) => discard.run(&outbox, output).await,
        What::Cleanup(cleanup) => cleanup.run(&outbox, output).await,
    }
}

/// Which dead letters.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Which")]
struct Filter {
    /// Only those of this queue
    #[arg(long)]
    queue: Option<String>,
    /// Only those of this partition of their queue
    #[arg(long, value_name = "NUMBER")]
    partition: Option<u32>,
    /// Only those with this payload type
    #[arg(long = "type", value_name = "TYPE")]
    payload_type: Option<String>,
}

/// Some of those that a filter lets through.
#[derive(Debug, clap::Args)]
struct Page {
    #[command(flatten)]
    filter: Filter,
    /// At most so many
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 100,
        help_heading = "Which"
    )]
    limit: u32,
}

impl Page {
    fn of(&self, outbox: &AnyOutbox) -> Result<DeadLetterFilter, Failure> {
        Ok(self.filter.of(outbox)?.limit(self.limit))
    }

    /// For the audit log.
    fn described(&self) -> String {
        let Filter {
            queue,
            partition,
            payload_type,
        } = &self.filter;
        let partition = partition.map(|partition| partition.to_string());
        let said = [
            (" of ", queue.as_deref()),
            (", partition ", partition.as_deref()),
            (", type ", payload_type.as_deref()),
        ];
        let said = said.map(|(before, what)| what.map(|what| format!("{before}{what}")));
        let said: String = said.into_iter().flatten().collect();
        format!("up to {} dead letters{said}", self.limit)
    }
}

impl Filter {
    fn of(&self, outbox: &AnyOutbox) -> Result<DeadLetterFilter, Failure> {
        if let Some(queue) = &self.queue {
            super::partitions_of(outbox, queue)?;
        }
        Ok(self.as_written())
    }

    /// Whatever queues there are.
    fn as_written(&self) -> DeadLetterFilter {
        let mut filter = DeadLetterFilter::new();
        if let Some(queue) = &self.queue {
            filter = filter.queue(queue);
        }
        if let Some(partition) = self.partition {
            filter = filter.partition(partition);
        }
        if let Some(payload_type) = &self.payload_type {
            filter = filter.payload_type(payload_type);
        }
        filter
    }
}

/// Named by their numbers, or by a filter: pending ones.
#[derive(Debug, clap::Args)]
struct Selection {
    /// Their numbers; without any, all pending ones that the filter lets through, oldest first
    #[arg(conflicts_with_all = ["queue", "partition", "payload_type"])]
    ids: Vec<i64>,
    #[command(flatten)]
    filter: Filter,
    /// Refuse if more than so many are pending
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 100,
        help_heading = "Which"
    )]
    limit: u32,
    /// Only say what would be done
    #[arg(long, help_heading = None::<&'static str>)]
    dry_run: bool,
}

impl Selection {
    /// Those that are meant; with their payloads only if somebody is to see them.
    async fn letters(
        &self,
        outbox: &AnyOutbox,
        output: &Output,
    ) -> Result<Vec<DeadLetter>, Failure> {
        let shown = self.dry_run && output.is_json();
        if self.ids.is_empty() {
            let filter = self.filter.of(outbox)?.limit(self.limit);
            let filter = filter.status(DeadLetterStatus::Pending);
            let waiting = on!(outbox, handle => handle.outbox().dead_letter_count(&filter).await)?;
            if waiting > u64::from(self.limit) {
                // The newest of them first would come before the oldest.
                let message = format!("{waiting} are pending, and --limit is {}", self.limit);
                return Err(Failure::usage(message).way_out(
                    "raise it, narrow it down with --queue, --partition or --type, or try some by their numbers",
                ));
            }
            let mut letters = list(outbox, filter, shown).await?;
            // The oldest first: that is the order in which they come again.
            letters.reverse();
            return Ok(letters);
        }
        let mut letters = Vec::with_capacity(self.ids.len());
        for id in &self.ids {
            letters.push(one(outbox, *id, shown).await?);
        }
        Ok(letters)
    }
}

/// Payloads may be large: they stay in the database unless they are shown.
async fn list(
    outbox: &AnyOutbox,
    filter: DeadLetterFilter,
    payloads: bool,
) -> Result<Vec<DeadLetter>, Failure> {
    let filter = match payloads {
        true => filter,
        false => filter.without_payloads(),
    };
    Ok(on!(outbox, handle => handle.outbox().dead_letter_list(&filter).await)?)
}

async fn one(outbox: &AnyOutbox, id: i64, payload: bool) -> Result<DeadLetter, Failure> {
    let found = list(outbox, DeadLetterFilter::new().ids(id..=id), payload).await?;
    let missing = || Failure::new(Code::Missing, format!("there is no dead letter {id}"));
    found.into_iter().next().ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Look {
        #[command(flatten)]
        page: Page,
    }

    #[derive(Debug, clap::Parser)]
    struct Decide {
        #[command(flatten)]
        selection: Selection,
    }

    proptest! {
        #[test]
        fn a_filter_is_what_the_command_line_says(
            queue in option::of("(?s:.{0,12})"),
            partition in option::of("[0-9]{1,3}|[0-9]{8,11}|.{0,5}"),
            payload_type in option::of("[ -~]{0,12}|(?s:.{0,12})"),
            limit in "[0-9]{1,3}|[0-9]{8,11}|.{0,5}",
        ) {
            let options = [
                ("queue", &queue),
                ("partition", &partition),
                ("type", &payload_type),
                ("limit", &Some(limit.clone())),
            ];
            let said = options
                .into_iter()
                .filter_map(|(option, value)| Some(format!("--{option}={}", value.as_ref()?)));
            let parsed = Look::try_parse_from(["list".to_owned()].into_iter().chain(said));
            let number = |text: &Option<String>| text.as_ref().map(|text| text.parse::<u32>()).transpose();
            match (parsed, number(&partition), limit.parse::<u32>()) {
                (Ok(Look { page }), Ok(partition), Ok(limit)) => {
                    let mut expected = DeadLetterFilter::new();
                    expected = queue.iter().fold(expected, DeadLetterFilter::queue);
                    expected = partition.into_iter().fold(expected, DeadLetterFilter::partition);
                    expected = payload_type.iter().fold(expected, DeadLetterFilter::payload_type);
                    prop_assert_eq!(page.filter.as_written(), expected);
                    prop_assert_eq!(page.limit, limit);
                    let described = page.described();
                    let told = queue.map(|queue| format!("dead letters of {queue}"));
                    prop_assert!(told.is_none_or(|told| described.contains(&told)), "{}", described);
                }
                (Err(_), partition, limit) => prop_assert!(partition.is_err() || limit.is_err()),
                (Ok(look), ..) => prop_assert!(false, "{:?}", look),
            }
        }

        #[test]
        fn any_words_select_dead_letters_or_are_refused(
            words in proptest::collection::vec(
                "-?[0-9]{1,20}|--(queue|partition|type|limit|dry-run)(=.{0,5})?|-{0,2}.{0,8}", 0..5,
            ),
        ) {
            let words = ["requeue".to_owned()].into_iter().chain(words);
            if let Ok(Decide { selection }) = Decide::try_parse_from(words) {
                let Filter { queue, partition, payload_type } = &selection.filter;
                let filtered = queue.is_some() || partition.is_some() || payload_type.is_some();
                prop_assert!(selection.ids.is_empty() || !filtered, "{:?}", selection);
            }
        }
    }
}
