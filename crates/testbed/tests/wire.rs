//! The wire fails exactly as told, in front of a server that sends back what it hears.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::time::Duration;

use testbed::{After, Fault, Wire};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// How long something that should happen may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long nothing has to happen to be called silence. Long enough for a broken wire to be noticed
/// most of the time; a sound one never fails for it.
const SILENCE: Duration = Duration::from_millis(50);

/// What the echo server saw: the bytes of one read, nothing when a client closed.
type Heard = UnboundedReceiver<String>;

/// Sends every read back in capitals.
async fn echo() -> (Wire, Heard) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (say, heard) = unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let say = say.clone();
            tokio::spawn(async move {
                let mut buffer = [0; 1024];
                while let Ok(read) = client.read(&mut buffer).await {
                    let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
                    let answer = text.to_uppercase();
                    let _ = say.send(text);
                    if read == 0 || client.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    let wire = Wire::to(&format!("mysql://user:word@127.0.0.1:{port}/db")).await;
    (wire, heard)
}

async fn connect(wire: &Wire) -> TcpStream {
    let address = wire.url().split(['@', '/', '?']).nth(3).unwrap();
    TcpStream::connect(address).await.unwrap()
}

/// What comes next: `Some("")` when the connection was closed, `None` when nothing comes.
async fn read_within(stream: &mut TcpStream, limit: Duration) -> Option<String> {
    let mut buffer = [0; 1024];
    let read = tokio::time::timeout(limit, stream.read(&mut buffer)).await;
    // A reset is a way to be closed.
    let read = read.ok()?.unwrap_or(0);
    Some(String::from_utf8_lossy(&buffer[..read]).into_owned())
}

async fn read(stream: &mut TcpStream) -> String {
    let text = read_within(stream, PATIENCE).await;
    text.expect("an answer, or the end")
}

async fn ask(stream: &mut TcpStream, text: &str) -> String {
    send(stream, text).await;
    read(stream).await
}

async fn send(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
}

async fn is_silent(stream: &mut TcpStream) -> bool {
    read_within(stream, SILENCE).await.is_none()
}

/// Everything the server heard up to now.
fn heard_so_far(heard: &mut Heard) -> Vec<String> {
    std::iter::from_fn(|| heard.try_recv().ok()).collect()
}

#[tokio::test]
async fn a_sound_wire_changes_nothing() {
    let (wire, mut heard) = echo().await;
    let (mut one, mut two) = (connect(&wire).await, connect(&wire).await);
    assert_eq!(ask(&mut one, "a").await, "A");
    assert_eq!(ask(&mut two, "b").await, "B");
    assert_eq!(ask(&mut one, "c").await, "C");
    assert_eq!(wire.requests(), 3);
    assert!(!wire.tripped());
    drop(one);
    while heard.recv().await.unwrap() != "" {}
    drop(wire);
    assert_eq!(read(&mut two).await, "", "closed with its wire");
}

#[tokio::test]
async fn a_cut_closes_what_there_is_and_nothing_else() {
    let (wire, mut heard) = echo().await;
    let mut old = connect(&wire).await;
    assert_eq!(ask(&mut old, "a").await, "A");
    wire.cut();
    assert_eq!(read(&mut old).await, "");
    assert_eq!(heard.recv().await.unwrap(), "a");
    assert_eq!(heard.recv().await.unwrap(), "", "the server sees it too");
    assert_eq!(ask(&mut connect(&wire).await, "b").await, "B");
}

#[tokio::test]
async fn a_silent_wire_answers_nobody_and_closes_nothing() {
    let (wire, mut heard) = echo().await;
    let (mut old, mut gone) = (connect(&wire).await, connect(&wire).await);
    assert_eq!(ask(&mut old, "a").await, "A");
    assert_eq!(ask(&mut gone, "b").await, "B");
    wire.go_silent();
    let mut new = connect(&wire).await;
    send(&mut old, "c").await;
    send(&mut new, "d").await;
    drop(gone);
    assert!(is_silent(&mut old).await);
    assert!(is_silent(&mut new).await);

    wire.heal();
    assert_eq!(ask(&mut connect(&wire).await, "e").await, "E");
    send(&mut old, "f").await;
    send(&mut new, "g").await;
    assert!(is_silent(&mut old).await, "it stays silent");
    assert!(is_silent(&mut new).await, "it stays silent");
    assert_eq!(
        heard_so_far(&mut heard)[..3],
        ["a", "b", "e"],
        "nothing came through, not even the end of a connection"
    );
    wire.cut();
    assert_eq!(read(&mut old).await, "");
}

#[tokio::test]
async fn healing_a_sound_wire_harms_nobody() {
    let (wire, _heard) = echo().await;
    let mut old = connect(&wire).await;
    assert_eq!(ask(&mut old, "a").await, "A");
    wire.heal();
    assert_eq!(ask(&mut old, "b").await, "B");
}

#[tokio::test]
async fn the_request_that_fails_never_arrives() {
    for then in [After::Silent, After::Cut] {
        let (wire, mut heard) = echo().await;
        let (mut one, mut two) = (connect(&wire).await, connect(&wire).await);
        assert_eq!(ask(&mut one, "before").await, "BEFORE");
        wire.fail_at(3, Fault::BeforeRequest, then);
        assert_eq!(ask(&mut one, "first").await, "FIRST");
        assert_eq!(ask(&mut two, "second").await, "SECOND");
        assert!(!wire.tripped());
        send(&mut one, "third").await;
        wire.wait_tripped().await;
        assert_eq!(wire.requests(), 3);
        match then {
            After::Silent => {
                send(&mut two, "fourth").await;
                assert!(is_silent(&mut one).await && is_silent(&mut two).await);
                assert!(is_silent(&mut connect(&wire).await).await);
                wire.heal();
            }
            After::Cut => assert_eq!(
                (read(&mut one).await, read(&mut two).await),
                Default::default()
            ),
        }
        assert_eq!(ask(&mut connect(&wire).await, "new").await, "NEW");
        let mut arrived = heard_so_far(&mut heard);
        arrived.retain(|text| !text.is_empty());
        assert_eq!(arrived, ["before", "first", "second", "new"]);
    }
}

#[tokio::test]
async fn a_lost_reply_is_to_a_request_that_arrived() {
    for then in [After::Silent, After::Cut] {
        let (wire, mut heard) = echo().await;
        let (mut one, mut two) = (connect(&wire).await, connect(&wire).await);
        assert_eq!(ask(&mut one, "before").await, "BEFORE");
        assert_eq!(ask(&mut two, "before").await, "BEFORE");
        wire.fail_at(2, Fault::LostReply, then);
        assert_eq!(ask(&mut two, "first").await, "FIRST");
        send(&mut one, "second").await;
        wire.wait_tripped().await;
        match then {
            After::Silent => assert!(is_silent(&mut one).await && is_silent(&mut two).await),
            After::Cut => assert_eq!(
                (read(&mut one).await, read(&mut two).await),
                Default::default()
            ),
        }
        assert_eq!(
            heard_so_far(&mut heard)[..4],
            ["before", "before", "first", "second"]
        );
        assert_eq!(wire.requests(), 2);
    }
}

#[tokio::test]
async fn a_request_of_many_packets_counts_once() {
    // A server that hears everything out before it answers.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let size = 4 << 20;
    tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut request = vec![0; size];
        while client.read_exact(&mut request).await.is_ok() {
            client.write_all(b"ok").await.unwrap();
        }
    });
    let wire = Wire::to(&format!("postgres://127.0.0.1:{port}")).await;
    let mut client = TcpStream::connect(wire.url().split(['@', '/', '?']).nth(2).unwrap())
        .await
        .unwrap();
    for round in 1..=3 {
        client.write_all(&vec![1; size]).await.unwrap();
        assert_eq!(read(&mut client).await, "ok");
        assert_eq!(wire.requests(), round);
    }
}

