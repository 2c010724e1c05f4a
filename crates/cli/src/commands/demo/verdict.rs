//! The books: what was ordered beside what was delivered.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use outbox::{DeadLetterFilter, Outbox};
use serde_json::json;

use super::shop::Shop;
use super::{Order, POISON};
use crate::failure::{Code, Failure};
use crate::output::{Output, number, text};

/// What was found when all was over.
#[derive(Debug)]
pub(super) struct Books {
    placed: u32,
    committed: Vec<Order>,
    delivered: Vec<Order>,
    dead_letters: u64,
}

/// A line of the verdict: what, how many, and whether that is right.
type Line = (&'static str, u64, bool);

impl Books {
    pub(super) async fn read<DB: Shop>(
        pool: &sqlx::Pool<DB>,
        outbox: &Outbox<DB>,
        placed: u32,
    ) -> Result<Self, Failure> {
        let mut connection = pool.acquire().await?;
        Ok(Self {
            placed,
            committed: DB::book(&mut connection, false).await?,
            delivered: DB::book(&mut connection, true).await?,
            dead_letters: outbox.dead_letter_count(&DeadLetterFilter::new()).await?,
        })
    }

    fn lines(&self) -> Vec<Line> {
        let numbers = |orders: &[Order]| orders.iter().map(|order| order.number).collect();
        let committed: HashSet<u32> = numbers(&self.committed);
        let delivered: HashSet<u32> = numbers(&self.delivered);
        let poisons = u64::from(committed.contains(&POISON));
        let lost = committed.iter().filter(|number| **number != POISON);
        let lost = lost.filter(|number| !delivered.contains(number)).count() as u64;
        let invented = delivered.difference(&committed).count() as u64;
        let twice = (self.delivered.len() - delivered.len()) as u64;
        let rolled_back = u64::from(self.placed) - committed.len() as u64;
        vec![
            ("orders committed", committed.len() as u64, true),
            ("orders rolled back", rolled_back, true),
            ("delivered", delivered.len() as u64, lost == 0),
            (
                "dead letters (the poison)",
                self.dead_letters,
                self.dead_letters == poisons,
            ),
            ("lost", lost, lost == 0),
            ("delivered although rolled back", invented, invented == 0),
            ("delivered twice", twice, twice == 0),
            (
                "customers served out of order",
                self.out_of_order(),
                self.out_of_order() == 0,
            ),
        ]
    }

    /// How many customers got something before what they had ordered earlier.
    fn out_of_order(&self) -> u64 {
        let mut last: HashMap<u32, u32> = HashMap::new();
        let mut wronged = HashSet::new();
        for Order { number, customer } in &self.delivered {
            if last
                .insert(*customer, *number)
                .is_some_and(|last| last > *number)
            {
                wronged.insert(*customer);
            }
        }
        wronged.len() as u64
    }

    /// Prints it. An error if the books do not agree.
    pub(super) fn report(&self, took: Duration, output: &mut Output) -> Result<(), Failure> {
        let lines = self.lines();
        let agree = lines.iter().all(|(.., right)| *right);
        if output.is_json() {
            let counts: serde_json::Map<_, _> = lines
                .iter()
                .map(|(what, count, _)| ((*what).to_owned(), json!(count)))
                .collect();
            output.json(&json!({
                "agree": agree, "counts": counts, "seconds": took.as_secs_f64(),
            }))?;
        } else {
            let row = |(what, count, right): &Line| {
                let verdict = if *right { "" } else { "WRONG" };
                vec![
                    text(what),
                    number(count).alarming(!right),
                    text(verdict).alarming(true),
                ]
            };
            output.line("")?;
            output.table(
                &["the books", "", ""],
                &lines.iter().map(row).collect::<Vec<_>>(),
            )?;
            output.line("")?;
        }
        if !agree {
            return Err(Failure::new(Code::No, "the books do not agree"));
        }
        if output.is_json() {
            return Ok(());
        }
        output.line(format!(
            "{:.1} s, one process killed: nothing lost, nothing invented, nothing doubled, nothing out of order",
            took.as_secs_f64()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn books(delivered: &[(u32, u32)]) -> Books {
        let order = |&(number, customer): &(u32, u32)| Order { number, customer };
        Books {
            placed: 43,
            committed: [(1, 1), (2, 1), (POISON, 2)].iter().map(order).collect(),
            delivered: delivered.iter().map(order).collect(),
            dead_letters: 1,
        }
    }

    /// What is wrong.
    fn wrong(books: &Books) -> Vec<&'static str> {
        let lines = books.lines().into_iter();
        lines
            .filter(|(.., right)| !right)
            .map(|(what, ..)| what)
            .collect()
    }

    #[test]
    fn whatever_is_wrong_is_found() {
        assert_eq!(wrong(&books(&[(1, 1), (2, 1)])), [""; 0]);
        assert_eq!(wrong(&books(&[(1, 1)])), ["delivered", "lost"]);
        let invented = books(&[(1, 1), (2, 1), (5, 1)]);
        assert_eq!(wrong(&invented), ["delivered although rolled back"]);
        assert_eq!(
            wrong(&books(&[(1, 1), (2, 1), (2, 1)])),
            ["delivered twice"]
        );
        assert_eq!(
            wrong(&books(&[(2, 1), (1, 1)])),
            ["customers served out of order"]
        );
        let mut buried = books(&[(1, 1), (2, 1)]);
        buried.dead_letters = 2;
        assert_eq!(wrong(&buried), ["dead letters (the poison)"]);
    }
}
