//! From samples to rows: medians over runs, and ratios within one database and scenario.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use bench_contract::Database;
use serde::Serialize;

use crate::options::name_of;
use crate::scenarios::{Sample, Unit};

/// Everything measured so far, in the order it was first seen.
#[derive(Debug, Default)]
pub(crate) struct Results {
    pub(crate) rows: Vec<Row>,
}

/// All runs of one system in one row of one database.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) database: Database,
    pub(crate) scenario: String,
    pub(crate) system: &'static str,
    pub(crate) samples: Vec<Sample>,
    /// Why a run failed.
    pub(crate) failure: Option<String>,
}

/// As in the JSON file.
#[derive(Debug, Serialize)]
struct Record<'a> {
    database: &'static str,
    scenario: &'a str,
    system: &'static str,
    runs: usize,
    median: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p99: Option<f64>,
    unit: &'static str,
    ratio_to_floor: Option<f64>,
    ratio_to_reference: Option<f64>,
    values: Vec<f64>,
    producer_errors: u64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    more: BTreeMap<&'static str, f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    remarks: Vec<String>,
}

pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.retain(|value| value.is_finite());
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

impl Row {
    pub(crate) fn median(&self) -> Option<f64> {
        median(self.samples.iter().map(|sample| sample.value).collect())
    }

    pub(crate) fn p99(&self) -> Option<f64> {
        median(
            self.samples
                .iter()
                .filter_map(|sample| sample.p99)
                .collect(),
        )
    }

    pub(crate) fn unit(&self) -> Unit {
        self.samples
            .first()
            .map_or(Unit::MessagesPerSecond, |sample| sample.unit)
    }

    pub(crate) fn more(&self) -> BTreeMap<&'static str, f64> {
        let mut all: BTreeMap<_, Vec<f64>> = BTreeMap::new();
        for (name, value) in self.samples.iter().flat_map(|sample| &sample.more) {
            all.entry(*name).or_default().push(*value);
        }
        all.into_iter()
            .filter_map(|(name, values)| Some((name, median(values)?)))
            .collect()
    }

    pub(crate) fn producer_errors(&self) -> u64 {
        self.samples
            .iter()
            .map(|sample| sample.producer_errors)
            .sum()
    }

    pub(crate) fn remarks(&self) -> Vec<String> {
        let failure = self
            .failure
            .iter()
            .map(|failure| format!("FAILED: {failure}"));
        let mut remarks: Vec<String> = failure.collect();
        for remark in self.samples.iter().flat_map(|sample| &sample.remarks) {
            if !remarks.contains(remark) {
                remarks.push(remark.clone());
            }
        }
        remarks
    }
}

impl Results {
    pub(crate) fn row(&mut self, database: Database, name: &str, system: &'static str) -> &mut Row {
        let is = |row: &Row| (row.database, &*row.scenario, row.system) == (database, name, system);
        let at = self.rows.iter().position(is).unwrap_or_else(|| {
            self.rows.push(Row {
                database,
                scenario: name.to_owned(),
                system,
                samples: Vec::new(),
                failure: None,
            });
            self.rows.len() - 1
        });
        &mut self.rows[at]
    }

    /// Brings the rows of each database and scenario together, in the order they were first seen.
    pub(crate) fn sort(&mut self) {
        let mut order: Vec<(Database, String)> = Vec::new();
        for row in &self.rows {
            let key = (row.database, row.scenario.clone());
            if !order.contains(&key) {
                order.push(key);
            }
        }
        self.rows.sort_by_key(|row| {
            order
                .iter()
                .position(|key| key.0 == row.database && key.1 == row.scenario)
        });
    }

    /// How a row compares with another system's in the same scenario.
    pub(crate) fn ratio(&self, row: &Row, system: &str) -> Option<f64> {
        let same = |other: &&Row| {
            (other.database, &*other.scenario, other.system)
                == (row.database, &*row.scenario, system)
        };
        let ratio = row.median()? / self.rows.iter().find(same)?.median()?;
        ratio.is_finite().then_some(ratio)
    }

    pub(crate) fn write_json(&self, path: &Path) -> Result<()> {
        let record = |row| Record::of(self, row);
        let records: Vec<_> = self.rows.iter().map(record).collect();
        let mut file = std::fs::File::create(path).context(path.display().to_string())?;
        serde_json::to_writer_pretty(&mut file, &records)?;
        Ok(writeln!(file)?)
    }
}

impl<'a> Record<'a> {
    fn of(results: &Results, row: &'a Row) -> Self {
        Self {
            database: name_of(row.database),
            scenario: &row.scenario,
            system: row.system,
            runs: row.samples.len(),
            median: row.median(),
            p99: row.p99(),
            unit: row.unit().name(),
            ratio_to_floor: results.ratio(row, "floor"),
            ratio_to_reference: results.ratio(row, "reference"),
            values: row.samples.iter().map(|sample| sample.value).collect(),
            producer_errors: row.producer_errors(),
            more: row.more(),
            remarks: row.remarks(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios_are_taken_within_one_row() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, f64::NAN, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(vec![]), None);
        let mut results = Results::default();
        for (system, value) in [("floor", 10.0), ("ours", 9.0)] {
            let sample = Sample::new("enqueue_1", value, Unit::MessagesPerSecond);
            let row = results.row(Database::Sqlite, "enqueue_1", system);
            row.samples.push(sample);
        }
        let ours = &results.rows[1];
        assert_eq!(results.ratio(ours, "floor"), Some(0.9));
        assert_eq!(results.ratio(ours, "reference"), None);
    }
}
