//! Who may see and do what. Everything is refused that was not granted.

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::DashboardError;
use crate::limits::Often;

/// Wrong secrets that are listened to within a minute, from one address.
const WRONG_SECRETS: u32 = 20;
/// The shortest secret of a user.
const SHORTEST_SECRET: usize = 12;

/// What somebody may do beside looking at numbers, names and errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rights {
    /// Pause, resume, skip, requeue, resolve, discard.
    pub operate: bool,
    /// See payloads, keys and headers.
    pub payloads: bool,
}

impl Rights {
    /// May look, and nothing else.
    pub const LOOK: Self = Self {
        operate: false,
        payloads: false,
    };

    /// What one or the other allows.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            operate: self.operate || other.operate,
            payloads: self.payloads || other.payloads,
        }
    }
}

/// Who is asking. A layer of the application that embeds the dashboard can put one into the extensions of a
/// request; it counts instead of what [`Access`] says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// As the audit log names them.
    pub name: String,
    /// What they may do.
    pub rights: Rights,
}

/// A user and the secret that proves it.
#[derive(Clone)]
struct User {
    name: String,
    /// Of the secret.
    digest: [u8; 32],
    rights: Rights,
}

/// Who may come in.
#[derive(Clone)]
pub struct Access {
    users: Vec<User>,
    everybody: Option<Rights>,
    /// Wrong secrets, by where they came from: counted together wherever this access is used.
    strangers: Arc<Often<Option<IpAddr>>>,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let users: Vec<_> = self.users.iter().map(|user| &user.name).collect();
        f.debug_struct("Access")
            .field("users", &users)
            .field("everybody", &self.everybody)
            .finish()
    }
}

/// Why somebody is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stranger {
    /// Said nothing.
    Silent,
    /// Said something wrong.
    Wrong,
    /// Said something wrong so often that it is not listened to for a while.
    Unheard,
}

impl Access {
    /// Nobody but [users](Self::user).
    pub fn nobody() -> Self {
        Self {
            users: Vec::new(),
            everybody: None,
            strangers: Arc::new(Often::new(WRONG_SECRETS)),
        }
    }

    /// Everybody who reaches the dashboard has these rights, without saying who they are.
    pub fn everybody(rights: Rights) -> Self {
        Self {
            everybody: Some(rights),
            ..Self::nobody()
        }
    }

    /// Adds a user: by HTTP's Basic authentication, or with the secret alone as a bearer token. From now on
    /// nobody comes in without.
    pub fn user(
        mut self,
        name: impl Into<String>,
        secret: &str,
        rights: Rights,
    ) -> Result<Self, DashboardError> {
        let name = name.into();
        if name.is_empty() || name.contains(':') || name.chars().any(char::is_control) {
            return Err(DashboardError::InvalidUserName(name));
        }
        if secret.len() < SHORTEST_SECRET {
            let (length, shortest) = (secret.len(), SHORTEST_SECRET);
            return Err(DashboardError::ShortSecret {
                name,
                length,
                shortest,
            });
        }
        if self.users.iter().any(|user| user.name == name) {
            return Err(DashboardError::UserTwice(name));
        }
        self.everybody = None;
        self.users.push(User {
            name,
            digest: Sha256::digest(secret).into(),
            rights,
        });
        Ok(self)
    }

    /// Whether whoever comes has to say who they are.
    pub fn asks(&self) -> bool {
        self.everybody.is_none()
    }

    /// Whether whoever asks with these headers, from this address if it is known, may come in.
    pub fn admits(&self, headers: &HeaderMap, from: Option<IpAddr>) -> bool {
        self.identify(headers, from).is_ok()
    }

    pub(crate) fn identify(
        &self,
        headers: &HeaderMap,
        from: Option<IpAddr>,
    ) -> Result<Identity, Stranger> {
        // Who guesses from one place keeps nobody out who comes from another.
        if self.asks() && self.strangers.is_over(&from) {
            return Err(Stranger::Unheard);
        }
        let identity = self.heard(headers);
        if identity == Err(Stranger::Wrong) {
            self.strangers.count(from);
            tracing::warn!(?from, "somebody did not know the secret of the dashboard");
        }
        identity
    }

