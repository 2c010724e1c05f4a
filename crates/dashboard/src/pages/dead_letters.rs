//! Dead letters: filter, search, select, decide.

use std::time::SystemTime;

use askama::Template;
use axum::body::Bytes;
use axum::http::StatusCode;
use outbox::{DeadLetter, DeadLetterFilter, DeadLetterStatus, OutboxError};

use super::{Frame, Path, Refused, Shown, Visit, rendered};
use crate::form::{self, Fields};
use crate::jobs::{Decision, Job, Scope};
use crate::payload::{self, Shown as Payload};
use crate::source::DeadLetterPages;
use crate::words;

/// Dead letters on a page.
const PAGE: usize = 50;
/// How far a search goes, and how many it looks at together.
const SEARCHED: usize = 10_000;
const AT_ONCE: u32 = 500;

/// What somebody looks for.
struct Wanted {
    queue: String,
    partition: String,
    payload_type: String,
    status: String,
    search: String,
}

impl Wanted {
    fn of(fields: &Fields) -> Self {
        Self {
            queue: fields.text("queue"),
            partition: fields.text("partition"),
            payload_type: fields.text("type"),
            status: fields.get("status").unwrap_or("pending").to_owned(),
            search: fields.text("search"),
        }
    }

    fn filter(&self) -> Result<DeadLetterFilter, Refused> {
        let mut filter = DeadLetterFilter::new();
        if !self.queue.is_empty() {
            filter = filter.queue(&self.queue);
        }
        if !self.partition.is_empty() {
            let wrong = || Refused::bad(format!("{:?} is no partition", self.partition));
            filter = filter.partition(self.partition.parse().map_err(|_| wrong())?);
        }
        if !self.payload_type.is_empty() {
            filter = filter.payload_type(&self.payload_type);
        }
        if self.status != "all" {
            let status = self.status.parse::<DeadLetterStatus>();
            filter = filter.status(status.map_err(|error| Refused::bad(error.to_string()))?);
        }
        Ok(filter)
    }

    /// In words.
    fn told(&self) -> String {
        let mut told = "all dead letters".to_owned();
        for (word, value) in [
            (" of ", &self.queue),
            (", partition ", &self.partition),
            (", type ", &self.payload_type),
        ] {
            if !value.is_empty() {
                told.push_str(word);
                told.push_str(value);
            }
        }
        told
    }

    /// As an address, from this dead letter on.
    fn query(&self, before: &str) -> String {
        form::query(&[
            ("queue", &self.queue),
            ("partition", &self.partition),
            ("type", &self.payload_type),
            ("status", &self.status),
            ("search", &self.search),
            ("before", before),
        ])
    }
}

struct Row {
    id: i64,
    queue: String,
    partition: u32,
    payload_type: String,
    error: String,
    attempts: u32,
    failed: String,
    failed_ago: String,
    status: DeadLetterStatus,
}

#[derive(Template)]
#[template(path = "dead_letters.html")]
struct DeadLettersPage {
    frame: Frame,
    wanted: Wanted,
    queues: Vec<String>,
    rows: Vec<Row>,
    /// What was looked at, where that is not everything.
    looked: Option<String>,
    next: Option<String>,
    jobs: Vec<Job>,
}

/// The first line, and not all of it.
fn brief(error: &str) -> String {
    let line = error.lines().next().unwrap_or_default();
    let mut brief: String = line.chars().take(160).collect();
    if brief.len() < error.trim_end().len() {
        brief.push('…');
    }
    brief
}

fn row(letter: &DeadLetter) -> Row {
    Row {
        id: letter.id,
        queue: letter.queue.clone(),
        partition: letter.partition,
        payload_type: letter.payload_type.clone(),
        error: brief(&letter.last_error),
        attempts: letter.attempts,
        failed: words::moment(letter.failed_at),
        failed_ago: words::ago(letter.failed_at),
        status: letter.status,
    }
}

