//! Whatever stands in the file: it is read, or refused with a line that there is and without what may be a
//! password.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::{Config, File};
use crate::failure::Failure;

/// Stands wherever a password may.
const SECRET: &str = "s3cr3t";

/// What every file begins with that makes sense; one of `sections` comes behind it.
const HEAD: &str = r#"profile = "low-latency"
# soon, and not at once
stop_deadline = "30s"
[log] # what is said
level = "info,outbox=debug"
format = "json"
[[database]]
name = "shop"
url = "postgres://me:s3cr3t@localhost/shop?sslmode=require"
table_prefix = "outbox_"
migrate = true
connections = 4
[[route]]
queues = [
  "orders", # and
  "mail",
]
databases = ["shop"]
partitions = 8
lease = "30s"
max_attempts = 20
"#;

/// Where messages may go, some of it written in the ways that TOML has beside the usual one. No line of a password
/// could be a key by itself: keys are shown.
const SECTIONS: [&str; 9] = [
    "[route.stdout]\n",
    "[route.file]\npath = \"orders.jsonl\"\n",
    "[route.http]\nurl = \"https://me:s3cr3t@shipping.example/{type}?token=s3cr3t\"\nmode = \"plain\"\n\
     headers = { Authorization = \"Bearer s3cr3t\" }\n\
     signing_secret = \"whsec_s3cr3ts3cr3ts3cr3ts3cr3ts3cr\"\ntimeout = \"10s\"\n",
    "[route.http]\nurl = '''\nhttps://me:s3cr3t@shipping.example/?a=b'''\n[route.http.headers]\n\
     \"X-Token\" = \"\"\"\\\n  s3cr3t/=\\\n  \"\"\"\n",
    "[route.nats]\nurl = \"nats://me:s3cr3t@localhost:4222\"\nstream = \"ORDERS\"\nsubject = \"{queue}.{type}\"\n",
    "[route.rabbitmq]\nurl = \"amqp://me:s3cr3t@localhost/%2f?heartbeat=10\"\nrouting_key = \"{queue}\"\nwindow = 100\n",
    "[route.kafka]\nservers = \"localhost:9092\"\ntopic = \"{queue}\"\n\
     set = { \"sasl.username\" = \"me\", \"sasl.password\" = \"s3cr3t\" }\n",
    "[route.redis]\nurl = \"redis://me:s3cr3t@localhost:6379/0?protocol=resp3\"\nmax_length = 1000\n",
    "[route.mqtt]\nurl = \"mqtt://me:s3cr3t@localhost:1883\"\ntopic = \"{queue}/{type}\"\nclient_id = \"relay\"\n",
];

fn file(text: &str) -> File {
    File {
        path: "relay.toml".into(),
        text: text.to_owned(),
    }
}

fn read(text: &str) -> Result<Config, Failure> {
    file(text).config()
}

/// What is said of a file, whatever it is read for.
fn said(text: &str) -> Vec<String> {
    let file = file(text);
    let config = file.config();
    let sinks = config.as_ref().ok().map(|config| file.sinks(config));
    let failures = [
        file.databases().err(),
        sinks.and_then(Result::err),
        config.err(),
    ];
    let failures = failures.into_iter().flatten();
    failures.map(|failure| failure.to_string()).collect()
}

/// The file, a line that there is, and a key if one is named; or what the whole file lacks.
fn names_a_place(said: &str, text: &str) -> bool {
    if let Some(lacks) = said.strip_prefix("outbox: relay.toml: ") {
        return ["there is no [[database]]", "there is no [[route]]"].contains(&lacks);
    }
    let place = said.strip_prefix("outbox: relay.toml, line ");
    place.is_some_and(|place| {
        let (number, rest) = place.split_at(place.find([':', ',']).unwrap_or(place.len()));
        let line = number.parse().unwrap_or(0);
        (1..=text.lines().count()).contains(&line) && !rest.starts_with(", :")
    })
}

