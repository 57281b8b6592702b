//! The acceptance points of safety.

use super::Point;

/// Safety: simulation, faults, corruption, isolation, schedules, fuzzing.
pub const SAFETY: &[Point] = &[
    Point {
        name: "seeds",
        bar: "100 000 seeds green, equal trace hash on 100 run twice",
        run: Some(super::safety::seeds),
    },
    Point {
        name: "crash-points",
        bar: "100 % of I/O points, 0 failures",
        run: Some(super::safety::crash_points),
    },
    Point { name: "faults", bar: "100 % of I/O points, 0 panics", run: Some(super::safety::faults) },
    Point {
        name: "corruptions",
        bar: "1 000 000 injected, 0 silent",
        run: Some(super::corruptions::corruptions),
    },
    Point { name: "kill", bar: "5 000 rounds, 0 acknowledged commits lost", run: Some(super::kill::kill) },
    Point {
        name: "isolation",
        bar: "1 M transactions, 0 anomalies, both checkers agree",
        run: Some(super::isolation::isolation),
    },
    Point {
        name: "canaries",
        bar: "every planted bug caught, nothing found without one",
        run: Some(super::canaries::canaries),
    },
    Point {
        name: "schedules",
        bar: "loom exhaustive, 1 M shuttle schedules, 0 ThreadSanitizer reports",
        run: Some(super::schedules::schedules),
    },
    Point { name: "fuzz", bar: "0 crashes", run: Some(super::fuzz::fuzz) },
    Point {
        name: "coverage",
        bar: "at least 95 % of the engine's lines",
        run: Some(super::coverage::coverage),
    },
    Point {
        name: "mutants",
        bar: "at least 90 % caught of 200 in log, tc and llama",
        run: Some(super::mutants::sample),
    },
    Point {
        name: "salvage",
        bar: "share of records from 1, 10 and 100 damaged blocks",
        run: Some(super::salvage::salvage),
    },
];
