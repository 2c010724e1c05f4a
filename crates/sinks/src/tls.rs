//! Which cryptography clients use that do not say so themselves.

/// They take the process's, and panic where a build has several and nobody has chosen. An application that
/// has keeps its choice.
pub(crate) fn choose_cryptography() {
    // It only fails where the choice is made.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}
