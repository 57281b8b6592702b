//! What the proxy and the transaction component tell each other.

use deuteron_contract::{Lsn, Timestamp};

/// How far the data component has come (paper 4.4): every operation with an LSN below `o_lsn`, of a transaction with
/// a commit record below `t_lsn` and a final timestamp below `posted`, is applied.
///
/// Each of the three only ever grows. A host may therefore keep them in three words and read them one by one: a mix
/// of an older and a newer report is below the newer one and holds as well.
///
/// ```
/// use deuteron_contract::{Lsn, Timestamp};
/// use deuteron_proxy::Progress;
///
/// let progress = Progress { t_lsn: Lsn(8192), o_lsn: Lsn(4096), posted: Timestamp(50) };
/// assert!(progress.covers(Lsn(4000), Lsn(8000), Timestamp(49)));
/// assert!(!progress.covers(Lsn(4000), Lsn(8000), Timestamp(50)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// T-LSN: the eager pass has seen every commit record below.
    pub t_lsn: Lsn,
    /// O-LSN: the delayed pass has met every operation below.
    pub o_lsn: Lsn,
    /// No committed version below this timestamp is waiting.
    pub posted: Timestamp,
}

impl Progress {
    /// Whether a version is in the data component: the one with its redo record at `lsn`, of the transaction that
    /// has committed at `timestamp` with its commit record at `commit_lsn`.
    #[inline]
    pub fn covers(&self, lsn: Lsn, commit_lsn: Lsn, timestamp: Timestamp) -> bool {
        lsn < self.o_lsn && commit_lsn < self.t_lsn && timestamp < self.posted
    }
}

/// The transaction component, as the proxy sees it.
///
/// The methods are called with the proxy's own lock held: they must not call the proxy, and not block.
pub trait ProxyHost: Send + Sync {
    /// The timestamp that no active or future transaction reads below: the oldest active transaction's, or the
    /// clock's. It never goes back.
    fn horizon(&self) -> Timestamp;

    /// Asks that the horizon be `at_least` so soon: too many committed versions wait for it. The host makes active
    /// transactions that are older fail (retryably). Repeated until it is so.
    fn force_horizon(&self, at_least: Timestamp);

    /// Called after each pass.
    fn progress(&self, progress: Progress);

    /// How many threads [`ProxyHost::on_threads`] has, about: by that [`Proxy::replay`](crate::Proxy::replay) cuts its work. One, unless
    /// said otherwise.
    fn threads(&self) -> usize {
        1
    }

    /// Has each of some threads do `work` once, and returns when all are through. How many is the host's business: each takes of what
    /// there is to do until nothing is left. A round is posted so, too, and the host is asked anew every few milliseconds.
    fn on_threads(&self, work: &(dyn Fn() + Sync)) {
        work();
    }
}