#[tokio::test]
async fn a_half_closed_connection_is_ended_by_its_server() {
    let (wire, mut heard) = echo().await;
    let mut old = connect(&wire).await;
    assert_eq!(ask(&mut old, "a").await, "A");
    wire.half_close();
    assert_eq!(heard.recv().await.unwrap(), "a");
    assert_eq!(heard.recv().await.unwrap(), "", "the server is told");
    assert_eq!(read(&mut old).await, "", "and closes the other half");
    assert_eq!(ask(&mut connect(&wire).await, "b").await, "B");
}

#[tokio::test]
async fn a_connection_is_cut_in_the_middle_of_what_it_carries() {
    let (wire, mut heard) = echo().await;
    let mut old = connect(&wire).await;
    assert_eq!(ask(&mut old, "ab").await, "AB");
    wire.cut_after(3);
    assert_eq!(ask(&mut old, "c").await, "C");
    // One byte is left of the three, and two come.
    send(&mut old, "de").await;
    assert_eq!(read(&mut old).await, "");
    let all = [heard.recv().await.unwrap(), heard.recv().await.unwrap()];
    assert_eq!(all, ["ab", "c"]);
    assert_ne!(heard.recv().await.unwrap(), "de");
    assert_eq!(ask(&mut connect(&wire).await, "f").await, "F");
}

