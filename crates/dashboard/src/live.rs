//! Tells browsers that there is something new to see. What it is, they ask for like anybody else.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::{Stream, stream};

use crate::Office;

/// How long a browser waits before it asks again after a connection broke.
const AGAIN: Duration = Duration::from_secs(2);

pub(crate) async fn events(
    State(office): State<Arc<Office>>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, StatusCode> {
    let place = office
        .limits
        .stream()
        .ok_or(StatusCode::SERVICE_UNAVAILABLE)?;
    // Not the office: a browser that listens must not keep the watch from its end.
    let looks = office.watch.looks();
    drop(office);
    let events = stream::unfold((looks, place), async |(mut looks, place)| {
        looks.changed().await.ok()?;
        let look = looks.borrow_and_update().to_string();
        let event = Event::default().event("look").data(look).retry(AGAIN);
        Some((Ok(event), (looks, place)))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}
