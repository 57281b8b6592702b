//! [`Accounts`]: how much of each segment is live, and which one to clean.

use crate::flash_address::FlashAddress;
use crate::flush_buffer::STREAMS;
use crate::sync::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::sync::Arc;

/// When the pages of a segment, or one of them, were updated, in bytes written to the store.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Times {
    /// The last time: when what is here was new. The mean of the pages.
    last: f64,
    /// An estimate of the last time but one (Lomet and Luo): it comes nearer each time that a page is updated which is
    /// here.
    last_but_one: f64,
}

/// The account of one segment.
#[derive(Clone, Debug, Default)]
struct Account {
    /// Bytes of the file.
    allocated: u64,
    live_bytes: u64,
    live_fragments: u64,
    /// Bytes of fragments ever written here, and of padding beyond what full buffers have. What else there is in the file, no cleaning gains.
    written_bytes: u64,
    /// Bytes of padding.
    padded_bytes: u64,
    /// Fragments counted here.
    fragments: u64,
    times: Times,
    /// When the cleaner chose it, by [`Accounts::written`].
    chosen: Option<f64>,
}

impl Account {
    /// How much less cleaning will cost by waiting: the least is cleaned first.
    fn decline(&self, now: f64) -> f64 {
        let live = self.live_bytes as f64;
        let free = (self.written_bytes as f64 - live).max(1.0);
        let age = (now - self.times.last_but_one).max(1.0);
        (live / free).powi(2) / (self.live_fragments as f64 * age)
    }

    /// Whether the cleaner may choose it: it has not done so since `before`.
    fn may_be_chosen(&self, before: f64) -> bool {
        self.live_bytes > 0 && self.chosen.is_none_or(|chosen| chosen <= before)
    }
}

/// The accounts of all segments. Only under the flush lock.
#[derive(Debug)]
pub(crate) struct Accounts {
    segment_bytes: u64,
    /// So much padding has a segment of full buffers at most.
    padding_max: u64,
    accounts: BTreeMap<u64, Account>,
    /// Bytes written so far: the clock of the cleaner.
    written: f64,
    /// Bytes of live fragments in all of them, for who has not got the lock.
    live_bytes: Arc<AtomicU64>,
}

/// The sums over all segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) segments: u64,
    pub(crate) dead_segments: u64,
    pub(crate) allocated_bytes: u64,
    /// Of fragments, live or dead.
    pub(crate) written_bytes: u64,
    pub(crate) live_bytes: u64,
}

/// A segment chosen for cleaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Victim {
    pub(crate) segment: u64,
    /// Bytes of its file.
    pub(crate) allocated: u64,
    pub(crate) live_bytes: u64,
    /// What is live in it has not been updated for longer than the mean of all pages.
    pub(crate) is_cold: bool,
}

impl Accounts {
    /// For segments of so many bytes, in which one that is filled by full buffers has so much padding at most.
    pub(crate) fn new(segment_bytes: u64, padding_max: u64) -> Accounts {
        Accounts {
            segment_bytes,
            padding_max,
            accounts: BTreeMap::new(),
            written: 0.0,
            live_bytes: Arc::default(),
        }
    }

    /// Bytes of live fragments, as they change.
    pub(crate) fn live_bytes(&self) -> Arc<AtomicU64> {
        self.live_bytes.clone()
    }

    /// Opens the account of a segment with `written_bytes` of fragments, live or dead, which are still to be counted.
    pub(crate) fn open(&mut self, segment: u64, allocated: u64, written_bytes: u64) {
        self.accounts.insert(segment, Account { allocated, written_bytes, ..Account::default() });
    }

    pub(crate) fn close(&mut self, segment: u64) {
        self.accounts.remove(&segment);
    }

    /// Bytes of the segment's file; 0 if it has no account.
    pub(crate) fn allocated(&self, segment: u64) -> u64 {
        self.accounts.get(&segment).map_or(0, |account| account.allocated)
    }

    pub(crate) fn set_allocated(&mut self, segment: u64, bytes: u64) {
        if let Some(account) = self.accounts.get_mut(&segment) {
            account.allocated = bytes;
        }
    }

