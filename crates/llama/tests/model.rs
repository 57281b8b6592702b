//! Random histories against what each page must contain.

mod harness;

use deuteron_device::simulated::effort;
use deuteron_llama::Options;

#[test]
fn pages_contain_what_was_put_into_them_whatever_happens_to_them() {
    let (mut merges, mut moved) = (0, 0);
    let seeds = 60 * effort();
    for seed in 0..seeds {
        let tiny = Options::tiny_for_tests();
        let options = match seed % 4 {
            0 => tiny,
            1 => Options { fragments_max: 8, ..tiny },
            2 => Options { fragments_max: 1, flush_buffer_bytes: 4096, ..tiny },
            _ => Options { fragments_max: 3, flush_buffer_bytes: 64 << 10, compress: true, ..tiny },
        };
        let (merged, relocated) = harness::run(seed, 1500, &options);
        merges += merged;
        moved += relocated;
    }
    println!("pages: {seeds} seeds, 0 failures");
    assert!(merges > 1000, "only {merges} merges");
    assert!(moved > 1000, "only {moved} pages moved");
}
