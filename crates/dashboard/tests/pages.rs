//! The pages over a real outbox, in SQLite: what they show, to whom, and what their forms do.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod site;

use axum::http::StatusCode;
use outbox::DeadLetterFilter;
use outbox_dashboard::{Access, Identity, Rights};
use site::{ALL, Site};

#[tokio::test]
async fn every_page_shows_what_there_is() {
    let site = Site::open(Access::everybody(ALL)).await;
    for (path, texts) in [
        (
            "/",
            &[
                "orders",
                "What needs attention",
                "Throughput",
                "partition 1 of orders has failed",
            ][..],
        ),
        ("/queues/orders", &["✕ fails", "‖ paused", "orders/3"][..2]),
        (
            "/queues/orders/1",
            &[
                "What is in its way",
                "the handler asked for a retry",
                "Skip message 1",
            ],
        ),
        ("/queues/orders/2", &["Somebody paused it", "Resume"]),
        ("/queues/orders/3", &["Nothing waits here."]),
        (
            "/messages?queue=orders&partition=2",
            &["customer-2", "4bf92f3577b34da6a3ce929d0e0e4736"],
        ),
        (
            "/messages?queue=orders&key=customer-2",
            &["Messages of this key are in partition"],
        ),
        (
            "/messages/orders/2/1",
            &["&#34;amount&#34;: 7", "traceparent", "hex"],
        ),
        ("/messages/orders/2/1?view=hex", &["00000000  7b 22"]),
        ("/dead-letters", &["rejected: no such address", "orders/0"]),
        ("/dead-letters?search=ADDRESS", &["no such address"]),
        (
            "/dead-letters?search=nowhere-to-be-found",
            &["None waits for a decision with this filter"],
        ),
        ("/dead-letters/1", &["rejected: no such address", "Requeue"]),
        ("/workers", &[env!("CARGO_PKG_VERSION"), "orders"]),
        ("/health", &["failing", "Fine"]),
        ("/audit", &["Nothing was done by hand yet"]),
        ("/jobs", &["None since this dashboard was started"]),
    ] {
        for text in texts {
            site.until(path, text).await;
        }
    }
    for (path, text) in [
        ("/nowhere", "there is no such page"),
        ("/queues/orders/x", "there is no such page"),
        ("/dead-letters/abc", "there is no such page"),
        ("/queues/mail", "there is no queue"),
        ("/queues/orders/64", "has no partition 64"),
        ("/messages/orders/0/99", "does not wait"),
        ("/dead-letters/99", "there is no dead letter 99"),
        ("/jobs/7", "there is no job 7"),
    ] {
        let (status, _, body) = site.get(path).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
        assert!(body.contains(text), "{path}: {body}");
    }
    for path in [
        "/dead-letters?status=odd",
        "/dead-letters?partition=x",
        "/messages?partition=-1",
    ] {
        assert_eq!(site.get(path).await.0, StatusCode::BAD_REQUEST, "{path}");
    }
    site.close().await;
}

#[tokio::test]
async fn without_rights_nothing_is_done_and_no_payload_shown() {
    let site = Site::open(Access::everybody(Rights::LOOK)).await;
    site.until("/queues/orders/2", "Somebody paused it").await;
    site.until("/messages/orders/2/1", "Message 1").await;
    site.until("/dead-letters/1", "no such address").await;
    for path in [
        "/",
        "/queues/orders",
        "/queues/orders/1",
        "/queues/orders/2",
        "/messages?queue=orders&partition=2",
        "/messages/orders/2/1",
        "/dead-letters",
        "/dead-letters/1",
    ] {
        let (status, _, body) = site.get(path).await;
        assert_eq!(status, StatusCode::OK, "{path}");
        assert!(
            !body.contains("method=\"post\"") || path == "/dead-letters",
            "{path}"
        );
        assert!(!body.contains("<button name=\"decision\""), "{path}");
        for secret in ["amount", "customer-2", "traceparent", "nobody must see"] {
            assert!(!body.contains(secret), "{path} shows {secret}");
        }
    }
    let (status, _, _) = site.get("/messages?queue=orders&key=customer-2").await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    for path in [
        "/queues/orders/pause",
        "/queues/orders/1/skip",
        "/dead-letters/decide",
        "/jobs/1/stop",
    ] {
        let (status, _, body) = site
            .post(path, "reason=x&message=1&id=1&decision=discard")
            .await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{path}");
        assert!(body.contains("read-only"), "{path}: {body}");
    }
    assert!(site.outbox().audit_log(None, 1).await.unwrap().is_empty());
    site.close().await;
}

