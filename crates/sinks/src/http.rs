//! Webhooks: a POST per message, in order, as a CloudEvent. What a status means is in `verdict`.

mod caller;
mod cloud_event;
mod signature;

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use outbox::OutboxMessage;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{StatusCode, Url};
use tokio::net::TcpStream;

use crate::envelope;
use crate::error::SinkError;
use crate::settings::shows_only;
use crate::template::Template;
use crate::{Published, Refusal, Sink, lock};
use caller::Caller;
pub use cloud_event::CloudEventMode;
use signature::Secret;

/// What an endpoint answers is kept for the operator, up to here.
const EXCERPT: usize = 500;
/// Headers of a message that would change what the request is are not passed on.
const RESERVED: [&str; 15] = [
    "authorization",
    "connection",
    "cookie",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "idempotency-key",
    "keep-alive",
    "proxy-authorization",
    "te",
    "transfer-encoding",
    "trailer",
    "upgrade",
];

/// Posts each message to an endpoint, and waits for the answer before the next one.
///
/// | answer | what becomes of the message |
/// |---|---|
/// | 2xx | delivered |
/// | 413, 414 | dead letter: this message will never be taken |
/// | 400, 406, 411, 415, 422 | dead letter if another of its queue was taken since the start, again if not: then it may be the address, a key or the content type that is wrong |
/// | 429, 503 with `Retry-After` | again after that time, or when the lease ends if that is earlier |
/// | anything else, or none: 401, 404, 409, 410, 5xx, redirects, no connection | again, after a backoff |
///
/// So an endpoint that has moved, or lost its password, stops the partition and buries nothing.
#[derive(Clone)]
pub struct HttpSink {
    caller: Arc<Caller>,
    /// Where the host is.
    host: Url,
    url: Template,
    mode: CloudEventMode,
    source: Template,
    content_type: String,
    headers: HeaderMap,
    secret: Option<Secret>,
    timeout: Duration,
    /// The queues of which it has taken a message.
    proven: Arc<Mutex<HashSet<Arc<str>>>>,
}

/// Configures an [`HttpSink`].
#[derive(Clone)]
#[must_use = "call `build`"]
pub struct HttpSinkBuilder {
    url: String,
    mode: CloudEventMode,
    source: String,
    content_type: String,
    headers: Vec<(String, String)>,
    secret: Option<String>,
    root_certificates: Option<PathBuf>,
    timeout: Duration,
}

/// A URL's beginning up to its path, and the rest.
fn split_host(url: &str) -> (&str, &str) {
    let host = url.find("://").map_or(0, |scheme| scheme + 3);
    let path = url[host..].find(['/', '?', '#']);
    url.split_at(path.map_or(url.len(), |path| host + path))
}

shows_only! {
    HttpSinkBuilder { mode, timeout }
    HttpSink { mode }
}

impl HttpSink {
    /// Begins the configuration of a sink that posts to this URL, which may be a [`Template`].
    pub fn to(url: impl Into<String>) -> HttpSinkBuilder {
        HttpSinkBuilder {
            url: url.into(),
            mode: CloudEventMode::Binary,
            source: "/outbox/{queue}/{partition}".to_owned(),
            content_type: "application/json".to_owned(),
            headers: Vec::new(),
            secret: None,
            root_certificates: None,
            timeout: crate::TIMEOUT,
        }
    }
}

impl HttpSinkBuilder {
    /// How the message is put into the request. Default [`CloudEventMode::Binary`].
    pub fn mode(mut self, mode: CloudEventMode) -> Self {
        self.mode = mode;
        self
    }

