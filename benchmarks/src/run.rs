//! The run: every scenario on every database, the systems taking turns, again and again.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bench_contract::Database;
use indicatif::{ProgressBar, ProgressStyle};

use crate::budget::Budget;
use crate::conditions::conditions;
use crate::options::{Options, database_of, name_of};
use crate::plots;
use crate::results::Results;
use crate::scenarios::{Room, SCENARIOS, Scenario};
use crate::systems::{SYSTEMS, System};
use crate::table::table;

/// No single measurement may take longer.
const LIMIT: Duration = Duration::from_secs(3600);

pub(crate) async fn run(options: &Options) -> Result<()> {
    let databases = databases(options)?;
    let scenarios = scenarios(options)?;
    let systems = systems(options)?;
    let conditions = conditions(&databases).await?;
    eprint!("{conditions}");

    let total = databases.iter().map(|(database, budget)| {
        let pairs = scenarios.iter().flat_map(|scenario| {
            systems
                .iter()
                .filter(|system| scenario.runs_on(*database, system))
        });
        pairs.count() * budget.runs
    });
    let bar = ProgressBar::new(total.sum::<usize>() as u64);
    bar.set_style(ProgressStyle::with_template(
        "[{elapsed_precise}] {bar:30} {pos}/{len} {msg}, {eta} left",
    )?);
    bar.enable_steady_tick(Duration::from_millis(500));

    let mut results = Results::default();
    for (database, budget) in &databases {
        for scenario in &scenarios {
            for run in 0..budget.runs {
                for system in systems
                    .iter()
                    .filter(|one| scenario.runs_on(*database, one))
                {
                    let name = name_of(*database);
                    bar.set_message(format!(
                        "{name} {} {} #{}",
                        scenario.name,
                        system.name,
                        run + 1
                    ));
                    let room = Room {
                        system: *system,
                        database: *database,
                        budget: *budget,
                    };
                    measure(&mut results, scenario, &room).await;
                    bar.inc(1);
                }
            }
        }
    }
    bar.finish_and_clear();
    results.sort();
    // Again: whoever keeps the table must have the conditions beside it.
    println!("{conditions}{}", table(&results));
    if let Some(path) = &options.json {
        results.write_json(path)?;
    }
    if let Some(folder) = &options.plots {
        plots::draw(&results, folder)?;
    }
    Ok(())
}

/// One run of one scenario; a failure is part of the results.
async fn measure(results: &mut Results, scenario: &Scenario, room: &Room) {
    let outcome = tokio::time::timeout(LIMIT, scenario.run(room)).await;
    match outcome
        .context("it took too long")
        .and_then(|outcome| outcome)
    {
        Ok(samples) => {
            for sample in samples {
                let row = results.row(room.database, &sample.row.clone(), room.system.name);
                row.samples.push(sample);
            }
        }
        Err(error) => {
            let row = results.row(room.database, scenario.name, room.system.name);
            row.failure = Some(format!("{error:#}"));
        }
    }
}

fn databases(options: &Options) -> Result<Vec<(Database, Budget)>> {
    let known = options.db.iter().map(|name| {
        let database = database_of(name).with_context(|| format!("no database is {name:?}"))?;
        Ok((database, Budget::new(options, database)))
    });
    known.collect()
}

fn scenarios(options: &Options) -> Result<Vec<&'static Scenario>> {
    for name in &options.scenario {
        if !SCENARIOS.iter().any(|scenario| scenario.name == name) {
            let names: Vec<_> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
            bail!("no scenario is {name:?}; there are: {}", names.join(", "));
        }
    }
    let wanted = |scenario: &&Scenario| match &options.scenario[..] {
        [] => options.full || scenario.quick,
        names => names.iter().any(|name| name == scenario.name),
    };
    Ok(SCENARIOS.iter().filter(wanted).collect())
}

fn systems(options: &Options) -> Result<Vec<System>> {
    for name in &options.system {
        if !SYSTEMS.iter().any(|system| system.name == name) {
            let names: Vec<_> = SYSTEMS.iter().map(|system| system.name).collect();
            bail!("no system is {name:?}; there are: {}", names.join(", "));
        }
    }
    let wanted = |system: &&System| match &options.system[..] {
        [] => options.full || !system.is_peer(),
        names => names.iter().any(|name| name == system.name),
    };
    Ok(SYSTEMS.iter().filter(wanted).copied().collect())
}