#[tokio::test]
async fn who_has_no_secret_is_not_let_in() {
    let access = Access::nobody().user("ada", "a long secret", ALL).unwrap();
    let site = Site::open(access).await;
    for path in [
        "/",
        "/style.css",
        "/live.js",
        "/events",
        "/dead-letters",
        "/nowhere",
    ] {
        let (status, headers, _) = site.get(path).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{path}");
        assert!(headers.contains_key("www-authenticate"), "{path}");
    }
    let (status, _, _) = site.post("/queues/orders/pause", "").await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    let (status, ..) = site.get_as("Bearer a long secret", "/").await;
    assert_eq!(status, StatusCode::OK);
    // Whoever goes on guessing is not listened to any more, not even with the right one.
    for _ in 0..20 {
        site.get_as("Bearer a wrong secret", "/").await;
    }
    let (status, ..) = site.get_as("Bearer a long secret", "/").await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    site.close().await;
}

#[tokio::test]
async fn only_a_form_of_this_dashboard_does_anything() {
    let site = Site::open(Access::everybody(ALL)).await;
    let (status, _, body) = site.post("/queues/orders/pause", "seal=forged").await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(body.contains("out of date"), "{body}");
    let seal = site.seal().await;
    let form = format!("seal={seal}");
    for (name, value) in [
        ("sec-fetch-site", "cross-site"),
        ("origin", "https://evil.example"),
    ] {
        let headers = [("host", "localhost"), (name, value)];
        let sent = site.post_with("/queues/orders/pause", &form, &headers);
        assert_eq!(sent.await.0, StatusCode::FORBIDDEN, "{name}");
    }
    let large = format!("{form}&reason={}", "x".repeat(300 * 1024));
    let (status, ..) = site.post("/queues/orders/pause", &large).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(!site.outbox().stats().await.unwrap()[3].paused);
    let (status, ..) = site.post("/queues/orders/pause", &form).await;
    assert_eq!(status, StatusCode::SEE_OTHER);
    assert!(site.outbox().stats().await.unwrap()[3].paused);
    site.close().await;
}

