//! Reads past the cache: of a page of many fragments only what may hold the key.

use deuteron_contract::conformance::SplitMix;
use deuteron_contract::{DataComponent, Lsn, Operation, Record, TableId, Timestamp};
use deuteron_dc::{BwTreeDc, DcOptions};
use deuteron_device::{
    CrashPolicy, Directory, FaultKind, FaultPlan, Operation as DeviceOperation, OsDirectory, SimulatedDisk,
};
use deuteron_epoch::Epochs;
use deuteron_llama::FlushProgress;
use std::sync::Arc;

const TABLE: TableId = TableId(3);
const KEYS: u64 = 20_000;

fn options() -> DcOptions {
    DcOptions {
        memory_bytes: 640 << 10,
        segment_bytes: 1 << 20,
        flush_buffer_bytes: 64 << 10,
        // Six at most on average.
        fragments_max: 12,
        tree: deuteron_bwtree::Options { page_bytes_max: 4096, ..Default::default() },
        ..DcOptions::default()
    }
}

/// Of several lengths, and with a common beginning.
fn key(number: u64) -> Vec<u8> {
    let digits = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 30;
    format!("key {digits:0width$x}", width = 3 + number as usize % 12).into_bytes()
}

fn value(number: u64, version: u64) -> Vec<u8> {
    format!("{number} {version} ").repeat(8).into_bytes()
}

/// The component and what it must say: of each key its version and whether that is a value.
struct Bed {
    dc: Arc<BwTreeDc>,
    known: Vec<(u64, bool)>,
    random: SplitMix,
    version: u64,
}

impl Bed {
    fn write(&mut self, numbers: &[u64], deletes_one_in: u64) {
        self.version += 1;
        let random = &mut self.random;
        let rows: Vec<_> = numbers
            .iter()
            .map(|&number| {
                (number, key(number), (random.below(deletes_one_in) > 0).then(|| value(number, self.version)))
            })
            .collect();
        let operations: Vec<_> = rows
            .iter()
            .map(|(_, key, value)| Operation {
                table: TABLE,
                key,
                value: value.as_deref(),
                timestamp: Timestamp(self.version),
                lsn: Lsn(self.version),
            })
            .collect();
        self.dc.apply(&operations).unwrap();
        for (number, _, value) in rows {
            self.known[number as usize] = (self.version, value.is_some());
        }
    }

    fn read(&self, number: u64) {
        self.check(number, self.dc.get(TABLE, &key(number)).unwrap());
    }

    /// Several keys together.
    fn read_many(&self, numbers: &[u64]) {
        let keys: Vec<_> = numbers.iter().map(|&number| key(number)).collect();
        let keys: Vec<_> = keys.iter().map(|key| &key[..]).collect();
        let found = self.dc.get_many(TABLE, &keys, usize::MAX).unwrap();
        assert_eq!(found.len(), numbers.len());
        for (&number, found) in numbers.iter().zip(found) {
            self.check(number, found);
        }
    }

    fn check(&self, number: u64, found: Option<Record>) {
        let found = found.map(|record| (record.timestamp.0, record.value));
        let expected = match self.known[number as usize] {
            (version, true) => Some((version, Some(value(number, version)))),
            (version, false) => Some((version, None)),
        };
        // Of a delete that every reader knows nothing may be left.
        assert!(found == expected || (found.is_none() && !self.known[number as usize].1), "{number}");
    }
}

fn bed(disk: &SimulatedDisk) -> Bed {
    bed_in(Arc::new(disk.directory()))
}

fn bed_in(directory: Arc<dyn Directory>) -> Bed {
    let dc = BwTreeDc::open(directory, Epochs::with_threshold(64 << 10), options()).unwrap();
    let mut bed = Bed { dc, known: vec![(0, false); KEYS as usize], random: SplitMix::new(7), version: 0 };
    for start in (0..KEYS).step_by(100) {
        bed.write(&(start..start + 100).collect::<Vec<_>>(), u64::MAX);
    }
    bed
}

