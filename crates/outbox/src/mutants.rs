//! Deliberate defects, one at a time, for the torture bed to find. They exist with `--cfg mutants` only;
//! the environment says which one is alive.

use std::sync::LazyLock;

/// The variable of the environment that names the mutant.
pub const VARIABLE: &str = "OUTBOX_MUTANT";

/// A defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// Whoever has held a lease may settle, however many have held it since.
    EpochCheckDropped,
    /// A transaction announces what it is about to commit.
    SignalBeforeCommit,
    /// What a failed handler wrote in the settling transaction is not undone.
    SavepointDropped,
    /// A batch moves the cursor by as many messages as it had, not as were handled.
    CursorByCount,
    /// Messages refer to their partition.
    ForeignKey,
    /// A message waits for every transaction that began before its own.
    GatedOnXmin,
    /// Leases run out, whatever their holder does.
    LeaseNeverRenewed,
    /// What nobody has handled yet is removed.
    VacuumPastCursor,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::EpochCheckDropped,
        Self::SignalBeforeCommit,
        Self::SavepointDropped,
        Self::CursorByCount,
        Self::ForeignKey,
        Self::GatedOnXmin,
        Self::LeaseNeverRenewed,
        Self::VacuumPastCursor,
    ];

    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::EpochCheckDropped => "epoch-check-dropped",
            Self::SignalBeforeCommit => "signal-before-commit",
            Self::SavepointDropped => "savepoint-dropped",
            Self::CursorByCount => "cursor-by-count",
            Self::ForeignKey => "foreign-key",
            Self::GatedOnXmin => "gated-on-xmin",
            Self::LeaseNeverRenewed => "lease-never-renewed",
            Self::VacuumPastCursor => "vacuum-past-cursor",
        }
    }

    /// Whether it is the one.
    pub(crate) fn is_alive(self) -> bool {
        static ALIVE: LazyLock<Option<Mutant>> = LazyLock::new(|| {
            let name = std::env::var(VARIABLE).ok()?;
            Mutant::ALL.into_iter().find(|mutant| mutant.name() == name)
        });
        *ALIVE == Some(self)
    }

    /// What it makes of the text of statements: what is replaced, and by what.
    const fn edits(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::EpochCheckDropped => &[
                ("epoch = $2 AND holder", "epoch >= $2 AND holder"),
                ("epoch = ? AND holder", "epoch >= ? AND holder"),
                ("epoch = ?2 AND holder", "epoch >= ?2 AND holder"),
            ],
            Self::ForeignKey => &[
                (
                    "partition_id BIGINT NOT NULL,\n    created_at BIGINT NOT NULL,\n    payload_type TEXT",
                    "partition_id BIGINT NOT NULL REFERENCES {prefix}partitions,\n    \
                     created_at BIGINT NOT NULL,\n    payload_type TEXT",
                ),
                (
                    "payload LONGBLOB NOT NULL,\n    PRIMARY KEY (id)",
                    "payload LONGBLOB NOT NULL,\n    PRIMARY KEY (id),\n    \
                     FOREIGN KEY (partition_id) REFERENCES {prefix}partitions (partition_id)",
                ),
            ],
            Self::GatedOnXmin => &[(
                "pg_visible_in_snapshot(found.xid, state.upto)",
                "pg_visible_in_snapshot(found.xid, state.upto) \
                 AND found.xid < pg_snapshot_xmin(pg_current_snapshot())",
            )],
            Self::LeaseNeverRenewed => &[
                (
                    "lease_until = {now} + lease_millis, renewals = renewals + 1",
                    "renewals = renewals",
                ),
                (
                    "lease_until = {now} + c.lease_millis, renewals = c.renewals + 1",
                    "renewals = c.renewals",
                ),
                (
                    "c.lease_until = {now} + c.lease_millis, c.renewals = c.renewals + 1",
                    "c.renewals = c.renewals",
                ),
            ],
            Self::VacuumPastCursor => &[
                ("AND r.last_seq <= c.processed_seq", ""),
                ("AND m.id <= c.processed_id", ""),
            ],
            Self::SignalBeforeCommit | Self::SavepointDropped | Self::CursorByCount => &[],
        }
    }
}

/// The text of a statement, as the mutant that is alive would have it.
pub(crate) fn changed(statement: &str) -> String {
    let alive = Mutant::ALL.into_iter().find(|mutant| mutant.is_alive());
    let edits = alive.map_or(&[][..], Mutant::edits);
    edits
        .iter()
        .fold(statement.to_owned(), |statement, (before, after)| {
            statement.replace(before, after)
        })
}
