//! The configuration file: databases, and which queue goes where. Whatever is wrong with it is said with
//! the file, the line and the key.

#[cfg(test)]
mod properties;
mod sinks;
mod values;

use std::collections::HashSet;
use std::fmt::Display;
use std::num::NonZeroU32;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use outbox::{LeaseConfig, OutboxProfile, Partitions, QueueName, TablePrefix};
use outbox_sinks::SinkError;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::Spanned;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::connection::options;
use crate::failure::Failure;
pub(crate) use sinks::AnySink;
use values::{Check, Checked, Text};

/// Where it is unless somebody says otherwise.
pub(crate) const FILE: &str = "outbox.toml";
/// Connections to each database unless configured otherwise.
const CONNECTIONS: NonZeroU32 = NonZeroU32::new(10).expect("not zero");
const SHORTEST_LEASE: Duration = Duration::from_secs(5);
const STOP_DEADLINE: Duration = Duration::from_secs(30);

/// What the reader of TOML says, and how to say it to somebody who writes it.
const HINTS: [(&str, &str); 4] = [
    (
        "map, expected a sequence",
        "; write it with two brackets: [[database]], [[route]]",
    ),
    ("expected a sequence", "; write a list: [\"orders\"]"),
    ("integer `0`, expected a nonzero", "; write 1 or more"),
    (
        ", expected a string",
        "; write it in quotes, a time as \"30s\"",
    ),
];

/// What the relay does.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    #[serde(default)]
    pub(crate) log: Log,
    #[serde(default)]
    profile: Profile,
    stop_deadline: Option<Checked<Duration>>,
    #[serde(rename = "database", default)]
    pub(crate) databases: Vec<Database>,
    #[serde(rename = "route", default)]
    pub(crate) routes: Vec<Route>,
}

/// What is logged, and how.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Log {
    pub(crate) level: Checked<Level>,
    pub(crate) format: LogFormat,
}

/// A filter as `tracing` writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Level(pub(crate) String);

impl Default for Level {
    fn default() -> Self {
        Self("info".to_owned())
    }
}

impl Check for Level {
    type Written = String;

    fn check(written: String) -> Result<Self, String> {
        // A word that is no level would be the name of a part, with everything it says.
        let is_level = |part: &str| part.contains('=') || part.parse::<LevelFilter>().is_ok();
        let parsed = written.parse::<EnvFilter>();
        match parsed.is_ok() && written.split(',').all(|part| is_level(part.trim())) {
            true => Ok(Self(written)),
            false => Err(format!(
                "{written:?} is no level; say for example \"info\" or \"info,outbox=debug\""
            )),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

/// How the workers pace themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Profile {
    #[default]
    Default,
    LowLatency,
    HighThroughput,
    Relaxed,
}

/// A database with an outbox.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Database {
    name: Spanned<Checked<QueueName>>,
    url: Spanned<Text>,
    #[serde(default)]
    table_prefix: Checked<TablePrefix>,
    #[serde(default)]
    pub(crate) migrate: bool,
    #[serde(default = "connections")]
    pub(crate) connections: NonZeroU32,
}

fn connections() -> NonZeroU32 {
    CONNECTIONS
}

/// Queues, and where their messages go.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Route {
    queues: Spanned<Vec<Spanned<Checked<QueueName>>>>,
    databases: Option<Vec<Spanned<String>>>,
    partitions: Option<Checked<Partitions>>,
    lease: Option<Spanned<Checked<Duration>>>,
    pub(crate) max_attempts: Option<NonZeroU32>,
    stdout: Option<Spanned<sinks::Stdout>>,
    file: Option<Spanned<sinks::File>>,
    http: Option<Spanned<sinks::Http>>,
    nats: Option<Spanned<sinks::Nats>>,
    rabbitmq: Option<Spanned<sinks::RabbitMq>>,
    kafka: Option<Spanned<sinks::Kafka>>,
    redis: Option<Spanned<sinks::Redis>>,
    mqtt: Option<Spanned<sinks::Mqtt>>,
}