    /// The event's `source`, which may be a [`Template`]. Default
    /// `/outbox/{queue}/{partition}`.
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = source.into();
        self
    }

    /// What payloads are, unless a message has a header `content-type`. Default `application/json`.
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = content_type.into();
        self
    }

    /// A header of every request, such as `Authorization`.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Signs every request as [Standard Webhooks](https://www.standardwebhooks.com) says. The secret is
    /// base64, with or without `whsec_` in front.
    pub fn signed_with(mut self, secret: impl Into<String>) -> Self {
        self.secret = Some(secret.into());
        self
    }

    /// A file of root certificates to trust instead of the system's. It is read once, when it is first needed.
    pub fn root_certificates(mut self, path: impl Into<PathBuf>) -> Self {
        self.root_certificates = Some(path.into());
        self
    }

    /// How long an answer may take. Default 10 s; the queue's lease should be longer.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The sink, or what is wrong with its configuration.
    pub fn build(self) -> Result<HttpSink, SinkError> {
        let invalid = SinkError::invalid;
        // Never the URL itself: it may hold a password, or be one.
        let known = ["http://", "https://"];
        if !known.iter().any(|scheme| self.url.starts_with(scheme)) {
            return Err(invalid("url", "…", "an http:// or https:// URL"));
        }
        // With placeholders only behind the host: no message may choose that. And before they are looked at: what is
        // wrong with one is said with its name, which might be a part of the password.
        let (host, path) = split_host(&self.url);
        let filled = path.replace(['{', '}'], "");
        let parsed = Url::parse(&format!("{host}{filled}")).ok();
        let Some(host) = parsed.filter(|_| !host.contains(['{', '}'])) else {
            let allowed = "a URL whose host is written out";
            return Err(invalid("url", "…", allowed));
        };
        let url: Template = self.url.parse().map_err(SinkError::without_template)?;
        if HeaderValue::try_from(&self.content_type).is_err() {
            let allowed = "visible ASCII characters";
            return Err(invalid("content_type", &self.content_type, allowed));
        }
        if self.timeout.is_zero() {
            return Err(invalid("timeout", "0", "longer than 0"));
        }
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            let allowed = "a header's name";
            let header =
                HeaderName::try_from(name).map_err(|_| invalid("header", name, allowed))?;
            // Not the value: it may be a password.
            let value = HeaderValue::try_from(value).map_err(|_| {
                invalid("header", name, "given a value of visible ASCII characters")
            })?;
            let mut value = value;
            value.set_sensitive(true);
            headers.insert(header, value);
        }
        let secret = self.secret.as_deref().map(Secret::parse).transpose()?;
        Ok(HttpSink {
            caller: Arc::new(Caller::new(self.timeout, self.root_certificates)),
            host,
            url,
            mode: self.mode,
            source: self.source.parse()?,
            content_type: self.content_type,
            headers,
            secret,
            timeout: self.timeout,
            proven: Arc::default(),
        })
    }
}

impl Sink for HttpSink {
    async fn publish(&self, messages: &[OutboxMessage]) -> Published {
        for (place, message) in messages.iter().enumerate() {
            if let Err(refusal) = self.post(message).await {
                return Published::until(place, refusal);
            }
        }
        Published::all(messages)
    }

    /// One at a time: requests that are under way together arrive in any order.
    fn window(&self) -> usize {
        1
    }

    /// Whether somebody listens there and, over TLS, is who they should be.
    async fn check(&self) -> Result<(), String> {
        let (host, port) = (self.host.host_str(), self.host.port_or_known_default());
        let (host, port) = (host.unwrap_or_default(), port.unwrap_or_default());
        // The colons of an IPv6 address stand in brackets.
        let connect = TcpStream::connect((host.trim_matches(['[', ']']), port));
        match tokio::time::timeout(self.timeout, connect).await {
            Ok(Ok(_)) if self.host.scheme() == "https" => self.shake_hands().await,
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(format!("{host}:{port}: {error}")),
            Err(_) => Err(format!("{host}:{port} does not answer")),
        }
    }
}

impl HttpSink {
    /// Asks for the root of the host, whatever it answers: a request to the endpoint would be a message.
    async fn shake_hands(&self) -> Result<(), String> {
        let mut root = self.host.clone();
        root.set_path("/");
        root.set_query(None);
        // It is none of the root's business. Who has no host has no password either.
        let _ = (root.set_username(""), root.set_password(None));
        let asked = self.caller.client()?.head(root.clone()).send().await;
        match asked {
            Err(error) if error.is_connect() || error.is_timeout() => {
                let host = root.authority();
                Err(format!("{host}: {}", causes(&error.without_url())))
            }
            _ => Ok(()),
        }
    }

