//! Fuzzing of decoders on a stable compiler: valid bytes are damaged, decoded, and what that allocates is metered.
//!
//! A decoder is given a corpus of valid inputs. Each execution takes one, damages it in one to eight places (bits, bytes, integers
//! that are at the edge of something, cuts, repeats, pieces of another input), mends what would keep the damage from being
//! looked at (a checksum, mostly; in three of four executions), and calls the decoder. It may return what it likes; it may not panic, and may not allocate more
//! at a time than a bound that grows with the input. So a length from the input that nobody checked shows, even where there is memory
//! for it.
//!
//! A test binary that fuzzes sets [`Meter`] as its allocator. So many executions are made as the target says, times `DEUTERON_EFFORT`;
//! `DEUTERON_SEED` sets the seed. A failure says the seed and the bytes.
//!
//! What it is not: not guided by coverage, so that the corpus must hold one of each kind.

mod meter;
mod mutator;

pub use meter::Meter;
pub use mutator::Mutator;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// A decoder to be fuzzed.
#[derive(Clone, Copy, Debug)]
pub struct Fuzz<'c> {
    /// Its name in the report.
    pub name: &'c str,
    /// Valid inputs.
    pub corpus: &'c [Vec<u8>],
    /// Executions, times `DEUTERON_EFFORT`.
    pub executions: u64,
    /// Bytes that may be allocated at a time, whatever the input.
    pub allowed_bytes: usize,
    /// Bytes that may be allocated at a time for each byte of the input.
    pub allowed_per_byte: usize,
}

impl<'c> Fuzz<'c> {
    /// A decoder that may hold 64 KiB, and 32 times its input.
    ///
    /// ```
    /// let corpus = [b"12".to_vec()];
    /// let fuzz = deuteron_fuzz::Fuzz::new("numbers", &corpus, 1000);
    /// fuzz.run(|_| {}, |bytes| std::str::from_utf8(bytes).is_ok_and(|text| text.parse::<u32>().is_ok()));
    /// ```
    pub fn new(name: &'c str, corpus: &'c [Vec<u8>], executions: u64) -> Self {
        Self { name, corpus, executions, allowed_bytes: 64 << 10, allowed_per_byte: 32 }
    }

    /// Runs the executions and prints a line: `fuzz: NAME N executions, M accepted, at most B bytes`. `mend` makes damaged bytes
    /// look right again; `decode` says whether it took them. All valid inputs must be taken.
    ///
    /// # Panics
    /// If the decoder does, allocates too much, or refuses a valid input.
    ///
    /// ```should_panic
    /// let corpus = [vec![0, 1, 7]];
    /// // A length that is believed.
    /// deuteron_fuzz::Fuzz::new("pieces", &corpus, 1000).run(|_| {}, |bytes| {
    ///     bytes.first().is_none_or(|at| bytes[*at as usize] < 255)
    /// });
    /// ```
    pub fn run(&self, mend: impl Fn(&mut Vec<u8>), decode: impl Fn(&[u8]) -> bool) {
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
        let seed = number("DEUTERON_SEED").unwrap_or(1);
        let mut mutator = Mutator::new(seed);
        let mut input = Vec::new();
        for valid in self.corpus {
            assert!(decode(valid), "fuzz: {} refuses a valid input of {} bytes", self.name, valid.len());
        }
        let executions = self.executions * number("DEUTERON_EFFORT").unwrap_or(1);
        let (mut accepted, mut most) = (0u64, 0);
        for execution in 0..executions {
            mutator.damage(self.corpus, &mut input);
            if mutator.below(4) > 0 {
                mend(&mut input);
            }
            let allowed = self.allowed_bytes + self.allowed_per_byte * input.len();
            Meter::begin();
            let outcome = catch_unwind(AssertUnwindSafe(|| decode(&input)));
            let peak = Meter::peak();
            most = most.max(peak);
            let told = || format!("seed {seed}, execution {execution}, input {}", hexadecimal(&input));
            match outcome {
                Ok(taken) => accepted += u64::from(taken),
                Err(_) => panic!("fuzz: {} panicked: {}", self.name, told()),
            }
            assert!(
                peak <= allowed,
                "fuzz: {} allocated {peak} bytes, {allowed} allowed: {}",
                self.name,
                told()
            );
        }
        println!("fuzz: {} {executions} executions, {accepted} accepted, at most {most} bytes", self.name);
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().take(4096).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static METER: Meter = Meter;

    /// Decodes a length and as many bytes.
    fn lengths(bytes: &[u8], checked: bool) -> bool {
        let Some((length, rest)) = bytes.split_first_chunk() else { return false };
        let length = u32::from_le_bytes(*length) as usize;
        if checked && length > rest.len() {
            return false;
        }
        let mut copy = Vec::<u8>::with_capacity(length);
        copy.extend(rest.iter().take(length));
        copy.len() == length
    }

    fn corpus() -> Vec<Vec<u8>> {
        vec![[&5u32.to_le_bytes()[..], b"apple"].concat(), 0u32.to_le_bytes().to_vec()]
    }

    #[test]
    fn a_length_that_is_believed_is_caught_though_nothing_panics() {
        let corpus = corpus();
        let fuzz = Fuzz::new("lengths", &corpus, 5_000);
        fuzz.run(|_| {}, |bytes| lengths(bytes, true));
        let caught = catch_unwind(|| fuzz.run(|_| {}, |bytes| lengths(bytes, false))).expect_err("is caught");
        let message = caught.downcast_ref::<String>().expect("a message");
        assert!(message.contains("allocated") && message.contains("seed 1, execution"), "{message}");
    }

    #[test]
    fn a_valid_input_that_is_refused_is_caught() {
        let corpus = [b"xx".to_vec()];
        assert!(
            catch_unwind(|| Fuzz::new("lengths", &corpus, 0).run(|_| {}, |bytes| lengths(bytes, true)))
                .is_err()
        );
    }

    #[test]
    fn damage_behind_a_checksum_is_looked_at_if_it_is_mended() {
        let sum = |bytes: &[u8]| bytes.iter().skip(1).fold(7u8, |sum, byte| sum.rotate_left(3) ^ byte);
        let mut valid = b"?length".to_vec();
        valid[0] = sum(&valid);
        let corpus = [valid];
        let mend = |bytes: &mut Vec<u8>| {
            if !bytes.is_empty() {
                bytes[0] = sum(bytes);
            }
        };
        let decode = |bytes: &[u8]| match bytes.first() {
            Some(&stored) if stored == sum(bytes) => {
                assert!(!bytes.contains(&0xff), "a bug behind the checksum");
                true
            }
            _ => false,
        };
        assert!(catch_unwind(|| Fuzz::new("sums", &corpus, 5_000).run(mend, decode)).is_err());
    }
}