/// A round of random updates and deletes.
fn update(bed: &mut Bed, batches: u64) {
    for _ in 0..batches {
        let mut numbers: Vec<_> = (0..20).map(|_| bed.random.below(KEYS)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        bed.write(&numbers, 10);
        bed.dc.maintain_step().unwrap();
    }
}

#[test]
fn every_read_finds_what_was_written_last_though_little_of_the_page_is_read() {
    let disk = SimulatedDisk::new(1);
    let mut bed = bed(&disk);
    for _ in 0..20 {
        update(&mut bed, 200);
        for _ in 0..400 {
            let number = bed.random.below(KEYS);
            bed.read(number);
        }
        for _ in 0..20 {
            let count = bed.random.below(100);
            let mut numbers: Vec<_> = (0..count).map(|_| bed.random.below(KEYS)).collect();
            numbers.extend_from_within(..numbers.len() / 10);
            bed.read_many(&numbers);
        }
    }
    let statistics = bed.dc.llama().statistics();
    assert!(statistics.excerpts > 1000, "{statistics:?}");
    assert!(statistics.fragments_spared > 2 * statistics.excerpts, "{statistics:?}");
    (0..KEYS).for_each(|number| bed.read(number));
    bed.dc.check().unwrap();
}

#[test]
fn it_spares_reads_of_the_device_and_a_page_read_twice_is_loaded() {
    let disk = SimulatedDisk::new(2);
    let mut bed = bed(&disk);
    update(&mut bed, 1500);
    let before = (bed.dc.llama().statistics(), disk.count(DeviceOperation::Read));
    for number in 0..1000 {
        bed.read(number * 61 % KEYS);
    }
    let after = (bed.dc.llama().statistics(), disk.count(DeviceOperation::Read));
    let [excerpts, spared] =
        [after.0.excerpts - before.0.excerpts, after.0.fragments_spared - before.0.fragments_spared];
    let (reads, loads) = (after.1 - before.1, after.0.loads - before.0.loads);
    assert!(excerpts > 50 && spared > 2 * excerpts, "{excerpts} excerpts, {spared} spared");
    assert!(reads < 3 * (excerpts + loads), "{reads} reads for {excerpts} excerpts and {loads} loads");
    // What is wanted again and again is in memory in the end.
    for _ in 0..4 {
        bed.read(7);
    }
    let reads = disk.count(DeviceOperation::Read);
    bed.read(7);
    assert_eq!(disk.count(DeviceOperation::Read), reads);
}

/// The component after a crash, and what it must say as before.
fn after_crash(disk: &SimulatedDisk, bed: Bed) -> Bed {
    let Bed { dc, known, random, version } = bed;
    drop(dc);
    let directory = disk.crash(CrashPolicy::LoseAll);
    let dc = BwTreeDc::open(Arc::new(directory), Epochs::with_threshold(64 << 10), options()).unwrap();
    Bed { dc, known, random, version }
}

#[test]
fn after_a_crash_filters_are_known_from_the_images_and_everything_is_found() {
    let disk = SimulatedDisk::new(3);
    let mut bed = bed(&disk);
    update(&mut bed, 800);
    // One that is not whole, and behind it pages of which the scan finds more.
    bed.dc.redo_scan_start_point(Lsn(bed.version + 1)).unwrap();
    update(&mut bed, 400);
    bed.dc.redo_scan_start_point(Lsn(bed.version + 1)).unwrap();
    update(&mut bed, 20);
    while bed.dc.llama().flush_step().unwrap() != FlushProgress::Nothing {}
    let mut bed = after_crash(&disk, bed);
    (0..KEYS).step_by(3).for_each(|number| bed.read(number));
    let statistics = bed.dc.llama().statistics();
    assert!(statistics.excerpts > 100, "{statistics:?}");
    assert!(statistics.fragments_spared > 2 * statistics.excerpts, "{statistics:?}");
    update(&mut bed, 800);
    (0..KEYS).step_by(7).for_each(|number| bed.read(number));
    bed.dc.check().unwrap();
}

#[test]
fn keys_that_are_read_together_are_read_at_once_and_displace_nothing() {
    let disk = SimulatedDisk::new(4);
    let mut bed = bed(&disk);
    update(&mut bed, 1500);
    let before = bed.dc.llama().statistics();
    let mut next = 0;
    for _ in 0..20 {
        let numbers: Vec<_> = (0..16).map(|at| next + at * 61).collect();
        bed.read_many(&numbers);
        next += 16 * 61;
    }
    let after = bed.dc.llama().statistics();
    let (excerpts, loads) = (after.excerpts - before.excerpts, after.loads - before.loads);
    assert!(excerpts > 100 && loads < excerpts, "{excerpts} excerpts, {loads} loads");
    // What cannot be read together is read one by one, and what cannot be read then is told.
    let refuse = |plan: FaultPlan, read| plan.fail(DeviceOperation::Read, read, FaultKind::Refuse);
    disk.set_faults((0..4).fold(FaultPlan::new(), refuse));
    bed.read_many(&[1, 1001, 2001, 3001]);
    disk.set_faults((0..1000).fold(FaultPlan::new(), refuse));
    let keys: Vec<_> = (0..64).map(|at| key(40 + at * 200)).collect();
    let keys: Vec<_> = keys.iter().map(|key| &key[..]).collect();
    assert!(bed.dc.get_many(TABLE, &keys, usize::MAX).is_err());
}

#[test]
fn neighbours_that_are_read_together_are_read_once_though_some_are_looked_up_later_than_others() {
    let scratch = tempfile::tempdir().unwrap();
    let os = OsDirectory::open_or_create(scratch.path().join("store")).unwrap();
    let directories: [Arc<dyn Directory>; 2] = [Arc::new(SimulatedDisk::new(5).directory()), Arc::new(os)];
    for directory in directories {
        let mut bed = bed_in(directory);
        update(&mut bed, 1500);
        let mut sorted: Vec<_> = (0..KEYS).collect();
        sorted.sort_by_key(|&number| key(number));
        let before = bed.dc.llama().statistics();
        let mut groups = 0;
        for neighbours in sorted.chunks_exact(16).step_by(31) {
            // They are looked up in no order of theirs.
            let numbers: Vec<_> = (0..16).map(|at| neighbours[at * 7 % 16]).collect();
            bed.read_many(&numbers);
            groups += 1;
        }
        let after = bed.dc.llama().statistics();
        let (excerpts, loads) = (after.excerpts - before.excerpts, after.loads - before.loads);
        // Of a page, or of two. A fragment that was spared for the first keys may be wanted for the others.
        assert!(excerpts > groups / 3 && excerpts + loads < 3 * groups, "{groups}: {excerpts}, {loads}");
    }
}
