//! What a pin costs: `cargo run --release -p deuteron-epoch --example pin_cost`.

use deuteron_epoch::Epochs;
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: u32 = 20_000_000;

fn measure(what: &str, mut action: impl FnMut()) {
    let start = Instant::now();
    for _ in 0..ROUNDS {
        action();
    }
    println!("{what}: {:.2} ns", start.elapsed().as_nanos() as f64 / f64::from(ROUNDS));
}

fn main() {
    let epochs = Epochs::new();
    measure("pin and unpin", || drop(black_box(epochs.pin())));
    measure("pin, retire a box, unpin", || {
        let guard = epochs.pin();
        // SAFETY: never shared, retired once.
        unsafe { guard.retire_box(Box::into_raw(Box::new(black_box(1u64)))) };
    });
    let _outer = epochs.pin();
    measure("nested pin and unpin", || drop(black_box(epochs.pin())));
}
