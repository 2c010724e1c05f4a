//! The pages: a file each, with its template. This one has what they share: who visits, the frame around every
//! page, and how something is refused.

mod audit;
mod dead_letters;
mod health;
mod jobs;
mod messages;
mod overview;
mod partition;
mod queue;
mod workers;

use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::body::{Bytes, to_bytes};
use axum::extract::{FromRequestParts, OriginalUri, Request, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use outbox::OutboxError;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::access::{Identity, Rights};
use crate::form::Fields;
use crate::guard::guard;
use crate::limits::{ARRIVAL, FORM};
use crate::source::Source;
use crate::watch::Snapshot;
use crate::words;
use crate::{Office, assets, live};

pub(crate) fn router(office: Arc<Office>) -> Router {
    let pages = Router::new()
        .route("/", get(overview::show))
        .route("/queues/{queue}", get(queue::show))
        .route("/queues/{queue}/pause", post(queue::pause))
        .route("/queues/{queue}/resume", post(queue::resume))
        .route("/queues/{queue}/{partition}", get(partition::show))
        .route("/queues/{queue}/{partition}/skip", post(partition::skip))
        .route("/messages", get(messages::list))
        .route("/messages/{queue}/{partition}/{seq}", get(messages::show))
        .route("/dead-letters", get(dead_letters::list))
        .route("/dead-letters/decide", post(dead_letters::decide))
        .route("/dead-letters/{id}", get(dead_letters::show))
        .route("/jobs", get(jobs::list))
        .route("/jobs/{id}", get(jobs::show))
        .route("/jobs/{id}/stop", post(jobs::stop))
        .route("/workers", get(workers::show))
        .route("/health", get(health::show))
        .route("/audit", get(audit::show))
        .fallback(nowhere)
        .layer(middleware::from_fn_with_state(Arc::clone(&office), in_turn));
    // A stream lasts, and the rest costs nothing.
    let others = Router::new()
        .route("/events", get(live::events))
        .route("/style.css", get(assets::style))
        .route("/live.js", get(assets::script))
        .route("/icon.svg", get(assets::icon));
    pages
        .merge(others)
        .layer(middleware::from_fn_with_state(Arc::clone(&office), guard))
        .with_state(office)
}

/// Lets so many pages be made at once. What is sent has to be there before: nobody waits for a slow sender.
async fn in_turn(State(office): State<Arc<Office>>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let body = match timeout(ARRIVAL, to_bytes(body, FORM)).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => return StatusCode::PAYLOAD_TOO_LARGE.into_response(),
        Err(_) => return StatusCode::REQUEST_TIMEOUT.into_response(),
    };
    match office.limits.page().await {
        Some(_turn) => next.run(Request::from_parts(parts, body.into())).await,
        None => (
            StatusCode::SERVICE_UNAVAILABLE,
            "too many pages at once: try again in a moment\n",
        )
            .into_response(),
    }
}

/// Somebody who looks at a page.
pub(crate) struct Visit {
    office: Arc<Office>,
    /// What the addresses of all pages begin with.
    base: String,
    identity: Identity,
    /// What stands behind the question mark.
    asked: Fields,
    /// Whether the page is there already, and only what has changed is wanted.
    again: bool,
}

impl FromRequestParts<Arc<Office>> for Visit {
    type Rejection = StatusCode;

    async fn from_request_parts(
        parts: &mut Parts,
        office: &Arc<Office>,
    ) -> Result<Self, StatusCode> {
        // The guard has put it there.
        let identity = parts.extensions.get::<Identity>().cloned();
        let whole = parts.extensions.get::<OriginalUri>();
        let whole = whole.map_or_else(|| parts.uri.path(), |whole| whole.path());
        let base = whole.strip_suffix(parts.uri.path()).unwrap_or(whole);
        Ok(Self {
            office: Arc::clone(office),
            base: base.trim_end_matches('/').to_owned(),
            identity: identity.ok_or(StatusCode::UNAUTHORIZED)?,
            asked: Fields::of(parts.uri.query().unwrap_or_default().as_bytes()),
            again: parts.headers.contains_key("x-again"),
        })
    }
}

/// What stands around every page.
pub(crate) struct Frame {
    base: String,
    home: String,
    /// What the dashboard is called.
    name: String,
    title: String,
    /// Where in the navigation it is.
    section: &'static str,
    who: String,
    rights: Rights,
    seal: String,
    dead_letters: u64,
    /// When it was last looked, and how long ago.
    seen: Option<(String, String)>,
    /// Since when looks fail, and why.
    trouble: Option<(String, String)>,
    /// Whether the page should be kept current.
    live: bool,
    /// What was done a moment ago.
    said: Option<&'static str>,
    version: &'static str,
}

/// The parts of the dashboard whose pages are kept current: not lists, which somebody is reading.
const LIVE: [&str; 5] = ["overview", "queues", "workers", "health", "jobs"];

/// What a page may say was done, by the word in its address.
const SAID: [(&str, &str); 7] = [
    (
        "paused",
        "Deliveries are paused. What is being handled is finished.",
    ),
    ("resumed", "Deliveries go on."),
    (
        "still-paused",
        "It stays paused, for the whole queue is: resume that.",
    ),
    (
        "skipped",
        "The message is among the dead letters now, and the partition goes on.",
    ),
    (
        "gone",
        "That message was not the first any more. Nothing was done.",
    ),
    ("stopped", "The job stops after what it is doing."),
    ("over", "The job was over already."),
];