impl Config {
    pub(crate) fn profile(&self) -> OutboxProfile {
        match self.profile {
            Profile::Default => OutboxProfile::default_profile(),
            Profile::LowLatency => OutboxProfile::low_latency(),
            Profile::HighThroughput => OutboxProfile::high_throughput(),
            Profile::Relaxed => OutboxProfile::relaxed(),
        }
    }

    pub(crate) fn stop_deadline(&self) -> Duration {
        self.stop_deadline
            .map_or(STOP_DEADLINE, |Checked(deadline)| deadline)
    }

    /// The routes of a database.
    pub(crate) fn routes_of(&self, database: &Database) -> impl Iterator<Item = (usize, &Route)> {
        let serves = |route: &Route| match &route.databases {
            Some(names) => names.iter().any(|name| name.get_ref() == database.name()),
            None => true,
        };
        self.routes
            .iter()
            .enumerate()
            .filter(move |(_, route)| serves(route))
    }
}

impl Database {
    pub(crate) fn name(&self) -> &str {
        self.name.get_ref().0.as_str()
    }

    pub(crate) fn url(&self) -> &str {
        self.url.get_ref().as_str()
    }

    pub(crate) fn prefix(&self) -> &TablePrefix {
        &self.table_prefix.0
    }
}

impl Route {
    pub(crate) fn queues(&self) -> impl Iterator<Item = &str> {
        self.queues
            .get_ref()
            .iter()
            .map(|queue| queue.get_ref().0.as_str())
    }

    pub(crate) fn partitions(&self) -> Option<Partitions> {
        self.partitions.map(|Checked(partitions)| partitions)
    }

    pub(crate) fn lease(&self) -> LeaseConfig {
        let usual = LeaseConfig::default();
        match &self.lease {
            None => usual,
            Some(lease) => {
                let duration = lease.get_ref().0;
                let headroom = usual.headroom.min(duration / 4);
                LeaseConfig { duration, headroom }
            }
        }
    }

    /// Where its messages go: one, if the file makes sense.
    fn sections(&self) -> Vec<(&'static str, Range<usize>, &dyn sinks::Section)> {
        fn named<'a, S: sinks::Section>(
            name: &'static str,
            section: Option<&'a Spanned<S>>,
        ) -> Option<(&'static str, Range<usize>, &'a dyn sinks::Section)> {
            section.map(|section| (name, section.span(), section.get_ref() as _))
        }
        [
            named("stdout", self.stdout.as_ref()),
            named("file", self.file.as_ref()),
            named("http", self.http.as_ref()),
            named("nats", self.nats.as_ref()),
            named("rabbitmq", self.rabbitmq.as_ref()),
            named("kafka", self.kafka.as_ref()),
            named("redis", self.redis.as_ref()),
            named("mqtt", self.mqtt.as_ref()),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// What its messages go to, as it is called in the file.
    pub(crate) fn destination(&self) -> &'static str {
        self.sections().first().map_or("", |(name, ..)| name)
    }
}

/// A configuration file as it was read, to say where something is.
#[derive(Debug)]
pub(crate) struct File {
    path: PathBuf,
    text: String,
}

