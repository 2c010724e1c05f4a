//! Who may use a dashboard, as the command line and a file of users say.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use outbox_dashboard::{Access, Rights};

use crate::failure::Failure;
use crate::given::Given;

/// Where the environment says who may use it.
const USERS: &str = "OUTBOX_USERS";

/// Who may do what on a dashboard
#[derive(Debug, Args)]
#[command(next_help_heading = "Dashboard")]
pub(crate) struct AccessArgs {
    #[command(flatten)]
    given: Given,
    /// Let those who come pause, resume, skip, requeue, resolve and discard
    #[arg(long)]
    operator: bool,
    /// Let those who come see payloads, keys and headers
    #[arg(long)]
    payloads: bool,
    /// Let only users of this file come in: a line each, NAME:SECRET, or NAME:SECRET:operator,payloads
    #[arg(
        long,
        value_name = "FILE",
        env = USERS,
        hide_env_values = true
    )]
    users: Option<PathBuf>,
}

impl AccessArgs {
    pub(crate) fn access(&self) -> Result<Access, Failure> {
        let everybody = Rights {
            operate: self.operator,
            payloads: self.payloads,
        };
        match &self.users {
            None => Ok(Access::everybody(everybody)),
            Some(path) => users(path, everybody),
        }
    }

    /// Whether the command line says anything of it.
    pub(crate) fn are_given(&self) -> bool {
        self.operator || self.payloads || self.given.has("users")
    }

    /// May do everything.
    pub(crate) fn all() -> Access {
        Access::everybody(Rights {
            operate: true,
            payloads: true,
        })
    }
}

fn users(path: &Path, everybody: Rights) -> Result<Access, Failure> {
    let shown = path.display();
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("cannot read the users in {shown}: {error}")))?;
    users_of(&text, path, everybody)
}

fn users_of(text: &str, path: &Path, everybody: Rights) -> Result<Access, Failure> {
    let shown = path.display();
    let mut access = Access::nobody();
    let mut any = false;
    for (line, user) in (1..).zip(text.lines()) {
        let user = user.trim();
        if user.is_empty() || user.starts_with('#') {
            continue;
        }
        // What is wrong with a line is said without the line, which has a secret in it.
        let wrong = |what: &str| {
            Failure::usage(format!("line {line} of {shown} {what}"))
                .way_out("a line is NAME:SECRET, or NAME:SECRET:operator,payloads")
        };
        let mut parts = user.splitn(3, ':');
        let (Some(name), Some(secret)) = (parts.next(), parts.next()) else {
            return Err(wrong("has no secret"));
        };
        let mut rights = everybody;
        for right in parts
            .next()
            .into_iter()
            .flat_map(|rights| rights.split(','))
        {
            match right.trim() {
                "operator" => rights.operate = true,
                "payloads" => rights.payloads = true,
                "" => {}
                _ => {
                    return Err(wrong(
                        "has a third part that is no right; a secret has no colon",
                    ));
                }
            }
        }
        access = access
            .user(name, secret, rights)
            .map_err(|error| wrong(&format!("is refused: {error}")))?;
        any = true;
    }
    if !any {
        return Err(Failure::usage(format!("there is no user in {shown}"))
            .way_out("a line is NAME:SECRET, or NAME:SECRET:operator,payloads"));
    }
    Ok(access)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<Access, Failure> {
        users_of(text, Path::new("users"), Rights::LOOK)
    }

    proptest! {
        #[test]
        fn any_file_has_users_or_a_line_that_is_wrong(text in any::<String>()) {
            let _ = read(&text);
        }

        /// A name is no secret, and no line is without one; what is wrong may be anything else.
        #[test]
        fn a_line_that_is_wrong_is_named_and_its_secret_is_not(
            lines in vec(("[a-z]{0,3}", "[ -~]{0,9}|.{0,9}", ":operator|:payloads|:[ -~]{0,9}|"), 1..6),
        ) {
            let line = |(name, secret, rights): &(String, String, String)| format!("{name}:{secret}s3cr3t{rights}\n");
            let text: String = lines.iter().map(line).collect();
            if let Err(failure) = read(&text) {
                let said = failure.to_string();
                prop_assert!(!said.contains("s3cr3t"), "{}", said);
                let named = said.strip_prefix("outbox: line ").and_then(|rest| rest.split(' ').next());
                let named = named.and_then(|number| number.parse().ok());
                prop_assert!(named.is_some_and(|line| (1..=lines.len()).contains(&line)), "{}", said);
            }
        }
    }

    #[test]
    fn users_are_read_line_by_line() {
        let access = read("# ours\n\nada:a long secret:operator,payloads\nbob:another secret\n");
        assert!(access.unwrap().asks());
    }

    #[test]
    fn what_is_wrong_is_said_without_the_secret() {
        for (text, told) in [
            ("ada", "line 1"),
            ("\nada:short", "line 2"),
            ("ada:my dear secret:root", "line 1"),
            ("# nobody", "no user"),
            ("ada:my dear secret\nada:my dear secret", "line 2"),
        ] {
            let failure = read(text).unwrap_err().to_string();
            assert!(failure.contains(told), "{failure}");
            assert!(!failure.contains("dear"), "{failure}");
        }
    }
}
