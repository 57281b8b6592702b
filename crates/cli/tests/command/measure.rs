//! `bench ycsb`, `bench device`, the application benchmarks and `demo`, small.

use crate::support::{Scratch, run};

#[test]
fn the_report_holds_the_documented_fields_for_every_workload() {
    let scratch = Scratch::new();
    let db = scratch.path("ycsb.db");
    let fixed = "bench ycsb --json --records 2000 --seconds 0.1 --warmup-seconds 0.05 --memory 64M --dir";
    for (index, options) in [
        "--durability delayed --ops-per-txn 4 --read-ratio 0.84 --skew 80-20 --threads 2",
        "--durability sync --in-flight 16 --workload a",
        "--durability none --workload e --threads 1",
        "--workload f --skew zipf=0.99 --ops-per-txn 2",
    ]
    .into_iter()
    .enumerate()
    {
        let words = fixed.split(' ').chain([db.to_str().unwrap()]).chain(options.split(' '));
        // A busy machine may leave the threads without a turn for a while; then the load is there already.
        let first = run(words.clone()).ok().json();
        let mut reports =
            std::iter::once(first.clone()).chain(std::iter::repeat_with(|| run(words.clone()).ok().json()));
        let report = reports.find(|report| report["commits"].as_u64().unwrap() > 0).unwrap();
        for name in ["throughput_tps", "throughput_ops", "load_seconds", "processor_seconds"] {
            assert!(report[name].is_f64(), "{name}: {report}");
        }
        for name in
            ["records", "threads", "commits", "aborts", "peak_rss_bytes", "disk_bytes", "bytes_written_log"]
        {
            assert!(report[name].is_u64(), "{name}: {report}");
        }
        assert!(report["latency_us"]["p999"].as_f64().unwrap() > 0.0, "{report}");
        assert_eq!(report["engine"], "deuteron");
        assert_eq!(first["load_seconds"].as_f64().unwrap() > 0.0, index == 0, "the load is used again");
    }
    let words = fixed.replace("2000", "3000");
    run(words.split(' ').chain([db.to_str().unwrap()])).fails(2, "holds 2000 records");
}

#[test]
fn the_map_is_measured_too() {
    let report =
        run("bench ycsb --json --engine map --records 1000 --seconds 0.1 --warmup-seconds 0".split(' '))
            .ok()
            .json();
    assert_eq!(report["engine"], "map");
}

#[test]
fn versions_in_memory_are_measured() {
    let small = "--json --records 2000 --seconds 0.3 --warmup-seconds 0.05 --memory 64M";
    let report = run(["bench", "version-memory"].into_iter().chain(small.split(' '))).ok().json();
    assert!(report["watermark_bytes"].as_u64().unwrap() > 0, "{report}");
    assert!(["value", "snapshot-too-old"].contains(&report["reader"].as_str().unwrap()), "{report}");
    let report = run(["bench", "cache"].into_iter().chain(small.split(' '))).ok().json();
    assert!((0.0..=1.0).contains(&report["served_by_tc"].as_f64().unwrap()), "{report}");
    assert!(report["dc_gets"]["p99_us"].is_f64(), "{report}");
}

#[test]
fn single_operations_and_a_run_over_time_are_measured() {
    let small = "--json --records 2000 --seconds 0.6 --warmup-seconds 0.1 --memory 64M --threads 1";
    let report = run(["bench", "latency"].into_iter().chain(small.split(' '))).ok().json();
    for name in ["read_us", "update_us", "read_transaction_us", "update_transaction_us"] {
        assert!(report[name]["p50"].is_f64() && report[name]["p999"].is_f64(), "{report}");
    }
    let report = run(["bench", "timeline"].into_iter().chain(small.split(' '))).ok().json();
    assert!(report["watermark_bytes"].as_u64().unwrap() > 0 && report["evictions"].is_u64(), "{report}");
    assert!(
        report["samples"].as_array().unwrap().iter().all(|sample| sample["keeper_share"].is_f64()),
        "{report}"
    );
    let watermarks = |sample: &serde_json::Value| {
        ["soft_watermark_bytes", "hard_watermark_bytes"].map(|name| sample[name].as_u64().unwrap())
    };
    assert!(
        report["samples"]
            .as_array()
            .unwrap()
            .iter()
            .map(watermarks)
            .all(|[soft, hard]| 0 < soft && soft < hard)
    );
}