    async fn post(&self, message: &OutboxMessage) -> Result<(), Refusal> {
        let url = address(&self.url, message)?;
        let source = self.source.fill(message).map_err(Refusal::never)?;
        let content_type = envelope::content_type(message).unwrap_or(&self.content_type);
        let (mut headers, body) = self.mode.encode(message, &source, content_type)?;
        headers.extend(passed_on(message));
        headers.insert("idempotency-key", visible(&message.identity())?);
        if let Some(secret) = &self.secret {
            headers.extend(secret.sign(&message.identity(), SystemTime::now(), &body)?);
        }
        headers.extend(self.headers.clone());
        let host = url.host_str().unwrap_or_default().to_owned();
        let client = self.caller.client().map_err(Refusal::later)?;
        let request = client.post(url).headers(headers).body(body);
        let answer = request.send().await.map_err(|error| {
            // Without the URL, which may hold a password.
            Refusal::later(format!("{host}: {}", causes(&error.without_url())))
        })?;
        let status = answer.status();
        if status.is_success() {
            lock(&self.proven).insert(Arc::clone(&message.queue));
            return Ok(());
        }
        let after = retry_after(answer.headers(), SystemTime::now());
        let proven = lock(&self.proven).contains(&message.queue);
        Err(verdict(status, after, &excerpt(answer).await, proven))
    }
}

/// The beginning of what an endpoint said, however much that is.
async fn excerpt(mut answer: reqwest::Response) -> String {
    let mut said = Vec::new();
    while said.len() < EXCERPT
        && let Ok(Some(more)) = answer.chunk().await
    {
        said.extend_from_slice(&more[..more.len().min(EXCERPT)]);
    }
    said.truncate(EXCERPT);
    String::from_utf8_lossy(&said).trim().to_owned()
}

/// An error and what caused it.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// What an answer that is no success means. Some are given to a wrong address, a wrong key or a wrong
/// content type as well: those bury a message only where others have been taken.
fn verdict(status: StatusCode, after: Option<Duration>, said: &str, proven: bool) -> Refusal {
    let reason = match said {
        "" => format!("the endpoint answered {status}"),
        said => format!("the endpoint answered {status}: {said}"),
    };
    match status.as_u16() {
        413 | 414 => Refusal::Never { reason },
        400 | 406 | 411 | 415 | 422 if proven => Refusal::Never { reason },
        _ => Refusal::Later { reason, after },
    }
}

/// Seconds, or a date.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?;
    if let Ok(seconds) = value.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

/// The headers of a message that a request can have.
fn passed_on(message: &OutboxMessage) -> HeaderMap {
    let header = |(name, value): (&String, &String)| {
        let name = HeaderName::try_from(name).ok()?;
        let own = ["ce-", "outbox-", "webhook-"]
            .iter()
            .any(|own| name.as_str().starts_with(own));
        let passed = !own && !RESERVED.contains(&name.as_str());
        Some((name, HeaderValue::try_from(value).ok()?)).filter(|_| passed)
    };
    message.headers.iter().filter_map(header).collect()
}

/// Where a message goes.
fn address(template: &Template, message: &OutboxMessage) -> Result<Url, Refusal> {
    let filled = template.fill_with(message, segment);
    let filled = filled.map_err(Refusal::never)?;
    // A segment of one or two dots means another place, however it is written.
    if dotted(&filled) > dotted(&template.sample()) {
        let problem = "its URL would have a segment of dots, which means another place";
        return Err(Refusal::never(problem));
    }
    // Without the URL, which may hold a password.
    Url::parse(&filled).map_err(|error| Refusal::never(format!("its URL: {error}")))
}

/// How many segments are one or two dots.
fn dotted(url: &str) -> usize {
    let written = url.replace("%2e", ".").replace("%2E", ".");
    let segments = written.split(['/', '\\', '?', '#']);
    segments
        .filter(|segment| matches!(*segment, "." | ".."))
        .count()
}

/// What comes from a message, as a part of one segment of a URL.
fn segment(text: &str) -> String {
    percent_encoded(text, |byte| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~' | b'.')
    })
}

