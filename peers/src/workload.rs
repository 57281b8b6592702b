//! Which workload every engine runs: the paper's, or one of YCSB's, as `deuteron bench ycsb` has them.

use crate::Work;
use clap::ValueEnum;
use deuteron_bench::Workload;

/// A workload by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WorkloadName {
    /// The paper's: transactions of four operations, 84 % reads, 16 % blind updates; a fifth of the keys gets 80 % of them.
    Paper,
    /// YCSB A: half reads, half updates, Zipf's law.
    A,
    /// YCSB B: 95 % reads, 5 % updates, Zipf's law.
    B,
    /// YCSB C: reads, Zipf's law.
    C,
    /// YCSB D: 95 % reads, the newest records most, 5 % inserts.
    D,
    /// YCSB E: 95 % scans of up to 100 records, 5 % inserts, Zipf's law.
    E,
    /// YCSB F: half reads, half reads followed by a write, Zipf's law.
    F,
}

impl WorkloadName {
    /// The name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// The workload that was asked for.
pub fn workload(work: &Work) -> Workload {
    let letter = match work.workload {
        WorkloadName::Paper => None,
        WorkloadName::A => Some('a'),
        WorkloadName::B => Some('b'),
        WorkloadName::C => Some('c'),
        WorkloadName::D => Some('d'),
        WorkloadName::E => Some('e'),
        WorkloadName::F => Some('f'),
    };
    let mut workload = letter
        .and_then(|letter| Workload::ycsb(letter, work.records))
        .unwrap_or_else(|| Workload::paper(work.records));
    if let Some(ratio) = work.read_ratio {
        workload = workload.with_read_ratio(ratio);
    }
    workload.skew = work.skew.unwrap_or(workload.skew);
    workload.operations_per_transaction = work.ops_per_txn.unwrap_or(workload.operations_per_transaction);
    workload.value_bytes = work.value_bytes;
    workload
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cli, Command};
    use clap::Parser;
    use deuteron_bench::Skew;

    fn asked(arguments: &[&str]) -> Workload {
        let line = [&["peers", "ycsb", "--engine", "map", "--records", "1000"], arguments].concat();
        let Command::Ycsb { work, .. } = Cli::try_parse_from(line).unwrap().command else {
            panic!("another command")
        };
        workload(&work)
    }

    #[test]
    fn a_workload_is_as_its_name_says_but_for_what_is_said_otherwise() {
        assert_eq!(asked(&[]), Workload::paper(1_000));
        for (name, letter) in ["a", "b", "c", "d", "e", "f"].into_iter().zip('a'..) {
            assert_eq!(asked(&["--workload", name]), Workload::ycsb(letter, 1_000).unwrap());
        }
        let workload =
            asked(&["--workload", "e", "--ops-per-txn", "2", "--skew", "uniform", "--value-bytes", "9"]);
        assert_eq!((workload.scan, workload.operations_per_transaction), (0.95, 2));
        assert_eq!((workload.skew, workload.value_bytes), (Skew::Uniform, 9));
        assert_eq!(asked(&["--read-ratio", "1"]).read, 1.0);
    }
}
