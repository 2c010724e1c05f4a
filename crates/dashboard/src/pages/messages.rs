//! Messages that wait: by number, or by key.

use askama::Template;
use axum::http::StatusCode;
use outbox::{OutboxError, OutboxMessage, Partitions};

use super::{Frame, Path, Refused, Shown, Visit, rendered};
use crate::form;
use crate::payload::{self, Shown as Payload};
use crate::words;

/// Messages on a page.
const PAGE: usize = 25;
/// How far a search for a key goes.
const SEARCHED: usize = 1_000;
/// How many bytes of payload are read at once, about.
const AT_ONCE: usize = 4 * 1024 * 1024;

/// A message as it is shown: without the right to see inside, only that it is there.
pub(crate) struct Told {
    pub(crate) id: i64,
    pub(crate) seq: i64,
    pub(crate) payload_type: String,
    pub(crate) size: String,
    pub(crate) created: String,
    pub(crate) age: String,
    pub(crate) key: Option<String>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) trace: Option<String>,
    pub(crate) payload: Option<Payload>,
}

impl Told {
    /// Without its payload.
    pub(crate) fn brief(message: &OutboxMessage, may_see: bool) -> Self {
        let (headers, trace) = payload::headers(&message.headers, may_see);
        Self {
            id: message.id.0,
            seq: message.seq,
            payload_type: message.payload_type.clone(),
            size: words::bytes(message.payload.len() as u64),
            created: words::moment(message.created_at),
            age: words::ago(message.created_at),
            key: message.key.clone().filter(|_| may_see),
            headers,
            trace,
            payload: None,
        }
    }

    /// All of it, the payload as it was asked for.
    pub(crate) fn whole(message: &OutboxMessage, may_see: bool, view: Option<&str>) -> Self {
        Self {
            payload: may_see.then(|| Payload::new(&message.payload, view)),
            ..Self::brief(message, may_see)
        }
    }
}

#[derive(Template)]
#[template(path = "messages.html")]
struct MessagesPage {
    frame: Frame,
    queues: Vec<String>,
    queue: String,
    partition: String,
    from: String,
    key: String,
    messages: Vec<(u32, Told)>,
    /// What was looked at, in a sentence.
    looked: String,
    next: Option<String>,
}

/// Reads on in a partition, a bounded number of bytes at a time, until somebody has enough.
async fn read(
    visit: &Visit,
    queue: &str,
    partition: u32,
    mut from: Option<i64>,
    most: usize,
    mut enough: impl FnMut(OutboxMessage) -> bool,
) -> Result<usize, OutboxError> {
    let source = visit.source();
    let (mut read, mut step) = (0, 20_usize.min(most));
    while read < most {
        let limit = u32::try_from(step).unwrap_or(u32::MAX);
        let messages = source.peek(queue, partition, from, limit).await?;
        let (count, last) = (messages.len(), messages.last().map(|last| last.seq));
        let bytes: usize = messages.iter().map(|one| one.payload.len()).sum();
        for message in messages {
            read += 1;
            if enough(message) {
                return Ok(read);
            }
        }
        if count < step {
            break;
        }
        from = last.map(|last| last + 1);
        let average = bytes / count.max(1) + 1;
        step = (AT_ONCE / average).clamp(1, 250).min(most - read);
    }
    Ok(read)
}

pub(crate) async fn list(visit: Visit) -> Shown {
    let known = visit.source().queues();
    let asked = &visit.asked;
    let queue = asked.get("queue").map(str::to_owned);
    let queue = queue.or_else(|| known.first().map(|(name, _)| name.clone()));
    let queue = queue.unwrap_or_default();
    let mut page = MessagesPage {
        frame: visit.frame("messages", "Messages"),
        queues: known.iter().map(|(name, _)| name.clone()).collect(),
        partition: asked.text("partition"),
        from: asked.text("from"),
        key: asked.text("key"),
        messages: Vec::new(),
        looked: String::new(),
        next: None,
        queue,
    };
    let Some((_, partitions)) = known.iter().find(|(name, _)| *name == page.queue) else {
        if page.queue.is_empty() {
            page.looked = "There is no queue yet.".to_owned();
            return Ok(rendered(&page));
        }
        visit.queue(&page.queue)?;
        return Ok(rendered(&page));
    };
    if page.key.is_empty() {
        by_number(&visit, &mut page).await?;
    } else {
        by_key(&visit, &mut page, *partitions).await?;
    }
    Ok(rendered(&page))
}

