//! What `outbox top` shows. Knows no database and no terminal.

use std::collections::HashMap;
use std::time::SystemTime;

use outbox::{PartitionStats, ProcessStats};
use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize as _};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Table};
use tokio::time::Instant;

use crate::format::age;
use crate::output::on_one_line;

/// How things stood at a moment.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub(super) partitions: Vec<PartitionStats>,
    pub(super) processes: Vec<ProcessStats>,
    pub(super) taken: Instant,
    pub(super) at: SystemTime,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Name,
    Pending,
    Age,
}

#[derive(Debug)]
pub(super) struct State {
    now: Sample,
    /// Settled messages per second, by partition.
    rates: HashMap<i64, f64>,
    order: Order,
    scrolled: usize,
    error: Option<String>,
}

impl State {
    pub(super) fn new(now: Sample) -> Self {
        Self {
            now,
            rates: HashMap::new(),
            order: Order::Name,
            scrolled: 0,
            error: None,
        }
    }

    pub(super) fn update(&mut self, now: Sample) {
        let seconds = now.taken.duration_since(self.now.taken).as_secs_f64();
        let before: HashMap<i64, i64> = self
            .now
            .partitions
            .iter()
            .map(|one| (one.partition_id, one.processed_seq))
            .collect();
        if seconds > 0.0 {
            let rate = |one: &PartitionStats| {
                let settled = one.processed_seq - before.get(&one.partition_id)?;
                Some((one.partition_id, settled as f64 / seconds))
            };
            self.rates = now.partitions.iter().filter_map(rate).collect();
        }
        self.now = now;
        self.error = None;
    }

    pub(super) fn lost(&mut self, error: String) {
        self.error = Some(on_one_line(&error));
    }

    pub(super) fn press(&mut self, key: KeyCode) {
        match key {
            KeyCode::Up => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::Down => {
                let last = self.now.partitions.len().saturating_sub(1);
                self.scrolled = (self.scrolled + 1).min(last);
            }
            KeyCode::Char('s') => {
                self.order = match self.order {
                    Order::Name => Order::Pending,
                    Order::Pending => Order::Age,
                    Order::Age => Order::Name,
                }
            }
            _ => {}
        }
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let processes = u16::try_from(self.now.processes.len())
            .unwrap_or(u16::MAX)
            .min(8);
        let [head, table, workers, foot] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Min(3),
            Constraint::Length(processes + 2),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(self.summary(), head);
        self.draw_partitions(frame, table);
        self.draw_processes(frame, workers);
        let foot_line = match &self.error {
            Some(error) => Line::from(error.as_str()).red().bold(),
            None => Line::from("q quit   ↑↓ scroll   s sort").dim(),
        };
        frame.render_widget(foot_line, foot);
    }

    fn summary(&self) -> Line<'_> {
        let partitions = &self.now.partitions;
        let pending: i64 = partitions.iter().map(PartitionStats::pending).sum();
        let dead: u64 = partitions.iter().map(|one| one.dead_letters).sum();
        let rate: f64 = self.rates.values().sum();
        let failing = partitions.iter().filter(|one| one.attempts > 0).count();
        let line = format!(
            "{pending} wait   {rate:.0}/s settled   {failing} partitions fail   {dead} dead letters   \
             {} processes",
            self.now.processes.len()
        );
        Line::from(line).bold()
    }

    fn sorted(&self) -> Vec<&PartitionStats> {
        let mut partitions: Vec<_> = self.now.partitions.iter().collect();
        match self.order {
            Order::Name => {}
            Order::Pending => partitions.sort_by_key(|one| std::cmp::Reverse(one.pending())),
            Order::Age => {
                partitions.sort_by_key(|one| (one.head_created_at.is_none(), one.head_created_at))
            }
        }
        partitions
    }

    fn draw_partitions(&self, frame: &mut Frame<'_>, area: Rect) {
        let rows = self.sorted().into_iter().skip(self.scrolled).map(|one| {
            let oldest = one.head_created_at.map(|since| age(since, self.now.at));
            let rate = self.rates.get(&one.partition_id).copied().unwrap_or(0.0);
            let state = match (&one.last_error, one.paused) {
                (_, true) => "paused".to_owned(),
                (Some(error), false) if one.attempts > 0 => on_one_line(error),
                _ => String::new(),
            };
            let style = match (one.attempts, one.paused) {
                (1.., false) => Style::new().red(),
                (_, true) => Style::new().yellow(),
                _ => Style::new(),
            };
            Row::new([
                Cell::from(one.queue.clone()),
                right(one.partition),
                right(one.pending()),
                right(oldest.unwrap_or_else(|| "-".to_owned())),
                right(format!("{rate:.0}")),
                right(one.attempts),
                right(one.dead_letters),
                Cell::from(one.holder.clone().unwrap_or_else(|| "-".to_owned())),
                Cell::from(state),
            ])
            .style(style)
        });
        let widths = [
            Constraint::Fill(2),
            Constraint::Length(4),
            Constraint::Length(9),
            Constraint::Length(8),
            Constraint::Length(7),
            Constraint::Length(8),
            Constraint::Length(5),
            Constraint::Length(36),
            Constraint::Fill(3),
        ];
        let head = [
            "queue", "part", "pending", "oldest", "per s", "attempts", "dead", "holder", "state",
        ];
        let table = Table::new(rows, widths).header(Row::new(head).bold());
        frame.render_widget(table, area);
    }

    fn draw_processes(&self, frame: &mut Frame<'_>, area: Rect) {
        let held = |process: &ProcessStats| {
            let holds = |one: &&PartitionStats| one.holder.as_deref() == Some(&process.incarnation);
            self.now.partitions.iter().filter(holds).count()
        };
        let rows = self.now.processes.iter().map(|process| {
            Row::new([
                Cell::from(process.incarnation.clone()),
                right(held(process)),
                right(age(process.started_at, self.now.at)),
                right(age(process.seen_at, self.now.at)),
                Cell::from(process.queues.join(", ")),
            ])
        });
        let widths = [
            Constraint::Length(36),
            Constraint::Length(5),
            Constraint::Length(8),
            Constraint::Length(8),
            Constraint::Fill(1),
        ];
        let head = ["process", "holds", "started", "seen", "queues"];
        let table = Table::new(rows, widths).header(Row::new(head).bold());
        frame.render_widget(table, area);
    }
}

fn right(value: impl std::fmt::Display) -> Cell<'static> {
    Cell::from(Line::from(value.to_string()).right_aligned())
}
