//! Pages that nobody has written so, behind checksums that are right: who needs them is told of damage, or finds some records; nobody panics, and all other pages are as they were.
//!
//! `DEUTERON_EFFORT` multiplies the rounds, `DEUTERON_SEED` sets the first seed.

mod support;

use deuteron_contract::{DataComponent, DcError, Direction, Lsn, Record, TableId};
use deuteron_dc::{BwTreeDc, DcOptions};
use deuteron_device::{Directory, MemoryDirectory, OpenMode};
use deuteron_fuzz::Mutator;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Range};
use std::sync::Arc;

const TABLE: TableId = TableId(3);
const KEYS: u64 = 1500;
/// So many steps of maintenance have an end.
const STEPS_MAX: usize = 20_000;

/// Of several lengths, with a common beginning, in the order of the numbers.
fn key(number: u64) -> Vec<u8> {
    let tail = "x".repeat(number as usize % 13);
    format!("key/{number:06}/{tail}").into_bytes()
}

fn value(number: u64, version: u64) -> Vec<u8> {
    format!("{number} {version} ").repeat(2 + number as usize % 17).into_bytes()
}

fn crc32c(bytes: &[u8]) -> u32 {
    let bit = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| bit(crc)))
}

/// A fragment: the page, its low key if it is a full one, where it lies, and its payloads.
struct Fragment {
    page: u64,
    low: Option<Vec<u8>>,
    file: String,
    bytes: Range<usize>,
    payloads: Range<usize>,
}

fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    let bytes = &bytes[at..at + length];
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The fragments in a segment, by what their checksums say.
fn fragments_of(file: &str, bytes: &[u8]) -> Vec<Fragment> {
    let fragment = |at: usize| {
        let rest = &bytes[at..];
        if rest.len() < 64 || rest[4..8] != *b"DFRG" {
            return None;
        }
        let rest = rest.get(..number(rest, 8, 4) as usize)?;
        if rest.len() < 40 || number(rest, 0, 4) != crc32c(&rest[4..]).into() {
            return None;
        }
        let (nodes, is_full) = (number(rest, 12, 4) as usize, number(rest, 32, 8) == 0);
        let counted = |at: usize| if is_full { number(rest, at, 4) as usize } else { 0 };
        assert_eq!(counted(60), 0, "it is compressed");
        let lengths_at = if is_full { 64 } else { 40 };
        let lengths = (0..nodes).map(|node| number(rest, lengths_at + 4 * node, 4) as usize);
        let low_at = lengths_at + 4 * nodes + 8 * (counted(40) + counted(56));
        let payloads_at = low_at + counted(44);
        let payloads = at + payloads_at..at + payloads_at + lengths.sum::<usize>();
        let low = is_full.then(|| rest[low_at..payloads_at].to_vec());
        let page = number(rest, 16, 8);
        Some(Fragment { page, low, file: file.to_owned(), bytes: at..at + rest.len(), payloads })
    };
    (0..bytes.len()).step_by(16).filter_map(fragment).collect()
}

type Files = BTreeMap<String, Vec<u8>>;

fn files_of(directory: &dyn Directory) -> Files {
    let read = |name: String| {
        let file = directory.open(&name, OpenMode::Read, false).unwrap();
        let mut bytes = vec![0; file.length().unwrap() as usize];
        file.read_at(&mut bytes, 0).unwrap();
        (name, bytes)
    };
    directory.list().unwrap().into_iter().map(read).collect()
}

fn directory_of(files: &Files) -> Arc<MemoryDirectory> {
    let directory = MemoryDirectory::new();
    for (name, bytes) in files {
        let file = directory.open(name, OpenMode::CreateNew, false).unwrap();
        file.write_at(bytes, 0).unwrap();
    }
    Arc::new(directory)
}

/// A store in which nothing is to be scanned, its fragments, and of each key its version.
struct Subject {
    files: Files,
    fragments: Vec<Fragment>,
    /// The pages by their low keys.
    pages: BTreeMap<Vec<u8>, u64>,
    versions: Vec<u64>,
    options: DcOptions,
}