/// Dead letters in which a text stands, newest first and at most one more than a page; and how many were
/// looked at.
async fn search(
    visit: &Visit,
    filter: DeadLetterFilter,
    newest: i64,
    text: &str,
) -> Result<(Vec<DeadLetter>, usize), OutboxError> {
    let text = text.to_lowercase();
    let may_see = visit.may_see_payloads();
    let has = |letter: &DeadLetter| {
        let in_key = || {
            letter
                .key
                .as_ref()
                .is_some_and(|key| key.to_lowercase().contains(&text))
        };
        letter.last_error.to_lowercase().contains(&text)
            || letter.payload_type.to_lowercase().contains(&text)
            || may_see && in_key()
    };
    let source = visit.source();
    let mut pages = DeadLetterPages::new(filter, i64::MIN..=newest, AT_ONCE);
    let (mut found, mut looked) = (Vec::new(), 0);
    while looked < SEARCHED
        && found.len() <= PAGE
        && let Some(page) = pages.next(&*source).await?
    {
        looked += page.len();
        found.extend(page.into_iter().filter(has));
    }
    found.truncate(PAGE + 1);
    Ok((found, looked))
}

pub(crate) async fn list(visit: Visit) -> Shown {
    let wanted = Wanted::of(&visit.asked);
    let filter = wanted.filter()?;
    let before = visit.asked.number::<i64>("before");
    let before = before.map_or(i64::MAX, |before| before.saturating_sub(1));
    let mut looked = None;
    let mut found = if wanted.search.is_empty() {
        let most = u32::try_from(PAGE).unwrap_or(u32::MAX) + 1;
        let filter = filter.without_payloads().limit(most);
        let filter = filter.ids(i64::MIN..=before);
        visit.source().dead_letters(&filter).await?
    } else {
        let (found, count) = search(&visit, filter, before, &wanted.search).await?;
        if count >= SEARCHED {
            looked = Some(format!(
                "Only the newest {} were searched. Narrow the filter to look at older ones.",
                words::number(count as u64)
            ));
        }
        found
    };
    let next = (found.len() > PAGE).then(|| {
        found.truncate(PAGE);
        let last = found.last().map(|last| last.id.to_string());
        wanted.query(&last.unwrap_or_default())
    });
    let jobs = visit.office.jobs.list().into_iter();
    let page = DeadLettersPage {
        frame: visit.frame("dead-letters", "Dead letters"),
        queues: visit.office.watch.queues(),
        rows: found.iter().map(row).collect(),
        looked,
        next,
        jobs: jobs.filter(|job| !job.is_over()).collect(),
        wanted,
    };
    Ok(rendered(&page))
}

#[derive(Template)]
#[template(path = "dead_letter.html")]
struct DeadLetterPage {
    frame: Frame,
    letter: DeadLetter,
    created: String,
    failed: String,
    failed_ago: String,
    completed: Option<String>,
    size: String,
    key: Option<String>,
    headers: Vec<(String, String)>,
    trace: Option<String>,
    payload: Option<Payload>,
    /// Whether somebody may decide: nobody else is at it.
    open: bool,
}

pub(crate) async fn show(visit: Visit, Path(id): Path<i64>) -> Shown {
    let one = DeadLetterFilter::new().ids(id..=id);
    let found = visit.source().dead_letters(&one).await?;
    let letter = found.into_iter().next().ok_or_else(|| {
        Refused::nothing(format!("there is no dead letter {id}"))
            .way_out("It may have been cleaned up after it was resolved or discarded.")
    })?;
    let may_see = visit.may_see_payloads();
    let (headers, trace) = payload::headers(&letter.headers, may_see);
    let expired = letter
        .deadline
        .is_some_and(|deadline| deadline <= SystemTime::now());
    let page = DeadLetterPage {
        frame: visit.frame("dead-letters", format!("Dead letter {id}")),
        created: words::moment(letter.created_at),
        failed: words::moment(letter.failed_at),
        failed_ago: words::ago(letter.failed_at),
        completed: letter.completed_at.map(words::moment),
        size: words::bytes(letter.payload.len() as u64),
        key: letter.key.clone().filter(|_| may_see),
        headers,
        trace,
        payload: may_see.then(|| Payload::new(&letter.payload, visit.asked.get("view"))),
        open: match letter.status {
            DeadLetterStatus::Pending => true,
            DeadLetterStatus::Reprocessing => expired,
            _ => false,
        },
        letter,
    };
    Ok(rendered(&page))
}