#[test]
fn the_papers_figures_are_drawn() {
    let scratch = Scratch::new();
    let (report, databases) = (scratch.path("report"), scratch.path("databases"));
    let small =
        "bench paper --json --scale 0.00004 --seconds 0.02 --threads 1 --memory 64M --pin --dir".split(' ');
    let words = small.chain([databases.to_str().unwrap(), report.to_str().unwrap()]);
    let found = run(words).ok().json();
    for figure in found["figures"].as_array().unwrap() {
        for kind in ["svg", "png", "csv"] {
            let file = report.join(format!("{}.{kind}", figure.as_str().unwrap()));
            assert!(std::fs::metadata(&file).unwrap().len() > 20, "{}", file.display());
        }
    }
    let page = std::fs::read_to_string(found["page"].as_str().unwrap()).unwrap();
    for words in [
        "Table 1: the machines",
        "figure-5.svg",
        "figure-8-left.svg",
        "figure-9-memory.svg",
        "hekaton-table-2.svg",
    ] {
        assert!(page.contains(words), "{words}");
    }
    run(["bench", "paper", report.to_str().unwrap(), "--scale", "0"]).fails(2, "scale");
}

#[test]
fn contention_is_measured_under_both_controls() {
    let words =
        "bench contention --json --case hot,mix --threads 1,3 --seconds 0.05 --warmup-seconds 0 --memory 64M";
    let figures = run(words.split(' ')).ok().json();
    let figures = figures.as_array().unwrap();
    assert_eq!(figures.len(), 2 * 2 * 2);
    for figure in figures {
        assert!(figure["commits_per_second"].as_f64().unwrap() >= 0.0, "{figure}");
        assert!((0.0..1.0).contains(&figure["abort_rate"].as_f64().unwrap()), "{figure}");
        assert!(figure["threads"].is_u64() && figure["abort_causes"].is_object(), "{figure}");
    }
    assert_eq!(figures[1]["engine"], "deuteron-timestamp-order");
    run("bench contention --case cold".split(' ')).fails(2, "cold");
}

#[test]
fn scaling_is_measured_by_mix_and_threads_pinned_or_not() {
    let words = "bench scaling --json --mix paper,writes --threads 1,3 --records 2000 --seconds 0.05 --warmup-seconds 0 --memory 64M";
    for more in ["", " --pin --pin-background all"] {
        let figures = run(format!("{words}{more}").split(' ')).ok().json();
        let figures = figures.as_array().unwrap();
        let names: Vec<_> =
            figures.iter().map(|figure| (&figure["mix"], figure["threads"].as_u64())).collect();
        let expected = [("paper", 1), ("paper", 3), ("writes", 1), ("writes", 3)];
        assert!(
            names
                .iter()
                .zip(expected)
                .all(|(found, (mix, threads))| *found.0 == mix && found.1 == Some(threads))
        );
        for figure in figures {
            assert!(
                figure["lost_per_million"].is_object() && figure["lost_per_million_sum"].is_f64(),
                "{figure}"
            );
            assert!(figure["shared_writes_per_transaction"]["log"].is_f64(), "{figure}");
            assert!(figure["background_seconds_per_million"]["proxy"].is_f64(), "{figure}");
        }
    }
    run("bench scaling --pin nowhere".split(' ')).fails(2, "nowhere");
    for bench in [
        "tatp --subscribers 10",
        "contention --case hot --threads 1",
        "latency --records 10",
        "timeline --records 10",
        "cache --records 10",
    ] {
        let gone = format!("bench {bench} --seconds 0.01 --warmup-seconds 0 --memory 64M --pin 1023");
        run(gone.split(' ')).fails(2, "processor 1023");
    }
    let gone = "bench ycsb --engine map --records 10 --seconds 0.01 --warmup-seconds 0 --pin 1023";
    run(gone.split(' ')).fails(2, "processor 1023");
}

