//! What happens to every request before a page sees it, and to every answer after.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::Office;
use crate::access::{Identity, Stranger};

/// Nothing from elsewhere, nothing inline, nobody around it.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

const ON_EVERY_ANSWER: [(HeaderName, &str); 5] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
];

pub(crate) async fn guard(
    State(office): State<Arc<Office>>,
    mut request: Request,
    next: Next,
) -> Response {
    let mut response = match admit(&office, &mut request) {
        Ok(()) => next.run(request).await,
        Err(turned_away) => turned_away.into_response(),
    };
    let headers = response.headers_mut();
    for (name, value) in ON_EVERY_ANSWER {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // Payloads and names are nobody's to keep.
    let kept = HeaderValue::from_static("no-store");
    headers.entry(header::CACHE_CONTROL).or_insert(kept);
    response
}

/// Somebody who is not let in, and is told why.
struct TurnedAway(StatusCode, &'static str);

impl IntoResponse for TurnedAway {
    fn into_response(self) -> Response {
        let Self(status, why) = self;
        let mut response = (status, format!("{why}\n")).into_response();
        if status == StatusCode::UNAUTHORIZED {
            let realm = r#"Basic realm="outbox", charset="UTF-8""#;
            let headers = response.headers_mut();
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(realm));
        }
        response
    }
}

fn admit(office: &Office, request: &mut Request) -> Result<(), TurnedAway> {
    if office.local && !is_for_loopback(request.headers()) {
        return Err(TurnedAway(
            StatusCode::MISDIRECTED_REQUEST,
            "this dashboard is for this machine only: ask for it as localhost",
        ));
    }
    if is_pulled(request.headers()) {
        return Err(TurnedAway(
            StatusCode::FORBIDDEN,
            "another site may link to this one, and nothing else",
        ));
    }
    if request.method() == Method::POST && !is_from_here(request.headers()) {
        return Err(TurnedAway(
            StatusCode::FORBIDDEN,
            "another site may not fill in the forms of this one",
        ));
    }
    // An application that knows its users has said who it is.
    if request.extensions().get::<Identity>().is_none() {
        let from = request.extensions().get::<ConnectInfo<SocketAddr>>();
        let from = from.map(|ConnectInfo(address)| address.ip());
        let identity = office.access.identify(request.headers(), from);
        let identity = identity.map_err(|stranger| match stranger {
            Stranger::Silent | Stranger::Wrong => {
                TurnedAway(StatusCode::UNAUTHORIZED, "who are you?")
            }
            Stranger::Unheard => TurnedAway(
                StatusCode::TOO_MANY_REQUESTS,
                "too many wrong secrets within a minute: wait a moment",
            ),
        })?;
        request.extensions_mut().insert(identity);
    }
    Ok(())
}

/// Whether another site makes the browser ask, without leading its user here.
fn is_pulled(headers: &HeaderMap) -> bool {
    let is = |name: &str, value: &str| headers.get(name).is_some_and(|found| found == value);
    is("sec-fetch-site", "cross-site") && !is("sec-fetch-mode", "navigate")
}

/// Whether whoever asked meant this machine, and not a name that somebody made point here.
pub fn is_for_loopback(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST) else {
        return true;
    };
    let Ok(host) = host.to_str() else {
        return false;
    };
    let name = match host.strip_prefix('[') {
        Some(address) => address.split(']').next().unwrap_or(address),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name
            .parse()
            .is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

/// Whether a form was sent by a page of ours, as far as the browser says.
fn is_from_here(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(site) = text("sec-fetch-site") {
        return matches!(site, "same-origin" | "none");
    }
    match (text("origin"), text("host")) {
        (Some(origin), Some(host)) => {
            let origin = origin.split_once("://").map_or(origin, |(_, host)| host);
            origin.eq_ignore_ascii_case(host)
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn only_names_of_this_machine_are_of_this_machine() {
        for good in [
            "localhost",
            "LOCALHOST:8080",
            "127.0.0.1:1",
            "[::1]:8080",
            "[::1]",
        ] {
            assert!(is_for_loopback(&headers(&[("host", good)])), "{good}");
        }
        for bad in ["evil.example", "localhost.evil.example", "10.0.0.1:80", ""] {
            assert!(!is_for_loopback(&headers(&[("host", bad)])), "{bad}");
        }
    }

    #[test]
    fn another_site_may_only_lead_here() {
        let cross = ("sec-fetch-site", "cross-site");
        assert!(is_pulled(&headers(&[cross, ("sec-fetch-mode", "no-cors")])));
        assert!(!is_pulled(&headers(&[
            cross,
            ("sec-fetch-mode", "navigate")
        ])));
        assert!(!is_pulled(&headers(&[("sec-fetch-site", "same-origin")])));
        assert!(!is_pulled(&headers(&[])));
    }

    #[test]
    fn another_site_cannot_fill_in_a_form() {
        let host = ("host", "localhost:8080");
        for (good, more) in [
            ("origin", "http://localhost:8080"),
            ("sec-fetch-site", "same-origin"),
            ("accept", "*/*"),
        ] {
            assert!(is_from_here(&headers(&[host, (good, more)])), "{more}");
        }
        for (bad, more) in [
            ("origin", "http://evil.example"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            assert!(!is_from_here(&headers(&[host, (bad, more)])), "{more}");
        }
    }
}
