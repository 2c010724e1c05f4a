//! What a page needs beside itself, from the binary.

use axum::http::header;
use axum::response::IntoResponse;

const STYLE: &str = include_str!("../assets/style.css");
const SCRIPT: &str = include_str!("../assets/live.js");
const ICON: &str = include_str!("../assets/icon.svg");

/// Kept by the browser for an hour: their address changes with the version.
const KEPT: &str = "public, max-age=3600";

pub(crate) async fn style() -> impl IntoResponse {
    file("text/css; charset=utf-8", STYLE)
}

pub(crate) async fn script() -> impl IntoResponse {
    file("text/javascript; charset=utf-8", SCRIPT)
}

pub(crate) async fn icon() -> impl IntoResponse {
    file("image/svg+xml", ICON)
}

fn file(kind: &'static str, content: &'static str) -> impl IntoResponse {
    let headers = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, KEPT)];
    (headers, content)
}