impl File {
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::usage(format!("cannot read {}: {error}", path.display())).way_out(
                "`outbox relay --init` writes one to begin with; --config says where it is",
            )
        })?;
        let path = path.to_owned();
        Ok(Self { path, text })
    }

    /// The whole of it, if it makes sense.
    pub(crate) fn config(&self) -> Result<Config, Failure> {
        let config: Config = self.parsed()?;
        if config.databases.is_empty() {
            return Err(self.incomplete("there is no [[database]]"));
        }
        if config.routes.is_empty() {
            return Err(self.incomplete("there is no [[route]]"));
        }
        let mut names = HashSet::new();
        for database in &config.databases {
            if !names.insert(database.name()) {
                let problem = format!(
                    "there are two databases with the name {:?}",
                    database.name()
                );
                return Err(self.refuse(database.name.span(), problem));
            }
        }
        for route in &config.routes {
            self.check_route(route, &names)?;
        }
        let mut files = HashSet::new();
        for (_, span, section) in config.routes.iter().flat_map(Route::sections) {
            if let Some(file) = section.file().filter(|file| !files.insert(*file)) {
                let problem = format!(
                    "another route writes to {file:?}, and a file belongs to one; name both queues in one route"
                );
                return Err(self.refuse(self.place_of("path", &span), problem));
            }
        }
        for database in &config.databases {
            let mut queues = HashSet::new();
            if config.routes_of(database).next().is_none() {
                let problem = "no route has messages of this database";
                return Err(self.refuse(database.name.span(), problem));
            }
            for (_, route) in config.routes_of(database) {
                for queue in route.queues.get_ref() {
                    let name = queue.get_ref().0.as_str();
                    if !queues.insert(name) {
                        let problem =
                            format!("{name:?} has a route already: a queue goes to one place");
                        return Err(self.refuse(queue.span(), problem));
                    }
                }
            }
        }
        for database in &config.databases {
            self.check_url(database)?;
        }
        Ok(config)
    }

    /// Refuses a URL that is none, before anybody tries to connect to it.
    pub(crate) fn check_url(&self, database: &Database) -> Result<(), Failure> {
        match options(database.url()) {
            Ok(_) => Ok(()),
            Err(failure) => Err(self.refuse(database.url.span(), failure.on_one_line())),
        }
    }

    fn check_route(&self, route: &Route, databases: &HashSet<&str>) -> Result<(), Failure> {
        if let Some(lease) = &route.lease
            && lease.get_ref().0 < SHORTEST_LEASE
        {
            let problem = format!(
                "{:?} is too short: it must be {SHORTEST_LEASE:?} or longer, for messages are published in \
                 that time",
                lease.get_ref().0
            );
            return Err(self.refuse(lease.span(), problem));
        }
        if let Some(lease) = &route.lease {
            let valid = route.lease().validate();
            valid.map_err(|error| self.refuse(lease.span(), error))?;
        }
        if route.queues.get_ref().is_empty() {
            return Err(self.refuse(route.queues.span(), "a route without a queue"));
        }
        for name in route.databases.iter().flatten() {
            if !databases.contains(name.get_ref().as_str()) {
                let problem = format!("there is no database with the name {:?}", name.get_ref());
                return Err(self.refuse(name.span(), problem));
            }
        }
        match &*route.sections() {
            [(_, span, section)] => {
                let (lease, timeout) = (route.lease(), section.timeout());
                let budget = lease.handler_budget();
                let Some(timeout) = timeout.filter(|timeout| *timeout >= budget) else {
                    return Ok(());
                };
                let problem = format!(
                    "a broker's timeout of {timeout:?} is not shorter than {budget:?}, the time for publishing \
                     within the route's lease of {:?}; set a longer `lease` or a shorter `timeout`",
                    lease.duration
                );
                Err(self.refuse(self.place_of("timeout", span), problem))
            }
            [] => {
                let problem = "where to? It needs one of [route.stdout], [route.file], [route.http], \
                               [route.nats], [route.rabbitmq], [route.kafka], [route.redis] or [route.mqtt]";
                Err(self.refuse(route.queues.span(), problem))
            }
            [(first, ..), (second, span, _), ..] => {
                let problem = format!(
                    "it goes to {first} already; a queue goes to one place, not to {second} too"
                );
                Err(self.refuse(span.clone(), problem))
            }
        }
    }

    /// The databases alone: whoever operates one needs no password of a broker.
    pub(crate) fn databases(&self) -> Result<Vec<Database>, Failure> {
        #[derive(Deserialize)]
        struct Databases {
            #[serde(default)]
            database: Vec<Database>,
        }
        let Databases { database } = self.parsed()?;
        Ok(database)
    }

    /// What each route goes to.
    pub(crate) fn sinks(&self, config: &Config) -> Result<Vec<AnySink>, Failure> {
        // A route has exactly one: `check_route` has seen to it.
        let sections = config.routes.iter().flat_map(Route::sections);
        sections
            .map(|(_, span, section)| {
                let built = section.build();
                built.map_err(|error| self.refuse(self.blamed(&span, &error), error))
            })
            .collect()
    }

    /// Where in a section the value stands that an error is about.
    fn blamed(&self, section: &Range<usize>, error: &SinkError) -> Range<usize> {
        let wanted = match error {
            SinkError::InvalidConfig { field, .. } => field,
            SinkError::InvalidTemplate { template, .. } if template == "…" => "url",
            SinkError::InvalidTemplate { template, .. } => template.as_str(),
            _ => return section.clone(),
        };
        self.place_of(wanted, section)
    }

    /// Where in a section this text stands.
    fn place_of(&self, wanted: &str, section: &Range<usize>) -> Range<usize> {
        let rest = &self.text[section.start..];
        let header = rest.find('\n').unwrap_or(rest.len());
        let end = rest[header..]
            .find("\n[")
            .map_or(rest.len(), |end| header + end);
        match rest[..end].find(wanted) {
            Some(place) => section.start + place..section.start + place,
            None => section.clone(),
        }
    }

    fn parsed<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        toml::from_str(&self.text).map_err(|error| {
            // Not the text that was written there: it may be a password.
            let problem = match error.message().split_once(": string \"") {
                Some((what, said)) => {
                    let rest = said.rsplit_once("\", ").map_or("", |(_, rest)| rest);
                    format!("{what}: text, {rest}")
                }
                None => error.message().to_owned(),
            };
            let hint = HINTS.iter().find(|(said, _)| problem.contains(said));
            let hint = hint.map_or("", |(_, hint)| hint);
            self.refuse(error.span().unwrap_or(0..0), format!("{problem}{hint}"))
        })
    }

    fn incomplete(&self, problem: &str) -> Failure {
        Failure::usage(format!("{}: {problem}", self.path.display()))
    }

    /// Says what is wrong, and where.
    fn refuse(&self, place: Range<usize>, problem: impl Display) -> Failure {
        let (path, (line, key)) = (self.path.display(), self.key_at(place.start));
        let key = key.map(|key| format!(", {key}")).unwrap_or_default();
        Failure::usage(format!("{path}, line {line}{key}: {problem}"))
    }

    /// The line of a place, and the key that stands there, or else its table.
    fn key_at(&self, place: usize) -> (usize, Option<String>) {
        let (mut line, mut begin) = (0, 0);
        let (mut section, mut key, mut until) = ("", None, None);
        for text in self.text.split_inclusive('\n') {
            line += 1;
            let written = text.trim_start_matches('\u{feff}').trim();
            if let Some(end) = until {
                until = (!written.contains(end)).then_some(end);
            } else if let Some(header) = header(written) {
                section = header;
                key = Some(section.to_owned());
            } else if let Some((name, value)) = written.split_once('=')
                && is_key(name.trim())
            {
                let dot = if section.is_empty() { "" } else { "." };
                key = Some(format!("{section}{dot}{}", name.trim()));
                until = end_of(value.trim());
            } else {
                key = Some(section.to_owned()).filter(|section| !section.is_empty());
            }
            begin += text.len();
            if place < begin {
                break;
            }
        }
        (line, key)
    }
}