/// Every byte that is not kept as `%` and its two digits.
fn percent_encoded(text: &str, keeps: impl Fn(u8) -> bool) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if keeps(byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// A header's value of what we made ourselves.
fn visible(text: &str) -> Result<HeaderValue, Refusal> {
    HeaderValue::try_from(text).map_err(|error| Refusal::never(format!("{text:?}: {error}")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Written as it should be, or with what should have been written otherwise. What ends the host is left out:
        /// nobody can tell that the rest was meant for a password.
        #[test]
        fn a_refused_url_keeps_its_password(
            scheme in "https?|[ -~]{0,6}",
            user in "[a-z]{0,4}|[ -\"$-.0->@-~]{0,4}",
            before in "[ -\"$-.0->@-~]{0,8}|[{]?",
            after in "[ -\"$-.0->@-~]{0,8}|[}]?",
            path in "/[a-z{}:]{0,12}",
        ) {
            let sink = HttpSink::to(format!("{scheme}://{user}:{before}s3cr3t{after}@h.example{path}"));
            if let Err(error) = sink.content_type("\n").build() {
                prop_assert!(!error.to_string().contains("s3cr3t"), "{}", error);
            }
        }
    }

    #[test]
    fn only_what_is_wrong_with_the_message_buries_it() {
        let judge =
            |status, proven| match verdict(StatusCode::from_u16(status).unwrap(), None, "", proven)
            {
                Refusal::Never { .. } => "never",
                Refusal::Later { .. } => "later",
            };
        let fate = |status| judge(status, true);
        for status in [400, 413, 415, 422] {
            assert_eq!(fate(status), "never", "{status}");
        }
        for (status, expected) in [
            (400, "later"),
            (415, "later"),
            (413, "never"),
            (422, "later"),
        ] {
            assert_eq!(judge(status, false), expected, "{status}");
        }
        for status in [
            301, 401, 403, 404, 405, 408, 409, 410, 412, 425, 429, 500, 502, 503,
        ] {
            assert_eq!(fate(status), "later", "{status}");
        }
    }

    #[test]
    fn a_key_stays_in_its_segment() {
        assert_eq!(segment("a.b-1"), "a.b-1");
        assert_eq!(segment("../x?y#z"), "..%2Fx%3Fy%23z");
        let template: Template = "https://x/tenants/{key}/orders".parse().unwrap();
        let at = |key: &str| {
            let mut message = outbox::testing::message("body", "t");
            message.key = Some(key.to_owned());
            address(&template, &message).map(|url| url.path().to_owned())
        };
        assert_eq!(at("../x").unwrap(), "/tenants/..%2Fx/orders");
        assert_eq!(at("...").unwrap(), "/tenants/.../orders");
        for dots in [".", ".."] {
            let refused = at(dots).unwrap_err();
            assert!(matches!(refused, Refusal::Never { .. }), "{refused:?}");
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let wait = |value: &'static str| {
            let headers = [(RETRY_AFTER, HeaderValue::from_static(value))];
            let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
            retry_after(&headers.into_iter().collect(), now)
        };
        assert_eq!(wait("120"), Some(Duration::from_secs(120)));
        assert_eq!(
            wait("Sun, 06 Nov 1994 08:50:37 GMT"),
            Some(Duration::from_secs(60))
        );
        assert_eq!(wait("Sun, 06 Nov 1994 08:48:37 GMT"), Some(Duration::ZERO));
        assert_eq!(wait("soon"), None);
    }

    #[test]
    fn a_wrong_configuration_is_named() {
        let refused = |builder: HttpSinkBuilder| builder.build().unwrap_err().to_string();
        assert_eq!(
            refused(HttpSink::to("ftp://x")),
            "url is \"…\", but must be an http:// or https:// URL"
        );
        for url in ["http://{key}.example/", "http://host:99999/x"] {
            assert!(
                refused(HttpSink::to(url)).contains("host is written out"),
                "{url}"
            );
        }
        assert!(refused(HttpSink::to("http://x").content_type("a\nb")).contains("content_type"));
        let secret = refused(HttpSink::to("http://x").signed_with("$$$"));
        assert!(
            secret.contains("secret") && !secret.contains("$$$"),
            "{secret}"
        );
        let header = refused(HttpSink::to("http://x").header("X-Token", "a\nb"));
        assert!(
            header.contains("X-Token") && !header.contains("a\nb"),
            "{header}"
        );
    }
}