/// What happens to a file while somebody edits it.
#[derive(Debug, Clone)]
enum Slip {
    Insert(Index, String),
    /// So many characters of a line.
    Cut(Index, usize),
    Forget(Index),
    Repeat(Index),
    Swap(Index, Index),
}

fn slip() -> impl Strategy<Value = Slip> {
    let word = select(vec![
        "\n",
        "\r\n",
        "\u{feff}",
        "ž",
        "\"\"\"",
        "'''",
        "${",
        "$${",
        "{",
        " = ",
        "[[",
        "true",
        "-1",
        "1e9",
        "0x",
        "\0",
        "1979-05-27",
    ]);
    let stray = prop_oneof![
        "[]\"'#=\\[{}$,.\\\\:@0-9 -]",
        word.prop_map(str::to_owned),
        "(?s:.{1,4})",
    ];
    let place = any::<Index>;
    prop_oneof![
        4 => (place(), stray).prop_map(|(place, stray)| Slip::Insert(place, stray)),
        4 => (place(), 1..12_usize).prop_map(|(place, count)| Slip::Cut(place, count)),
        1 => place().prop_map(Slip::Forget),
        1 => place().prop_map(Slip::Repeat),
        1 => (place(), place()).prop_map(|(one, other)| Slip::Swap(one, other)),
    ]
}

impl Slip {
    fn on(&self, text: &str) -> String {
        let places: Vec<usize> = text.char_indices().map(|(place, _)| place).collect();
        let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
        if lines.is_empty() {
            return text.to_owned();
        }
        match self {
            Self::Insert(place, stray) => {
                let (before, after) = text.split_at(*place.get(&places));
                return format!("{before}{stray}{after}");
            }
            Self::Cut(place, count) => {
                let (before, after) = text.split_at(*place.get(&places));
                let cut = after.chars().take(*count).take_while(|c| *c != '\n');
                let cut: usize = cut.map(char::len_utf8).sum();
                return format!("{before}{}", &after[cut..]);
            }
            Self::Forget(line) => {
                lines.remove(line.index(lines.len()));
            }
            Self::Repeat(line) => {
                let line = line.index(lines.len());
                lines.insert(line, lines[line]);
            }
            Self::Swap(one, other) => {
                let (one, other) = (one.index(lines.len()), other.index(lines.len()));
                lines.swap(one, other);
            }
        }
        lines.concat()
    }
}

/// Words of such files in any order.
fn soup() -> impl Strategy<Value = String> {
    let word = select(vec![
        "[[database]]",
        "[[route]]",
        "[route]",
        "[route.http]",
        "[log]",
        "[",
        "]",
        "{",
        "}",
        "=",
        "\n",
        ",",
        ".",
        "\"",
        "#",
        "name",
        "url",
        "queues",
        "http",
        "level",
        "lease",
        "\"x\"",
        "[\"x\"]",
        "1",
        "0.5",
        "true",
        "é",
    ]);
    vec(word, 0..25).prop_map(|words| words.join(" "))
}

