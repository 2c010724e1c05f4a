//! Decisions about many dead letters, while they are carried out.

use askama::Template;
use axum::body::Bytes;

use super::{Frame, Path, Refused, Shown, Visit, rendered};
use crate::jobs::{Job, State};
use crate::words;

/// A job as it is shown.
struct Told {
    job: Job,
    state: &'static str,
    began: String,
    took: String,
}

impl Told {
    fn new(job: Job) -> Self {
        let until = job.ended.unwrap_or_else(std::time::SystemTime::now);
        Self {
            state: match job.state {
                State::Counting => "finds out how many there are",
                State::Running => "at work",
                State::Done => "done",
                State::Stopped => "stopped",
                State::Failed => "failed",
            },
            began: words::moment(job.began),
            took: words::span(until.duration_since(job.began).unwrap_or_default()),
            job,
        }
    }
}

#[derive(Template)]
#[template(path = "jobs.html")]
struct JobsPage {
    frame: Frame,
    jobs: Vec<Told>,
}

#[derive(Template)]
#[template(path = "job.html")]
struct JobPage {
    frame: Frame,
    told: Told,
}

pub(crate) async fn list(visit: Visit) -> Shown {
    let jobs = visit.office.jobs.list().into_iter();
    let page = JobsPage {
        frame: visit.frame("jobs", "Jobs"),
        jobs: jobs.map(Told::new).collect(),
    };
    Ok(rendered(&page))
}

fn nothing(id: u64) -> Refused {
    Refused::nothing(format!("there is no job {id}"))
        .way_out("Jobs are forgotten when the dashboard ends. What they did is in the audit log.")
}

pub(crate) async fn show(visit: Visit, Path(id): Path<u64>) -> Shown {
    let job = visit.office.jobs.get(id).ok_or_else(|| nothing(id))?;
    let page = JobPage {
        frame: visit.frame("jobs", format!("Job {id}")),
        told: Told::new(job),
    };
    Ok(rendered(&page))
}

pub(crate) async fn stop(visit: Visit, Path(id): Path<u64>, body: Bytes) -> Shown {
    visit.form(&body)?;
    let job = visit.office.jobs.get(id).ok_or_else(|| nothing(id))?;
    visit
        .record("stop", &format!("job {id}, {}", job.target), "")
        .await?;
    let done = match visit.office.jobs.stop(id) {
        true => "stopped",
        false => "over",
    };
    Ok(visit.go(&format!("/jobs/{id}?done={done}")))
}
