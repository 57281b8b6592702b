//! Keys by number, and how fast threads work through numbers. `peers/in-memory` measures others with it, too.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Spreads the numbers over the whole key space; each number has its own key.
pub fn spread(number: u64) -> u64 {
    let z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
}

/// Runs `work` on each of `count` numbers, shared by `threads`; how many a second.
pub fn rate(threads: u64, count: u64, work: impl Fn(u64) + Sync) -> f64 {
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let work = &work;
            scope.spawn(move || (thread..count).step_by(threads as usize).for_each(work));
        }
    });
    count as f64 / begin.elapsed().as_secs_f64()
}

/// Nanoseconds that a line of the caches takes from one processor to another. On a virtual machine it depends on where its host has put the two, by
/// as much as eight times, and with it how fast two threads write to the same pages.
pub fn handover_nanos() -> f64 {
    const TURNS: u64 = 100_000;
    let turn = AtomicU64::new(0);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for own in 0..2 {
            let turn = &turn;
            scope.spawn(move || {
                for _ in 0..TURNS {
                    while turn.load(Ordering::Acquire) % 2 != own {
                        std::hint::spin_loop();
                    }
                    turn.fetch_add(1, Ordering::AcqRel);
                }
            });
        }
    });
    begin.elapsed().as_nanos() as f64 / (2 * TURNS) as f64
}
