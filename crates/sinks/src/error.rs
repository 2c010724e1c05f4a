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
}

#[cfg(any(feature = "broker", feature = "http"))]
impl SinkError {
    /// What is wrong with a template that may hold a password.
    #[cfg(feature = "http")]
    pub(crate) fn without_template(self) -> Self {
        match self {
            Self::InvalidTemplate { problem, .. } => Self::InvalidTemplate {
                template: "…".to_owned(),
                problem,
            },
            other => other,
        }
    }

    pub(crate) fn invalid(field: &'static str, value: &str, allowed: &'static str) -> Self {
        Self::InvalidConfig {
            field,
            value: value.to_owned(),
            allowed,
        }
    }
}
