//! What a statement grants, taken apart: each can be taken away by itself.

/// One privilege of one account on one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant {
    privilege: String,
    object: String,
    pub(crate) account: String,
}

impl Grant {
    pub(crate) fn all(statement: &str) -> Vec<Self> {
        let statement = statement.split_whitespace().collect::<Vec<_>>().join(" ");
        let granted = statement.strip_prefix("GRANT ").unwrap();
        let (privileges, rest) = granted.split_once(" ON ").unwrap();
        let (objects, accounts) = rest.split_once(" TO ").unwrap();
        // Its kind is said once, before the first of them; tables have none.
        let kinds = ["SCHEMA ", "FUNCTION ", "PROCEDURE "];
        let kind = kinds.into_iter().find(|kind| objects.starts_with(kind));
        let (kind, objects) = objects.split_at(kind.map_or(0, str::len));
        let mut grants = Vec::new();
        for account in listed(accounts) {
            for object in listed(objects) {
                grants.extend(listed(privileges).into_iter().map(|privilege| Self {
                    privilege: privilege.to_owned(),
                    object: format!("{kind}{object}"),
                    account: account.to_owned(),
                }));
            }
        }
        grants
    }

    pub(crate) fn give(&self) -> String {
        let (privilege, object, account) = (&self.privilege, &self.object, &self.account);
        format!("GRANT {privilege} ON {object} TO {account}")
    }

    pub(crate) fn revoke(&self) -> String {
        let (privilege, object, account) = (&self.privilege, &self.object, &self.account);
        format!("REVOKE {privilege} ON {object} FROM {account}")
    }
}

/// The parts of a list; commas in parentheses are not between them.
fn listed(list: &str) -> Vec<&str> {
    let (mut depth, mut begin, mut parts) = (0, 0, Vec::new());
    for (place, character) in list.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(list[begin..place].trim());
                begin = place + 1;
            }
            _ => {}
        }
    }
    parts.push(list[begin..].trim());
    parts
}