#[tokio::test]
async fn a_slow_wire_is_slow_in_both_directions_until_it_is_not() {
    let (wire, _heard) = echo().await;
    let mut stream = connect(&wire).await;
    wire.delay(SILENCE);
    let began = std::time::Instant::now();
    assert_eq!(ask(&mut stream, "a").await, "A");
    assert!(began.elapsed() >= SILENCE * 2);
    wire.delay(Duration::ZERO);
    assert_eq!(ask(&mut stream, "b").await, "B");
}

#[tokio::test]
async fn the_reply_to_certain_bytes_is_lost() {
    let (wire, mut heard) = echo().await;
    let mut stream = connect(&wire).await;
    wire.fail_on(b"commit", Fault::LostReply, After::Cut);
    assert_eq!(ask(&mut stream, "begin").await, "BEGIN");
    send(&mut stream, "now commit it").await;
    assert_eq!(read(&mut stream).await, "", "closed without an answer");
    wire.wait_tripped().await;
    let all = [heard.recv().await.unwrap(), heard.recv().await.unwrap()];
    assert_eq!(all, ["begin", "now commit it"], "the server has heard it");
    assert_eq!(ask(&mut connect(&wire).await, "commit").await, "COMMIT");
}

#[tokio::test]
async fn a_reset_is_an_error_and_no_end() {
    let (wire, _heard) = echo().await;
    let mut stream = connect(&wire).await;
    assert_eq!(ask(&mut stream, "one").await, "ONE");
    wire.reset();
    let error = tokio::time::timeout(PATIENCE, stream.read(&mut [0])).await;
    let error = error.unwrap().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    let mut again = connect(&wire).await;
    assert_eq!(ask(&mut again, "two").await, "TWO");
}

#[tokio::test]
async fn what_is_restored_fails_no_more() {
    let (wire, _heard) = echo().await;
    let mut silent = connect(&wire).await;
    assert_eq!(ask(&mut silent, "one").await, "ONE");
    wire.go_silent();
    wire.fail_at(1, Fault::LostReply, After::Silent);
    wire.cut_after(1);
    wire.restore();
    assert_eq!(read(&mut silent).await, "", "what went silent is cut");
    let mut again = connect(&wire).await;
    assert_eq!(ask(&mut again, "two").await, "TWO");
    assert_eq!(ask(&mut again, "three").await, "THREE");
    assert!(!wire.disarm(), "nothing was left to happen");
}
