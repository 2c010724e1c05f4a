//! Subjects, topics and paths that are made of a message: `orders.{type}.{key}`.

use std::fmt;
use std::str::FromStr;

use outbox::OutboxMessage;

use crate::error::SinkError;

/// A text with places to fill in: `{queue}`, `{partition}`, `{key}`, `{type}` and `{header:NAME}`. A
/// brace is written twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    source: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Queue,
    Partition,
    Key,
    Type,
    Header(String),
}

impl Template {
    /// What it is for every message, if there is nothing to fill in.
    #[cfg(any(
        feature = "kafka",
        feature = "nats",
        feature = "rabbitmq",
        feature = "redis"
    ))]
    pub(crate) fn constant(&self) -> Option<&str> {
        match &*self.parts {
            [] => Some(""),
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// The text before the first thing to fill in: no message has a say in it.
    #[cfg(feature = "nats")]
    pub(crate) fn beginning(&self) -> &str {
        match self.parts.first() {
            Some(Part::Text(text)) => text,
            _ => "",
        }
    }

    /// Filled in with something harmless, to find out whether what is around it can be used.
    #[cfg(any(
        feature = "http",
        feature = "kafka",
        feature = "mqtt",
        feature = "nats",
        feature = "rabbitmq"
    ))]
    pub(crate) fn sample(&self) -> String {
        let filled = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Queue | Part::Partition | Part::Key | Part::Type | Part::Header(_) => {
                "1".to_owned()
            }
        };
        self.parts.iter().map(filled).collect()
    }

    /// What a text that cannot be used means. If it is the same for all messages of a partition, none of them
    /// is at fault.
    #[cfg(any(
        feature = "kafka",
        feature = "mqtt",
        feature = "nats",
        feature = "rabbitmq"
    ))]
    pub(crate) fn refusal(&self, problem: String) -> crate::Refusal {
        let own = |part: &Part| matches!(part, Part::Key | Part::Type | Part::Header(_));
        match self.parts.iter().any(own) {
            true => crate::Refusal::never(problem),
            false => crate::Refusal::later(problem),
        }
    }

    /// Refuses one whose text alone makes every message impossible.
    #[cfg(any(
        feature = "kafka",
        feature = "mqtt",
        feature = "nats",
        feature = "rabbitmq"
    ))]
    pub(crate) fn checked(
        self,
        check: impl FnOnce(&str) -> Result<(), String>,
    ) -> Result<Self, SinkError> {
        match check(&self.sample()) {
            Ok(()) => Ok(self),
            Err(problem) => Err(SinkError::InvalidTemplate {
                template: self.source,
                problem,
            }),
        }
    }

    /// Filled in with what the message has. An error says what it has not.
    pub fn fill(&self, message: &OutboxMessage) -> Result<String, String> {
        self.fill_with(message, str::to_owned)
    }

    /// The same, with what comes from the message encoded.
    pub(crate) fn fill_with(
        &self,
        message: &OutboxMessage,
        encode: impl Fn(&str) -> String,
    ) -> Result<String, String> {
        let mut filled = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => filled.push_str(text),
                Part::Queue => filled.push_str(&encode(&message.queue)),
                Part::Partition => filled.push_str(&message.partition.to_string()),
                Part::Type => filled.push_str(&encode(&message.payload_type)),
                Part::Key => match &message.key {
                    Some(key) => filled.push_str(&encode(key)),
                    None => return Err("{key} needs a key, and the message has none".to_owned()),
                },
                Part::Header(name) => match message.headers.get(name) {
                    Some(value) => filled.push_str(&encode(value)),
                    None => {
                        return Err(format!(
                            "{{header:{name}}} needs a header that is not there"
                        ));
                    }
                },
            }
        }
        Ok(filled)
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

impl FromStr for Template {
    type Err = SinkError;

    fn from_str(source: &str) -> Result<Self, SinkError> {
        let refuse = |problem: String| SinkError::InvalidTemplate {
            template: source.to_owned(),
            problem,
        };
        let (mut parts, mut text) = (Vec::new(), String::new());
        let mut characters = source.chars().peekable();
        while let Some(character) = characters.next() {
            match character {
                '{' | '}' if characters.peek() == Some(&character) => {
                    characters.next();
                    text.push(character);
                }
                '}' => {
                    return Err(refuse(
                        "a } that closes nothing; write }} for a brace".into(),
                    ));
                }
                '{' => {
                    let mut name = String::new();
                    loop {
                        match characters.next() {
                            Some('}') => break,
                            Some(character) => name.push(character),
                            None => return Err(refuse("a { that is not closed".to_owned())),
                        }
                    }
                    if !text.is_empty() {
                        parts.push(Part::Text(std::mem::take(&mut text)));
                    }
                    parts.push(Part::named(&name).map_err(refuse)?);
                }
                character => text.push(character),
            }
        }
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        Ok(Self {
            source: source.to_owned(),
            parts,
        })
    }
}

impl Part {
    fn named(name: &str) -> Result<Self, String> {
        match (name, name.strip_prefix("header:")) {
            ("queue", _) => Ok(Self::Queue),
            ("partition", _) => Ok(Self::Partition),
            ("key", _) => Ok(Self::Key),
            ("type", _) => Ok(Self::Type),
            (_, Some(header)) if !header.is_empty() => Ok(Self::Header(header.to_owned())),
            _ => Err(format!(
                "there is no {{{name}}}; allowed are {{queue}}, {{partition}}, {{key}}, {{type}} and \
                 {{header:NAME}}"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn filled(template: &str) -> Result<String, String> {
        let mut message = outbox::testing::message("body", "order.placed");
        message.key = Some("customer-7".to_owned());
        message.headers.insert("region".to_owned(), "eu".to_owned());
        template.parse::<Template>().unwrap().fill(&message)
    }

    fn refused(template: &str) -> String {
        template.parse::<Template>().unwrap_err().to_string()
    }

    #[test]
    fn a_template_takes_what_the_message_has() {
        assert_eq!(
            filled("{type}.{key}.{header:region}").unwrap(),
            "order.placed.customer-7.eu"
        );
        assert_eq!(filled("a{{b}}c").unwrap(), "a{b}c");
        let missing = filled("{header:colour}").unwrap_err();
        assert_eq!(missing, "{header:colour} needs a header that is not there");
        let message = outbox::testing::message("body", "t");
        let keyless = "{key}".parse::<Template>().unwrap().fill(&message);
        assert_eq!(
            keyless.unwrap_err(),
            "{key} needs a key, and the message has none"
        );
    }

    #[test]
    fn what_cannot_be_filled_in_is_refused_at_once() {
        assert_eq!(
            refused("x.{id}"),
            "template \"x.{id}\": there is no {id}; allowed are {queue}, {partition}, {key}, {type} \
             and {header:NAME}"
        );
        assert_eq!(refused("{key"), "template \"{key\": a { that is not closed");
        assert!(refused("key}").contains("closes nothing"));
        assert!(refused("{header:}").contains("there is no {header:}"));
    }

    proptest! {
        #[test]
        fn any_text_is_a_template_or_refused(text in "\\PC{0,40}") {
            let _ = text.parse::<Template>();
            let escaped = text.replace('{', "{{").replace('}', "}}");
            prop_assert_eq!(filled(&escaped).unwrap(), text);
        }
    }
}
