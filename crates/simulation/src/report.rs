//! What runs have done, in numbers.

use std::fmt;
use std::ops::AddAssign;

macro_rules! report {
    ($($(#[$doc:meta])* $field:ident),* $(,)?) => {
        /// What runs have done, in numbers; of one, or added up.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Report {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl AddAssign<&Report> for Report {
            fn add_assign(&mut self, other: &Report) {
                $(self.$field += other.$field;)*
            }
        }

        impl fmt::Display for Report {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut parts = Vec::new();
                $(parts.push(format!("{} {}", self.$field, stringify!($field).replace('_', " ")));)*
                formatter.write_str(&parts.join(", "))
            }
        }
    };
}

report! {
    /// Steps.
    steps,
    /// Transactions begun.
    transactions,
    /// Commits that wrote something.
    commits,
    /// Transactions that met others.
    conflicts,
    /// Operations that were refused with a reason that fits.
    refusals,
    /// Reads and scans compared.
    reads,
    /// Openings after a clean close.
    reopenings,
    /// Openings after a power cut or a failure.
    recoveries,
    /// Of these, such as were stopped before they had ended.
    broken_recoveries,
    /// Faults that have struck.
    faults,
    /// Runs in which damage was named.
    damage_named,
    /// Acknowledged commits that a lying device has lost, with the end of the log.
    lost_to_lies,
    /// Backups restored and compared.
    backups,
}