impl Subject {
    fn new(options: DcOptions, rounds: u64, random: &mut Mutator) -> Subject {
        let directory = Arc::new(MemoryDirectory::new());
        let dc = support::open(Arc::clone(&directory) as Arc<dyn Directory>, options.clone()).unwrap();
        let mut versions = vec![0; KEYS as usize];
        for version in 1..=rounds {
            for _ in 0..KEYS / 4 {
                let at = if version == 1 { 0 } else { random.below(KEYS as usize) as u64 };
                let numbers = if version == 1 { 0..KEYS } else { at..(at + 1 + at % 2).min(KEYS) };
                for number in numbers.clone() {
                    put(&dc, number, version).unwrap();
                    versions[number as usize] = version;
                }
                if version == 1 {
                    break;
                }
            }
            dc.redo_scan_start_point(Lsn(version + 1)).unwrap();
        }
        drop(dc);
        let files = files_of(&*directory);
        let segments = files.iter().filter(|(name, _)| name.ends_with(".seg"));
        let fragments: Vec<_> = segments.flat_map(|(name, bytes)| fragments_of(name, bytes)).collect();
        let pages =
            fragments.iter().filter_map(|fragment| Some((fragment.low.clone()?, fragment.page))).collect();
        Subject { files, fragments, pages, versions, options }
    }

    fn page_of(&self, key: &[u8]) -> u64 {
        *self.pages.range(..=key.to_vec()).next_back().expect("the first page has no low key").1
    }

    /// The store with some pages damaged, and which they are.
    fn damaged(&self, random: &mut Mutator) -> (Arc<MemoryDirectory>, BTreeSet<u64>) {
        let (mut files, mut pages) = (self.files.clone(), BTreeSet::new());
        for _ in 0..1 + random.below(4) {
            let page = self.fragments[random.below(self.fragments.len())].page;
            pages.insert(page);
            // Which of them the page refers to is not looked for.
            for fragment in self.fragments.iter().filter(|fragment| fragment.page == page) {
                if random.below(3) == 0 {
                    continue;
                }
                let bytes = files.get_mut(&fragment.file).expect("is there");
                let valid = [bytes[fragment.payloads.clone()].to_vec()];
                let mut damaged = Vec::new();
                random.damage(&valid, &mut damaged);
                let payloads = &mut bytes[fragment.payloads.clone()];
                let length = damaged.len().min(payloads.len());
                payloads[..length].copy_from_slice(&damaged[..length]);
                let crc = crc32c(&bytes[fragment.bytes.start + 4..fragment.bytes.end]);
                bytes[fragment.bytes.start..][..4].copy_from_slice(&crc.to_le_bytes());
            }
        }
        (directory_of(&files), pages)
    }
}

fn put(dc: &BwTreeDc, number: u64, version: u64) -> Result<(), DcError> {
    let (key, value) = (key(number), value(number, version));
    dc.apply(&[support::row(TABLE, &key, Some(&value), version)])
}

/// Whether it is there; damage is the only reason for that it is not.
fn told<T>(result: Result<T, DcError>) -> Option<T> {
    match result {
        Ok(found) => Some(found),
        Err(DcError::Corrupt { .. }) => None,
        Err(other) => panic!("{other}"),
    }
}

/// A store of which some pages are damaged, and what is known of it.
struct Bed<'s> {
    subject: &'s Subject,
    damaged: BTreeSet<u64>,
    versions: Vec<u64>,
    dc: Arc<BwTreeDc>,
}

