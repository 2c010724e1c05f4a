//! Why a sink cannot be made.

/// What is wrong with a sink's configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SinkError {
    /// A value cannot be what it is.
    #[error("{field} is {value:?}, but must be {allowed}")]
    InvalidConfig {
        /// The field, as it is written in the configuration.
        field: &'static str,
        /// What it was set to.
        value: String,
        /// What it may be.
        allowed: &'static str,
    },

    /// A template that cannot be filled in.
    #[error("template {template:?}: {problem}")]
    InvalidTemplate {
        /// The template.
        template: String,
        /// What is wrong with it.
        problem: String,
    },

    /// A file that cannot be written.
    #[error("cannot write {path}: {error}")]
    File {
        /// The file.
        path: String,
        /// Why not.
        error: std::io::Error,
    },
}
