//! Speed against what the machine, or one processor of it, can do; and what goes on besides against its absence.

use super::measured::{bench, in_turns, median, papers_records, ycsb};
use super::{Figure, Quick};

/// What log and store write together, and what the disk could, measured before and after.
pub fn write_only(quick: Quick) -> Result<Figure, String> {
    let seconds = quick.pick(3.0, 10.0);
    let device = || {
        let report = bench(&["device", "--seconds", quick.pick("0.2", "1")])?;
        report.number("write_bytes_per_second")
    };
    let (mut shares, mut busy, mut own, mut rates, mut cost) = (vec![], vec![], vec![], vec![], vec![]);
    let mut before = device()?;
    for _ in 0..quick.pick(1, 5) {
        let more = ["--read-ratio", "0", "--threads", "2"];
        let report = ycsb(&seconds.to_string(), &[&papers_records(quick)[..], &more].concat())?;
        let after = device()?;
        let written = report.number("bytes_written_log")? + report.number("bytes_written_store")?;
        let (operations, processor) = (report.number("throughput_ops")?, report.number("processor_seconds")?);
        // What the kernel does with the disk is not the process's time, but no processor is left for more.
        busy.push(1.0 - report.number("idle_seconds")? / seconds / processors());
        shares.push(written / seconds / ((before + after) / 2.0));
        rates.push(written / seconds / 1e6);
        own.push(processor / seconds / processors());
        cost.push(processor / seconds / operations * 1e6);
        before = after;
    }
    let (share, busy) = (median(shares), median(busy));
    let figure = format!(
        "{:.0} % of the device ({:.0} of {:.0} MB/s), {:.0} % of the processors busy, {:.0} % in the process: {:.2} us an update",
        100.0 * share,
        median(rates),
        before / 1e6,
        100.0 * busy,
        100.0 * median(own),
        median(cost),
    );
    Ok(Figure { figure, ok: share >= 0.85 || busy >= 0.9 })
}

fn processors() -> f64 {
    std::thread::available_parallelism().map_or(1.0, |number| number.get() as f64)
}

/// Within a transaction and, for comparison, as a transaction.
pub fn latency(quick: Quick) -> Result<Figure, String> {
    const FIGURES: [&str; 5] =
        ["read_us.p50", "update_us.p50", "read_transaction_us.p50", "update_transaction_us.p50", "clock_us"];
    let mut found = [const { Vec::new() }; FIGURES.len()];
    for _ in 0..quick.pick(1, 5) {
        let size = ["--records", quick.pick("200000", "1000000"), "--memory", "2G", "--threads", "1"];
        let report = bench(
            &[&["latency", "--warmup-seconds", "3", "--seconds", quick.pick("3", "6")][..], &size].concat(),
        )?;
        for (path, numbers) in FIGURES.iter().zip(&mut found) {
            numbers.push(report.number(path)?);
        }
    }
    let [read, update, read_alone, update_alone, clock] = found.map(median);
    let figure = format!(
        "read {read:.2} us, update {update:.2} us; a transaction of one: {read_alone:.2} and {update_alone:.2} us; \
         {clock:.2} us of each are the clock"
    );
    Ok(Figure { figure, ok: read <= 0.5 && update <= 1.5 })
}

/// Transactions of 10 000 on a million records, as Hekaton's tables 1 and 2 have them, by one thread. Of what that thread has left to do to others
/// (posting, flushing, collecting) the tables have little; so the rates by all the processors' time that went into it are told, too.
pub fn per_core(quick: Quick) -> Result<Figure, String> {
    let fixed = ["--records", "1000000", "--value-bytes", "40", "--ops-per-txn", "10000", "--threads", "1"];
    let mut of_processors = [const { Vec::new() }; 2];
    let rates = in_turns(quick, ["1", "0"], |reads| {
        // Until the memory of versions is what it stays: before, updates wait for pages of the system.
        let more = ["--skew", "uniform", "--read-ratio", reads, "--warmup-seconds", quick.pick("2", "6")];
        let seconds = quick.pick(2.0, 5.0);
        let report = ycsb(&seconds.to_string(), &[&fixed[..], &more].concat())?;
        let rate = report.number("throughput_ops")?;
        of_processors[usize::from(reads == "0")].push(rate * seconds / report.number("processor_seconds")?);
        Ok(rate)
    })?;
    let [lookups, updates] = rates.map(|rate| rate / 1e6);
    let [all_lookups, all_updates] = of_processors.map(|rates| median(rates) / 1e6);
    let figure = format!(
        "{lookups:.2} M lookups/s, {updates:.2} M updates/s; {all_lookups:.2} and {all_updates:.2} M for each second of all processors"
    );
    Ok(Figure { figure, ok: lookups >= 2.7 && updates >= 1.9 })
}

/// Checkpoints as often as they come by default, and none.
pub fn checkpoint_cost(quick: Quick) -> Result<Figure, String> {
    let mut losses = Vec::new();
    for reads in ["0.84", "0"] {
        let [with, without] = in_turns(quick, ["512M", "1T"], |every| {
            let more = ["--read-ratio", reads, "--checkpoint-every", every];
            let report = ycsb(quick.pick("4", "15"), &[&papers_records(quick)[..], &more].concat())?;
            let taken = report.number("checkpoints")?;
            // A quick run is too short for the log of one. Without checkpoints there are images that the store writes by itself.
            if !quick.0 && taken == 0.0 && every == "512M" {
                return Err("no checkpoint was taken".into());
            }
            report.number("throughput_ops")
        })?;
        eprintln!("  {reads} read: {with:.0} operations/s, {without:.0} without checkpoints");
        losses.push(100.0 * (1.0 - with / without));
    }
    let (mix, write_only) = (losses[0], losses[1]);
    Ok(Figure {
        figure: format!("{mix:.1} % on the mix, {write_only:.1} % write-only"),
        ok: mix <= 2.0 && write_only <= 8.0,
    })
}

/// The paper's mix where versions have to be collected all the time, and records with them, and where there is room for all. As in the
/// paper (6.5), only their watermark differs: pages, log and posting have the same memory.
pub fn version_collection(quick: Quick) -> Result<Figure, String> {
    // With a version of each record the table takes 220 MiB; a sixteenth of the watermark is kept free.
    let (records, tight, wide) = quick.pick(("200000", "45M", "1G"), ("1000000", "224M", "4G"));
    let rates = in_turns(quick, [tight, wide], |watermark| {
        let fixed = ["timeline", "--records", records, "--memory", wide, "--version-memory", watermark];
        let report =
            bench(&[&fixed[..], &["--warmup-seconds", "4", "--seconds", quick.pick("4", "10")]].concat())?;
        let evictions = report.number("evictions")?;
        if (evictions > 0.0) != (watermark == tight) {
            return Err(format!(
                "under {watermark} {evictions} records were evicted: the sizes do not fit the machine"
            ));
        }
        report.number("throughput_ops")
    })?;
    let loss = 100.0 * (1.0 - rates[0] / rates[1]);
    let figure = format!(
        "{loss:.1} % ({:.2} M and {:.2} M operations/s, the watermark at {tight} and nowhere near)",
        rates[0] / 1e6,
        rates[1] / 1e6
    );
    Ok(Figure { figure, ok: loss <= 10.0 })
}
