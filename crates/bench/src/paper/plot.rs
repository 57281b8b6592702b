//! Figures as pictures.

use super::figure::{Axis, Curve, Figure, Source};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::register_font;
use std::error::Error;
use std::ops::Range;

const SIZE: (u32, u32) = (760, 460);
const COLOURS: [RGBColor; 7] = [
    RGBColor(31, 88, 160),
    RGBColor(200, 80, 30),
    RGBColor(50, 130, 60),
    RGBColor(130, 60, 140),
    BLACK,
    RGBColor(170, 130, 20),
    RGBColor(90, 150, 170),
];
const LINE: u32 = 2;
const DOT: i32 = 3;
const BAR: u32 = 8;
const LEGEND: i32 = 22;
const FONT: &str = "sans-serif";

type Drawn<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The figure as SVG.
pub(super) fn svg(figure: &Figure) -> Drawn<String> {
    let mut text = String::new();
    draw(figure, &SVGBackend::with_string(&mut text, SIZE).into_drawing_area())?;
    Ok(text)
}

/// The figure as PNG.
pub(super) fn png(figure: &Figure) -> Drawn<Vec<u8>> {
    let mut pixels = vec![0; SIZE.0 as usize * SIZE.1 as usize * 3];
    draw(figure, &BitMapBackend::with_buffer(&mut pixels, SIZE).into_drawing_area())?;
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, SIZE.0, SIZE.1);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&pixels)?;
    writer.finish()?;
    Ok(bytes)
}

/// Draws the figure, and says what has failed: the backend's own errors stay with it.
fn draw<B: DrawingBackend>(figure: &Figure, area: &DrawingArea<B, Shift>) -> Drawn<()>
where
    B::ErrorType: 'static,
{
    register_font(FONT, FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT).map_err(|_| "no font")?;
    draw_on(figure, area).map_err(|error| error.to_string().into())
}

fn draw_on<B: DrawingBackend>(figure: &Figure, area: &DrawingArea<B, Shift>) -> Result<(), Box<dyn Error>>
where
    B::ErrorType: 'static,
{
    area.fill(&WHITE)?;
    let places = |axis: Axis, of: fn(&(f64, f64)) -> f64| {
        let points = figure.curves.iter().flat_map(Curve::shown);
        range(axis, points.filter_map(move |point| axis.place(of(&point))))
    };
    let (x, y) = (places(figure.x, |point| point.0), places(figure.y, |point| point.1));
    let mut chart = ChartBuilder::on(area)
        .caption(&figure.title, (FONT, 17))
        .margin(14)
        .x_label_area_size(46)
        .y_label_area_size(68)
        .build_cartesian_2d(x.clone(), y.clone())?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .label_style((FONT, 12))
        .axis_desc_style((FONT, 13))
        .x_desc(figure.x.label)
        .y_desc(figure.y.label)
        .x_label_formatter(&|place| shown(figure.x, *place))
        .y_label_formatter(&|place| shown(figure.y, *place))
        .draw()?;
    for (curve, colour) in figure.curves.iter().zip(COLOURS.iter().cycle()) {
        let place = |&(x, y): &(f64, f64)| Some((figure.x.place(x)?, figure.y.place(y)?));
        let points: Vec<(f64, f64)> = curve.points.iter().filter_map(place).collect();
        let style = colour.stroke_width(LINE);
        if points.len() <= 12 {
            chart.draw_series(points.iter().map(|&point| Circle::new(point, DOT, colour.filled())))?;
        }
        let ends = curve.points.iter().zip(&curve.spread);
        let bars = ends.filter_map(|((at, mean), (least, most))| {
            let at = figure.x.place(*at)?;
            let [least, mean, most] = [least, mean, most].map(|value| figure.y.place(*value));
            Some(ErrorBar::new_vertical(at, least?, mean?, most?, style, BAR))
        });
        chart.draw_series(bars)?;
        if let Some(mean) = curve.mean.as_ref().and_then(place) {
            chart.draw_series([Circle::new(mean, 2 * DOT, colour.filled())])?;
        }
        match curve.source {
            Source::Measured => chart
                .draw_series(LineSeries::new(points, style))?
                .label(&curve.name)
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + LEGEND, y)], style)),
            Source::Paper => chart
                .draw_series(DashedLineSeries::new(points, 7, 5, style))?
                .label(&curve.name)
                .legend(move |(x, y)| {
                    let dashes = vec![(x, y), (x + LEGEND / 3, y)];
                    EmptyElement::at((0, 0))
                        + PathElement::new(dashes, style)
                        + PathElement::new(vec![(x + LEGEND / 3 * 2, y), (x + LEGEND, y)], style)
                }),
        };
    }
    chart
        .configure_series_labels()
        .position(emptiest(figure, &x, &y))
        .label_font((FONT, 12))
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(160, 160, 160))
        .draw()?;
    area.present()?;
    Ok(())
}

impl Curve {
    /// All that has to be seen of it.
    fn shown(&self) -> impl Iterator<Item = (f64, f64)> {
        let ends = self.points.iter().zip(&self.spread);
        let spread = ends.flat_map(|((x, _), (least, most))| [(*x, *least), (*x, *most)]);
        self.points.iter().copied().chain(spread).chain(self.mean)
    }
}

/// The corner in whose quarter the fewest points lie: there is room for the legend.
fn emptiest(figure: &Figure, x: &Range<f64>, y: &Range<f64>) -> SeriesLabelPosition {
    let share = |range: &Range<f64>, place: f64| (place - range.start) / (range.end - range.start);
    let mut corners = [
        (SeriesLabelPosition::LowerRight, 0),
        (SeriesLabelPosition::UpperRight, 0),
        (SeriesLabelPosition::LowerLeft, 0),
        (SeriesLabelPosition::UpperLeft, 0),
    ];
    for (at, height) in places(figure) {
        let (right, upper) = (share(x, at) > 0.5, share(y, height) > 0.5);
        corners[2 * usize::from(!right) + usize::from(upper)].1 += 1;
    }
    let emptiest = corners.into_iter().min_by_key(|(_, points)| *points);
    emptiest.map_or(SeriesLabelPosition::LowerRight, |(corner, _)| corner)
}