impl Visit {
    fn frame(&self, section: &'static str, title: impl Into<String>) -> Frame {
        let latest = self.office.watch.latest();
        let said = self.asked.get("done");
        Frame {
            home: match &*self.base {
                "" => "/".to_owned(),
                base => base.to_owned(),
            },
            base: self.base.clone(),
            name: self.office.name.clone(),
            title: title.into(),
            section,
            who: self.identity.name.clone(),
            rights: self.identity.rights,
            seal: self.office.seal.of(&self.identity),
            dead_letters: latest.dead_letters(),
            seen: latest.at.map(|at| (words::moment(at), words::ago(at))),
            trouble: latest
                .trouble
                .as_ref()
                .map(|(since, error)| (words::moment(*since), error.clone())),
            live: LIVE.contains(&section),
            said: SAID
                .into_iter()
                .find_map(|(word, text)| (said == Some(word)).then_some(text)),
            version: env!("CARGO_PKG_VERSION"),
        }
    }

    /// What a form says, if whoever sent it may act and it is a form of ours.
    fn form(&self, body: &Bytes) -> Result<Fields, Refused> {
        if !self.identity.rights.operate {
            return Err(Refused::new(
                StatusCode::FORBIDDEN,
                "this dashboard is read-only for you",
                "Start it with --operator, or ask for the right.",
            ));
        }
        let fields = Fields::of(body);
        let sealed = fields.get("seal").unwrap_or_default();
        let may_act = self.office.seal.is_of(&self.identity, sealed);
        if may_act && !self.office.limits.action(&self.identity.name) {
            return Err(Refused::new(
                StatusCode::TOO_MANY_REQUESTS,
                "that was more than 120 actions within a minute",
                "Wait a moment. Many dead letters can be decided together.",
            ));
        }
        if !may_act {
            return Err(Refused::new(
                StatusCode::FORBIDDEN,
                "this form is out of date",
                "The dashboard was started anew since the page was loaded. Load it again, and repeat.",
            ));
        }
        Ok(fields)
    }

    /// Writes down what came of it, where that is not what was meant.
    async fn record_outcome(&self, target: &str, outcome: &str) {
        let (who, source) = (&*self.identity.name, self.source());
        if let Err(error) = source.audit(who, "end", target, outcome).await {
            tracing::warn!(who, target, outcome, %error, "what came of it could not be written down");
        }
    }

    /// Writes down what is about to be done. What cannot be written down is not done.
    async fn record(
        &self,
        action: &'static str,
        target: &str,
        reason: &str,
    ) -> Result<(), Refused> {
        let who = &*self.identity.name;
        let source = self.source();
        source.audit(who, action, target, reason).await?;
        tracing::info!(who, action, target, reason, "by hand");
        Ok(())
    }

    /// Looks, so that what was just done can be seen.
    async fn look(&self) -> Arc<Snapshot> {
        self.office.watch.look_now().await;
        self.office.watch.latest()
    }

    /// To a page of ours.
    fn go(&self, path: &str) -> Response {
        Redirect::to(&format!("{}{path}", self.base)).into_response()
    }

    /// The outbox.
    fn source(&self) -> Arc<dyn Source> {
        self.office.watch.source()
    }

    /// A queue that there is.
    fn queue(&self, queue: &str) -> Result<(), Refused> {
        if self
            .office
            .watch
            .queues()
            .iter()
            .any(|known| known == queue)
        {
            return Ok(());
        }
        Err(Refused::nothing(format!("there is no queue {queue:?}"))
            .way_out("One that was made a moment ago shows within seconds."))
    }

    /// The right to see what is inside messages.
    fn may_see_payloads(&self) -> bool {
        self.identity.rights.payloads
    }
}

/// Something that is not shown or done.
#[derive(Debug)]
pub(crate) struct Refused {
    status: StatusCode,
    what: String,
    way_out: &'static str,
}

impl Refused {
    fn new(status: StatusCode, what: impl Into<String>, way_out: &'static str) -> Self {
        Self {
            status,
            what: what.into(),
            way_out,
        }
    }

    fn nothing(what: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, what, "")
    }

    fn bad(what: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, what, "")
    }

    fn way_out(mut self, way_out: &'static str) -> Self {
        self.way_out = way_out;
        self
    }
}

impl From<OutboxError> for Refused {
    fn from(error: OutboxError) -> Self {
        match error {
            OutboxError::PartitionOutOfRange { .. } => Self::nothing(error.to_string()),
            OutboxError::PartitionBusy { .. } | OutboxError::LeaseLost { .. } => {
                let way_out = "Nothing was done. Try again in a moment.";
                Self::new(StatusCode::CONFLICT, error.to_string(), way_out)
            }
            error => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                error.to_string(),
                "The database did not do what it was asked. Try again in a moment.",
            ),
        }
    }
}

#[derive(Template)]
#[template(path = "refused.html")]
struct RefusedPage<'a> {
    what: &'a str,
    way_out: &'a str,
    status: u16,
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let page = RefusedPage {
            what: &self.what,
            way_out: self.way_out,
            status: self.status.as_u16(),
        };
        (self.status, rendered(&page)).into_response()
    }
}

/// What an address says. One that says nothing is none.
struct Path<T>(T);

impl<T, S> FromRequestParts<S> for Path<T>
where
    T: DeserializeOwned + Send,
    S: Send + Sync,
{
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(said)) => Ok(Self(said)),
            Err(_) => Err(nowhere().await),
        }
    }
}

async fn nowhere() -> Refused {
    Refused::nothing("there is no such page")
}

/// A page as it is sent.
fn rendered(page: &impl Template) -> Response {
    match page.render() {
        Ok(html) => Html(html).into_response(),
        Err(error) => {
            tracing::error!(%error, "a page could not be made");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

type Shown = Result<Response, Refused>;
