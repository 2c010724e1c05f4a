//! The results as pictures: throughput beside the others, cost against partitions and backlog, and how
//! latencies are distributed. Plain SVG, drawn here; no picture needs more than text, boxes and lines.

mod bars;
mod lines;
mod svg;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use bench_contract::Database;

use crate::options::name_of;
use crate::results::{Results, Row};
use crate::scenarios::Unit;

/// A curve: whose, and its points.
pub(crate) type Curve = (&'static str, Vec<(f64, f64)>);

const RATES: [&str; 6] = [
    "enqueue_1",
    "enqueue_100",
    "drain_leased",
    "drain_transactional",
    "end_to_end",
    "million",
];

/// Writes the pictures there is data for.
pub(crate) fn draw(results: &Results, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).context(folder.display().to_string())?;
    let mut databases: Vec<_> = results.rows.iter().map(|row| row.database).collect();
    databases.dedup();
    for database in databases {
        let name = name_of(database);
        let write = |picture: &str, svg: Option<String>| -> Result<()> {
            if let Some(svg) = svg {
                let path = folder.join(format!("{name}_{picture}.svg"));
                std::fs::write(&path, svg).context(path.display().to_string())?;
            }
            Ok(())
        };
        write("throughput", throughput(results, database))?;
        write(
            "partitions",
            growth(results, database, "partitions_", "partitions"),
        )?;
        write(
            "backlog",
            growth(results, database, "backlog_", "messages in the backlog"),
        )?;
        for row in ["latency_in_process", "latency_cross_process"] {
            write(row, latency(results, database, row))?;
        }
    }
    Ok(())
}

fn of<'a>(results: &'a Results, database: Database, row: &str) -> Vec<&'a Row> {
    let same = |other: &&Row| other.database == database && other.scenario == row;
    results.rows.iter().filter(same).collect()
}

fn throughput(results: &Results, database: Database) -> Option<String> {
    let groups: Vec<(&str, Vec<(&str, f64)>)> = RATES
        .iter()
        .filter_map(|name| {
            let rows = of(results, database, name);
            let figures = rows
                .iter()
                .filter_map(|row| Some((row.system, row.median()?)));
            let figures: Vec<_> = figures.collect();
            (!figures.is_empty()).then_some((*name, figures))
        })
        .collect();
    let title = format!("{}: messages per second", name_of(database));
    (!groups.is_empty()).then(|| bars::draw(&title, &groups))
}

/// How the cost of a message grows: microseconds each, against a size.
fn growth(results: &Results, database: Database, prefix: &str, axis: &str) -> Option<String> {
    let mut curves: BTreeMap<&'static str, Vec<(f64, f64)>> = BTreeMap::new();
    for row in results.rows.iter().filter(|row| row.database == database) {
        if let Some(size) = row.scenario.strip_prefix(prefix).and_then(size)
            && let Some(rate) = row.median()
        {
            curves
                .entry(row.system)
                .or_default()
                .push((size, 1e6 / rate));
        }
    }
    let curves: Vec<_> = curves.into_iter().collect();
    let title = format!(
        "{}: microseconds per message against {axis}",
        name_of(database)
    );
    (!curves.is_empty()).then(|| lines::draw(&title, axis, "µs per message", &curves))
}

/// What a row's name ends with.
fn size(ending: &str) -> Option<f64> {
    let (digits, factor) = match ending.strip_suffix('k') {
        Some(digits) => (digits, 1e3),
        None => ending
            .strip_suffix('m')
            .map_or((ending, 1.0), |digits| (digits, 1e6)),
    };
    digits.parse::<f64>().ok().map(|number| number * factor)
}

/// The share of messages that were handled within a time.
fn latency(results: &Results, database: Database, name: &str) -> Option<String> {
    let mut curves = Vec::new();
    for row in of(results, database, name) {
        if row.unit() != Unit::Milliseconds {
            continue;
        }
        let samples = row.samples.iter().flat_map(|sample| &sample.distribution);
        let mut millis: Vec<f64> = samples.copied().collect();
        millis.sort_by(f64::total_cmp);
        let last = millis.len().saturating_sub(1).max(1) as f64;
        let points = (0..=100).filter_map(|percent| {
            let at = (last * f64::from(percent) / 100.0) as usize;
            Some((millis.get(at)?.max(0.1), f64::from(percent)))
        });
        curves.push((row.system, points.collect::<Vec<_>>()));
    }
    let title = format!(
        "{}: {name} at 300/s, percent handled within",
        name_of(database)
    );
    (!curves.is_empty()).then(|| lines::draw(&title, "ms", "%", &curves))
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn the_ending_of_a_row_is_its_size() {
        assert_eq!(size("64"), Some(64.0));
        assert_eq!(size("10k"), Some(10_000.0));
        assert_eq!(size("1m"), Some(1_000_000.0));
        assert_eq!(size("x"), None);
    }
}
