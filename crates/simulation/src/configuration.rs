//! The configuration of a run: all that is fixed before it begins, drawn from the seed.

use crate::features::{Feature, Features};
use deuteron::device::simulated::Random;
use deuteron::sizes::Sizes;
use deuteron::{Background, ConcurrencyControl, Durability, Options};
use std::time::Duration;

/// All that is fixed before a run begins.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Everything else follows from it, unless it was changed to make a failing run smaller.
    pub seed: u64,
    /// How many steps the run has.
    pub steps: u32,
    /// What it may do and meet.
    pub features: Features,
    /// How many clients take turns.
    pub clients: usize,
    /// How many keys a table has at most.
    pub keys: u32,
    /// How many tables there are at most.
    pub tables: usize,
    /// How keys look.
    pub shape: Shape,
    /// What a value has at most, in bytes, if it is not a long one.
    pub value_bytes: usize,
    /// Sizes of the components.
    pub sizes: Sizes,
    /// Log between checkpoints in bytes.
    pub checkpoint_bytes: u64,
}

/// How keys look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Four bytes.
    Short,
    /// Of different lengths, some the beginning of others.
    Ragged,
    /// Long, with a beginning in common.
    Common,
}

/// A seed that nobody has seen, and so are the next million; by the clock, which the runs themselves never look at.
pub fn fresh_seed() -> u64 {
    let micros = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_micros() as u64);
    micros.wrapping_mul(1_000_000)
}

impl Configuration {
    /// The configuration of a seed.
    pub fn of(seed: u64) -> Configuration {
        let mut random = Random::new(seed);
        let features = Features::draw(&mut random);
        let one_of =
            |random: &mut Random, choices: &[u64]| choices[random.below(choices.len() as u64) as usize];
        Configuration {
            seed,
            steps: one_of(&mut random, &[100, 400, 1200, 3000]) as u32,
            features,
            clients: one_of(&mut random, &[1, 2, 3, 4, 8]) as usize,
            keys: one_of(&mut random, &[4, 12, 40, 200, 1000]) as u32,
            tables: one_of(&mut random, &[1, 2, 3]) as usize,
            shape: [Shape::Short, Shape::Ragged, Shape::Common][random.below(3) as usize],
            value_bytes: one_of(&mut random, &[16, 120, 600, 3000]) as usize,
            sizes: sizes(&mut random),
            checkpoint_bytes: one_of(&mut random, &[4 << 10, 16 << 10, 64 << 10]),
        }
    }

    /// Whether the run has a feature.
    pub fn has(&self, feature: Feature) -> bool {
        self.features.has(feature)
    }

    /// The options of an opening; those that may change from one to the next are drawn.
    pub fn options(&self, random: &mut Random) -> Options {
        // Drawn in any case, so that fewer features leave the rest as it is.
        let (compress, order, delayed, none) =
            (random.coin(), random.coin(), random.below(3), random.below(3));
        let durability = match (delayed, none) {
            (0, _) if self.has(Feature::Delayed) => Durability::Delayed(Duration::from_millis(10)),
            (_, 0) if self.has(Feature::NoDurability) => Durability::None,
            _ => Durability::Sync,
        };
        let mut options = Options::tiny_for_tests()
            .background(Background::Inline)
            .checkpoint_every(self.checkpoint_bytes)
            .compression(compress && self.has(Feature::Compression))
            .durability(durability);
        options = options.sizes(self.effective_sizes());
        if order && self.has(Feature::TimestampOrder) {
            options = options.concurrency_control(ConcurrencyControl::TimestampOrder);
        }
        if self.has(Feature::Past) {
            options = options.retention(Duration::from_millis(100));
        }
        if self.has(Feature::WriterLimit) {
            options = options.writer_log_max(32 << 10);
        }
        options
    }

    /// The sizes that count. As in every database, a value is a small part of the memory for versions.
    pub fn effective_sizes(&self) -> Sizes {
        let mut sizes = if self.has(Feature::Sizes) { self.sizes.clone() } else { Sizes::tiny() };
        sizes.dc.value_bytes_max = (sizes.tc.memory_bytes / 4).min(64 << 10);
        sizes
    }

    /// The command that repeats the run.
    pub fn command(&self) -> String {
        let drawn = Configuration::of(self.seed);
        let mut command = format!("cargo run --release -p deuteron-simulation -- --seed {}", self.seed);
        let mut differs = |name: &str, value: u64, drawn: u64| {
            if value != drawn {
                command.push_str(&format!(" --{name} {value}"));
            }
        };
        differs("steps", self.steps.into(), drawn.steps.into());
        differs("clients", self.clients as u64, drawn.clients as u64);
        differs("keys", self.keys.into(), drawn.keys.into());
        let missing: Vec<_> =
            drawn.features.iter().filter(|feature| !self.has(*feature)).map(Features::name).collect();
        if !missing.is_empty() {
            command.push_str(&format!(" --without {}", missing.join(",")));
        }
        command
    }