impl Bed<'_> {
    /// Whether that is found which was written, on a page that is not damaged. What has split from one that is lies on it still.
    fn check(&self, number: u64, found: Option<Option<Record>>) {
        if self.damaged.contains(&self.subject.page_of(&key(number))) {
            return;
        }
        let found = found.unwrap_or_else(|| panic!("{number} is told to be damaged")).expect("is there");
        assert_eq!(found.value, Some(value(number, self.versions[number as usize])), "{number}");
    }

    fn get_each(&self, numbers: impl Iterator<Item = u64>) {
        numbers.for_each(|number| self.check(number, told(self.dc.get(TABLE, &key(number)))));
    }

    fn get_many(&self, numbers: Vec<u64>) {
        let keys: Vec<_> = numbers.iter().map(|&number| key(number)).collect();
        let keys: Vec<_> = keys.iter().map(|key| &key[..]).collect();
        let Some(found) = told(self.dc.get_many(TABLE, &keys, usize::MAX)) else { return };
        numbers.into_iter().zip(found).for_each(|(number, found)| self.check(number, Some(found)));
    }

    fn scan(&self, from: u64, to: u64, direction: Direction) {
        let keys = [key(from), key(to)];
        let bounds = (Bound::Included(&keys[0][..]), Bound::Excluded(&keys[1][..]));
        // The page of the end is looked at, though nothing of it is wanted.
        let is_whole = (from..=to).all(|number| !self.damaged.contains(&self.subject.page_of(&key(number))));
        let found = told(support::scan(&self.dc, TABLE, bounds, direction, 2000));
        if is_whole {
            let found: Vec<_> =
                found.expect("no page of it is damaged").into_iter().map(|record| record.key).collect();
            let mut expected: Vec<_> = (from..to).map(key).collect();
            if direction == Direction::Reverse {
                expected.reverse();
            }
            assert_eq!(found, expected);
        }
    }

    fn maintain(&self) {
        let mut steps = 0;
        while self.dc.maintain_step().unwrap() {
            steps += 1;
            assert!(steps < STEPS_MAX, "there is no end of it");
        }
    }

    fn read(&self, random: &mut Mutator) {
        let start = random.below(KEYS as usize) as u64;
        self.get_each((start..KEYS).chain(0..start));
        for _ in 0..10 {
            self.get_many((0..30).map(|_| random.below(KEYS as usize) as u64).collect());
            let from = random.below(KEYS as usize) as u64;
            let to = from + random.below((KEYS - from) as usize + 1) as u64;
            self.scan(from, to, if random.below(2) == 0 { Direction::Forward } else { Direction::Reverse });
        }
        self.scan(0, KEYS, Direction::Forward);
        self.scan(0, KEYS, Direction::Reverse);
    }

    fn write(&mut self, version: u64, random: &mut Mutator) {
        for _ in 0..60 {
            let at = random.below(KEYS as usize) as u64;
            for number in at..(at + 12).min(KEYS) {
                let is_damaged = self.damaged.contains(&self.subject.page_of(&key(number)));
                match told(put(&self.dc, number, version)) {
                    Some(()) => self.versions[number as usize] = version,
                    None => assert!(is_damaged, "{number}"),
                }
            }
            assert!(self.dc.maintain_step().is_ok());
        }
    }
}

fn round(subject: &Subject, random: &mut Mutator) -> u64 {
    let (directory, damaged) = subject.damaged(random);
    let open =
        || support::open(Arc::clone(&directory) as Arc<dyn Directory>, subject.options.clone()).unwrap();
    let mut bed = Bed { subject, damaged, versions: subject.versions.clone(), dc: open() };
    let version = 1000;
    if random.below(2) == 0 {
        bed.read(random);
    }
    bed.write(version, random);
    bed.maintain();
    bed.read(random);
    let _ = told(bed.dc.check());
    bed.dc.redo_scan_start_point(Lsn(version + 1)).unwrap();
    let excerpts = bed.dc.llama().statistics().excerpts;
    let Bed { damaged, versions, dc, .. } = bed;
    drop(dc);
    let mut bed = Bed { subject, damaged, versions, dc: open() };
    let is_sound = told(bed.dc.check()).is_some();
    assert!(is_sound || !bed.damaged.is_empty());
    bed.write(version + 1, random);
    bed.maintain();
    bed.read(random);
    excerpts
}

fn rounds(options: DcOptions, count: u64, are_excerpts: bool) {
    let variable = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (seed, effort) = (variable("DEUTERON_SEED").unwrap_or(1), variable("DEUTERON_EFFORT").unwrap_or(1));
    let subject = Subject::new(options, 4, &mut Mutator::new(seed));
    assert!(subject.pages.len() > 8);
    let bed = Bed {
        damaged: BTreeSet::new(),
        versions: subject.versions.clone(),
        dc: support::open(directory_of(&subject.files), subject.options.clone()).unwrap(),
        subject: &subject,
    };
    bed.read(&mut Mutator::new(seed));
    drop(bed);
    let mut excerpts = 0;
    for seed in seed..seed + count * effort {
        println!("seed {seed}");
        excerpts += round(&subject, &mut Mutator::new(seed));
    }
    assert!(!are_excerpts || excerpts > count, "{excerpts} excerpts");
}

#[test]
fn small_pages_of_wrong_records_are_told_or_read() {
    rounds(support::tiny(256 << 10), 40, false);
}

#[test]
fn pages_of_many_fragments_with_wrong_records_are_told_or_read() {
    let options = DcOptions {
        memory_bytes: 128 << 10,
        segment_bytes: 256 << 10,
        flush_buffer_bytes: 16 << 10,
        fragments_max: 9,
        tree: deuteron_bwtree::Options { page_bytes_max: 4096, ..Default::default() },
        ..DcOptions::tiny_for_tests()
    };
    rounds(options, 40, true);
}
