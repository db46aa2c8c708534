//! Lines as SVG: time against size on a logarithmic axis, where logarithmic growth is a straight line, and
//! anything against time.

use std::fmt::Write as _;

/// One line of a plot.
pub struct Line {
    /// What it is called beside the plot.
    pub name: String,
    /// Its colour.
    pub colour: &'static str,
    /// Size and time.
    pub points: Vec<(f64, f64)>,
}

const W: f64 = 640.0;
const H: f64 = 360.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 30.0;

/// Draws lines over time, both axes linear. `above` says what the values are, `below` what the times are.
pub fn plot_over_time(above: &str, below: &str, lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|line| &line.points);
    let last = points().map(|point| point.0).fold(1.0, f64::max);
    let most = points().map(|point| point.1).fold(0.1, f64::max) * 1.1;
    let x = |time: f64| LEFT + time / last * W;
    let steps = (0..=4).map(|step| last * f64::from(step) / 4.0);
    let marks: Vec<(f64, String)> = steps.map(|time| (x(time), format!("{time:.0}"))).collect();
    draw(above, below, lines, &marks, most, x, false)
}

/// Draws lines. `above` says what the times are, `below` what the sizes are.
pub fn plot(above: &str, below: &str, lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|line| &line.points);
    let most = points().map(|point| point.1).fold(0.1, f64::max) * 1.1;
    let powers = |pick: fn(f64, f64) -> f64, start: f64| {
        points().map(|point| point.0.log10()).fold(start, pick).round() as i32
    };
    let (first, last) = (powers(f64::min, f64::MAX), powers(f64::max, f64::MIN));
    let span = f64::from((last - first).max(1));
    let x = |size: f64| LEFT + (size.log10() - f64::from(first)) / span * W;
    let mark = |power: i32| (x(10f64.powi(power)), format!("10^{power}"));
    let marks: Vec<(f64, String)> = (first..=last).map(mark).collect();
    draw(above, below, lines, &marks, most, x, true)
}

fn draw(
    above: &str,
    below: &str,
    lines: &[Line],
    marks: &[(f64, String)],
    most: f64,
    x: impl Fn(f64) -> f64,
    dots: bool,
) -> String {
    let y = |time: f64| TOP + H - time / most * H;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        LEFT + W + 160.0,
        TOP + H + 50.0
    );
    for (at, text) in marks {
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{}\" stroke=\"#ddd\"/>\
             <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{text}</text>",
            TOP + H,
            TOP + H + 18.0
        );
    }
    for step in 0..=4 {
        let time = most * f64::from(step) / 4.0;
        let at = y(time);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{time:.1}</text>",
            LEFT + W,
            LEFT - 6.0,
            at + 4.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"18\">{above}</text>\
         <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{below}</text>",
        LEFT + W / 2.0,
        TOP + H + 38.0
    );
    for (number, line) in lines.iter().enumerate() {
        let mut points = line.points.clone();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let colour = line.colour;
        let path: Vec<String> =
            points.iter().map(|(size, time)| format!("{:.1},{:.1}", x(*size), y(*time))).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for (size, time) in points.iter().filter(|_| dots) {
            let _ = writeln!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>",
                x(*size),
                y(*time)
            );
        }
        let at = TOP + 14.0 + 18.0 * number as f64;
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{at}\" fill=\"{colour}\">{}</text>",
            LEFT + W + 10.0,
            line.name
        );
    }
    svg.push_str("</svg>\n");
    svg
}
