//! A device that fails, fills up, or changes bytes.

mod harness;

use deuteron_device::simulated::SimulatedDirectory;
use deuteron_device::{
    AlignedBuffer, CrashPolicy, DeviceError, Directory, DurableWrite, FaultKind, FaultPlan, File, OpenMode,
    Operation, SimulatedDisk, WriteInFlight,
};
use deuteron_llama::{CheckpointProgress, FlushProgress, LlamaError, Options};
use harness::{Harness, Random};
use std::mem;
use std::sync::{Arc, Mutex};

fn loaded(disk: &SimulatedDisk, keys: u32) -> Harness {
    let mut harness = Harness::create(Arc::new(disk.directory()), &Options::tiny_for_tests()).unwrap();
    for key in 0..keys {
        harness.upsert(key * 7919 % keys);
    }
    harness
}

/// Every write and every sync of a history fails once, in every way. Those of a file that is being removed are of no account: nobody
/// relies on what is in it.
#[test]
fn the_first_failed_write_stops_all_writing_and_no_reading() {
    let options = Options::tiny_for_tests();
    let (mut poisoned, mut of_removed, mut of_dead) = (0, 0, 0);
    for (operation, kinds) in [
        (Operation::Write, [FaultKind::Refuse, FaultKind::Partial, FaultKind::Lose]),
        (Operation::Sync, [FaultKind::Refuse, FaultKind::Partial, FaultKind::Lose]),
        (Operation::SyncDirectory, [FaultKind::Refuse, FaultKind::Partial, FaultKind::Lose]),
        (Operation::Rename, [FaultKind::Refuse; 3]),
    ] {
        for nth in 0..25 {
            let disk = SimulatedDisk::new(nth);
            let mut harness = Harness::create(Arc::new(disk.directory()), &options).unwrap();
            if nth % 2 == 1 {
                // For ever: buffers are in flight when a step returns.
                mem::forget(harness.llama.hurry());
            }
            disk.set_faults(FaultPlan::new().fail(operation, nth, kinds[(nth % 3) as usize]));
            let asked: Arc<Mutex<Vec<(Operation, String)>>> = Arc::default();
            let noted = Arc::clone(&asked);
            disk.watch(move |moment| noted.lock().unwrap().push((moment.operation, moment.file)));
            let mut random = Random::new(nth);
            let failed = (0..400).find_map(|_| harness.act(&mut random).err());
            if disk.faults_fired() == 0 {
                break;
            }
            let asked = asked.lock().unwrap().clone();
            let at = (0..asked.len()).filter(|&at| asked[at].0 == operation).nth(nth as usize).unwrap();
            let (is_of_removed, is_of_dead) = (
                asked[at - 1].0 == Operation::Shorten,
                operation == Operation::Rename && asked[at].1.ends_with(".seg"),
            );
            if is_of_removed || is_of_dead {
                assert!(failed.is_none() && harness.llama.poisoned().is_none());
                harness.check_all().unwrap();
                let ledger = harness.into_ledger();
                let left = Arc::new(disk.crash(CrashPolicy::Random));
                Harness::reopen(&ledger, left, &options).unwrap().check_all().unwrap();
                of_removed += usize::from(is_of_removed);
                of_dead += usize::from(is_of_dead);
                continue;
            }
            assert!(matches!(failed, None | Some(LlamaError::Device(_) | LlamaError::Poisoned { .. })));
            assert!(harness.llama.poisoned().is_some());
            poisoned += 1;
            harness.upsert(1);
            let refused = harness.llama.flush_step();
            assert!(
                matches!(&refused, Err(LlamaError::Poisoned { reason }) if reason.contains("injected fault"))
            );
            assert!(matches!(harness.llama.checkpoint_begin(b""), Err(LlamaError::Poisoned { .. })));
            // Whatever is evicted now is read again as it was.
            harness.llama.evict_step(u64::MAX);
            harness.llama.evict_step(u64::MAX);
            harness.check_all().unwrap();
            let ledger = harness.into_ledger();
            for policy in [CrashPolicy::Random, CrashPolicy::LoseAll] {
                let left = Arc::new(disk.crash(policy));
                Harness::reopen(&ledger, left, &options).unwrap().check_all().unwrap();
            }
        }
    }
    assert!(poisoned > 50, "only {poisoned} faults were met");
    assert!(of_dead > 0, "only {of_dead} dead segments could not be set aside");
    assert!(of_removed > 5, "only {of_removed} syncs failed of files that were being removed");
}

/// A directory whose writes in flight end when somebody waits for that, and not before.
struct Late(SimulatedDirectory);

