//! A figure: axes and curves, to be drawn and to be kept as numbers.

/// A figure of the report.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The name of its files, without what comes after the dot.
    pub name: &'static str,
    /// What stands above it.
    pub title: String,
    /// What was measured, and what the paper says of it.
    pub note: String,
    /// To the right.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
    /// In the order of the legend.
    pub curves: Vec<Curve>,
}

/// An axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Quantity and unit.
    pub label: &'static str,
    /// Whether equal distances are equal ratios.
    pub is_logarithmic: bool,
}

/// A curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// In the legend.
    pub name: String,
    /// Whose it is.
    pub source: Source,
    /// In the order of x.
    pub points: Vec<(f64, f64)>,
    /// The least and the most of the runs whose mean each point is; empty where there was one run, or none of ours.
    pub spread: Vec<(f64, f64)>,
    /// Where the mean of a distribution lies.
    pub mean: Option<(f64, f64)>,
}

/// Whose a curve is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Measured here: solid.
    Measured,
    /// Of a paper, on its machine: dashed. Its figures are pictures, so these are the points that its text and tables state.
    Paper,
}

impl Axis {
    /// With equal distances for equal differences.
    pub(super) fn linear(label: &'static str) -> Self {
        Self { label, is_logarithmic: false }
    }

    /// With equal distances for equal ratios.
    pub(super) fn logarithmic(label: &'static str) -> Self {
        Self { label, is_logarithmic: true }
    }

    /// Where a value lies; nowhere if a logarithmic axis has no place for it.
    pub(super) fn place(self, value: f64) -> Option<f64> {
        let place = if self.is_logarithmic { value.log10() } else { value };
        place.is_finite().then_some(place)
    }

    /// What stands at a place.
    pub(super) fn value(self, place: f64) -> f64 {
        if self.is_logarithmic { 10f64.powf(place) } else { place }
    }
}

impl Curve {
    pub(super) fn measured(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), source: Source::Measured, points, spread: Vec::new(), mean: None }
    }

    pub(super) fn paper(name: impl Into<String>, points: &[(f64, f64)]) -> Self {
        Self { source: Source::Paper, ..Self::measured(name, points.to_vec()) }
    }
}

impl Curve {
    /// Each point is the mean of runs between these.
    pub(super) fn between(self, spread: Vec<(f64, f64)>) -> Self {
        Self { spread, ..self }
    }

    /// The mean of the distribution lies here.
    pub(super) fn with_mean(self, mean: Option<(f64, f64)>) -> Self {
        Self { mean, ..self }
    }
}

impl Figure {
    /// The numbers, with a header: curve, x, y, and the least and the most of the runs, where there were several.
    pub(super) fn csv(&self) -> String {
        let mut csv = format!("curve,{},{},least,most\n", quoted(self.x.label), quoted(self.y.label));
        for curve in &self.curves {
            for (index, (x, y)) in curve.points.iter().enumerate() {
                let spread = curve.spread.get(index).map(|(least, most)| format!("{least},{most}"));
                csv += &format!("{},{x},{y},{}\n", quoted(&curve.name), spread.as_deref().unwrap_or(","));
            }
            if let Some((x, y)) = curve.mean {
                csv += &format!("{},{x},{y},,\n", quoted(&format!("{}, mean", curve.name)));
            }
        }
        csv
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_kept_as_csv() {
        let figure = Figure {
            name: "figure-0",
            title: "t".into(),
            note: "n".into(),
            x: Axis::linear("threads"),
            y: Axis::logarithmic("rate, \"fast\""),
            curves: vec![
                Curve::measured("here", vec![(1.0, 2.5)]).between(vec![(2.0, 3.0)]),
                Curve::paper("there", &[(2.0, 4.0)]).with_mean(Some((3.0, 5.0))),
            ],
        };
        assert_eq!(
            figure.csv(),
            "curve,\"threads\",\"rate, \"\"fast\"\"\",least,most\n\"here\",1,2.5,2,3\n\"there\",2,4,,\n\"there, mean\",3,5,,\n"
        );
    }

    #[test]
    fn a_logarithmic_axis_has_no_place_for_zero() {
        let axis = Axis::logarithmic("us");
        assert_eq!(axis.place(0.0), None);
        assert!((axis.value(axis.place(0.25).unwrap()) - 0.25).abs() < 1e-12);
        assert_eq!(Axis::linear("us").place(0.0), Some(0.0));
    }
}
