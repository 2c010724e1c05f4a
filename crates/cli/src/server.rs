//! What the command serves over HTTP: dashboards, metrics, and whether it is well.

mod access;
mod doorkeeper;
mod ready;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::get;
use metrics_exporter_prometheus::{
    Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};
use outbox::{Backend, Outbox};
use outbox_dashboard::{Access, Dashboard, is_for_loopback};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tower::ServiceExt as _;

pub(crate) use access::AccessArgs;
pub(crate) use ready::Readiness;

use crate::failure::Failure;
use crate::lock;
use crate::telemetry::Telemetry;

/// The upper ends of what is told apart of a duration, in seconds.
const BUCKETS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0,
];
/// How often what was measured is added up, so that it does not grow while nobody asks.
const UPKEEP: Duration = Duration::from_secs(5);

/// Everything that is counted in this process.
#[derive(Clone)]
pub(crate) struct Metrics(PrometheusHandle);

impl Metrics {
    /// From now on everything is counted. Once in a process, and before any outbox starts.
    pub(crate) fn install(telemetry: &Telemetry) -> Result<Self, Failure> {
        let seconds = Matcher::Suffix("_seconds".to_owned());
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(seconds, &BUCKETS)
            .map(PrometheusBuilder::build_recorder)
            .map_err(|error| Failure::usage(format!("metrics cannot be counted: {error}")))?;
        let metrics = Self(recorder.handle());
        let installed = install(recorder, telemetry);
        installed.map_err(|error| Failure::usage(format!("metrics cannot be counted: {error}")))?;
        let upkeep = metrics.clone();
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(UPKEEP);
            loop {
                ticks.tick().await;
                upkeep.0.run_upkeep();
            }
        });
        Ok(metrics)
    }
}

/// Everything is told to Prometheus.
#[cfg(not(feature = "otlp"))]
fn install(prometheus: PrometheusRecorder, _: &Telemetry) -> Result<(), String> {
    metrics::set_global_recorder(prometheus).map_err(|error| error.to_string())
}

/// Everything is told to Prometheus, and to a collector if there is one.
#[cfg(feature = "otlp")]
fn install(prometheus: PrometheusRecorder, telemetry: &Telemetry) -> Result<(), String> {
    let mut all = metrics_util::layers::FanoutBuilder::default().add_recorder(prometheus);
    if let Some(otlp) = &telemetry.otlp {
        all = all.add_recorder(otlp.recorder.clone());
    }
    metrics::set_global_recorder(all.build()).map_err(|error| error.to_string())
}

/// The dashboards of the databases there are.
pub(crate) struct Desks {
    access: Access,
    desks: Mutex<Vec<(String, Option<Router>)>>,
}

impl Desks {
    /// Of these databases.
    pub(crate) fn new(names: impl IntoIterator<Item = String>, access: Access) -> Arc<Self> {
        let desks = names.into_iter().map(|name| (name, None)).collect();
        Arc::new(Self {
            access,
            desks: Mutex::new(desks),
        })
    }

    /// Whether each has an address of its own.
    fn several(&self) -> bool {
        let desks = lock(&self.desks);
        desks.len() > 1
    }

    /// Shows a database's outbox from now on.
    pub(crate) fn open<DB: Backend>(&self, name: &str, outbox: Outbox<DB>) {
        let dashboard = Dashboard::new(outbox)
            .name(name)
            .access(self.access.clone());
        let mut desks = lock(&self.desks);
        let single = desks.len() == 1;
        if let Some((_, desk)) = desks.iter_mut().find(|(known, _)| known == name) {
            let router = dashboard.router();
            *desk = Some(match single {
                true => router,
                false => Router::new().nest(&format!("/{name}"), router),
            });
        }
    }

    /// The names, and which of them can be seen.
    fn names(&self) -> Vec<(String, bool)> {
        let desks = lock(&self.desks);
        let desks = desks.iter();
        desks
            .map(|(name, desk)| (name.clone(), desk.is_some()))
            .collect()
    }

    fn at(&self, path: &str) -> Option<Router> {
        let first = path.trim_start_matches('/').split('/').next();
        let desks = lock(&self.desks);
        let mut found = desks
            .iter()
            .filter(|(name, _)| desks.len() == 1 || Some(name.as_str()) == first);
        found.next().and_then(|(_, desk)| desk.clone())
    }
}

/// What there is to see: another with every reload.
#[derive(Clone)]
pub(crate) struct Shown {
    pub(crate) ready: Arc<Readiness>,
    pub(crate) desks: Option<Arc<Desks>>,
}

/// Refuses a dashboard for everybody that other machines can reach.
pub(crate) fn may_listen(access: &Access, listen: SocketAddr) -> Result<(), Failure> {
    if listen.ip().is_loopback() || access.asks() {
        return Ok(());
    }
    let message = format!("a dashboard on {listen} can be reached from other machines");
    Err(Failure::usage(message).way_out(
        "let it ask who comes, with --users FILE; or listen on 127.0.0.1, and get there with ssh -L",
    ))
}

