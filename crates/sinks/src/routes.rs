//! Where messages have arrived already.

use std::collections::HashSet;
use std::sync::Mutex;

use crate::lock;

/// How many routes are remembered; then it begins anew.
const ROUTES: usize = 10_000;

/// Topics and routing keys by which a message has arrived on this connection. The first message of any
/// other is waited for before the next one is sent: one that nobody takes is then the last that was sent,
/// and none behind it overtakes it.
#[derive(Debug, Default)]
pub(crate) struct Routes(Mutex<HashSet<String>>);

impl Routes {
    pub(crate) fn is_proven(&self, route: &str) -> bool {
        let routes = lock(&self.0);
        routes.contains(route)
    }

    pub(crate) fn prove(&self, route: String) {
        let mut routes = lock(&self.0);
        if routes.len() >= ROUTES {
            routes.clear();
        }
        routes.insert(route);
    }
}