proptest! {
    #[test]
    fn any_text_is_a_configuration_or_refused_with_a_line(text in prop_oneof![any::<String>(), soup()]) {
        for said in said(&text) {
            prop_assert!(names_a_place(&said, &text), "{}", said);
        }
    }

    #[test]
    fn a_slip_is_told_with_a_line_and_without_a_password(
        section in select(SECTIONS.to_vec()),
        slips in vec(slip(), 1..4),
    ) {
        let text = slips.iter().fold(format!("{HEAD}{section}"), |text, slip| slip.on(&text));
        for said in said(&text) {
            prop_assert!(names_a_place(&said, &text), "{}", said);
            prop_assert!(!said.contains(SECRET), "{}", said);
        }
    }

    #[test]
    fn what_stands_for_a_password_is_not_shown_whatever_it_is(
        key in select(vec!["url", "signing_secret", "headers.Authorization", "source"]),
        value in "s3cr3t[0-9a-z]{0,5}|\"s3cr3t.{0,9}\"|\\[ ?\"s3cr3t\" ?\\]|0x81747d|-?8483965([.]5)?",
    ) {
        let text = format!("{HEAD}[route.http]\n{key} = {value}\n");
        for said in said(&text) {
            prop_assert!(names_a_place(&said, &text), "{}", said);
            let shown = [SECRET, "8483965"].iter().any(|secret| said.contains(secret));
            prop_assert!(!shown, "{}", said);
        }
    }

    #[test]
    fn a_lease_that_is_read_is_one_that_a_queue_takes(
        count in any::<u64>(),
        scale in 0_u32..64,
        unit in select(vec!["ns", "us", "ms", "s", "m", "h", "days", "y"]),
    ) {
        let lease = format!("lease = \"{}{unit}\"", count >> scale);
        let text = format!("{HEAD}[route.stdout]\n").replace("lease = \"30s\"", &lease);
        if let Ok(config) = read(&text) {
            let valid = config.routes[0].lease().validate();
            prop_assert!(valid.is_ok(), "{}: {:?}", lease, valid);
        }
    }
}

#[test]
fn files_that_make_sense_are_read() {
    for section in SECTIONS {
        let said = said(&format!("{HEAD}{section}"));
        let left_out = section.contains("kafka") && !cfg!(feature = "kafka");
        assert_eq!(said.len(), usize::from(left_out), "{said:?}");
    }
}

/// Every one of them, in the ways that editors write files.
#[test]
fn a_spoilt_line_is_the_one_that_is_named() {
    for section in SECTIONS {
        let text = format!("{HEAD}{section}");
        let lines: Vec<&str> = text.lines().collect();
        let mut table = String::new();
        for (place, line) in lines.iter().enumerate() {
            if let Some(header) = line.strip_prefix('[') {
                let (name, _) = header.split_once(']').unwrap();
                table = format!("{}.", name.trim_start_matches('['));
                continue;
            }
            // What goes over several lines cannot be spoilt in one.
            let goes_on = |value: &str| ["[", "'''", "\"\"\"\\"].contains(&value);
            let Some((key, _)) = line.split_once(" = ").filter(|(_, value)| !goes_on(value)) else {
                continue;
            };
            let bad = format!("{key} = @");
            let mut spoilt = lines.clone();
            spoilt[place] = &bad;
            is_named(&spoilt, place, &format!("{table}{key}"));
        }
    }
}

fn is_named(lines: &[&str], place: usize, key: &str) {
    let expected = format!("outbox: relay.toml, line {}, {key}: ", place + 1);
    for (begin, end) in [("", "\n"), ("", "\r\n"), ("\u{feff}", "\n")] {
        let refused = read(&format!("{begin}{}", lines.join(end)));
        let told = refused.unwrap_err().to_string();
        assert!(told.starts_with(&expected), "{told}\nis not\n{expected}");
    }
}

#[test]
fn in_a_value_of_several_lines_its_key_is_named() {
    let text = format!("{HEAD}[route.stdout]\n");
    // Of what cannot be read the line is known, of what makes no sense that of its key.
    for (bad, named) in [("@,", "@,"), ("\"no = name\",", "queues = [")] {
        let spoilt = text.replace("\"mail\",", bad);
        let lines: Vec<&str> = spoilt.lines().collect();
        let place = lines.iter().position(|line| line.trim() == named).unwrap();
        is_named(&lines, place, "route.queues");
    }
}

/// What was mistaken for a key, or for the key of the line below.
#[test]
fn a_line_without_a_key_is_named_by_its_table() {
    let text = format!("{HEAD}[route.stdout]\n");
    for bad in ["garbage", "postgres://me:s3cr3t@localhost/shop?a=b\""] {
        let spoilt = text.replace("migrate = true", bad);
        let lines: Vec<&str> = spoilt.lines().collect();
        let place = lines.iter().position(|line| *line == bad).unwrap();
        is_named(&lines, place, "database");
    }
}