/// What ends a value that goes on in the next line. What stands there until then is no key, and may be a password.
fn end_of(value: &str) -> Option<&'static str> {
    let brackets = [("\"\"\"", "\"\"\""), ("'''", "'''"), ("[", "]"), ("{", "}")];
    let mut brackets = brackets.into_iter();
    brackets.find_map(|(begin, end)| {
        let rest = value.strip_prefix(begin)?;
        (!rest.contains(end)).then_some(end)
    })
}

/// The name in the line that begins a table, whatever is noted behind it.
fn header(line: &str) -> Option<&str> {
    let (name, rest) = line.strip_prefix('[')?.split_once(']')?;
    let rest = rest.strip_prefix(']').unwrap_or(rest).trim();
    let name = name.trim_start_matches('[').trim();
    let noted = rest.is_empty() || rest.starts_with('#');
    (noted && !name.is_empty() && name.chars().all(is_of_name)).then_some(name)
}

/// Whether this may be the name of a setting, and not just what stands before a sign in a line that is wrong: there
/// may be a password in that.
fn is_key(name: &str) -> bool {
    let is_closed = |quote: char| name.matches(quote).count().is_multiple_of(2);
    let fits = |character| is_of_name(character) || " \"'".contains(character);
    !name.is_empty() && name.chars().all(fits) && is_closed('"') && is_closed('\'')
}

fn is_of_name(character: char) -> bool {
    character.is_alphanumeric() || "_-.".contains(character)
}
