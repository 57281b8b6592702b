//! The contract's suite, on a simulated disk, with everything tiny.

use deuteron_contract::DataComponent;
use deuteron_contract::conformance::{self, Effort, Harness, Instance, Limits, SplitMix};
use deuteron_dc::{BwTreeDc, DcOptions};
use deuteron_device::simulated::effort;
use deuteron_device::{CrashPolicy, SimulatedDisk};
use deuteron_epoch::Epochs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

struct Bwtree {
    options: DcOptions,
    opened: AtomicU64,
}

struct Opened {
    disk: SimulatedDisk,
    options: DcOptions,
    dc: Arc<BwTreeDc>,
}

impl Opened {
    fn open(disk: SimulatedDisk, options: DcOptions) -> Opened {
        let dc =
            BwTreeDc::open(Arc::new(disk.directory()), Epochs::with_threshold(16 << 10), options.clone())
                .expect("what is durable can be opened");
        Opened { disk, options, dc }
    }
}

impl Instance for Opened {
    fn component(&self) -> &dyn DataComponent {
        &*self.dc
    }

    fn maintain(&self, seed: u64) {
        let mut random = SplitMix::new(seed);
        match random.next() % 4 {
            0 => drop(self.dc.llama().flush_step().expect("a sound disk")),
            1 => drop(self.dc.llama().evict_step(random.next() % (64 << 10))),
            2 => drop(self.dc.llama().clean_step().expect("a sound disk")),
            _ => drop(self.dc.maintain_step().expect("a sound disk")),
        }
    }

    fn crash(self: Box<Self>, seed: u64) -> Box<dyn Instance> {
        let Opened { disk, options, dc } = *self;
        drop(dc);
        disk.crash(CrashPolicy::of(seed));
        let opened = Opened::open(disk, options);
        opened.dc.check().expect("a sound tree");
        Box::new(opened)
    }
}

impl Harness for Bwtree {
    fn open(&self) -> Box<dyn Instance> {
        let seed = self.opened.fetch_add(1, Ordering::Relaxed);
        Box::new(Opened::open(SimulatedDisk::new(seed), self.options.clone()))
    }

    fn limits(&self) -> Limits {
        let opened = Opened::open(SimulatedDisk::new(0), self.options.clone());
        Limits { key_bytes_max: opened.dc.key_bytes_max(), value_bytes_max: opened.dc.value_bytes_max() }
    }
}

#[test]
fn a_tiny_component_keeps_the_contract() {
    let options = DcOptions { memory_bytes: 16 << 10, ..DcOptions::tiny_for_tests() };
    let harness = Bwtree { options, opened: AtomicU64::new(1) };
    let histories = 24 * effort();
    if let Err(violation) =
        conformance::check(&harness, &Effort { histories, rounds: 60, ..Effort::default() })
    {
        panic!("{violation}");
    }
    println!("the contract: {histories} seeds, 0 failures");
}

#[test]
fn an_ordinary_component_keeps_the_contract() {
    let options = DcOptions { segment_bytes: 1 << 20, ..DcOptions::default() };
    let harness = Bwtree { options, opened: AtomicU64::new(1) };
    if let Err(violation) = conformance::check(&harness, &Effort::quick()) {
        panic!("{violation}");
    }
}