    /// Advances the clock by the bytes of a buffer with `fragments` bytes of fragments in `segment`.
    pub(crate) fn written(&mut self, segment: u64, bytes: u64, fragments: u64) {
        self.written += bytes as f64;
        let padding_max = self.padding_max;
        if let Some(account) = self.accounts.get_mut(&segment) {
            let in_vain = |padded: u64| padded.saturating_sub(padding_max);
            let before = in_vain(account.padded_bytes);
            account.padded_bytes += bytes.saturating_sub(fragments);
            account.written_bytes += fragments + in_vain(account.padded_bytes) - before;
        }
    }

    /// Counts a fragment as live whose page was updated at about these times; now, if that is not known.
    ///
    /// So a segment's times begin as those of the pages in it.
    pub(crate) fn add(&mut self, address: FlashAddress, times: Option<Times>) {
        let times = times.unwrap_or(Times { last: self.written, last_but_one: self.written });
        if let Some(account) = self.account(address) {
            account.live_bytes += address.length();
            account.live_fragments += 1;
            account.fragments += 1;
            let share = 1.0 / account.fragments as f64;
            account.times.last += (times.last - account.times.last) * share;
            account.times.last_but_one += (times.last_but_one - account.times.last_but_one) * share;
            // Relaxed, here and below: a figure.
            self.live_bytes.fetch_add(address.length(), Ordering::Relaxed);
        }
    }

    /// Counts a fragment as dead: its page has `changed`, or was only moved. When it was updated, now included, about.
    pub(crate) fn remove(&mut self, address: FlashAddress, changed: bool) -> Option<Times> {
        let written = self.written;
        let account = self.account(address)?;
        debug_assert!(account.live_bytes >= address.length() && account.live_fragments > 0);
        account.live_bytes -= address.length();
        account.live_fragments -= 1;
        if changed {
            account.times.last_but_one += (written - account.times.last_but_one) / 2.0;
        }
        let last = if changed { written } else { account.times.last };
        let times = Times { last, ..account.times };
        self.live_bytes.fetch_sub(address.length(), Ordering::Relaxed);
        Some(times)
    }

    fn account(&mut self, address: FlashAddress) -> Option<&mut Account> {
        self.accounts.get_mut(&(address.offset() / self.segment_bytes))
    }

    /// Whether a segment that is being filled should take no more: with it all segments exceed `percent_max`, it is as sparse
    /// as a [victim](Accounts::victim), and a sixteenth of it is written at least.
    pub(crate) fn is_filled_in_vain(&self, segment: u64, percent_max: u32) -> bool {
        let totals = self.totals();
        let mean = dead(totals.written_bytes, totals.live_bytes);
        self.accounts.get(&segment).is_some_and(|account| {
            totals.written_bytes * 100 > totals.live_bytes * u64::from(percent_max)
                && account.written_bytes >= self.segment_bytes / 16
                && 2.0 * dead(account.written_bytes, account.live_bytes) >= mean
        })
    }

