//! The report: a page for a browser, beside the pictures and the numbers.

use super::figure::{Figure, Source};
use super::{PaperBench, machine};
use crate::{BenchError, DeviceReport};
use std::fs;
use std::path::Path;

/// Curves with more points are not told as tables.
const TABLE_ROWS_MAX: usize = 16;

/// Writes pictures, numbers and the page into a directory, which is created if it is missing.
pub(super) fn write(
    bench: &PaperBench,
    records: u64,
    device: &DeviceReport,
    figures: &[Figure],
) -> Result<(), BenchError> {
    let directory = &bench.output;
    fs::create_dir_all(directory).map_err(BenchError::store("create the directory of the report"))?;
    for figure in figures {
        let svg = super::plot::svg(figure).map_err(BenchError::store("draw a figure"))?;
        let png = super::plot::png(figure).map_err(BenchError::store("draw a figure"))?;
        put(&directory.join(format!("{}.svg", figure.name)), svg.as_bytes())?;
        put(&directory.join(format!("{}.png", figure.name)), &png)?;
        put(&directory.join(format!("{}.csv", figure.name)), figure.csv().as_bytes())?;
    }
    put(&directory.join("index.html"), page(bench, records, device, figures).as_bytes())
}

fn put(path: &Path, bytes: &[u8]) -> Result<(), BenchError> {
    fs::write(path, bytes).map_err(BenchError::store("write the report"))
}

fn page(bench: &PaperBench, records: u64, device: &DeviceReport, figures: &[Figure]) -> String {
    let mut page = String::from(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>Deuteron: the paper's figures</title>\n\
         <style>body{font-family:sans-serif;max-width:60em;margin:2em auto;padding:0 1em;line-height:1.45}\
         img{max-width:100%}td,th{padding:.15em .9em;text-align:right}th:first-child,td:first-child{text-align:left}\
         details{margin-bottom:2.5em}</style>\n</head>\n<body>\n<h1>The paper's figures on this machine</h1>\n",
    );
    page += &format!(
        "<p>Scale {}: {records} records of 100 bytes (the paper: 50 000 000), {} s a point, {} rounds, {} threads at most. {}, {} hardware threads. \
         Written by Deuteron {}.</p>\n<p>Solid: measured here. Dashed: <i>High Performance Transactions in Deuteronomy</i> on 4 \
         Intel Xeon E5-4650L, 32 cores, 64 hardware threads, 192 GB; <i>Hekaton</i> on an Intel Xeon W3520, 2.67 GHz. Their \
         figures are pictures: dashed are the points that their text and tables state, the rest of their curves is not known. What \
         cannot be had here: more processors than the machine has, with some of them for the proxy and the data component alone; and \
         the paper's limits of memory, which it does not state.</p>\n",
        bench.scale,
        bench.seconds.as_secs_f64(),
        bench.rounds,
        bench.threads,
        escaped(&machine::model()),
        machine::processors(),
        env!("CARGO_PKG_VERSION"),
    );
    page += &machines(device);
    for figure in figures {
        page += &format!(
            "<h2>{}</h2>\n<img src=\"{name}.svg\" alt=\"{name}\">\n<p>{} <a href=\"{name}.csv\">The numbers</a>, <a href=\"{name}.png\">the picture as PNG</a>.</p>\n",
            escaped(&figure.title),
            escaped(&figure.note),
            name = figure.name,
        );
        // Not those of a curve that only a picture shows.
        if figure.curves.iter().all(|curve| curve.points.len() <= TABLE_ROWS_MAX) {
            page += &table(figure);
        }
    }
    page + "</body>\n</html>\n"
}

/// A row for each x, a column for each curve.
fn table(figure: &Figure) -> String {
    let mut rows: Vec<f64> =
        figure.curves.iter().flat_map(|curve| &curve.points).map(|point| point.0).collect();
    rows.sort_by(f64::total_cmp);
    rows.dedup();
    let mut table = format!(
        "<details><summary>As a table: {}</summary>\n<table>\n<tr><th>{}</th>",
        escaped(figure.y.label),
        escaped(figure.x.label)
    );
    for curve in &figure.curves {
        let whose = if curve.source == Source::Paper { " (paper)" } else { "" };
        table += &format!("<th>{}{whose}</th>", escaped(&curve.name));
    }
    for x in rows {
        table += &format!("</tr>\n<tr><td>{x}</td>");
        for curve in &figure.curves {
            let found = curve.points.iter().position(|point| point.0 == x);
            let spread = found.and_then(|index| curve.spread.get(index));
            let spread = spread.map(|(least, most)| format!(" ({least:.3} to {most:.3})"));
            let value = found.map(|index| format!("{:.3}", curve.points[index].1));
            table += &format!("<td>{}{}</td>", value.unwrap_or_default(), spread.unwrap_or_default());
        }
    }
    table + "</tr>\n</table></details>\n"
}

/// Table 1 of the paper.
fn machines(device: &DeviceReport) -> String {
    let mut table = String::from(
        "<h2>Table 1: the machines</h2>\n<table>\n<tr><th></th><th>the paper's machine</th><th>this machine</th></tr>\n",
    );
    for (what, theirs, ours) in machine::table_1(device) {
        table +=
            &format!("<tr><td>{what}</td><td>{}</td><td>{}</td></tr>\n", escaped(theirs), escaped(&ours));
    }
    table + "</table>\n"
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
            curves: vec![
                Curve::paper("theirs", &[(1.0, 2.0)]),
                Curve::measured("ours", vec![(0.5, 3.0), (1.0, 4.0)]).between(vec![(2.0, 3.5); 2]),
            ],
        };
        let page = page(&PaperBench::new("in", "out"), 1_000_000, &DeviceReport::default(), &[figure]);
        for words in [
            "a &lt; b",
            "figure-0.svg",
            "figure-0.csv",
            "1000000 records",
            "theirs (paper)",
            "Windows Server 2012",
            "<tr><td>0.5</td><td></td><td>3.000 (2.000 to 3.500)</td></tr>",
            "<tr><td>1</td><td>2.000</td><td>4.000 (2.000 to 3.500)</td></tr>",
            "</html>",
        ] {
            assert!(page.contains(words), "{words}");
        }
    }
}