    fn heard(&self, headers: &HeaderMap) -> Result<Identity, Stranger> {
        if let Some(rights) = self.everybody {
            let name = "somebody".to_owned();
            return Ok(Identity { name, rights });
        }
        let said = headers.get(header::AUTHORIZATION).ok_or(Stranger::Silent)?;
        let said = said.to_str().map_err(|_| Stranger::Wrong)?;
        let (scheme, said) = said.split_once(' ').ok_or(Stranger::Wrong)?;
        let (name, secret) = match scheme.to_ascii_lowercase().as_str() {
            "bearer" => (None, said.trim().to_owned()),
            "basic" => {
                let decoded = STANDARD.decode(said.trim()).map_err(|_| Stranger::Wrong)?;
                let decoded = String::from_utf8(decoded).map_err(|_| Stranger::Wrong)?;
                let (name, secret) = decoded.split_once(':').ok_or(Stranger::Wrong)?;
                (Some(name.to_owned()), secret.to_owned())
            }
            _ => return Err(Stranger::Wrong),
        };
        let digest = <[u8; 32]>::from(Sha256::digest(secret));
        // Every one is compared, so that the time it takes tells nothing.
        let found = self.users.iter().filter(|user| {
            let right = bool::from(user.digest.ct_eq(&digest));
            right & name.as_ref().is_none_or(|name| *name == user.name)
        });
        let found: Vec<_> = found.collect();
        let user = found.first().ok_or(Stranger::Wrong)?;
        Ok(Identity {
            name: user.name.clone(),
            rights: user.rights,
        })
    }
}

/// Makes and checks what a form has to bring along, so that no other site can fill it in.
pub(crate) struct Seal([u8; 32]);

impl Seal {
    pub(crate) fn new() -> Self {
        let mut key = [0; 32];
        key[..16].copy_from_slice(uuid::Uuid::new_v4().as_bytes());
        key[16..].copy_from_slice(uuid::Uuid::new_v4().as_bytes());
        Self(key)
    }

    fn mac(&self, identity: &Identity) -> Hmac<Sha256> {
        // A key of any length will do.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key");
        mac.update(identity.name.as_bytes());
        mac
    }

    pub(crate) fn of(&self, identity: &Identity) -> String {
        STANDARD.encode(self.mac(identity).finalize().into_bytes())
    }

