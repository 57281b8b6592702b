//! A buffer as its readers see it: records in order, and commit records by their links.

use crate::block::{BufferHeader, HEADER_BYTES, Mismatch};
use crate::record::{COMMIT_BYTES, Decoded, Record};
use deuteron_contract::{Lsn, Timestamp, TransactionId};

/// A whole buffer, in the ring or read from disk.
#[derive(Clone, Copy, Debug)]
pub struct BufferView<'a> {
    base: u64,
    end: u64,
    last_commit: u32,
    /// Header and records.
    bytes: &'a [u8],
    /// Which transactions commit in it, and when, if that has been noted.
    outcomes: Option<&'a [(TransactionId, Timestamp)]>,
}

/// What a buffer's records come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    /// Padding left out.
    pub records: u64,
    pub commits: u64,
    /// The highest timestamp of a commit or a clock's ceiling.
    pub latest: Timestamp,
}

/// A commit record, found by the links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitView {
    /// Where the record is.
    pub lsn: Lsn,
    /// The transaction.
    pub transaction: TransactionId,
    /// Its final timestamp.
    pub timestamp: Timestamp,
    /// What the notifier of durable commits finds its client by.
    pub token: u64,
}

impl<'a> BufferView<'a> {
    /// `bytes` begins with `header`; all that follows the records is ignored.
    pub(crate) fn new(header: &BufferHeader, bytes: &'a [u8]) -> BufferView<'a> {
        BufferView {
            base: header.base,
            end: header.base + u64::from(header.distance),
            last_commit: header.last_commit,
            bytes: &bytes[..HEADER_BYTES + header.record_bytes as usize],
            outcomes: None,
        }
    }

    /// With what has been noted of its commit records.
    pub(crate) fn with_outcomes(self, outcomes: Option<&'a [(TransactionId, Timestamp)]>) -> BufferView<'a> {
        BufferView { outcomes, ..self }
    }

    /// The LSN at which the buffer starts, below that of its first record.
    pub fn base(&self) -> Lsn {
        Lsn(self.base)
    }

    /// The LSN at which the next buffer starts, above every record of this one.
    pub fn end(&self) -> Lsn {
        Lsn(self.end)
    }

    /// The bytes of all records.
    pub fn record_bytes(&self) -> usize {
        self.bytes.len() - HEADER_BYTES
    }

    /// The records with their LSNs, in that order. Padding is left out.
    pub fn records(&self) -> impl Iterator<Item = (Lsn, Record<'a>)> + use<'a> {
        let base = self.base;
        self.walk()
            .map(move |(offset, decoded)| (Lsn(base + offset as u64), decoded.record))
            .filter(|(_, record)| !matches!(record, Record::Padding { .. }))
    }

    /// The commit records, without a look at the others, in the reverse of the order in which they were filled. That
    /// is nearly, but not exactly, the reverse of their LSNs.
    pub fn commits(&self) -> impl Iterator<Item = CommitView> + use<'a> {
        let view = *self;
        // However the links look, the walk ends.
        let most = self.record_bytes() / COMMIT_BYTES;
        let first = view.commit_at(self.last_commit);
        std::iter::successors(first, move |(_, link)| view.commit_at(*link))
            .take(most)
            .map(|(commit, _)| commit)
    }

    /// Visits the transactions that commit in it and their final timestamps, in any order; without a look at the records if they were
    /// noted when the buffer was read.
    ///
    /// ```
    /// # fn example(buffer: &deuteron_log::LogBuffer) {
    /// let mut newest = None;
    /// buffer.view().visit_outcomes(|_, timestamp| newest = newest.max(Some(timestamp)));
    /// # }
    /// ```
    pub fn visit_outcomes(&self, mut visit: impl FnMut(TransactionId, Timestamp)) {
        match self.outcomes {
            Some(outcomes) => {
                outcomes.iter().for_each(|&(transaction, timestamp)| visit(transaction, timestamp))
            }
            None => self.commits().for_each(|commit| visit(commit.transaction, commit.timestamp)),
        }
    }

    fn commit_at(&self, offset: u32) -> Option<(CommitView, u32)> {
        if offset == 0 {
            return None;
        }
        let decoded = Record::decode(self.bytes.get(offset as usize..)?).ok()?;
        let Record::Commit { transaction, timestamp, token } = decoded.record else { return None };
        let lsn = Lsn(self.base + u64::from(offset));
        Some((CommitView { lsn, transaction, timestamp, token }, decoded.link))
    }

    /// All records, padding included, with their offsets; ends at the first bytes that are none.
    fn walk(&self) -> impl Iterator<Item = (usize, Decoded<'a>)> + use<'a> {
        let bytes = self.bytes;
        let mut at = HEADER_BYTES;
        std::iter::from_fn(move || {
            if at == bytes.len() {
                return None;
            }
            let decoded = Record::decode(&bytes[at..]).ok()?;
            let offset = at;
            at += decoded.bytes;
            Some((offset, decoded))
        })
    }

    /// The record that starts at `lsn`.
    pub(crate) fn bytes_at(&self, lsn: u64) -> Option<&'a [u8]> {
        let (offset, decoded) = self.walk().find(|&(offset, _)| self.base + offset as u64 >= lsn)?;
        if self.base + offset as u64 == lsn {
            Some(&self.bytes[offset..offset + decoded.bytes])
        } else {
            None
        }
    }

    /// Checks what the checksum does not: that the records fill the buffer and that the links visit every commit record
    /// once. A failure is a bug in whoever wrote it, or a format that this build does not know.
    pub(crate) fn validate(&self) -> Result<Summary, Mismatch> {
        self.validate_noting(|_| {})
    }

    /// The same; `note` gets each commit record.
    pub(crate) fn validate_noting(&self, mut note: impl FnMut(CommitView)) -> Result<Summary, Mismatch> {
        let mut end = HEADER_BYTES;
        let mut summary = Summary::default();
        for (offset, decoded) in self.walk() {
            end = offset + decoded.bytes;
            summary.records += u64::from(!matches!(decoded.record, Record::Padding { .. }));
            match decoded.record {
                Record::Commit { timestamp, .. } => {
                    summary.commits += 1;
                    summary.latest = summary.latest.max(timestamp);
                }
                Record::ClockCeiling { timestamp } => summary.latest = summary.latest.max(timestamp),
                _ => {}
            }
        }
        let commits = summary.commits as usize;
        if end != self.bytes.len() {
            let found = Record::decode(&self.bytes[end..]).err();
            let found = found.map_or_else(String::new, |error| error.to_string());
            return Err(Mismatch::new(format!("a record at offset {end} of the buffer"), found));
        }
        let (mut linked, mut link) = (0, self.last_commit);
        while linked <= commits
            && let Some((commit, next)) = self.commit_at(link)
        {
            note(commit);
            (linked, link) = (linked + 1, next);
        }
        if link != 0 {
            let expected = format!("links to {commits} commit records, and then none");
            return Err(Mismatch::new(expected, format!("a link to {link} after {linked}")));
        }
        if linked != commits {
            return Err(Mismatch::new(format!("{commits} linked commit records"), linked.to_string()));
        }
        Ok(summary)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A buffer whose first commit record links to `link`.
    fn buffer(link: u32, cut: usize) -> (BufferHeader, Vec<u8>) {
        let mut bytes = vec![0; HEADER_BYTES];
        let mut put = |record: Record<'_>, link| {
            let at = bytes.len();
            bytes.resize(at + record.encoded_bytes(), 0);
            record.encode(link, &mut bytes[at..]);
            at as u32
        };
        let commit =
            |id| Record::Commit { transaction: TransactionId(id), timestamp: Timestamp(id), token: id };
        let first = put(commit(1), link);
        put(Record::Padding { bytes: 24 }, 0);
        put(Record::Abort { transaction: TransactionId(3) }, 0);
        let second = put(commit(2), first);
        let record_bytes = (bytes.len() - HEADER_BYTES - cut) as u32;
        let header = BufferHeader {
            crc: 0,
            base: 4096,
            distance: 4096,
            record_bytes,
            last_commit: second,
            previous_crc: 0,
            incarnation: 1,
            identity: 1,
        };
        (header, bytes)
    }

    #[test]
    fn records_skip_padding_and_commits_follow_links() {
        let (header, bytes) = buffer(0, 0);
        let view = BufferView::new(&header, &bytes);
        let summary = view.validate().unwrap();
        assert_eq!(summary, Summary { records: 3, commits: 2, latest: Timestamp(2) });
        assert_eq!(view.records().count(), 3);
        assert_eq!(view.commits().map(|commit| commit.token).collect::<Vec<_>>(), [2, 1]);
        let (lsn, record) = view.records().nth(1).unwrap();
        assert_eq!(record, Record::Abort { transaction: TransactionId(3) });
        assert_eq!(view.bytes_at(lsn.0).map(<[u8]>::len), Some(16));
        assert_eq!(view.bytes_at(lsn.0 + 8), None);
    }

    #[test]
    fn bad_links_and_cut_records_are_noticed() {
        for link in [64, 72, 4000, 152] {
            let (header, bytes) = buffer(link, 0);
            let view = BufferView::new(&header, &bytes);
            assert!(view.validate().is_err(), "link {link}");
            view.commits().count();
        }
        let (header, bytes) = buffer(0, 8);
        assert!(BufferView::new(&header, &bytes).validate().is_err());
    }
}
