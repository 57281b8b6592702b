//! [`Accounts`]: how much of each segment is live, and which one to clean.

use crate::flash_address::FlashAddress;
use std::collections::BTreeMap;

/// The account of one segment.
#[derive(Clone, Debug, Default)]
struct Account {
    live_bytes: u64,
    live_fragments: u64,
    /// When, in bytes written to the store, a fragment died here: an estimate of the last but one time.
    updated: f64,
    /// The cleaner has asked for all pages in it to be written anew.
    cleaned: bool,
}

/// The accounts of all segments. Only under the flush lock.
#[derive(Debug)]
pub(crate) struct Accounts {
    segment_bytes: u64,
    accounts: BTreeMap<u64, Account>,
    /// Bytes written so far: the clock of the cleaner.
    written: f64,
}

/// The sums over all segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) segments: u64,
    pub(crate) dead_segments: u64,
    pub(crate) live_bytes: u64,
}

impl Accounts {
    pub(crate) fn new(segment_bytes: u64) -> Accounts {
        Accounts { segment_bytes, accounts: BTreeMap::new(), written: 0.0 }
    }

    /// Opens the account of a segment. Its age starts as the mean of the others', since what is written now was
    /// mostly moved or changed from there (Lomet and Luo).
    pub(crate) fn open(&mut self, segment: u64) {
        let count = self.accounts.len().max(1) as f64;
        let mean = self.accounts.values().map(|account| account.updated).sum::<f64>() / count;
        self.accounts.insert(segment, Account { updated: mean, ..Account::default() });
    }

    pub(crate) fn close(&mut self, segment: u64) {
        self.accounts.remove(&segment);
    }

    /// Advances the clock by the bytes of a buffer.
    pub(crate) fn written(&mut self, bytes: u64) {
        self.written += bytes as f64;
    }

    /// Counts a fragment as live.
    pub(crate) fn add(&mut self, address: FlashAddress) {
        if let Some(account) = self.accounts.get_mut(&(address.offset() / self.segment_bytes)) {
            account.live_bytes += address.length();
            account.live_fragments += 1;
        }
    }

    /// Counts a fragment as dead.
    pub(crate) fn remove(&mut self, address: FlashAddress) {
        if let Some(account) = self.accounts.get_mut(&(address.offset() / self.segment_bytes)) {
            debug_assert!(account.live_bytes >= address.length() && account.live_fragments > 0);
            account.live_bytes -= address.length();
            account.live_fragments -= 1;
            account.updated += (self.written - account.updated) / 2.0;
        }
    }

    pub(crate) fn contains(&self, segment: u64) -> bool {
        self.accounts.contains_key(&segment)
    }

    /// The numbers of all segments, ascending.
    pub(crate) fn segments(&self) -> impl Iterator<Item = u64> {
        self.accounts.keys().copied()
    }

    pub(crate) fn totals(&self) -> Totals {
        Totals {
            segments: self.accounts.len() as u64,
            dead_segments: self.accounts.values().filter(|account| account.live_bytes == 0).count() as u64,
            live_bytes: self.accounts.values().map(|account| account.live_bytes).sum(),
        }
    }

    /// The segments below `end` in which nothing is live.
    pub(crate) fn dead(&self, end: u64) -> Vec<u64> {
        self.accounts
            .range(..end)
            .filter(|(_, account)| account.live_bytes == 0)
            .map(|(&index, _)| index)
            .collect()
    }

    /// The segment below `end` to clean next, if the segments take more than `percent_max` of the live bytes.
    ///
    /// The one whose cleaning cost declines the least by waiting: the least `(live / free)^2 / (live fragments *
    /// time since it changed)` (Lomet and Luo, *Efficiently Reclaiming Space in a Log Structured Store*). Segments
    /// that are dead, or being cleaned already, are no longer counted: only a checkpoint is missing.
    pub(crate) fn victim(&mut self, end: u64, percent_max: u32) -> Option<u64> {
        let counted =
            || self.accounts.range(..end).filter(|(_, account)| account.live_bytes > 0 && !account.cleaned);
        let occupied = counted().count() as u64 * self.segment_bytes;
        let live: u64 = counted().map(|(_, account)| account.live_bytes).sum();
        if occupied * 100 <= live * u64::from(percent_max) {
            return None;
        }
        let decline = |account: &Account| {
            let live = account.live_bytes as f64;
            let free = (self.segment_bytes as f64 - live).max(1.0);
            let age = (self.written - account.updated).max(1.0);
            (live / free).powi(2) / (account.live_fragments as f64 * age)
        };
        let victim = counted().min_by(|(_, one), (_, other)| decline(one).total_cmp(&decline(other)));
        let victim = victim.map(|(&index, _)| index)?;
        self.accounts.get_mut(&victim)?.cleaned = true;
        Some(victim)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_emptiest_of_equally_old_segments_is_cleaned_first() {
        let mut accounts = Accounts::new(1 << 16);
        for segment in 0..4 {
            accounts.open(segment);
            accounts.written(1 << 16);
            // 8 KiB live in segment 0, 16 in 1, ...
            for piece in 0..=segment {
                accounts.add(FlashAddress::new((segment << 16) + 4096 + piece * 8192, 8192));
            }
        }
        assert_eq!(accounts.totals(), Totals { segments: 4, dead_segments: 0, live_bytes: 10 * 8192 });
        assert_eq!(accounts.victim(4, 1000), None);
        assert_eq!(accounts.victim(4, 200), Some(0));
        assert_eq!(accounts.victim(4, 200), Some(1));
        accounts.remove(FlashAddress::new(4096, 8192));
        assert_eq!(accounts.dead(4), [0]);
        assert_eq!(accounts.dead(0), [0u64; 0]);
    }
}
