//! The client that posts. It is made when it is first needed: a file of certificates that is not there yet stops
//! messages, and no process.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Certificate, Client};

#[derive(Debug)]
pub(super) struct Caller {
    timeout: Duration,
    root_certificates: Option<PathBuf>,
    client: OnceLock<Client>,
}

impl Caller {
    pub(super) fn new(timeout: Duration, root_certificates: Option<PathBuf>) -> Self {
        Self {
            timeout,
            root_certificates,
            client: OnceLock::new(),
        }
    }

    /// The client, or why there is none.
    pub(super) fn client(&self) -> Result<&Client, String> {
        match self.client.get() {
            Some(client) => Ok(client),
            None => {
                let made = self.make()?;
                Ok(self.client.get_or_init(|| made))
            }
        }
    }

    fn make(&self) -> Result<Client, String> {
        let mut client = Client::builder()
            .timeout(self.timeout)
            .connect_timeout(self.timeout)
            .redirect(Policy::none())
            .user_agent(concat!("outbox/", env!("CARGO_PKG_VERSION")));
        if let Some(path) = &self.root_certificates {
            let read = read(path);
            let certificates = read.map_err(|error| format!("{}: {error}", path.display()))?;
            client = client.tls_certs_only(certificates);
        }
        client.build().map_err(|error| super::causes(&error))
    }
}

/// The certificates in a file.
fn read(path: &Path) -> Result<Vec<Certificate>, String> {
    let text = std::fs::read(path).map_err(|error| error.to_string())?;
    let certificates =
        Certificate::from_pem_bundle(&text).map_err(|error| super::causes(&error))?;
    match certificates.is_empty() {
        // None would mean that nobody is trusted.
        true => Err("there is no certificate in it".to_owned()),
        false => Ok(certificates),
    }
}
