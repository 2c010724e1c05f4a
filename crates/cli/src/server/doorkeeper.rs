//! Lets in whoever comes over HTTP, and keeps out those who only stand in the door: the same process has
//! messages to deliver, and needs its connections for that.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tower::ServiceExt as _;

/// How many connections there are at once. Who comes then waits for one to end.
const CONNECTIONS: usize = 256;
/// How long somebody may take to say what they want, from when they come and from their last answer on.
const ASKS_WITHIN: Duration = Duration::from_secs(10);
/// How long to wait when nobody can be let in, as when there are too many open files.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Serves whoever comes, for ever.
pub(super) async fn serve(listener: TcpListener, router: Router) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "nobody can be served for a moment");
                tokio::time::sleep(TRY_AGAIN).await;
                continue;
            }
        };
        let service = router
            .clone()
            .map_request(move |request| with_origin(request, from));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(ASKS_WITHIN)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, %from, "a connection ended early");
            }
            drop(place);
        });
    }
}

fn with_origin(request: hyper::Request<Incoming>, from: SocketAddr) -> Request {
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(ConnectInfo(from));
    request
}
