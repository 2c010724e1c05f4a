//! The table at the end, for people.

use std::fmt::Write as _;

use crate::bars::judge;
use crate::options::name_of;
use crate::results::{Results, Row};
use crate::scenarios::SCENARIOS;
use crate::systems::SYSTEMS;

const HEAD: [&str; 9] = [
    "scenario",
    "system",
    "runs",
    "median",
    "p99",
    "of floor",
    "of reference",
    "bar",
    "",
];

/// A table per database, what stands behind each figure that needs explaining, and what systems lack.
pub(crate) fn table(results: &Results) -> String {
    let mut out = String::new();
    let mut databases: Vec<_> = results.rows.iter().map(|row| row.database).collect();
    databases.dedup();
    for database in databases {
        writeln!(out, "\n{}\n", name_of(database)).ok();
        let mut lines = vec![HEAD.map(str::to_owned)];
        let mut last = "";
        for row in results.rows.iter().filter(|row| row.database == database) {
            let scenario = if row.scenario == last {
                ""
            } else {
                &row.scenario
            };
            last = &row.scenario;
            lines.push(line(results, row, scenario));
        }
        render(&mut out, &lines);
        remarks(&mut out, results, database);
    }
    out.push('\n');
    for scenario in SCENARIOS.iter().filter(|scenario| {
        results
            .rows
            .iter()
            .any(|row| row.scenario.starts_with(scenario.name))
    }) {
        writeln!(out, "{:<22} {}", scenario.name, scenario.about).ok();
    }
    let measured = |name: &str| results.rows.iter().any(|row| row.system == name);
    for system in SYSTEMS
        .iter()
        .filter(|system| measured(system.name) && !system.lacks.is_empty())
    {
        writeln!(out, "{:<22} promises less: {}", system.name, system.lacks).ok();
    }
    out
}

fn line(results: &Results, row: &Row, scenario: &str) -> [String; 9] {
    let ratio = |to: &str| {
        let ratio = results.ratio(row, to).filter(|_| row.system != to);
        ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"))
    };
    let verdict = (row.system == "ours")
        .then(|| judge(results, row))
        .flatten();
    let mark = verdict
        .as_ref()
        .map_or("", |verdict| match verdict.reached {
            Some(true) => "✓",
            Some(false) => "✗ miss",
            None => "?",
        });
    let median = row.median().map_or_else(|| "failed".to_owned(), figure);
    [
        scenario.to_owned(),
        row.system.to_owned(),
        row.samples.len().to_string(),
        format!("{median} {}", row.unit().name()),
        row.p99().map_or_else(String::new, figure),
        ratio("floor"),
        ratio("reference"),
        verdict
            .as_ref()
            .map_or_else(String::new, |verdict| verdict.bar.clone()),
        mark.to_owned(),
    ]
}

fn remarks(out: &mut String, results: &Results, database: bench_contract::Database) {
    for row in results.rows.iter().filter(|row| row.database == database) {
        for remark in row.remarks() {
            writeln!(out, "  ! {} {}: {remark}", row.scenario, row.system).ok();
        }
        let more = row.more();
        if !more.is_empty() && row.system == "ours" {
            let more: Vec<_> = more
                .iter()
                .map(|(name, value)| format!("{name} {}", figure(*value)))
                .collect();
            writeln!(
                out,
                "  · {} {}: {}",
                row.scenario,
                row.system,
                more.join(", ")
            )
            .ok();
        }
    }
}

/// Three digits are all that a benchmark on a shared machine can tell.
pub(crate) fn figure(value: f64) -> String {
    match value.abs() {
        large if large >= 1000.0 => {
            let digits = format!("{value:.0}");
            let split = digits.len() - 3;
            format!("{} {}", &digits[..split], &digits[split..])
        }
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn render(out: &mut String, lines: &[[String; 9]]) {
    let width = |column: usize| {
        lines
            .iter()
            .map(|line| line[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
    for (index, line) in lines.iter().enumerate() {
        let mut text = String::new();
        for (column, cell) in line.iter().enumerate() {
            let width = widths[column];
            // Figures to the right, words to the left.
            if (2..7).contains(&column) {
                write!(text, "{cell:>width$}  ").ok();
            } else {
                write!(text, "{cell:<width$}  ").ok();
            }
        }
        writeln!(out, "{}", text.trim_end()).ok();
        if index == 0 {
            let total = widths.iter().map(|width| width + 2).sum::<usize>();
            writeln!(out, "{}", "─".repeat(total)).ok();
        }
    }
}