/// What is served at one address.
#[derive(Clone)]
pub(crate) struct Server {
    metrics: Option<Metrics>,
    /// Who may see it, if not everybody who gets here.
    access: Option<Access>,
    /// Whether it is for this machine only, and asks nobody who they are.
    local: bool,
    shown: Arc<Mutex<Shown>>,
}

impl Server {
    /// For everybody who gets there.
    pub(crate) fn open(metrics: Option<Metrics>, shown: Shown) -> Self {
        Self {
            metrics,
            access: None,
            local: false,
            shown: Arc::new(Mutex::new(shown)),
        }
    }

    /// For those who may see the dashboards too. Beyond this machine nobody comes in without a secret.
    pub(crate) fn of_desks(
        metrics: Option<Metrics>,
        access: Access,
        listen: SocketAddr,
        shown: Shown,
    ) -> Result<Self, Failure> {
        may_listen(&access, listen)?;
        Ok(Self {
            // A proxy on this machine asks by the name that the world knows.
            local: listen.ip().is_loopback() && !access.asks(),
            access: Some(access),
            ..Self::open(metrics, shown)
        })
    }

    /// From now on this is what there is to see.
    pub(crate) fn show(&self, shown: Shown) {
        *lock(&self.shown) = shown;
    }

    fn shown(&self) -> Shown {
        lock(&self.shown).clone()
    }

    /// Whether somebody may see more than that it is there.
    fn admits(&self, headers: &HeaderMap, from: SocketAddr) -> bool {
        let access = self.access.as_ref();
        access.is_none_or(|access| access.admits(headers, Some(from.ip())))
    }

    /// Begins to serve. Answers the address, whose port may have been left to choose, and what serves.
    pub(crate) async fn start(
        self,
        listen: SocketAddr,
    ) -> Result<(SocketAddr, JoinHandle<()>), Failure> {
        let listener = TcpListener::bind(listen).await.map_err(|error| {
            Failure::usage(format!("cannot listen on {listen}: {error}"))
                .way_out("another port, or 0 for any that is free")
        })?;
        let address = listener.local_addr()?;
        let router = Router::new()
            .route("/healthz", get(healthz))
            .route("/readyz", get(readyz))
            .route("/metrics", get(scrape))
            .fallback(desk)
            .layer(middleware::from_fn_with_state(self.clone(), meant_for_us))
            .with_state(self);
        Ok((address, tokio::spawn(doorkeeper::serve(listener, router))))
    }
}

/// Turns away what was meant for another machine.
async fn meant_for_us(State(server): State<Server>, request: Request, next: Next) -> Response {
    if server.local && !is_for_loopback(request.headers()) {
        let why = "this is for this machine only: ask for it as localhost\n";
        return (StatusCode::MISDIRECTED_REQUEST, why).into_response();
    }
    next.run(request).await
}

fn turned_away() -> Response {
    let realm = [(header::WWW_AUTHENTICATE, r#"Basic realm="outbox""#)];
    (StatusCode::UNAUTHORIZED, realm, "who are you?\n").into_response()
}

/// The process turns. If it does not, nobody answers, and it should be started anew.
async fn healthz() -> &'static str {
    "ok\n"
}

/// Every database answers: it can do its work. Which, and what went wrong, is for those who may see it.
async fn readyz(
    State(server): State<Server>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
) -> Response {
    let (ready, mut told) = server.shown().ready.told();
    if !server.admits(&headers, from) {
        told = json!({ "ready": ready });
    }
    let status = match ready {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (status, kind, told.to_string()).into_response()
}

async fn scrape(
    State(server): State<Server>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
) -> Response {
    if !server.admits(&headers, from) {
        return turned_away();
    }
    let Some(Metrics(handle)) = server.metrics else {
        return (StatusCode::NOT_FOUND, "nothing is counted here\n").into_response();
    };
    let kind = [(
        header::CONTENT_TYPE,
        "text/plain; version=0.0.4; charset=utf-8",
    )];
    (kind, handle.render()).into_response()
}

async fn desk(
    State(server): State<Server>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    request: Request,
) -> Response {
    let Some(desks) = server.shown().desks else {
        let what = "there are /metrics, /healthz and /readyz; a dashboard was not asked for\n";
        return (StatusCode::NOT_FOUND, what).into_response();
    };
    let path = request.uri().path();
    if let Some(router) = desks.at(path) {
        // A database's overview is known without the slash at its end.
        if desks.several()
            && let Some(name) = path.strip_suffix('/')
            && name.rfind('/') == Some(0)
        {
            return Redirect::permanent(name).into_response();
        }
        return router.oneshot(request).await.into_response();
    }
    if !server.admits(request.headers(), from) {
        return turned_away();
    }
    let mut list = String::new();
    for (name, open) in desks.names() {
        // Names have no character that means something here.
        list.push_str(&match open {
            true => format!("<li><a href=\"/{name}\">{name}</a></li>"),
            false => format!("<li>{name}: its database does not answer yet</li>"),
        });
    }
    let page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>outbox</title>\
         <main><h1>Databases</h1><ul>{list}</ul></main></html>"
    );
    let status = match path {
        "/" => StatusCode::OK,
        _ => StatusCode::NOT_FOUND,
    };
    let policy = [(
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; frame-ancestors 'none'",
    )];
    (status, policy, Html(page)).into_response()
}
