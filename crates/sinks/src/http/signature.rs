//! Signatures as Standard Webhooks has them, so that receivers can use its libraries.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use reqwest::header::HeaderMap;
use sha2::Sha256;

use super::visible;
use crate::Refusal;
use crate::error::SinkError;

/// What both sides know.
#[derive(Clone)]
pub(super) struct Secret(Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    pub(super) fn parse(text: &str) -> Result<Self, SinkError> {
        let encoded = text.strip_prefix("whsec_").unwrap_or(text);
        match STANDARD.decode(encoded) {
            Ok(secret) if secret.len() >= 16 => Ok(Self(secret)),
            _ => Err(SinkError::InvalidConfig {
                field: "secret",
                value: "…".to_owned(),
                allowed: "at least 16 bytes in base64",
            }),
        }
    }

    pub(super) fn sign(
        &self,
        id: &str,
        now: SystemTime,
        body: &[u8],
    ) -> Result<HeaderMap, Refusal> {
        let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0)
            .map_err(|error| Refusal::later(error.to_string()))?;
        mac.update(format!("{id}.{seconds}.").as_bytes());
        mac.update(body);
        let signature = STANDARD.encode(mac.finalize().into_bytes());
        let mut headers = HeaderMap::new();
        headers.insert("webhook-id", visible(id)?);
        headers.insert("webhook-timestamp", visible(&seconds.to_string())?);
        headers.insert("webhook-signature", visible(&format!("v1,{signature}"))?);
        Ok(headers)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_is_a_secret_or_refused_without_it(text in "(whsec_)?([A-Za-z0-9+/]{4}){0,8}|.{1,40}") {
            let bytes = STANDARD.decode(text.trim_start_matches("whsec_"));
            match Secret::parse(&text) {
                Ok(Secret(secret)) => prop_assert_eq!(Ok(secret), bytes),
                Err(error) => {
                    prop_assert!(bytes.is_err() || bytes.is_ok_and(|bytes| bytes.len() < 16));
                    prop_assert_eq!(
                        error.to_string(),
                        "secret is \"…\", but must be at least 16 bytes in base64"
                    );
                }
            }
        }
    }

    #[test]
    fn a_signature_is_that_of_the_standard() {
        // The example of the specification's own libraries.
        let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let now = UNIX_EPOCH + Duration::from_secs(1_614_265_330);
        let headers = secret
            .sign(
                "msg_p5jXN8AQM9LWM0D4loKWxJek",
                now,
                br#"{"test": 2432232314}"#,
            )
            .unwrap();
        assert_eq!(
            headers["webhook-signature"],
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
        assert_eq!(headers["webhook-timestamp"], "1614265330");
    }
}