/// What a form decides, about which dead letters, and why.
#[derive(Debug)]
struct Decided {
    decision: Decision,
    scope: Scope,
    /// Which ones, in words.
    target: String,
    reason: String,
}

impl Decided {
    fn of(form: &Fields) -> Result<Self, Refused> {
        let verb = form.get("decision").unwrap_or_default();
        let decision = Decision::of(verb).ok_or_else(|| {
            Refused::bad(format!(
                "{verb:?} is no decision: requeue, resolve or discard"
            ))
        })?;
        let reason = form.text("reason");
        if reason.is_empty() && decision != Decision::Requeue {
            return Err(Refused::new(
                StatusCode::BAD_REQUEST,
                format!("to {verb} needs a reason"),
                "It is kept in the audit log. Go back and say why.",
            ));
        }
        let (scope, target) = match form.get("scope") {
            Some("all") => everything(form)?,
            _ => selected(form)?,
        };
        Ok(Self {
            decision,
            scope,
            target,
            reason,
        })
    }
}

/// All that the filter lets through.
fn everything(form: &Fields) -> Result<(Scope, String), Refused> {
    let wanted = Wanted::of(form);
    if !wanted.search.is_empty() {
        return Err(Refused::bad("a search cannot be decided as a whole")
            .way_out("Select what it found, or narrow it by queue, partition and type."));
    }
    if !["pending", "all"].contains(&&*wanted.status) {
        let what = format!("{} ones cannot be decided again", wanted.status);
        return Err(Refused::bad(what).way_out("Look at the pending ones, and decide those."));
    }
    Ok((Scope::All(wanted.filter()?), wanted.told()))
}

/// Those that were named one by one.
fn selected(form: &Fields) -> Result<(Scope, String), Refused> {
    let ids = form.all("id").iter();
    let ids = ids
        .map(|id| id.parse::<i64>())
        .collect::<Result<Vec<_>, _>>();
    let ids = ids.map_err(|_| Refused::bad("a dead letter's number is a number"))?;
    let target = match &*ids {
        [] => {
            return Err(Refused::bad("no dead letter is selected")
                .way_out("Go back and select some, or decide about all."));
        }
        [id] => format!("dead letter {id}"),
        ids => format!("{} dead letters: {ids:?}", ids.len()),
    };
    Ok((Scope::These(ids), target))
}

pub(crate) async fn decide(visit: Visit, body: Bytes) -> Shown {
    let Decided {
        decision,
        scope,
        target,
        reason,
    } = Decided::of(&visit.form(&body)?)?;
    if visit.office.jobs.is_full() {
        return Err(full());
    }
    visit.record(decision.verb(), &target, &reason).await?;
    let office = &visit.office;
    let begun = office.jobs.begin(
        office.watch.source(),
        decision,
        scope,
        target,
        visit.identity.name.clone(),
        reason,
    );
    let id = begun.ok_or_else(full)?;
    Ok(visit.go(&format!("/jobs/{id}")))
}

