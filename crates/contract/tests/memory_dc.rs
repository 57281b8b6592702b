//! The reference component passes the suite, whatever survives a crash.

use deuteron_contract::conformance::{self, Effort, Harness, Instance, Limits, SplitMix};
use deuteron_contract::{DataComponent, MemoryDc};

struct Memory;
struct Opened(MemoryDc);

impl Instance for Opened {
    fn component(&self) -> &dyn DataComponent {
        &self.0
    }

    fn crash(self: Box<Self>, seed: u64) -> Box<dyn Instance> {
        let mut random = SplitMix::new(seed);
        let percent = random.below(101);
        Box::new(Opened(self.0.crash(|_| random.sometimes(percent))))
    }
}

impl Harness for Memory {
    fn open(&self) -> Box<dyn Instance> {
        Box::new(Opened(MemoryDc::with_limits(64, 256)))
    }

    fn limits(&self) -> Limits {
        Limits { key_bytes_max: 64, value_bytes_max: 256 }
    }
}

#[test]
fn the_memory_dc_keeps_the_contract() {
    conformance::run(&Memory);
}

#[test]
fn the_memory_dc_keeps_the_contract_with_other_seeds() {
    let effort = Effort { histories: 200, first_seed: 10_000, rounds: 20, ..Effort::default() };
    conformance::check(&Memory, &effort).unwrap();
}