    pub(crate) fn is_of(&self, identity: &Identity, sealed: &str) -> bool {
        let Ok(sealed) = STANDARD.decode(sealed) else {
            return false;
        };
        self.mac(identity).verify_slice(&sealed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn says(authorization: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, authorization.parse().unwrap());
        headers
    }

    fn basic(text: &str) -> HeaderMap {
        says(&format!("Basic {}", STANDARD.encode(text)))
    }

    proptest! {
        #[test]
        fn nothing_but_the_secret_lets_anybody_in(
            said in any::<Vec<u8>>(),
            scheme in "Basic|basic|Bearer|BEARER|Digest|.{0,5}",
            credentials in "ada:.{0,9}|[a-z]{0,3}:a long secre|[ -~]{0,20}",
        ) {
            let access = Access::nobody().user("ada", "a long secret", OPERATE);
            let access = access.map_err(|error| TestCaseError::fail(error.to_string()))?;
            let plain = format!("{scheme} {credentials}").into_bytes();
            let encoded = format!("{scheme} {}", STANDARD.encode(&credentials)).into_bytes();
            for said in [said, plain, encoded] {
                // What is no value of a header does not get here.
                let Ok(said) = HeaderValue::from_bytes(&said) else {
                    continue;
                };
                let headers = HeaderMap::from_iter([(header::AUTHORIZATION, said)]);
                prop_assert_eq!(access.heard(&headers), Err(Stranger::Wrong));
            }
        }

        #[test]
        fn any_secret_lets_its_user_in(secret in "[!-~][ -~]{10,20}[!-~]", name in "[^:\\pC]{1,9}") {
            let access = Access::nobody().user(&name, &secret, OPERATE);
            let access = access.map_err(|error| TestCaseError::fail(error.to_string()))?;
            for headers in [basic(&format!("{name}:{secret}")), says(&format!("Bearer {secret}"))] {
                let heard = access.heard(&headers).map(|identity| identity.name);
                prop_assert_eq!(heard.as_deref(), Ok(&*name));
            }
        }

        #[test]
        fn no_text_is_a_seal_but_the_seal(sealed in any::<String>(), place in any::<prop::sample::Index>()) {
            let (seal, name) = (Seal::new(), "ada".to_owned());
            let ada = Identity { name, rights: OPERATE };
            prop_assert!(!seal.is_of(&ada, &sealed));
            let right = seal.of(&ada);
            // The last bits of the last digit before the sign say nothing, and are refused unless they are zero.
            let place = place.index(right.len());
            let other = if &right[place..=place] == "A" { "B" } else { "A" };
            let wrong = format!("{}{other}{}", &right[..place], &right[place + 1..]);
            prop_assert!(!seal.is_of(&ada, &wrong));
        }
    }

    const OPERATE: Rights = Rights {
        operate: true,
        payloads: false,
    };

    #[test]
    fn who_has_the_secret_is_let_in_and_nobody_else() {
        let access = Access::nobody()
            .user("ada", "correct horse battery", OPERATE)
            .and_then(|access| access.user("bob", "staple staple", Rights::LOOK))
            .unwrap();
        let ada = access
            .identify(&basic("ada:correct horse battery"), None)
            .unwrap();
        assert_eq!((&*ada.name, ada.rights), ("ada", OPERATE));
        let bob = access
            .identify(&says("bearer staple staple"), None)
            .unwrap();
        assert_eq!((&*bob.name, bob.rights), ("bob", Rights::LOOK));
        assert_eq!(
            access.identify(&HeaderMap::new(), None),
            Err(Stranger::Silent)
        );
        for wrong in [
            basic("ada:staple staple"),
            basic("ada:"),
            basic("ada"),
            basic(":correct horse battery"),
            says("Basic §§§"),
            says("Bearer "),
            says("Bearer"),
            says("Digest staple staple"),
        ] {
            assert_eq!(
                access.identify(&wrong, None),
                Err(Stranger::Wrong),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn who_guesses_is_not_listened_to_and_keeps_nobody_else_out() {
        let access = Access::nobody()
            .user("ada", "a long secret", OPERATE)
            .unwrap();
        let [here, there] = [1, 2].map(|last| Some(IpAddr::from([10, 0, 0, last])));
        let (right, wrong) = (says("Bearer a long secret"), says("Bearer a wrong one"));
        for _ in 0..WRONG_SECRETS {
            assert_eq!(access.identify(&wrong, here), Err(Stranger::Wrong));
        }
        assert_eq!(access.identify(&wrong, here), Err(Stranger::Unheard));
        assert_eq!(
            access.clone().identify(&right, here),
            Err(Stranger::Unheard)
        );
        assert!(access.identify(&right, there).is_ok());
        assert!(access.identify(&right, None).is_ok());
    }

    #[test]
    fn a_user_shuts_everybody_else_out() {
        let open = Access::everybody(Rights::LOOK);
        assert!(!open.asks());
        assert!(open.identify(&HeaderMap::new(), None).is_ok());
        let closed = open.user("ada", "correct horse battery", OPERATE).unwrap();
        assert!(closed.asks());
        assert_eq!(
            closed.identify(&HeaderMap::new(), None),
            Err(Stranger::Silent)
        );
        assert!(Access::nobody().identify(&HeaderMap::new(), None).is_err());
    }

    #[test]
    fn a_bad_user_is_refused_by_name() {
        let add = |name: &str, secret| Access::nobody().user(name, secret, OPERATE).unwrap_err();
        assert!(
            add("", "correct horse battery")
                .to_string()
                .contains("\"\"")
        );
        assert!(
            add("a:b", "correct horse battery")
                .to_string()
                .contains("a:b")
        );
        let short = add("ada", "hunter2").to_string();
        assert!(short.contains("ada") && short.contains("12"), "{short}");
        assert!(!short.contains("hunter"), "{short}");
    }

    #[test]
    fn a_seal_is_of_one_identity_and_one_process() {
        let (seal, other) = (Seal::new(), Seal::new());
        let [ada, bob] = ["ada", "bob"].map(|name| Identity {
            name: name.to_owned(),
            rights: OPERATE,
        });
        assert!(seal.is_of(&ada, &seal.of(&ada)));
        assert!(!seal.is_of(&bob, &seal.of(&ada)));
        assert!(!other.is_of(&ada, &seal.of(&ada)));
        assert!(!seal.is_of(&ada, ""));
    }
}