#[test]
fn applications_are_measured_and_their_conditions_hold() {
    let scratch = Scratch::new();
    let directory = scratch.path("here");
    let small = "--json --seconds 0.1 --warmup-seconds 0.05 --memory 64M --threads 2 --dir";
    for (name, options, scale) in [
        ("tatp", "--subscribers 200", "200 subscribers"),
        ("small-bank", "--accounts 100 --hot-accounts 4", "100 accounts, 90 % of the draws from 4"),
        ("tpcc", "--shrink 1000 --durability none", "1 warehouses, 100 items, 30 customers a district"),
        ("voter", "--contestants 3 --telephones 5", "3 contestants, 5 telephones an area"),
    ] {
        let words = ["bench", name].into_iter().chain(options.split(' ')).chain(small.split(' '));
        let report = run(words.chain([directory.to_str().unwrap()])).ok().json();
        assert_eq!((&report["application"], &report["scale"]), (&name.into(), &scale.into()));
        assert!(report["conditions"].as_array().unwrap().iter().all(|condition| condition["holds"] == true));
        assert!(report["isolation"].as_str().unwrap().contains("serializable"), "{report}");
        for figure in report["transactions"].as_array().unwrap() {
            assert!(figure["commits"].is_u64() && figure["latency_us"]["p99"].is_f64(), "{figure}");
        }
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "the database is removed");
    }
    let words = "bench voter --threads 1 --seconds 0.05 --warmup-seconds 0 --memory 64M".split(' ');
    let text = run(words).ok().out;
    assert!(text.contains("votes are as many as were accepted") && !text.contains("DOES NOT"), "{text}");
    run("bench small-bank --hot-share 0.5".split(' ')).fails(2, "hot-accounts");
}

#[test]
fn the_demonstration_finds_every_acknowledged_commit() {
    let scratch = Scratch::new();
    let directory = scratch.path("demo");
    let words = "demo --json --records 5000 --seconds 1 --dir".split(' ');
    let report = run(words.chain([directory.to_str().unwrap()])).ok().json();
    assert_eq!((report["lost"].as_u64(), report["half_applied"].as_u64()), (Some(0), Some(0)), "{report}");
    assert!(
        report["acknowledged"].as_u64().unwrap() > 0 && report["checked"].as_u64().unwrap() > 0,
        "{report}"
    );
    assert!(report["checked"].as_u64() >= report["acknowledged"].as_u64(), "{report}");
    let again = run("demo --records 5000 --dir".split(' ').chain([directory.to_str().unwrap()]));
    again.fails(2, "exists already");
}

#[test]
fn the_device_is_measured_and_nothing_is_left() {
    let scratch = Scratch::new();
    let directory = scratch.path("here");
    let arguments = "bench device --json --seconds 0.002 --file-size 2M --dir";
    let report = run(arguments.split(' ').chain([directory.to_str().unwrap()])).ok().json();
    assert_eq!(report["reads"].as_array().unwrap().len(), 6, "{report}");
    for name in ["depth", "together_per_second", "threads_per_second"] {
        assert!(report["reads"][5][name].as_f64().unwrap() > 0.0, "{report}");
    }
    assert!(report["write_bytes_per_second"].as_f64().unwrap() > 0.0);
    assert!(report["reads_at_once"].as_u64().unwrap() >= 1 && report["direct"].is_boolean());
    let arguments = "bench device --without-io-uring --json --seconds 0.002 --file-size 2M --dir";
    let report = run(arguments.split(' ').chain([directory.to_str().unwrap()])).ok().json();
    assert_eq!(report["reads_at_once"], 16);
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
    for size in ["0", "100", "1025k", "65G", "x"] {
        run(["bench", "device", "--file-size", size]).fails(2, "--file-size");
    }
}