/// The partition, and the number to begin with if there is one.
fn place(partition: &str, from: &str) -> Result<(u32, Option<i64>), Refused> {
    let wrong = |text: &str, what| Refused::bad(format!("{text:?} is no {what}"));
    let number = partition.parse();
    let number = number.map_err(|_| wrong(partition, "partition"))?;
    let from = match from {
        "" => None,
        text => {
            let number = text.parse();
            Some(number.map_err(|_| wrong(text, "sequence number"))?)
        }
    };
    Ok((number, from))
}

async fn by_number(visit: &Visit, page: &mut MessagesPage) -> Result<(), Refused> {
    if page.partition.is_empty() {
        page.partition = "0".to_owned();
    }
    let (partition, from) = place(&page.partition, &page.from)?;
    let mut found = Vec::new();
    let collect = |message| {
        found.push(message);
        false
    };
    read(visit, &page.queue, partition, from, PAGE + 1, collect).await?;
    if found.len() > PAGE
        && let Some(next) = found.pop()
    {
        let next = next.seq.to_string();
        let address = [
            ("queue", &*page.queue),
            ("partition", &page.partition),
            ("from", &next),
        ];
        page.next = Some(form::query(&address));
    }
    page.looked = match found.len() {
        0 => "Nothing waits there. What is settled is gone, and what committed a moment ago may not have its number yet.".to_owned(),
        _ => String::new(),
    };
    let may_see = visit.may_see_payloads();
    let told = found
        .iter()
        .map(|one| (partition, Told::brief(one, may_see)));
    page.messages = told.collect();
    Ok(())
}

async fn by_key(
    visit: &Visit,
    page: &mut MessagesPage,
    partitions: Partitions,
) -> Result<(), Refused> {
    if !visit.may_see_payloads() {
        return Err(Refused::new(
            StatusCode::FORBIDDEN,
            "keys are not shown to you",
            "Start the dashboard with --payloads, or ask for the right.",
        ));
    }
    let partition = partitions.of_key(&page.key);
    let (key, mut found) = (page.key.clone(), Vec::new());
    let collect = |message: OutboxMessage| {
        if message.key.as_deref() == Some(&key) {
            found.push(Told::brief(&message, true));
        }
        found.len() >= PAGE
    };
    let looked = read(visit, &page.queue, partition, None, SEARCHED, collect).await?;
    page.looked = format!(
        "Messages of this key are in partition {partition}, of which the first {} that wait were looked at{}.",
        words::number(looked as u64),
        match found.len() {
            PAGE => format!(", up to the {PAGE}th of this key"),
            0 => ": none has it".to_owned(),
            _ => String::new(),
        }
    );
    page.partition = partition.to_string();
    page.messages = found.into_iter().map(|told| (partition, told)).collect();
    Ok(())
}

#[derive(Template)]
#[template(path = "message.html")]
struct MessagePage {
    frame: Frame,
    queue: String,
    partition: u32,
    told: Told,
}

pub(crate) async fn show(
    visit: Visit,
    Path((queue, partition, seq)): Path<(String, u32, i64)>,
) -> Shown {
    visit.queue(&queue)?;
    let source = visit.source();
    let found = source.peek(&queue, partition, Some(seq), 1).await?;
    let message = found.iter().find(|message| message.seq == seq);
    let message = message.ok_or_else(|| {
        let what = format!("message {seq} does not wait in partition {partition} of {queue}");
        Refused::nothing(what).way_out(
            "It was settled, and is gone; or it is among the dead letters; or it has no number yet.",
        )
    })?;
    let view = visit.asked.get("view");
    let page = MessagePage {
        frame: visit.frame("messages", format!("Message {seq} of {queue}/{partition}")),
        told: Told::whole(message, visit.may_see_payloads(), view),
        queue,
        partition,
    };
    Ok(rendered(&page))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_place_is_one_or_refused_by_its_name(
            partition in "[0-9]{1,3}|-?[0-9]{9,11}|(?s:.{0,5})",
            from in "|-?[0-9]{1,20}|(?s:.{0,5})",
        ) {
            let (expected, first) = (partition.parse::<u32>().ok(), from.parse::<i64>().ok());
            let good = expected.is_some() && (from.is_empty() || first.is_some());
            match place(&partition, &from) {
                Ok(place) => prop_assert_eq!((Some(place.0), place.1, true), (expected, first, good)),
                Err(refused) => {
                    let wrong = if expected.is_none() { &partition } else { &from };
                    let expected = format!("{wrong:?} is no ");
                    prop_assert!(!good && refused.what.starts_with(&expected));
                }
            }
        }
    }
}
