//! What a form or an address says.

use std::collections::HashMap;

use url::form_urlencoded;

/// Names and values, some names more than once.
#[derive(Debug, Default)]
pub(crate) struct Fields(HashMap<String, Vec<String>>);

impl Fields {
    pub(crate) fn of(encoded: &[u8]) -> Self {
        let mut fields: HashMap<String, Vec<String>> = HashMap::new();
        for (name, value) in form_urlencoded::parse(encoded) {
            fields
                .entry(name.into_owned())
                .or_default()
                .push(value.into_owned());
        }
        Self(fields)
    }

    /// The value, without what surrounds it; nothing if it is empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let value = self.0.get(name)?.first()?.trim();
        Some(value).filter(|value| !value.is_empty())
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.get(name).unwrap_or_default().to_owned()
    }

    /// All values of a name, of which there may be several.
    pub(crate) fn all(&self, name: &str) -> &[String] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    /// A number, if it is one.
    pub(crate) fn number<N: std::str::FromStr>(&self, name: &str) -> Option<N> {
        self.get(name)?.parse().ok()
    }
}

/// An address of these parameters, those that say something.
pub(crate) fn query(parameters: &[(&str, &str)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (name, value) in parameters.iter().filter(|(_, value)| !value.is_empty()) {
        query.append_pair(name, value);
    }
    query.finish()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_fields(encoded in any::<Vec<u8>>(), text in "[a-c=&%+]{0,12}") {
            for encoded in [&*encoded, text.as_bytes()] {
                let fields = Fields::of(encoded);
                for name in fields.0.keys() {
                    prop_assert!(!fields.all(name).is_empty());
                    let said = fields.get(name);
                    prop_assert!(said.is_none_or(|said| !said.is_empty() && said == said.trim()));
                    prop_assert_eq!(fields.text(name), said.unwrap_or_default());
                    let number = fields.number::<i64>(name);
                    prop_assert_eq!(number, said.and_then(|said| said.parse().ok()));
                }
            }
        }

        #[test]
        fn what_an_address_says_is_read_again(parameters in vec(("[a-c]|(?s:.{1,5})", any::<String>()), 0..6)) {
            let pairs: Vec<_> = parameters.iter().map(|(name, value)| (&**name, &**value)).collect();
            let fields = Fields::of(query(&pairs).as_bytes());
            for (name, _) in &pairs {
                let of_name = pairs.iter().filter(|(other, value)| other == name && !value.is_empty());
                let expected: Vec<_> = of_name.map(|(_, value)| *value).collect();
                prop_assert_eq!(fields.all(name), expected);
            }
        }
    }

    #[test]
    fn what_is_said_twice_is_there_twice() {
        let fields = Fields::of(b"id=1&id=2&reason=+a+%26+b+&empty=");
        assert_eq!(fields.all("id"), ["1", "2"]);
        assert_eq!(fields.get("reason"), Some("a & b"));
        assert_eq!((fields.get("empty"), fields.get("none")), (None, None));
        assert_eq!(fields.number::<i64>("id"), Some(1));
        assert_eq!(query(&[("a", "x y&z"), ("b", "")]), "a=x+y%26z");
    }
}
