//! The acceptance points: what each issue asks to be shown, as commands that run the real thing.
//!
//! Every point prints one line on standard output, its fields parted by two spaces or more:
//! `SLUG.POINT  figure  bar  ok|short`. How it got there goes to standard error.

mod canaries;
mod corruptions;
mod coverage;
mod data_component;
mod end_to_end;
mod fuzz;
mod isolation;
mod kill;
mod machine;
mod measured;
mod mutants;
mod safety;
mod salvage;
mod schedules;
mod speed;
mod sweeps;
mod transaction_component;

use std::time::Instant;

/// One acceptance point.
#[derive(Clone, Copy)]
pub struct Point {
    /// Its name within the slug.
    name: &'static str,
    /// What it has to reach.
    bar: &'static str,
    run: fn(Quick) -> Result<Figure, String>,
}

/// Whether the small version was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quick(pub bool);

impl Quick {
    /// The one or the other.
    fn pick<T>(self, quick: T, full: T) -> T {
        if self.0 { quick } else { full }
    }
}

/// What a point found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// The figure, with its unit.
    figure: String,
    /// Whether it reaches the bar.
    ok: bool,
}

const SLUGS: &[(&str, &[Point])] = &[
    ("end-to-end", end_to_end::POINTS),
    ("data-component", data_component::POINTS),
    ("transaction-component", transaction_component::POINTS),
    ("safety", safety::POINTS),
    ("speed", speed::POINTS),
];

/// Runs one point of a slug, or all. Returns whether none is short.
pub fn run(slug: &str, name: Option<&str>, quick: bool) -> Result<bool, String> {
    let points = select(slug, name)?;
    let mut all_ok = true;
    for point in points {
        let begin = Instant::now();
        let figure = (point.run)(Quick(quick))
            .unwrap_or_else(|reason| Figure { figure: format!("failed: {reason}"), ok: false });
        all_ok &= figure.ok;
        println!("{}", line(slug, &point, &figure));
        eprintln!("  took {:.1} s", begin.elapsed().as_secs_f64());
    }
    Ok(all_ok)
}

fn select(slug: &str, name: Option<&str>) -> Result<Vec<Point>, String> {
    let Some((_, points)) = SLUGS.iter().find(|(known, _)| *known == slug) else {
        let known: Vec<_> = SLUGS.iter().map(|(slug, _)| *slug).collect();
        return Err(format!("there is no slug {slug}; the slugs are {}", known.join(", ")));
    };
    let Some(name) = name else { return Ok(points.to_vec()) };
    match points.iter().find(|point| point.name == name) {
        Some(&point) => Ok(vec![point]),
        None => {
            let known: Vec<_> = points.iter().map(|point| point.name).collect();
            Err(format!("{slug} has no point {name}; its points are {}", known.join(", ")))
        }
    }
}

fn line(slug: &str, point: &Point, figure: &Figure) -> String {
    // A figure from outside might hold line breaks; the line is one line.
    let text = figure.figure.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{slug}.{}  {text}  {}  {}", point.name, point.bar, if figure.ok { "ok" } else { "short" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_prints_one_line_of_four_fields() {
        let point = Point { name: "kill", bar: "0 lost", run: |_| Err(String::new()) };
        let figure = Figure { figure: "2 rounds,\n0  lost".into(), ok: true };
        assert_eq!(line("end-to-end", &point, &figure), "end-to-end.kill  2 rounds, 0 lost  0 lost  ok");
    }

    #[test]
    fn names_are_unique_and_bars_are_one_field() {
        for (slug, points) in SLUGS {
            for (index, point) in points.iter().enumerate() {
                assert!(
                    points[..index].iter().all(|other| other.name != point.name),
                    "{slug}.{}",
                    point.name
                );
                assert!(!point.bar.contains("  ") && !point.bar.is_empty(), "{slug}.{}", point.name);
            }
        }
    }

    #[test]
    fn unknown_names_are_errors_that_list_the_known() {
        assert!(run("end-to-end", Some("nothing"), true).unwrap_err().contains("ycsb-sync"));
        assert!(run("nothing", None, true).unwrap_err().contains("end-to-end"));
    }
}
