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
    use std::net::{IpAddr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    fn is_of_this_machine(host: &[u8]) -> Option<bool> {
        // What is no value of a header does not get here.
        let host = HeaderValue::from_bytes(host).ok()?;
        let headers = HeaderMap::from_iter([(header::HOST, host)]);
        Some(is_for_loopback(&headers))
    }

    proptest! {
        #[test]
        fn an_address_is_of_this_machine_if_it_is_its_loopback(
            address in prop_oneof![
                any::<IpAddr>(),
                any::<[u8; 3]>().prop_map(|[b, c, d]| IpAddr::from([127, b, c, d])),
                Just(IpAddr::from(Ipv6Addr::LOCALHOST)),
            ],
            port in any::<u16>(),
        ) {
            let with_port = SocketAddr::new(address, port).to_string();
            let without = match address {
                IpAddr::V4(address) => address.to_string(),
                IpAddr::V6(address) => format!("[{address}]"),
            };
            for host in [with_port, without] {
                let ours = is_of_this_machine(host.as_bytes());
                prop_assert_eq!(ours, Some(address.is_loopback()), "{}", host);
            }
        }

        /// Another site chooses its name.
        #[test]
        fn no_other_name_is_of_this_machine(
            name in "[a-z.-]{0,5}(localhost|127[.]0[.]0[.]1|::1)[a-z.-]{0,5}",
            port in "(:[0-9]{0,6})?",
            bytes in any::<Vec<u8>>(),
        ) {
            let ours = ["localhost", "127.0.0.1"].contains(&&*name);
            let said = is_of_this_machine(format!("{name}{port}").as_bytes());
            prop_assert!(said == Some(ours) || name == "::1", "{}", name);
            prop_assert_ne!(is_of_this_machine(&bytes), Some(true));
        }
    }

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