    /// The numbers of all segments, ascending.
    pub(crate) fn segments(&self) -> impl Iterator<Item = u64> {
        self.accounts.keys().copied()
    }

    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals { segments: self.accounts.len() as u64, ..Totals::default() };
        for account in self.accounts.values() {
            totals.allocated_bytes += account.allocated;
            totals.written_bytes += account.written_bytes;
            totals.live_bytes += account.live_bytes;
            totals.dead_segments += u64::from(account.live_bytes == 0);
        }
        totals
    }

    /// The segments, below the given one of each stream, in which nothing is live.
    pub(crate) fn dead(&self, ends: [u64; STREAMS]) -> impl Iterator<Item = u64> {
        self.below(ends).filter(|(_, account)| account.live_bytes == 0).map(|(index, _)| index)
    }

    fn below(&self, ends: [u64; STREAMS]) -> impl Iterator<Item = (u64, &Account)> {
        let is_below = move |index: u64| index < ends[(index % STREAMS as u64) as usize];
        self.accounts
            .iter()
            .map(|(&index, account)| (index, account))
            .filter(move |&(index, _)| is_below(index))
    }

    /// The segment to clean next, below the given one of each stream, if what was written to the segments is more than
    /// `percent_max` of what is live. (What a segment has no room for at its end is not counted, nor the padding that full buffers have, too: cleaning would not gain it,
    /// and never end.)
    ///
    /// The one whose cleaning cost declines the least by waiting: the least `(live / free)^2 / (live fragments *
    /// time since it changed)` (Lomet and Luo, *Efficiently Reclaiming Space in a Log Structured Store*). A segment that is
    /// all but full does not decline at all if it is old enough, and there is nothing to gain: it is none unless the part
    /// of it that is dead is half the mean at least. Segments
    /// that are dead, or being cleaned already, are no longer counted: only a checkpoint is missing. One in which something is live still when as much has been
    /// written as lies in all of them counts again: a page of it could not be read.
    pub(crate) fn victim(&mut self, ends: [u64; STREAMS], percent_max: u32) -> Option<Victim> {
        let all: u64 = self.accounts.values().map(|account| account.written_bytes).sum();
        let before = self.written - all as f64;
        let counted = || self.below(ends).filter(|(_, account)| account.may_be_chosen(before));
        let occupied: u64 = counted().map(|(_, account)| account.written_bytes).sum();
        let live: u64 = counted().map(|(_, account)| account.live_bytes).sum();
        if occupied * 100 <= live * u64::from(percent_max) {
            return None;
        }
        let decline = |account: &Account| account.decline(self.written);
        let mean = dead(occupied, live);
        let sparse =
            counted().filter(|(_, account)| 2.0 * dead(account.written_bytes, account.live_bytes) >= mean);
        let victim = sparse.min_by(|(_, one), (_, other)| decline(one).total_cmp(&decline(other)));
        let segment = victim.map(|(index, _)| index)?;
        let lives = self.accounts.values().map(|account| account.live_bytes as f64);
        let weighed = self.accounts.values().map(|account| account.times.last * account.live_bytes as f64);
        let mean = weighed.sum::<f64>() / lives.sum::<f64>().max(1.0);
        let account = self.accounts.get_mut(&segment)?;
        account.chosen = Some(self.written);
        let &mut Account { allocated, live_bytes, times, .. } = account;
        Some(Victim { segment, allocated, live_bytes, is_cold: times.last <= mean })
    }
}