    /// What the run has, for whoever reads a failure.
    pub fn description(&self) -> String {
        let features: Vec<_> = self.features.iter().map(Features::name).collect();
        format!(
            "{} steps, {} clients, {} keys in {} tables, {:?} keys, values of {} bytes, checkpoints every {} bytes, with {}",
            self.steps,
            self.clients,
            self.keys,
            self.tables,
            self.shape,
            self.value_bytes,
            self.checkpoint_bytes,
            features.join(" ")
        )
    }
}

/// Sizes from the smallest that work to a few times that.
fn sizes(random: &mut Random) -> Sizes {
    let mut sizes = Sizes::tiny();
    let mut one_of = |choices: &[usize]| choices[random.below(choices.len() as u64) as usize];
    sizes.tc.memory_bytes = one_of(&[32 << 10, 64 << 10, 256 << 10, 1 << 20]);
    sizes.tc.clock_lease = one_of(&[16, 256, 1 << 20]) as u64;
    sizes.tc.range_timestamps = one_of(&[1, 2, 16, 256]);
    sizes.tc.reads_max = one_of(&[2, 16, 64, 4096]);
    sizes.tc.scan_batch_bytes = one_of(&[1, 32, 512, 4096]);
    sizes.tc.scan_batch_records_max = one_of(&[1, 2, 7, 512]);
    sizes.tc.refreshes_max = one_of(&[1, 2, 16]);
    sizes.tc.patience = one_of(&[0, 1, 8, 64]) as u32;
    sizes.log.buffer_bytes_max = one_of(&[8 << 10, 12 << 10, 16 << 10]);
    sizes.log.ring_bytes = one_of(&[64 << 10, 128 << 10, 256 << 10]);
    sizes.log.segment_bytes = one_of(&[16 << 10, 64 << 10, 256 << 10]) as u64;
    sizes.log.buffer_count = one_of(&[2, 4, 16]);
    sizes.log.spare_segments_max = one_of(&[0, 1, 2]);
    sizes.proxy.lag_bytes = one_of(&[0, 256, 4 << 10, 16 << 10]) as u64;
    sizes.proxy.batch_operations_max = one_of(&[1, 4, 64]);
    sizes.proxy.side_buffer_bytes_max = one_of(&[0, 1 << 10, 16 << 10]);
    sizes.proxy.waiting_list_bytes_max = one_of(&[0, 2 << 10, 16 << 10]);
    sizes.dc.segment_bytes = one_of(&[64 << 10, 128 << 10]) as u64;
    sizes.dc.memory_bytes = one_of(&[16 << 10, 64 << 10, 256 << 10, 4 << 20]) as u64;
    sizes.dc.dirty_percent_max = one_of(&[1, 25, 100]) as u32;
    sizes.dc.flush_buffer_bytes = one_of(&[4 << 10, 8 << 10, 32 << 10]);
    sizes.dc.fragments_max = one_of(&[1, 2, 4, 8, 25]);
    sizes.dc.space_amplification_percent_max = one_of(&[110, 200, 1000]) as u32;
    sizes.dc.spare_percent_max = one_of(&[0, 6, 50]) as u32;
    sizes.dc.chunk_bytes = one_of(&[256, 1 << 10, 8 << 10]);
    sizes.dc.tree.page_bytes_max = one_of(&[128, 256, 1 << 10, 2 << 10]);
    sizes.dc.tree.consolidate_at = one_of(&[1, 2, 4]);
    sizes.dc.tree.slack_bytes = one_of(&[0, 256, 1536]);
    sizes.dc.tree.chain_length_max = one_of(&[4, 8, 16]);
    sizes.dc.tree.delta_bytes_max = one_of(&[0, 128, 1 << 10]);
    sizes.dc.tree.inner_entries_max = one_of(&[4, 5, 16]);
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_says_only_what_the_seed_does_not() {
        let drawn = Configuration::of(7);
        assert_eq!(drawn.command(), "cargo run --release -p deuteron-simulation -- --seed 7");
        let feature = drawn.features.iter().next().unwrap();
        let smaller = Configuration { steps: 3, features: drawn.features.without(feature), ..drawn };
        let expected = format!(" --seed 7 --steps 3 --without {}", Features::name(feature));
        assert!(smaller.command().ends_with(&expected), "{}", smaller.command());
    }
}