#[tokio::test]
async fn what_is_done_is_written_down_with_who_and_why() {
    let access = Access::everybody(Rights::LOOK);
    let site = Site::open_as(
        access,
        Identity {
            name: "grace".to_owned(),
            rights: ALL,
        },
    );
    let site = site.await;
    let seal = site.seal().await;
    let act = async |path: &str, form: &str| {
        let (status, headers, body) = site.post(path, &format!("seal={seal}&{form}")).await;
        assert_eq!(status, StatusCode::SEE_OTHER, "{path}: {body}");
        headers["location"].to_str().unwrap().to_owned()
    };
    let went = act("/queues/orders/resume", "partition=2&reason=repaired").await;
    assert_eq!(went, "/queues/orders/2?done=resumed");
    site.until("/queues/orders/2", "Nothing waits here.").await;

    let stuck = site.outbox().peek("orders", 1, None, 1).await.unwrap();
    let form = format!("message={}&reason=hopeless", stuck[0].id);
    let went = act("/queues/orders/1/skip", &form).await;
    assert_eq!(went, "/queues/orders/1?done=skipped");
    site.until("/dead-letters", "skipped by grace: hopeless")
        .await;
    let skipped = DeadLetterFilter::new().payload_type("stuck");
    let skipped = site.outbox().dead_letter_list(&skipped).await.unwrap();
    let error = "it had failed: the handler asked for a retry";
    assert!(skipped[0].last_error.contains(error), "{skipped:?}");
    // It is not the first any more: nothing else is skipped in its place.
    let went = act("/queues/orders/1/skip", &form).await;
    assert_eq!(went, "/queues/orders/1?done=gone");

    let went = act(
        "/dead-letters/decide",
        "id=1&decision=discard&reason=a+test",
    )
    .await;
    site.until(&went, "<strong>done</strong>").await;
    site.until("/dead-letters?status=discarded", "no such address")
        .await;
    for (form, why) in [
        ("id=1&decision=discard", "needs a reason"),
        ("decision=requeue", "no dead letter is selected"),
        ("id=1&decision=burn&reason=x", "is no decision"),
        ("id=one&decision=requeue", "is a number"),
        (
            "scope=all&search=x&decision=requeue",
            "a search cannot be decided",
        ),
        (
            "scope=all&status=resolved&decision=requeue",
            "resolved ones cannot be decided",
        ),
    ] {
        let (status, _, body) = site
            .post("/dead-letters/decide", &format!("seal={seal}&{form}"))
            .await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{form}");
        assert!(body.contains(why), "{form}: {body}");
    }

    let log = site.outbox().audit_log(None, 20).await.unwrap();
    assert!(log.iter().all(|entry| entry.actor == "grace"));
    let told: Vec<_> = log
        .iter()
        .rev()
        .map(|entry| (&*entry.action, &*entry.reason))
        .collect();
    assert_eq!(
        told,
        [
            ("resume", "repaired"),
            ("skip", "hopeless"),
            ("skip", "hopeless"),
            ("end", "it was not the first any more: nothing was done"),
            ("discard", "a test"),
            ("end", "1 discarded, 0 not pending any more, of 1"),
        ]
    );
    site.until("/audit", "hopeless").await;
    site.close().await;
}

#[tokio::test]
async fn many_dead_letters_are_decided_in_the_order_in_which_they_failed() {
    let site = Site::open(Access::everybody(ALL)).await;
    site.bury(1_200).await;
    let seal = site.seal().await;
    let form = format!("seal={seal}&scope=all&queue=orders&type=again&decision=requeue");
    let (status, headers, body) = site.post("/dead-letters/decide", &form).await;
    assert_eq!(status, StatusCode::SEE_OTHER, "{body}");
    let job = headers["location"].to_str().unwrap();
    site.until(job, "<strong>done</strong>").await;
    site.until(job, "1\u{202f}200 of 1\u{202f}200").await;
    let pending = DeadLetterFilter::new().payload_type("again");
    let pending = pending.status(outbox::DeadLetterStatus::Pending);
    assert_eq!(site.outbox().dead_letter_count(&pending).await.unwrap(), 0);
    let resolved = DeadLetterFilter::new().payload_type("again").limit(5_000);
    let resolved = site.outbox().dead_letter_list(&resolved).await.unwrap();
    let again: Vec<_> = resolved.iter().filter_map(|one| one.requeued_as).collect();
    assert_eq!(again.len(), 1_200);
    assert!(again.is_sorted_by(|one, next| one > next), "newest first");
    site.close().await;
}

