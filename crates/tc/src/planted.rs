//! The planted bugs: each leaves out one rule, and must be caught by the crate's own tests.
//!
//! Most are those of the executable model of the design. Some are canaries of the whole engine, too. Outside of tests and of
//! builds with canaries [`is_planted`] is a constant and the rule sites compile to the rules.

#[cfg(all(canary, not(all(test, not(loom)))))]
use deuteron_canary::Canary;

/// A rule left out. The names are those of `docs/design/transactions.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(any(not(test), loom), allow(dead_code))]
pub(crate) enum Bug {
    /// R3: readers do not raise the read timestamp.
    NoReadTimestamp,
    /// R3: readers do not look at the head again.
    NoRecheck,
    /// R2: readers go past an active older writer without pushing it.
    NoPush,
    /// R5: writers do not push themselves beyond readers and the version below.
    NoSelfPush,
    /// R7: a pushed transaction commits without refreshing its reads.
    NoRefresh,
    /// R4: scans do not publish their range.
    NoRange,
    /// R8: the commit record is reserved after the status word has been swapped.
    LogOrder,
    /// R11: the proxy posts versions that are younger than the horizon.
    EagerApply,
    /// C2 of the contract: the data component orders versions by arrival.
    LsnOrder,
    /// R12: the read timestamp of an evicted record is read before the record is frozen.
    NoFreeze,
    /// R12: the read timestamp of an evicted record is not folded into the floor.
    NoFloor,
    /// R22: the value of a change follows from what was there before its version was installed.
    FoldEarly,
    /// R21: what was rolled back is not logged anew without it.
    NoRelog,
    /// R20: a transaction goes on from the present without refreshing its reads.
    MoveBlindly,
    /// R15: writers do not look at the fence.
    NoFence,
    /// R24: a refresh does not look whether a table that was read is dropped.
    NoDropCheck,
    /// R25: writers do not forget the empty ranges into which they write.
    KeepEmpty,
    /// R25: what a scan has noted to be empty is known to be at once.
    KnowAtOnce,
    /// R25: a scan does not mind versions that it cannot see in what it finds empty.
    IgnoreUnsettled,
    /// R26: who is going to read at a later timestamp does not say so.
    StayFixed,
    /// R10: scans read the data component first, and do not look again.
    DcFirst,
}

#[cfg(all(test, not(loom)))]
std::thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants `bug` for the calling thread.
#[cfg(all(test, not(loom)))]
pub(crate) fn plant(bug: Option<Bug>) {
    PLANTED.with(|planted| planted.set(bug));
}

/// Whether `bug` is planted in the calling thread.
#[cfg(all(test, not(loom)))]
pub(crate) fn is_planted(bug: Bug) -> bool {
    PLANTED.with(|planted| planted.get() == Some(bug))
}

/// Whether `bug` is the canary of the process.
#[cfg(all(canary, not(all(test, not(loom)))))]
pub(crate) fn is_planted(bug: Bug) -> bool {
    let canary = match bug {
        Bug::NoPush => Canary::ForgetPush,
        Bug::NoSelfPush => Canary::SkipSelfPush,
        Bug::NoRefresh => Canary::SkipRefresh,
        Bug::NoRange => Canary::SkipRangeCheck,
        Bug::NoFloor => Canary::DropReadTimestamp,
        Bug::NoRelog => Canary::SkipRelog,
        Bug::MoveBlindly => Canary::MoveBlindly,
        Bug::NoFence => Canary::SkipFence,
        Bug::NoDropCheck => Canary::SkipDropCheck,
        // They show only where threads meet between two instructions, or elsewhere in the engine.
        _ => return false,
    };
    deuteron_canary::is_planted(canary)
}

/// Never, outside of tests and of builds with canaries.
#[cfg(not(any(canary, all(test, not(loom)))))]
#[inline(always)]
pub(crate) const fn is_planted(_: Bug) -> bool {
    false
}