impl Directory for Late {
    fn open(&self, name: &str, mode: OpenMode, direct: bool) -> Result<Arc<dyn File>, DeviceError> {
        self.0.open(name, mode, direct)
    }
    fn list(&self) -> Result<Vec<String>, DeviceError> {
        self.0.list()
    }
    fn remove(&self, name: &str) -> Result<(), DeviceError> {
        self.0.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> Result<(), DeviceError> {
        self.0.rename(from, to)
    }
    fn sync(&self) -> Result<(), DeviceError> {
        self.0.sync()
    }
    fn lock(&self) -> Result<Box<dyn Send + Sync>, DeviceError> {
        self.0.lock()
    }
    fn name(&self) -> String {
        self.0.name()
    }
    fn begin_write(&self, write: DurableWrite) -> Box<dyn WriteInFlight> {
        Box::new(OnItsWay(self.0.begin_write(write)))
    }
}

struct OnItsWay(Box<dyn WriteInFlight>);

impl WriteInFlight for OnItsWay {
    fn is_done(&mut self) -> bool {
        false
    }

    fn wait(self: Box<Self>) -> (AlignedBuffer, Result<(), DeviceError>) {
        self.0.wait()
    }
}

/// A buffer that is on its way when a step returns, and fails: nothing is dirty any more, and nothing durable.
#[test]
fn a_round_is_not_done_if_what_was_on_its_way_has_failed() {
    for is_checkpoint in [false, true] {
        let disk = SimulatedDisk::new(2);
        let mut harness =
            Harness::create(Arc::new(Late(disk.directory())), &Options::tiny_for_tests()).unwrap();
        (0..20).for_each(|key| harness.upsert(key));
        harness.flush_all().unwrap();
        mem::forget(harness.llama.hurry());
        (0..20).for_each(|key| harness.upsert(key));
        let mut round = harness.llama.flush_round().unwrap();
        let mut checkpoint = harness.llama.checkpoint_begin(b"").unwrap();
        disk.set_faults(FaultPlan::new().fail_from(Operation::Write, 0, FaultKind::Refuse));
        let mut step = || match is_checkpoint {
            false => harness.llama.flush_round_step(&mut round),
            true => harness.llama.checkpoint_flush_step(&mut checkpoint),
        };
        let begun = step();
        assert!(matches!(begun, Ok(CheckpointProgress::Wrote { .. })), "{begun:?}");
        let outcome = step();
        assert!(matches!(outcome, Err(LlamaError::Poisoned { .. })), "{outcome:?}");
    }
}

#[test]
fn a_full_disk_stops_flushing_until_there_is_space() {
    let disk = SimulatedDisk::new(3);
    let mut harness = loaded(&disk, 2000);
    // More than the rest of a segment, and what room there is for another.
    for key in 0..2000 {
        harness.upsert(key);
    }
    harness.post(0);
    disk.set_capacity(Some(disk.used_bytes() + (16 << 10)));
    let is_full =
        |error: &LlamaError| matches!(error, LlamaError::Device(error) if DeviceError::is_full(error));
    let error = (0..100).find_map(|_| harness.llama.flush_step().err()).unwrap();
    assert!(is_full(&error), "{error}");
    assert!(is_full(&harness.llama.flush_step().unwrap_err()));
    assert_eq!(harness.llama.poisoned(), None);
    harness.upsert(5);
    harness.check_all().unwrap();
    assert!(is_full(&harness.checkpoint(|_| {}).unwrap_err()));
    disk.set_capacity(None);
    harness.flush_all().unwrap();
    harness.checkpoint(|_| {}).unwrap();
    let ledger = harness.into_ledger();
    let left = Arc::new(disk.crash(CrashPolicy::LoseAll));
    Harness::reopen(&ledger, left, &Options::tiny_for_tests()).unwrap();
}

#[test]
fn an_image_for_which_there_is_no_room_leaves_nothing_behind() {
    let disk = SimulatedDisk::new(4);
    let mut harness = loaded(&disk, 2000);
    harness.flush_all().unwrap();
    let used = disk.used_bytes();
    // For a part of it.
    disk.set_capacity(Some(used + (8 << 10)));
    harness.llama.renew_images();
    let error = harness.checkpoint(|_| {}).unwrap_err();
    assert!(matches!(&error, LlamaError::Device(error) if error.is_full()), "{error}");
    assert!(disk.used_bytes() <= used, "{used} bytes before, {} after", disk.used_bytes());
    assert!(disk.directory().list().unwrap().iter().all(|name| !name.ends_with(".tmp")));
    disk.set_capacity(None);
    harness.checkpoint(|_| {}).unwrap();
}

/// Bits flip in a file while its pages are not in memory.
#[test]
fn a_flipped_bit_is_reported_with_its_file_and_never_returned() {
    let disk = SimulatedDisk::new(4);
    let mut harness = loaded(&disk, 120);
    harness.flush_all().unwrap();
    let file = "store-0000000000000000.seg";
    let mut noticed = 0;
    for offset in (4096..40_000).step_by(53) {
        while harness.llama.evict_step(u64::MAX).pages > 0 {}
        if disk.flip_bits(file, offset, 0x40).is_err() {
            // The end of what is allocated.
            break;
        }
        match harness.check_all() {
            Ok(()) => {}
            Err(LlamaError::Corrupt { file: found, offset: at, expected, found: what }) => {
                assert_eq!(found, file);
                assert!(at <= offset && offset < at + 4096, "{expected} {what}");
                noticed += 1;
            }
            Err(other) => panic!("{other}"),
        }
        disk.flip_bits(file, offset, 0x40).unwrap();
        harness.check_all().unwrap();
    }
    assert!(noticed > 100, "only {noticed} flips were noticed");
}

/// Bits flip before the store is opened.
#[test]
fn recovery_notices_damage_before_the_tail() {
    let options = Options::tiny_for_tests();
    let disk = SimulatedDisk::new(5);
    let mut harness = loaded(&disk, 60);
    harness.flush_all().unwrap();
    harness.checkpoint(|_| {}).unwrap();
    for key in 0..60 {
        harness.upsert(key);
    }
    harness.flush_all().unwrap();
    harness.upsert(3);
    // The last buffer: if it is damaged, nothing tells it from one that was being written at the crash.
    let FlushProgress::Wrote { bytes, .. } = harness.llama.flush_step().unwrap() else { panic!("dirty") };
    let image = "store-image-0000000000000001".to_owned();
    let written = harness.llama.statistics().bytes_written;
    let ledger = harness.into_ledger();
    disk.crash(CrashPolicy::LoseAll);
    let mut noticed = 0;
    for index in 0..3 {
        let name = if index == 2 { image.clone() } else { format!("store-{index:016x}.seg") };
        let end = if index == 2 { 8192 } else { written - bytes };
        for offset in (0..end.min(options.segment_bytes)).step_by(89) {
            let fork = disk.fork(offset);
            if fork.flip_bits(&name, offset, 1).is_err() {
                break;
            }
            match Harness::reopen(&ledger, Arc::new(fork.directory()), &options) {
                // Dead bytes, padding, or the last buffer; `reopen` has seen everything durable.
                Ok(_) => {}
                Err(LlamaError::Corrupt { .. } | LlamaError::Version { .. }) => noticed += 1,
                Err(other) => panic!("{other}"),
            }
        }
    }
    assert!(noticed > 100, "only {noticed} flips were noticed");
}

#[test]
fn files_of_another_store_or_a_newer_release_are_refused() {
    let options = Options::tiny_for_tests();
    let disk = SimulatedDisk::new(6);
    let mut harness = loaded(&disk, 30);
    harness.flush_all().unwrap();
    drop(harness);
    let directory = disk.crash(CrashPolicy::KeepAll);
    use deuteron_device::Directory;
    directory.remove("store-image-0000000000000000").unwrap();
    let opened =
        deuteron_llama::Llama::open(Arc::new(directory), options.clone(), deuteron_epoch::Epochs::new());
    assert!(matches!(opened.err(), Some(LlamaError::Corrupt { .. })));

    // The image of a new store, beside the segments of the old one: nothing of them is removed.
    let other = SimulatedDisk::new(7);
    drop(Harness::create(Arc::new(other.directory()), &options).unwrap());
    let image = other
        .directory()
        .open("store-image-0000000000000000", deuteron_device::OpenMode::Read, false)
        .unwrap();
    let mut bytes = vec![0; image.length().unwrap() as usize];
    image.read_at(&mut bytes, 0).unwrap();
    let directory = disk.directory();
    let mode = deuteron_device::OpenMode::CreateNew;
    directory.open("store-image-0000000000000000", mode, false).unwrap().write_at(&bytes, 0).unwrap();
    let before = directory.list().unwrap();
    let opened = deuteron_llama::Llama::open(Arc::new(directory), options, deuteron_epoch::Epochs::new());
    assert!(matches!(opened.err(), Some(LlamaError::Corrupt { .. })));
    assert_eq!(disk.directory().list().unwrap(), before);
}
