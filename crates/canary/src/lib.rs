//! Canaries: bugs that are planted to see that the harness catches them.
//!
//! A place in the engine that keeps a rule asks [`is_planted`] whether to break it. That is a constant *no*, and nothing but the rule
//! is compiled, unless the whole build has `--cfg canary` in its flags. Then the environment variable [`VARIABLE`] names the one
//! bug of the process; without it there is none. `cargo xtask ci canaries` looks that each is caught, and by what:
//! `docs/design/simulation.md` has the table.
//!
//! ```
//! use deuteron_canary::{Canary, is_planted};
//! # if !cfg!(canary) {
//! assert!(!is_planted(Canary::AcknowledgeBeforeSync));
//! # }
//! ```

/// The environment variable that names the bug of the process.
pub const VARIABLE: &str = "DEUTERON_CANARY";

macro_rules! canaries {
    ($($(#[$doc:meta])* $canary:ident = $name:literal,)*) => {
        /// A planted bug.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Canary {
            $($(#[$doc])* $canary,)*
        }

        impl Canary {
            /// All of them.
            pub const ALL: &'static [Canary] = &[$(Canary::$canary,)*];

            /// What [`VARIABLE`] calls it.
            ///
            /// ```
            /// assert_eq!(deuteron_canary::Canary::FreeEarly.name(), "free-early");
            /// ```
            pub const fn name(self) -> &'static str {
                match self {
                    $(Canary::$canary => $name,)*
                }
            }
        }
    };
}

canaries! {
    /// Log, F3: a buffer counts as stable once it is written; it is synced with the next.
    AcknowledgeBeforeSync = "acknowledge-before-sync",
    /// Log, F4: after a write that failed the file is synced, and if that succeeds the buffer counts as stable.
    RetryFailedSync = "retry-failed-sync",
    /// Log: opening takes a buffer whose checksum is wrong for one that had been written whole.
    IgnoreTornTail = "ignore-torn-tail",
    /// Log: opening does not look whether the log reaches as far as the data component depends on it.
    IgnoreLostEnd = "ignore-lost-end",
    /// Transactions, R7: one that was pushed commits without looking at its reads again.
    SkipRefresh = "skip-refresh",
    /// Transactions, R12: the read timestamp of an evicted record is not folded into the floor.
    DropReadTimestamp = "drop-read-timestamp",
    /// Transactions, R2: readers go past an active older writer without pushing it.
    ForgetPush = "forget-push",
    /// Transactions, R4: scans do not say what range they have read.
    SkipRangeCheck = "skip-range-check",
    /// Transactions, R5: writers do not push themselves beyond those who have read the key.
    SkipSelfPush = "skip-self-push",
    /// Transactions, R15: writers do not look at the fence of those who are declared to read only.
    SkipFence = "skip-fence",
    /// Transactions, R20: one goes on from the present without looking at its reads again.
    MoveBlindly = "move-blindly",
    /// Transactions, R21: what was rolled back is not logged anew without it.
    SkipRelog = "skip-relog",
    /// Transactions, R24: a refresh does not look whether a table that was read is dropped.
    SkipDropCheck = "skip-drop-check",
    /// Transactions, R11: the proxy posts versions that some active transaction may not see.
    PostAboveHorizon = "post-above-horizon",
    /// Proxy, P4: what is undecided does not hold back the redo scan start point.
    ForgetUndecided = "forget-undecided",
    /// Contract, C2: of two versions the one that was logged later counts, not the one with the higher timestamp.
    ApplyByLsn = "apply-by-lsn",
    /// Bw-tree: consolidation leaves out the oldest delta.
    LoseDelta = "lose-delta",
    /// Bw-tree: the filter of a delta leaves out its first key.
    ForgetKey = "forget-key",
    /// Store: a page is flushed that adopts another which is not flushed yet.
    SplitBeforeSibling = "split-before-sibling",
    /// Store: a page that was merged away is given up before its heir is durable, and its identifier used again.
    ReuseIdentifier = "reuse-identifier",
    /// Store: the checksum of a fragment is not looked at.
    TrustFragments = "trust-fragments",
    /// Epochs: what is retired in the epoch of the oldest guard is freed, not only what was before it.
    FreeEarly = "free-early",
    /// Recovery: a checkpoint cuts the log without having repeated the clock's ceiling.
    CutCeiling = "cut-ceiling",
}

/// Whether `canary` is the bug of this process.
///
/// # Panics
/// If [`VARIABLE`] has a name that no canary has.
#[cfg(canary)]
pub fn is_planted(canary: Canary) -> bool {
    static PLANTED: std::sync::OnceLock<Option<Canary>> = std::sync::OnceLock::new();
    let planted = PLANTED.get_or_init(|| {
        let name = std::env::var(VARIABLE).ok()?;
        let found = Canary::ALL.iter().copied().find(|known| known.name() == name);
        Some(found.unwrap_or_else(|| panic!("{VARIABLE}: there is no canary {name}")))
    });
    *planted == Some(canary)
}

/// Never: this build has no canaries.
///
/// ```
/// // A constant, so that what it guards is not even compiled.
/// # #[cfg(not(canary))]
/// const _: () = assert!(!deuteron_canary::is_planted(deuteron_canary::Canary::FreeEarly));
/// ```
#[cfg(not(canary))]
#[inline(always)]
pub const fn is_planted(_: Canary) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_given_twice() {
        for (index, canary) in Canary::ALL.iter().enumerate() {
            assert!(Canary::ALL[..index].iter().all(|other| other.name() != canary.name()), "{canary:?}");
        }
    }

    #[test]
    #[cfg(not(canary))]
    fn an_ordinary_build_has_none() {
        for canary in Canary::ALL {
            assert!(!is_planted(*canary));
        }
        const { assert!(!is_planted(Canary::AcknowledgeBeforeSync)) };
    }
}
