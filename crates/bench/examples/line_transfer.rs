//! What a cache line costs that two processors write: the figures that `docs/design/scaling.md` argues from.
//!
//! `cargo run --release -p deuteron-bench --example line_transfer -- [PROCESSORS]`: the first two of a list such as `0,1`, of all that
//! there are if it is left out. One thread is timed, in short pieces, while the other does the same; pieces in which the other did
//! not have its processor do not count. On a busy machine that is most of the time, and the middle of the rest is what
//! it is on an idle one.

use deuteron::Processors;
use std::error::Error;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Pieces that are timed.
const PIECES: usize = 20_000;
/// Writes of the timed thread in a piece: some microseconds.
const WRITES: u64 = 100;

/// Two lines, since the prefetcher fetches pairs.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

/// Nanoseconds of a write in the pieces that count.
struct Times(Vec<f64>);

impl Times {
    /// Times `piece`, which says how many writes the other thread made meanwhile; whether so many that the piece counts is for
    /// `counts` to say.
    fn of(mut piece: impl FnMut() -> u64, counts: impl Fn(u64) -> bool) -> Times {
        let mut times = Vec::with_capacity(PIECES);
        for _ in 0..PIECES {
            let start = Instant::now();
            let others = piece();
            let time = start.elapsed().as_nanos() as f64 / WRITES as f64;
            if counts(others) {
                times.push(time);
            }
        }
        times.sort_by(f64::total_cmp);
        Times(times)
    }

    fn print(&self, what: &str) {
        let at = |share: f64| self.0.get((self.0.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN);
        println!(
            "{what:48} {:7.1} ns, a tenth less than {:.1}, a tenth more than {:.1} ({} pieces)",
            at(0.5),
            at(0.1),
            at(0.9),
            self.0.len()
        );
    }
}

/// Runs `timed` on one processor and `beside`, until it is told that the other is done, on another.
fn run(
    places: &Processors,
    timed: impl FnOnce() -> Times + Send,
    beside: impl FnOnce(&AtomicBool) + Send,
) -> Result<Times, Box<dyn Error>> {
    let is_done = AtomicBool::new(false);
    let (pinned, times) = std::thread::scope(|scope| {
        let is_done = &is_done;
        let other = scope.spawn(move || {
            let pinned = places.nth(1).pin_current_thread();
            beside(is_done);
            pinned
        });
        let timed = scope.spawn(move || {
            let times = places.nth(0).pin_current_thread().map(|()| timed());
            is_done.store(true, Ordering::Relaxed);
            times
        });
        (other.join().expect("it does not panic"), timed.join().expect("it does not panic"))
    });
    pinned?;
    Ok(times?)
}

fn add(line: &Line) -> u64 {
    for _ in 0..WRITES {
        line.0.fetch_add(1, Ordering::SeqCst);
    }
    line.0.load(Ordering::Relaxed)
}

fn main() -> Result<(), Box<dyn Error>> {
    let places = std::env::args().nth(1).map_or_else(Processors::available, |list| list.parse())?;
    if places.numbers().len() < 2 {
        return Err("it takes two processors".into());
    }
    let lines: [Line; 2] = Default::default();
    let adding = |line: &Line, is_done: &AtomicBool| {
        while !is_done.load(Ordering::Relaxed) {
            line.0.fetch_add(1, Ordering::SeqCst);
        }
    };
    for (what, other) in
        [("an addition, each thread to a line of its own", 1), ("an addition, both threads to one line", 0)]
    {
        let (line, beside) = (&lines[0], &lines[other]);
        let mut before = beside.0.load(Ordering::Relaxed);
        let own = if other == 0 { WRITES } else { 0 };
        let piece = move || {
            add(line);
            let after = beside.0.load(Ordering::Relaxed);
            let others = after - before - own;
            before = after;
            others
        };
        // The other had its processor, and the line now and then.
        let times = run(
            &places,
            move || Times::of(piece, |others| others >= WRITES / 4),
            |is_done| adding(beside, is_done),
        )?;
        times.print(what);
    }
    // The line goes there and back for each write of the timed thread.
    let turns = Line::default();
    let await_turn = |parity: u64, is_done: &AtomicBool| {
        loop {
            let turn = turns.0.load(Ordering::Acquire);
            if turn % 2 == parity {
                break Some(turn);
            }
            if is_done.load(Ordering::Relaxed) {
                break None;
            }
            spin_loop();
        }
    };
    let never = AtomicBool::new(false);
    let piece = || {
        for _ in 0..WRITES {
            let turn = await_turn(0, &never).expect("the other goes on");
            turns.0.store(turn + 1, Ordering::Release);
        }
        WRITES
    };
    let times = run(
        &places,
        || Times::of(piece, |_| true),
        |is_done| {
            while let Some(turn) = await_turn(1, is_done) {
                turns.0.store(turn + 1, Ordering::Release);
            }
        },
    )?;
    Times(times.0.into_iter().map(|there_and_back| there_and_back / 2.0).collect())
        .print("handing a line over, in turns");
    Ok(())
}