/// The part of what was written that is dead.
fn dead(written: u64, live: u64) -> f64 {
    written.saturating_sub(live) as f64 / written.max(1) as f64
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SEGMENT: u64 = 1 << 16;

    /// Four segments: 8 KiB live in segment 0, 16 in 1, ...
    fn four() -> Accounts {
        let mut accounts = Accounts::new(SEGMENT, SEGMENT);
        for segment in 0..4 {
            accounts.open(segment, SEGMENT, SEGMENT);
            accounts.written(9, SEGMENT, 0);
            for piece in 0..=segment {
                let address = FlashAddress::new((segment << 16) + 4096 + piece * 8192, 8192);
                accounts.add(address, Some(Times::default()));
            }
        }
        accounts
    }

    #[test]
    fn the_emptiest_of_equally_old_segments_is_cleaned_first() {
        let mut accounts = four();
        let totals = Totals {
            segments: 4,
            dead_segments: 0,
            allocated_bytes: 4 * SEGMENT,
            written_bytes: 4 * SEGMENT,
            live_bytes: 10 * 8192,
        };
        assert_eq!(accounts.totals(), totals);
        assert_eq!(accounts.victim([4, 5], 1000), None);
        let first = Victim { segment: 0, allocated: SEGMENT, live_bytes: 8192, is_cold: true };
        assert_eq!(accounts.victim([4, 5], 200), Some(first));
        assert_eq!(accounts.victim([4, 5], 200).map(|victim| victim.segment), Some(1));
        accounts.remove(FlashAddress::new(4096, 8192), false);
        assert_eq!(accounts.dead([4, 5]).collect::<Vec<_>>(), [0]);
        assert_eq!(accounts.dead([0, 5]).count(), 0);
    }

    #[test]
    fn a_segment_that_could_not_be_emptied_is_chosen_again_when_as_much_has_been_written_as_there_is() {
        let mut accounts = four();
        let victim = |accounts: &mut Accounts| accounts.victim([2, 1], 110).map(|victim| victim.segment);
        assert_eq!([victim(&mut accounts), victim(&mut accounts)], [Some(0), None]);
        accounts.written(9, 4 * SEGMENT - 1, 0);
        assert_eq!(victim(&mut accounts), None);
        accounts.written(9, 1, 0);
        assert_eq!([victim(&mut accounts), victim(&mut accounts)], [Some(0), None]);
    }

    /// As where little is written at a time: a fragment, and a block for it.
    #[test]
    fn what_is_padded_beyond_what_full_buffers_are_can_be_gained() {
        const BLOCK: u64 = 4096;
        let victim = |buffers: u64, fragment: u64| {
            let mut accounts = Accounts::new(SEGMENT, 2 * BLOCK);
            accounts.open(0, SEGMENT, 0);
            for buffer in 0..buffers {
                accounts.written(0, SEGMENT / buffers, fragment);
                accounts.add(FlashAddress::new(BLOCK + buffer * (SEGMENT / buffers), fragment), None);
            }
            (accounts.totals().written_bytes, accounts.victim([2, 1], 200).is_some())
        };
        assert_eq!(victim(2, SEGMENT / 2 - BLOCK), (SEGMENT - 2 * BLOCK, false));
        assert_eq!(victim(16, 64), (SEGMENT - 2 * BLOCK, true));
        // Nothing is counted that a cleaning would not gain.
        assert_eq!(victim(1, SEGMENT - BLOCK), (SEGMENT - BLOCK, false));
    }

    #[test]
    fn the_segments_that_are_being_filled_are_left_alone() {
        let mut accounts = four();
        let victims = std::iter::from_fn(|| accounts.victim([2, 1], 110)).map(|victim| victim.segment);
        assert_eq!(victims.collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn of_equally_empty_segments_the_one_that_changed_longest_ago_is_cleaned_first() {
        let mut accounts = Accounts::new(SEGMENT, SEGMENT);
        for segment in [0, 1] {
            accounts.open(segment, SEGMENT, SEGMENT);
            accounts.add(FlashAddress::new((segment << 16) + 4096, 8192), None);
            accounts.add(FlashAddress::new((segment << 16) + 16384, 8192), None);
        }
        accounts.written(9, SEGMENT, 0);
        let changed = accounts.remove(FlashAddress::new(4096, 8192), true);
        let moved = accounts.remove(FlashAddress::new(SEGMENT + 4096, 8192), false);
        let now = SEGMENT as f64;
        assert_eq!(changed, Some(Times { last: now, last_but_one: now / 2.0 }));
        assert_eq!(moved, Some(Times::default()));
        assert_eq!(accounts.victim([2, 3], 110).map(|victim| victim.segment), Some(1));
    }

    #[test]
    fn a_segment_is_cold_if_its_pages_are_older_than_the_mean() {
        let mut accounts = Accounts::new(SEGMENT, SEGMENT);
        for segment in [0, 1, 2] {
            accounts.open(segment, SEGMENT, SEGMENT);
            accounts.add(FlashAddress::new((segment << 16) + 4096, 8192), None);
            accounts.written(9, SEGMENT, 0);
        }
        let is_cold =
            |accounts: &mut Accounts, end| accounts.victim([end, end], 110).map(|victim| victim.is_cold);
        assert_eq!(is_cold(&mut accounts, 1), Some(true));
        // What is moved keeps its times.
        let times = accounts.remove(FlashAddress::new(2 * SEGMENT + 4096, 8192), false);
        accounts.open(4, SEGMENT, SEGMENT);
        accounts.add(FlashAddress::new(4 * SEGMENT + 4096, 8192), times);
        accounts.close(0);
        accounts.close(1);
        accounts.open(3, SEGMENT, SEGMENT);
        accounts.add(FlashAddress::new(3 * SEGMENT + 4096, 16384), Some(Times::default()));
        assert_eq!(is_cold(&mut accounts, 5), Some(false), "segment 4, the emptier one");
        assert_eq!(is_cold(&mut accounts, 5), Some(true), "segment 3");
    }

    fn fragment(segment: u64, at: u64, length: u64) -> FlashAddress {
        FlashAddress::new(segment * SEGMENT + at, length)
    }

    /// A segment of which `written` bytes are written and `live` are live, in one fragment updated at these times.
    fn add(accounts: &mut Accounts, segment: u64, written: u64, live: u64, times: Times) {
        accounts.open(segment, SEGMENT, written);
        if live > 0 {
            accounts.add(fragment(segment, 4096, live), Some(times));
        }
    }

    #[test]
    fn what_is_opened_written_and_counted_is_in_the_totals_until_it_is_closed() {
        let mut accounts = Accounts::new(SEGMENT, SEGMENT);
        accounts.open(4, 4096, 100);
        accounts.open(7, 8192, 0);
        accounts.set_allocated(4, 12_288);
        accounts.set_allocated(5, 4096);
        assert_eq!([4, 5, 7].map(|segment| accounts.allocated(segment)), [12_288, 0, 8192]);
        for (segment, fragments) in [(4, 1000), (4, 24), (5, 9), (7, 300)] {
            accounts.written(segment, 4096, fragments);
        }
        let (first, second, third) = (fragment(4, 4096, 64), fragment(4, 8192, 128), fragment(7, 4096, 256));
        for address in [first, second, third] {
            accounts.add(address, None);
        }
        let mut totals = Totals {
            segments: 2,
            dead_segments: 0,
            allocated_bytes: 20_480,
            written_bytes: 1424,
            live_bytes: 448,
        };
        assert_eq!(accounts.totals(), totals);
        assert!(accounts.remove(second, true).is_some() && accounts.remove(third, false).is_some());
        (totals.dead_segments, totals.live_bytes) = (1, 64);
        assert_eq!(accounts.totals(), totals);
        assert_eq!(accounts.segments().collect::<Vec<_>>(), [4, 7]);
        // Segment 7 is of the second stream.
        assert_eq!(accounts.dead([0, 8]).collect::<Vec<_>>(), [7]);
        assert_eq!(accounts.dead([9, 7]).count(), 0);
        accounts.close(7);
        assert_eq!(accounts.segments().collect::<Vec<_>>(), [4]);
        assert_eq!((accounts.allocated(7), accounts.remove(third, true)), (0, None));
    }

    #[test]
    fn the_times_of_a_segment_are_the_means_of_what_was_put_there() {
        let mut accounts = Accounts::new(SEGMENT, SEGMENT);
        accounts.open(0, SEGMENT, SEGMENT);
        accounts.written(0, 64, 0);
        let mut put = |at, times| {
            accounts.add(fragment(0, at, 64), times);
            accounts.accounts[&0].times
        };
        let first = Times { last: 8.0, last_but_one: 4.0 };
        assert_eq!(put(4096, Some(first)), first);
        let second = Some(Times { last: 16.0, last_but_one: 6.0 });
        assert_eq!(put(8192, second), Times { last: 12.0, last_but_one: 5.0 });
        // Of what is not known it is now.
        let mean = put(12_288, None);
        assert!((mean.last - 88.0 / 3.0).abs() < 1e-9 && (mean.last_but_one - 74.0 / 3.0).abs() < 1e-9);

        // A page that changes brings the last time but one half-way to now; one that is moved takes its times along.
        let mut accounts = Accounts::new(SEGMENT, SEGMENT);
        add(&mut accounts, 0, SEGMENT, 64, first);
        accounts.add(fragment(0, 8192, 64), Some(first));
        accounts.written(0, 64, 0);
        assert_eq!(accounts.remove(fragment(0, 4096, 64), false), Some(first));
        let changed = accounts.remove(fragment(0, 8192, 64), true);
        assert_eq!(changed, Some(Times { last: 64.0, last_but_one: 34.0 }));
    }

    #[test]
    fn the_decline_is_of_live_and_free_bytes_of_fragments_and_of_age() {
        let account = |written_bytes, live_bytes, live_fragments| Account {
            written_bytes,
            live_bytes,
            live_fragments,
            times: Times { last: 9.0, last_but_one: 4.0 },
            ..Account::default()
        };
        assert_eq!(account(3072, 1024, 4).decline(20.0), 0.25 / (4.0 * 16.0));
        assert_eq!(account(3072, 2048, 1).decline(20.0), 4.0 / 16.0);
        // Neither a full segment nor one that was filled just now divides by nothing.
        assert_eq!(account(1024, 1024, 4).decline(20.0), 1024.0 * 1024.0 / 64.0);
        assert_eq!(account(3072, 1024, 4).decline(4.0), 0.25 / 4.0);
        let parts = [(0, 0), (4, 1), (1, 4), (8, 8)].map(|(written, live)| dead(written, live));
        assert_eq!(parts, [0.0, 0.75, 0.0, 0.0]);
    }

    #[test]
    fn fragments_that_died_do_not_make_cleaning_dearer() {
        let mut accounts = Accounts::new(SEGMENT, SEGMENT);
        accounts.open(0, SEGMENT, SEGMENT);
        for at in [4096, 8192, 12_288] {
            accounts.add(fragment(0, at, 64), None);
        }
        accounts.remove(fragment(0, 4096, 64), false);
        let Account { live_fragments, fragments, live_bytes, .. } = accounts.accounts[&0];
        assert_eq!((live_fragments, fragments, live_bytes), (2, 3, 128));
    }

    #[test]
    fn a_segment_is_filled_in_vain_if_all_is_sparse_and_so_is_it() {
        let in_vain = |own: (u64, u64), other: (u64, u64), percent_max| {
            let mut accounts = Accounts::new(SEGMENT, SEGMENT);
            add(&mut accounts, 0, own.0, own.1, Times::default());
            add(&mut accounts, 1, other.0, other.1, Times::default());
            assert!(!accounts.is_filled_in_vain(2, percent_max), "there is no such segment");
            accounts.is_filled_in_vain(0, percent_max)
        };
        // Exactly as much as is allowed, and a little more.
        assert!(!in_vain((4096, 2048), (4096, 2048), 200));
        assert!(in_vain((4096, 1984), (4096, 2048), 200));
        // Less than a sixteenth is written.
        assert!(!in_vain((4032, 64), (8192, 64), 200));
        // Of this one half as much is dead as of all, and less.
        assert!(in_vain((8192, 6144), (8192, 2048), 110));
        assert!(!in_vain((8192, 7168), (8192, 2048), 110));
    }

    #[test]
    fn a_victim_is_asked_for_only_beyond_the_bound_and_dead_segments_do_not_count() {
        let mut accounts = Accounts::new(SEGMENT, SEGMENT);
        add(&mut accounts, 0, 16_384, 8192, Times::default());
        add(&mut accounts, 2, SEGMENT, 0, Times::default());
        assert_eq!(accounts.victim([9, 9], 200), None, "as much as is allowed");
        let victim = Victim { segment: 0, allocated: SEGMENT, live_bytes: 8192, is_cold: true };
        assert_eq!(accounts.victim([9, 9], 199), Some(victim));
        assert_eq!(accounts.victim([9, 9], 110), None, "it is being cleaned");
    }

    #[test]
    fn a_segment_that_is_nearly_full_is_not_cleaned_however_old_it_is() {
        let mut accounts = Accounts::new(SEGMENT, SEGMENT);
        accounts.written(9, 1 << 40, 0);
        add(&mut accounts, 0, SEGMENT, 15 << 12, Times::default());
        add(&mut accounts, 2, SEGMENT, 8 << 12, Times { last: 1e12, last_but_one: 1e12 });
        let victims: Vec<_> = std::iter::from_fn(|| accounts.victim([9, 9], 105)).collect();
        assert_eq!(victims.iter().map(|victim| victim.segment).collect::<Vec<_>>(), [2, 0]);
        // Once the other is being cleaned it is compared with itself alone.
        assert!(!victims[0].is_cold && victims[1].is_cold);
    }

    #[test]
    fn the_mean_age_is_weighed_by_what_is_live() {
        for (last, other, is_cold) in [(10.0, 12.0, true), (12.0, 10.0, false), (10.0, 10.0, true)] {
            let mut accounts = Accounts::new(SEGMENT, SEGMENT);
            add(&mut accounts, 0, SEGMENT, 64, Times { last, last_but_one: 0.0 });
            add(&mut accounts, 1, SEGMENT, 192, Times { last: other, last_but_one: 0.0 });
            let victim = accounts.victim([1, 1], 110).unwrap();
            assert_eq!((victim.segment, victim.is_cold), (0, is_cold));
        }
        // A little that is much older hardly moves the mean.
        let mut accounts = Accounts::new(SEGMENT, SEGMENT);
        add(&mut accounts, 0, SEGMENT, 1024, Times { last: 100.0, last_but_one: 0.0 });
        add(&mut accounts, 1, SEGMENT, 64, Times::default());
        assert!(!accounts.victim([1, 1], 110).unwrap().is_cold);
    }
}