fn full() -> Refused {
    Refused::new(
        StatusCode::CONFLICT,
        "two jobs are at work already",
        "Wait for one to end, or stop it. Nothing was done.",
    )
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// A form or an address with the fields that there are, and values that may be any.
    fn fields() -> impl Strategy<Value = Vec<(&'static str, String)>> {
        let names = [
            "queue",
            "partition",
            "type",
            "status",
            "search",
            "decision",
            "reason",
            "scope",
            "id",
            "before",
        ];
        let value = "all|pending|reprocessing|resolved|discarded|requeue|resolve|discard|[0-9]{1,3}|-?[0-9]{9,20}|[a-z ]{0,5}|(?s:.{0,9})";
        vec((prop::sample::select(names.to_vec()), value), 0..10)
    }

    fn read(fields: &[(&'static str, String)]) -> Fields {
        let pairs: Vec<_> = fields
            .iter()
            .map(|(name, value)| (*name, &**value))
            .collect();
        Fields::of(form::query(&pairs).as_bytes())
    }

    proptest! {
        #[test]
        fn any_address_is_a_filter_or_refused(fields in fields()) {
            let wanted = Wanted::of(&read(&fields));
            let mut expected = DeadLetterFilter::new();
            if !wanted.queue.is_empty() {
                expected = expected.queue(&wanted.queue);
            }
            if !wanted.payload_type.is_empty() {
                expected = expected.payload_type(&wanted.payload_type);
            }
            let partition = wanted.partition.parse::<u32>();
            expected = partition.iter().fold(expected, |filter, partition| filter.partition(*partition));
            let states = ["pending", "reprocessing", "resolved", "discarded"];
            let good = (wanted.partition.is_empty() || partition.is_ok())
                && (wanted.status == "all" || states.contains(&&*wanted.status));
            match wanted.filter() {
                Ok(filter) => {
                    let states = wanted.status.parse::<DeadLetterStatus>().into_iter();
                    prop_assert_eq!(filter, states.fold(expected, DeadLetterFilter::status));
                    prop_assert!(good);
                }
                Err(refused) => prop_assert!(!good && refused.status == StatusCode::BAD_REQUEST),
            }
        }

        #[test]
        fn the_address_of_the_next_page_means_the_same(fields in fields(), before in any::<i64>()) {
            let wanted = Wanted::of(&read(&fields));
            let query = wanted.query(&before.to_string());
            let next = Fields::of(query.as_bytes());
            prop_assert_eq!(next.number::<i64>("before"), Some(before));
            prop_assert_eq!(Wanted::of(&next).query(&before.to_string()), query);
        }

        #[test]
        fn any_form_is_a_decision_or_refused(fields in fields()) {
            let form = read(&fields);
            match Decided::of(&form) {
                Err(refused) => prop_assert_eq!(refused.status, StatusCode::BAD_REQUEST),
                Ok(decided) => {
                    prop_assert_eq!(Some(decided.decision.verb()), form.get("decision"));
                    prop_assert!(decided.decision == Decision::Requeue || !decided.reason.is_empty());
                    match decided.scope {
                        Scope::All(filter) => {
                            prop_assert_eq!(form.get("scope"), Some("all"));
                            prop_assert_eq!(filter, Wanted::of(&form).filter().map_err(|_| TestCaseError::fail("a filter"))?);
                        }
                        Scope::These(ids) => {
                            let ids: Vec<_> = ids.iter().map(i64::to_string).collect();
                            let written = form.all("id").iter().map(|id| id.parse::<i64>().map(|id| id.to_string()));
                            prop_assert_eq!(written.collect::<Result<Vec<_>, _>>(), Ok(ids));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn an_error_is_brief_in_a_list() {
        assert_eq!(brief("refused"), "refused");
        assert_eq!(brief("refused\nat line 3"), "refused…");
        assert_eq!(brief(&"é".repeat(200)).chars().count(), 161);
        assert_eq!(brief(""), "");
    }

    #[test]
    fn what_is_wanted_is_said_in_words_and_in_an_address() {
        let wanted = Wanted::of(&Fields::of(b"queue=orders&type=a%20b&status=all"));
        assert_eq!(wanted.told(), "all dead letters of orders, type a b");
        assert_eq!(
            wanted.query("7"),
            "queue=orders&type=a+b&status=all&before=7"
        );
        let nothing = Wanted::of(&Fields::of(b""));
        assert_eq!(
            (nothing.told(), &*nothing.status),
            ("all dead letters".to_owned(), "pending")
        );
        assert!(Wanted::of(&Fields::of(b"status=odd")).filter().is_err());
        assert!(Wanted::of(&Fields::of(b"partition=x")).filter().is_err());
    }
}
