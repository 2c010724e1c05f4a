//! What the builders of sinks have in common.

/// A `Debug` that shows these fields, and keeps the others to itself: there may be passwords among them.
macro_rules! shows_only {
    ($($kind:ident { $($field:ident),* })*) => {$(
        impl std::fmt::Debug for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($kind))
                    $(.field(stringify!($field), &self.$field))*
                    .finish_non_exhaustive()
            }
        }
    )*};
}
pub(crate) use shows_only;

/// The settings that every broker has.
#[cfg(feature = "broker")]
macro_rules! has_limits {
    ($builder:ident, $broker:literal) => {
        impl $builder {
            /// How many messages of a partition are on their way at once. Default 100.
            pub fn window(mut self, window: usize) -> Self {
                self.window = window;
                self
            }

            #[doc = concat!("How long ", $broker, " may take for a window. Default 10 s; the queue's lease should be longer.")]
            pub fn timeout(mut self, timeout: std::time::Duration) -> Self {
                self.timeout = timeout;
                self
            }
        }
    };
}
#[cfg(feature = "broker")]
pub(crate) use has_limits;
