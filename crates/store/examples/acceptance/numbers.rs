//! Keys by number, and how fast threads work through numbers. `peers/in-memory` measures others with it, too.

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
