//! Whether the databases answer: what tells a load balancer, or whoever deploys, that a process can work.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use outbox::{Backend, Outbox};
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

/// How often a database is asked.
const ASK: Duration = Duration::from_secs(5);
/// How old its last answer may be.
const LATELY: Duration = Duration::from_secs(15);

/// What is known of a database.
#[derive(Debug)]
struct Known {
    name: String,
    answered: Option<Instant>,
    /// What went wrong since.
    error: Option<String>,
}

/// Which databases answer.
#[derive(Debug)]
pub(crate) struct Readiness(Mutex<Vec<Known>>);

impl Readiness {
    /// Nothing is known yet of these.
    pub(crate) fn new(names: impl IntoIterator<Item = String>) -> Arc<Self> {
        let known = names.into_iter().map(|name| Known {
            name,
            answered: None,
            error: Some("not started yet".to_owned()),
        });
        Arc::new(Self(Mutex::new(known.collect())))
    }

    fn known(&self) -> MutexGuard<'_, Vec<Known>> {
        crate::lock(&self.0)
    }

    /// A database answered, or did not.
    pub(crate) fn note(&self, name: &str, answer: Result<(), String>) {
        if let Some(known) = self.known().iter_mut().find(|known| known.name == name) {
            if answer.is_ok() {
                known.answered = Some(Instant::now());
            }
            known.error = answer.err();
        }
    }

    /// Whether all answer, and what is known of each.
    pub(crate) fn told(&self) -> (bool, Value) {
        let known = self.known();
        let answers = |one: &Known| one.answered.is_some_and(|at| at.elapsed() < LATELY);
        let databases: Vec<_> = known
            .iter()
            .map(|one| json!({ "name": one.name, "answers": answers(one), "error": one.error }))
            .collect();
        let ready = known.iter().all(answers);
        (ready, json!({ "ready": ready, "databases": databases }))
    }

    /// Asks a database again and again, until what is answered is dropped.
    pub(crate) fn watch<DB: Backend>(
        self: &Arc<Self>,
        name: &str,
        outbox: Outbox<DB>,
    ) -> AbortOnDropHandle<()> {
        let (ready, name) = (Arc::clone(self), name.to_owned());
        AbortOnDropHandle::new(tokio::spawn(async move {
            let mut asks = tokio::time::interval(ASK);
            loop {
                asks.tick().await;
                let answer = outbox.processes().await.map(drop);
                ready.note(&name, answer.map_err(|error| error.to_string()));
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_is_when_all_answer() {
        let ready = Readiness::new(["shop", "mail"].map(str::to_owned));
        assert!(!ready.told().0);
        ready.note("shop", Ok(()));
        let (all, told) = ready.told();
        assert!(!all);
        assert_eq!(told["databases"][0]["answers"], true);
        assert_eq!(told["databases"][1]["error"], "not started yet");
        ready.note("mail", Ok(()));
        assert!(ready.told().0);
        // One that fails for a moment has answered lately.
        ready.note("mail", Err("connection refused".to_owned()));
        let (all, told) = ready.told();
        assert!(all);
        assert_eq!(told["databases"][1]["error"], "connection refused");
    }
}