/// Where the lines of a figure run: their points, and some between each two.
fn places(figure: &Figure) -> impl Iterator<Item = (f64, f64)> {
    const STEPS: u32 = 16;
    figure.curves.iter().flat_map(|curve| {
        let place = |&(x, y): &(f64, f64)| Some((figure.x.place(x)?, figure.y.place(y)?));
        let points: Vec<_> = curve.points.iter().filter_map(place).collect();
        let between = |ends: &[(f64, f64)]| {
            let (from, to) = (ends[0], ends[ends.len() - 1]);
            (0..STEPS).map(move |step| {
                let part = f64::from(step) / f64::from(STEPS);
                (from.0 + part * (to.0 - from.0), from.1 + part * (to.1 - from.1))
            })
        };
        let lines: Vec<_> = points.windows(2).flat_map(between).collect();
        lines.into_iter().chain(points)
    })
}

/// What an axis has to show: from nothing on, unless it is logarithmic.
fn range(axis: Axis, places: impl Iterator<Item = f64>) -> Range<f64> {
    let (lowest, highest) = places.fold((f64::INFINITY, f64::NEG_INFINITY), |(lowest, highest), place| {
        (lowest.min(place), highest.max(place))
    });
    if lowest > highest {
        return 0.0..1.0;
    }
    let lowest = if axis.is_logarithmic { lowest.floor() } else { lowest.min(0.0) };
    let highest = if axis.is_logarithmic { highest.ceil() } else { highest * 1.08 };
    lowest..highest.max(lowest + 1e-3)
}

/// What stands at a place of an axis; of a logarithmic one only the powers of ten, for what lies between is no round number.
fn shown(axis: Axis, place: f64) -> String {
    if axis.is_logarithmic && (place - place.round()).abs() > 1e-6 {
        return String::new();
    }
    let value = axis.value(place);
    if axis.is_logarithmic {
        let decimals = (-place).round().max(0.0) as usize;
        return format!("{value:.decimals$}");
    }
    match value.abs() {
        0.0 => "0".into(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::figure::Curve;
    use super::*;

    #[test]
    fn a_figure_is_drawn_with_its_words_and_both_kinds_of_lines() {
        let figure = Figure {
            name: "figure-0",
            title: "Throughput".into(),
            note: String::new(),
            x: Axis::linear("threads"),
            y: Axis::logarithmic("transactions a second"),
            curves: vec![
                Curve::measured("here", vec![(1.0, 1e5), (2.0, 1.5e5)]),
                Curve::paper("there", &[(1.0, 1e4), (2.0, 2e6)]),
                Curve::measured("nothing", vec![(0.0, 0.0)]),
            ],
        };
        let svg = svg(&figure).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for word in ["Throughput", "threads", "transactions a second", "here", "there"] {
            assert!(svg.contains(word), "{word}");
        }
        assert!(svg.matches("<polyline").count() > 4, "a dashed line is many lines");
        let png = png(&figure).unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(&png)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.width, info.height), SIZE);
        let is = |colour: RGBColor| {
            pixels.chunks(3).filter(|pixel| **pixel == [colour.0, colour.1, colour.2]).count()
        };
        assert!(COLOURS[..2].iter().all(|colour| is(*colour) > 100), "both lines are there");
        assert!(is(BLACK) > 100, "so are the words");
    }

    #[test]
    fn the_legend_stands_where_there_is_room_and_runs_and_means_are_drawn() {
        let of = |points: Vec<(f64, f64)>| Figure {
            name: "figure-0",
            title: String::new(),
            note: String::new(),
            x: Axis::linear("x"),
            y: Axis::linear("y"),
            curves: vec![Curve::measured("here", points)],
        };
        let corner = |points| format!("{:?}", emptiest(&of(points), &(0.0..1.0), &(0.0..1.0)));
        assert_eq!(corner(vec![(0.0, 0.1), (1.0, 0.9)]), "LowerRight");
        assert_eq!(corner(vec![(0.0, 0.9), (1.0, 0.1)]), "UpperRight");
        let plain = of(vec![(1.0, 1.0), (2.0, 2.0)]);
        let mut marked = plain.clone();
        marked.curves =
            vec![plain.curves[0].clone().between(vec![(0.5, 1.5); 2]).with_mean(Some((1.5, 1.5)))];
        let drawn = |figure: &Figure| svg(figure).unwrap().matches("<line").count();
        assert!(drawn(&marked) > drawn(&plain), "bars");
        assert!(svg(&marked).unwrap().matches("<circle").count() == 5, "two points, twice, and a mean");
    }

    #[test]
    fn a_figure_without_points_is_drawn_too() {
        assert_eq!(range(Axis::linear("x"), std::iter::empty()), 0.0..1.0);
        assert_eq!(range(Axis::logarithmic("x"), [0.3, 1.7].into_iter()), 0.0..2.0);
    }

    #[test]
    fn a_logarithmic_axis_shows_powers_of_ten() {
        let axis = Axis::logarithmic("x");
        assert_eq!([2.0, 1.2, 0.0, -5.0].map(|place| shown(axis, place)), ["100", "", "1", "0.00001"]);
        assert_eq!([12.5, 0.0].map(|place| shown(Axis::linear("x"), place)), ["12.5", "0"]);
    }
}