#[tokio::test]
async fn hostile_text_stays_text() {
    let site = Site::open(Access::everybody(ALL)).await;
    site.enqueue(3, "<script>alert(1)</script>", "reject").await;
    site.until("/dead-letters", "&#60;b&#62;not bold&#60;/b&#62;")
        .await;
    for path in [
        "/dead-letters",
        "/dead-letters/2",
        "/messages?queue=orders&partition=%3Cscript%3E",
        "/dead-letters?search=%3Cscript%3E",
        "/queues/%3Cscript%3E",
        "/?done=%3Cscript%3E",
    ] {
        let (_, headers, body) = site.get(path).await;
        assert!(!body.contains("<script>"), "{path}: {body}");
        assert!(!body.contains("<b>not bold"), "{path}: {body}");
        let policy = headers["content-security-policy"].to_str().unwrap();
        assert!(policy.contains("default-src 'none'"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(headers["cache-control"], "no-store", "{path}");
        assert_eq!(headers["x-content-type-options"], "nosniff", "{path}");
    }
    // Nothing is inline, or the policy would break it.
    let (_, _, body) = site.get("/queues/orders").await;
    assert!(!body.contains(" style=") && !body.contains(" onclick="));
    site.close().await;
}

#[tokio::test]
async fn it_can_be_part_of_an_application() {
    let site = Site::open_at("/ops/outbox", Access::everybody(ALL)).await;
    site.until("/ops/outbox", "What needs attention").await;
    let (_, _, body) = site.get("/ops/outbox/queues/orders").await;
    for link in ["href=\"/", "action=\"/", "src=\"/"] {
        let all = body.matches(link).count();
        let ours = body.matches(&format!("{link}ops/outbox")).count();
        assert_eq!(all, ours, "{link}");
    }
    assert!(body.contains("data-base=\"/ops/outbox\""));
    let seal = site.seal_at("/ops/outbox/queues/orders").await;
    let (status, headers, _) = site
        .post("/ops/outbox/queues/orders/pause", &format!("seal={seal}"))
        .await;
    assert_eq!(status, StatusCode::SEE_OTHER);
    assert_eq!(headers["location"], "/ops/outbox/queues/orders?done=paused");
    site.close().await;
}

#[tokio::test]
async fn a_resume_says_what_came_of_it() {
    let site = Site::open(Access::everybody(ALL)).await;
    let seal = site.seal().await;
    let act = async |action: &str, more: &str| {
        let path = format!("/queues/orders/{action}");
        let (_, headers, body) = site.post(&path, &format!("seal={seal}{more}")).await;
        let location = headers.get("location").unwrap_or_else(|| panic!("{body}"));
        location.to_str().unwrap().to_owned()
    };
    act("pause", "").await;
    let went = act("resume", "&partition=3").await;
    assert_eq!(went, "/queues/orders/3?done=still-paused");
    site.until(&went, "It stays paused").await;
    let went = act("resume", "").await;
    assert_eq!(went, "/queues/orders?done=resumed");
    let stats = site.outbox().stats().await.unwrap();
    assert!(
        stats.iter().all(|one| !one.paused),
        "also the one by itself"
    );
    let (status, ..) = site
        .post("/queues/orders/pause", &format!("seal={seal}&partition=4"))
        .await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    site.close().await;
}

#[tokio::test]
async fn a_queue_that_is_made_meanwhile_shows() {
    let site = Site::open(Access::everybody(ALL)).await;
    site.until("/", "orders").await;
    let (status, ..) = site.get("/queues/mail").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    site.make_queue("mail").await;
    site.until("/", "/queues/mail").await;
    site.until("/queues/mail", "Partitions").await;
    site.until("/queues/orders", "✕ fails").await;
    site.close().await;
}

#[tokio::test]
async fn a_local_dashboard_is_nobody_elses() {
    let site = Site::open_local().await;
    for (host, status) in [
        ("localhost:8080", StatusCode::OK),
        ("127.0.0.1:8080", StatusCode::OK),
        ("rebound.example", StatusCode::MISDIRECTED_REQUEST),
    ] {
        let (found, ..) = site.get_with("/", &[("host", host)]).await;
        assert_eq!(found, status, "{host}");
    }
    site.close().await;
}

#[tokio::test]
async fn a_database_that_is_away_is_said() {
    let site = Site::open(Access::everybody(ALL)).await;
    site.until("/", "partition 1 of orders has failed").await;
    site.cut_off().await;
    site.until("/", "The database has not answered since").await;
    // What was known stays.
    site.until("/", "partition 1 of orders has failed").await;
    let (status, _, body) = site.get("/dead-letters").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{body}");
}
