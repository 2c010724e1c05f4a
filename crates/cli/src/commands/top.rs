//! `outbox top`: the queues, live, on the whole terminal. `state` is what is shown, this file keeps it up
//! to date.

mod state;

use std::io::IsTerminal as _;
use std::pin::pin;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::Instant;

use crate::Context;
use crate::connection::{AnyOutbox, on};
use crate::failure::Failure;
use crate::signals::Signals;
use state::{Sample, State};

/// Watch queues, partitions and processes live
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  outbox top
  outbox top --every 250ms --database-url postgres://localhost/shop

Keys: q quits; ↑ and ↓ scroll; s sorts by name, by what waits, by age.

For logs and programs use `outbox status --watch --json`.")]
pub(crate) struct Args {
    /// How often to look
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = crate::format::duration)]
    every: Duration,
}

pub(crate) async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    if !std::io::stdout().is_terminal() {
        return Err(Failure::usage("top needs a terminal")
            .way_out("for programs there is: outbox status --watch --json"));
    }
    let outbox = context.target.outbox().await?;
    let first = sample(&outbox).await?;
    let mut terminal = ratatui::try_init()?;
    let ended = watch(args, &outbox, State::new(first), &mut terminal).await;
    ratatui::try_restore()?;
    ended
}

async fn sample(outbox: &AnyOutbox) -> Result<Sample, Failure> {
    let partitions = on!(outbox, handle => handle.outbox().stats().await)?;
    let processes = on!(outbox, handle => handle.outbox().processes().await)?;
    Ok(Sample {
        partitions,
        processes,
        taken: Instant::now(),
        at: std::time::SystemTime::now(),
    })
}

async fn watch(
    args: &Args,
    outbox: &AnyOutbox,
    mut state: State,
    terminal: &mut ratatui::DefaultTerminal,
) -> Result<(), Failure> {
    let ticks = tokio::time::interval(args.every.max(Duration::from_millis(100)));
    // Not in a branch of the loop: keys are heard while the database does not answer.
    let mut samples = pin!(stream::unfold(ticks, async |mut ticks| {
        ticks.tick().await;
        Some((sample(outbox).await, ticks))
    }));
    let mut keys = keys();
    let mut signals = Signals::new()?;
    loop {
        terminal.draw(|frame| state.draw(frame))?;
        tokio::select! {
            Some(taken) = samples.next() => match taken {
                Ok(sample) => state.update(sample),
                // It is shown, and tried again: a database that restarts comes back.
                Err(failure) => state.lost(failure.to_string()),
            },
            _ = signals.next() => return Ok(()),
            key = keys.recv() => match key {
                Some(KeyCode::Char('q')) | None => return Ok(()),
                Some(key) => state.press(key),
            },
        }
    }
}

/// The keys that are pressed, read by a thread that ends with the terminal or when nobody listens.
fn keys() -> UnboundedReceiver<KeyCode> {
    let (sender, keys) = unbounded_channel();
    std::thread::spawn(move || {
        while let Ok(key) = next_key() {
            if sender.is_closed() || key.is_some_and(|key| sender.send(key).is_err()) {
                return;
            }
        }
    });
    keys
}

/// The key that is pressed within a moment, if any; Ctrl-C is `q`.
fn next_key() -> std::io::Result<Option<KeyCode>> {
    if !event::poll(Duration::from_millis(100))? {
        return Ok(None);
    }
    Ok(match event::read()? {
        Event::Key(key) if key.kind == KeyEventKind::Press => {
            let ends =
                key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c');
            Some(if ends { KeyCode::Char('q') } else { key.code })
        }
        _ => None,
    })
}
