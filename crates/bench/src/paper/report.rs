//! The report: a page for a browser, beside the pictures and the numbers.

use super::PaperBench;
use super::figure::{Figure, Source};
use crate::BenchError;
use std::fs;
use std::path::Path;

/// Writes pictures, numbers and the page into a directory, which is created if it is missing.
pub(super) fn write(bench: &PaperBench, records: u64, figures: &[Figure]) -> Result<(), BenchError> {
    let directory = &bench.output;
    fs::create_dir_all(directory).map_err(BenchError::store("create the directory of the report"))?;
    for figure in figures {
        let svg = super::plot::svg(figure).map_err(BenchError::store("draw a figure"))?;
        let png = super::plot::png(figure).map_err(BenchError::store("draw a figure"))?;
        put(&directory.join(format!("{}.svg", figure.name)), svg.as_bytes())?;
        put(&directory.join(format!("{}.png", figure.name)), &png)?;
        put(&directory.join(format!("{}.csv", figure.name)), figure.csv().as_bytes())?;
    }
    put(&directory.join("index.html"), page(bench, records, figures).as_bytes())
}

fn put(path: &Path, bytes: &[u8]) -> Result<(), BenchError> {
    fs::write(path, bytes).map_err(BenchError::store("write the report"))
}

fn page(bench: &PaperBench, records: u64, figures: &[Figure]) -> String {
    let mut page = String::from(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>Deuteron: the paper's figures</title>\n\
         <style>body{font-family:sans-serif;max-width:60em;margin:2em auto;padding:0 1em;line-height:1.45}\
         img{max-width:100%}td,th{padding:.15em .9em;text-align:right}th:first-child,td:first-child{text-align:left}\
         details{margin-bottom:2.5em}</style>\n</head>\n<body>\n<h1>The paper's figures on this machine</h1>\n",
    );
    page += &format!(
        "<p>Scale {}: {records} records of 100 bytes (the paper: 50 000 000), {} s a point, {} rounds, {} threads at most. {}. \
         Written by Deuteron {}.</p>\n<p>Solid: measured here. Dashed: <i>High Performance Transactions in Deuteronomy</i> on 4 \
         Intel Xeon E5-4650L, 32 cores, 64 hardware threads, 192 GB; <i>Hekaton</i> on an Intel Xeon W3520, 2.67 GHz. Their \
         figures are pictures: dashed are the points that their text and tables state.</p>\n",
        bench.scale,
        bench.seconds.as_secs_f64(),
        bench.rounds,
        bench.threads,
        escaped(&machine()),
        env!("CARGO_PKG_VERSION"),
    );
    for figure in figures {
        page += &format!(
            "<h2>{}</h2>\n<img src=\"{name}.svg\" alt=\"{name}\">\n<p>{} <a href=\"{name}.csv\">The numbers</a>, <a href=\"{name}.png\">the picture as PNG</a>.</p>\n",
            escaped(&figure.title),
            escaped(&figure.note),
            name = figure.name,
        );
        // Not those of a curve that only a picture shows.
        if figure.curves.iter().map(|curve| curve.points.len()).sum::<usize>() <= 40 {
            page += &table(figure);
        }
    }
    page + "</body>\n</html>\n"
}

fn table(figure: &Figure) -> String {
    let mut table = format!(
        "<details><summary>As a table</summary>\n<table>\n<tr><th></th><th>{}</th><th>{}</th></tr>\n",
        escaped(figure.x.label),
        escaped(figure.y.label)
    );
    for curve in &figure.curves {
        let whose = if curve.source == Source::Paper { " (paper)" } else { "" };
        for (x, y) in &curve.points {
            table +=
                &format!("<tr><td>{}{whose}</td><td>{x}</td><td>{y:.3}</td></tr>\n", escaped(&curve.name));
        }
    }
    table + "</table></details>\n"
}

/// The processor and how many there are.
fn machine() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("an unknown processor", |(_, model)| model.trim());
    let processors = std::thread::available_parallelism().map_or(1, |number| number.get());
    format!("{model}, {processors} hardware threads")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::figure::{Axis, Curve};
    use super::*;

    #[test]
    fn the_page_names_scale_and_figures_and_escapes_what_it_shows() {
        let figure = Figure {
            name: "figure-0",
            title: "a < b".into(),
            note: "n".into(),
            x: Axis::linear("x"),
            y: Axis::linear("y"),
            curves: vec![Curve::paper("theirs", &[(1.0, 2.0)])],
        };
        let page = page(&PaperBench::new("in", "out"), 1_000_000, &[figure]);
        for words in
            ["a &lt; b", "figure-0.svg", "figure-0.csv", "1000000 records", "theirs (paper)", "</html>"]
        {
            assert!(page.contains(words), "{words}");
        }
    }
}
