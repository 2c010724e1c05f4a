//! What becomes of dead letters, on every database: those that are given up, tried again in vain, and deleted.

use outbox::Backend;
use serde_json::{Value, json};

use crate::command::{Command, on_every_database};
use crate::operations::{sum, until, worker};

on_every_database!(
    a_letter_is_discarded_or_rejected_again_and_deleted_when_it_has_ended,
    a_repair_is_asked_for_and_written_down,
);

/// The letters there are, newest first.
fn letters<DB>(command: &Command<DB>) -> Vec<Value> {
    command
        .run(&["dead-letters", "list", "--json"])
        .json_lines()
}

async fn a_letter_is_discarded_or_rejected_again_and_deleted_when_it_has_ended<DB: Backend>(
    command: &Command<DB>,
) {
    command.run(&["migrate", "up"]).succeeds();
    let worker = worker::<DB>(&command.url).await;
    for payload in ["first", "second", "third"] {
        let enqueue = ["enqueue", "orders", payload, "--partition", "2"];
        command
            .run(&[&enqueue[..], &["--type", "poison"]].concat())
            .succeeds();
    }
    until(command, "all are buried", |all| {
        sum(all, "dead_letters") == 3
    })
    .await;
    worker.stop().await;
    let there = letters(command);
    let [third, second, first] = [0, 1, 2].map(|place| there[place]["id"].to_string());
    let payloads: Vec<_> = there.iter().map(|letter| &letter["payload"]).collect();
    assert_eq!(json!(payloads), json!(["third", "second", "first"]));

    // Nobody is there to be asked.
    let discard = ["dead-letters", "discard", &first, "--reason", "a test"];
    let asked = command.run(&discard).fails(2);
    assert!(asked.contains("discard 1 dead letters? "), "{asked}");
    let dry = command.run(&[&discard[..], &["--dry-run"]].concat());
    assert!(dry.succeeds().contains("it is poison"), "{dry:?}");
    let dry = command.run(&[&discard[..], &["--dry-run", "--json"]].concat());
    assert_eq!(dry.json()["payload"], "first");
    let done = command.run(&[&discard[..], &["--yes"]].concat());
    assert_eq!(done.succeeds(), "1 discarded\n");
    let again = command.run(&[&discard[..], &["--yes"]].concat()).fails(5);
    assert!(again.contains(&format!("{first} is discarded")), "{again}");

    let replay = ["dead-letters", "replay", "--dry-run"];
    let dry = command.run(&replay).succeeds();
    assert_eq!(dry, "2 would be claimed\n");
    let short = ["dead-letters", "replay", "--limit", "1", "--for", "1ms"];
    command.run(&short).succeeds();
    let dry = command.run(&[&replay[..], &["--json"]].concat()).json();
    assert_eq!(dry, json!({ "would_claim": 2 }), "a claim has run out");
    let claimed = command.run(&["dead-letters", "replay", "--limit", "1", "--json"]);
    let claimed = claimed.json();
    assert_eq!(claimed["id"].to_string(), second, "the oldest that waits");
    let token = claimed["claim_token"].as_str().unwrap();
    let reject = |token| {
        let reject = ["dead-letters", "reject", &*second, "--token", token];
        command.run(&[&reject[..], &["--reason", "still no address"]].concat())
    };
    let refused = reject("another's").fails(5);
    let expected = format!("{second} is reprocessing");
    assert!(refused.contains(&expected), "{refused}");
    assert_eq!(reject(token).succeeds(), "1 rejected\n");
    let show = command.run(&["dead-letters", "show", &second, "--json"]);
    let rejected = show.json();
    assert_eq!(
        json!([rejected["status"], rejected["last_error"]]),
        json!(["pending", "still no address"])
    );
    let requeued = command.run(&["dead-letters", "requeue", &third]);
    assert_eq!(requeued.succeeds(), "1 requeued\n");

    // Two have ended; whoever is asked is told how many it is about, and so is whoever tries.
    let cleanup = |more: &[&str]| command.run(&[&["dead-letters", "cleanup"], more].concat());
    let dry = cleanup(&["--dry-run"]).succeeds();
    assert_eq!(dry, "2 would be deleted\n");
    let dry = cleanup(&["--dry-run", "--limit", "1"]).succeeds();
    assert_eq!(dry, "1 of 2 would be deleted: --limit is 1\n");
    let dry = cleanup(&["--dry-run", "--type", "fine", "--json"]).json();
    assert_eq!(dry, json!({ "would_delete": 0, "of": 0 }));
    let asked = cleanup(&["--limit", "1"]).fails(2);
    let question = "delete 1 of 2 dead letters that were resolved or discarded? ";
    assert!(asked.contains(question), "{asked}");
    let asked = cleanup(&[]).fails(2);
    assert!(asked.contains("delete 2 dead letters that"), "{asked}");
    assert_eq!(letters(command).len(), 3, "nobody has said yes");
    let done = cleanup(&["--limit", "1", "--yes", "--json"]).json();
    assert_eq!(done, json!({ "deleted": 1, "maybe_more": true }));
    assert_eq!(cleanup(&["--yes"]).succeeds(), "1 deleted\n");
    let done = cleanup(&["--json"]).json();
    let nothing = json!({ "deleted": 0, "maybe_more": false });
    assert_eq!(done, nothing, "nobody is asked about nothing");
    let left = letters(command);
    assert_eq!(json!([left[0]["id"]]), json!([rejected["id"]]));
    assert_eq!(left.len(), 1);
}

async fn a_repair_is_asked_for_and_written_down<DB: Backend>(command: &Command<DB>) {
    command.run(&["migrate", "up"]).succeeds();
    let asked = command.run(&["repair"]).fails(2);
    assert!(asked.contains("was this database restored"), "{asked}");
    let repaired = command.run(&["repair", "--yes"]).succeeds();
    assert_eq!(repaired, "nothing had to be repaired\n");
    let repaired = command.run(&["repair", "--yes", "--json"]).json();
    assert_eq!(repaired, json!({ "repaired": 0 }));
    let done = command.run(&["audit", "--json"]).json_lines();
    let done: Vec<_> = done.iter().map(|entry| &entry["action"]).collect();
    assert_eq!(json!(done), json!(["repair", "repair"]));
}
