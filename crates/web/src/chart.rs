//! Charts as SVG, drawn here. The plot stretches with its card while strokes keep their width; axis
//! labels are text beside it. `web/chart.js` adds values on hover from the same numbers.

use maud::{Markup, html};
use serde::Serialize;

use crate::format;
use crate::series::{EVERY, KEPT};

/// One line of a chart.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// Its name in the legend.
    pub name: &'static str,
    /// Unit of its values, for the tooltip.
    pub unit: &'static str,
    /// Samples, oldest first.
    pub values: Vec<f64>,
}

/// The unit of the axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Plain numbers.
    Number,
    /// Bytes.
    Bytes,
}

/// The span that is shown, in samples and words: the shortest of a few that holds all samples.
const SPANS: [(usize, [&str; 4]); 3] = [
    (60, ["2 min ago", "80 s", "40 s", "now"]),
    (150, ["5 min ago", "", "", "now"]),
    (KEPT, ["15 min ago", "10 min", "5 min", "now"]),
];

const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 160.0;

/// A chart of the last quarter of an hour, with a legend that tells the newest values.
pub fn chart(title: &str, lines: &[Line], scale: Scale) -> Markup {
    let highest = lines.iter().flat_map(|line| &line.values).copied().fold(0.0, f64::max);
    let top = nice(highest, scale);
    let longest = lines.iter().map(|line| line.values.len()).max().unwrap_or(0);
    let (slots, labels) =
        SPANS.into_iter().find(|(slots, _)| longest <= *slots).unwrap_or(SPANS[SPANS.len() - 1]);
    let rounded: Vec<Line> = lines.iter().map(round).collect();
    let data = serde_json::to_string(&rounded).unwrap_or_default();
    let now: Vec<String> = lines
        .iter()
        .map(|line| {
            format!(
                "{} now {}",
                line.name,
                label(line.values.last().copied().unwrap_or(0.0), scale)
            )
        })
        .collect();
    html! {
        ul.legend {
            @for (index, line) in lines.iter().enumerate() {
                li class={ "c" (index + 1) } {
                    (line.name) " "
                    b { (label(line.values.last().copied().unwrap_or(0.0), scale)) @if !line.unit.is_empty() { " " (line.unit) } }
                }
            }
        }
        div.chart data-lines=(data) data-slots=(slots) data-every=(EVERY.as_secs()) {
            div.y aria-hidden="true" {
                @for quarter in (0..=4_u32).rev() {
                    span { (label(top * f64::from(quarter) / 4.0, scale)) }
                }
            }
            div.plot {
                svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" role="img"
                    aria-label={ (title) ", since " (labels[0]) ": " (now.join(", ")) } {
                    @for quarter in 0..=4_u32 {
                        @let y = HEIGHT * f64::from(quarter) / 4.0;
                        line class=(if quarter == 4 { "rule base" } else { "rule" }) x1="0" x2=(WIDTH) y1=(y) y2=(y) {}
                    }
                    @for (index, line) in lines.iter().enumerate() {
                        @let points = points(&line.values, top, WIDTH, HEIGHT, slots);
                        @if !points.is_empty() {
                            @if index == 0 { path class={ "area c" (index + 1) } d=(area(&points, HEIGHT)) {} }
                            path class={ "line c" (index + 1) } d=(path(&points)) {}
                        }
                    }
                }
            }
            div.x aria-hidden="true" { @for label in labels { span { (label) } } }
        }
    }
}

/// A small line without axes, for tiles. Shows the last five minutes.
pub fn spark(values: &[f64], color: u8) -> Markup {
    let shown = values.get(values.len().saturating_sub(150)..).unwrap_or_default();
    let top = shown.iter().copied().fold(0.0, f64::max).max(f64::MIN_POSITIVE) * 1.1;
    let points = points(shown, top, 100.0, 30.0, shown.len().clamp(30, 150));
    html! {
        div.spark aria-hidden="true" {
            svg viewBox="0 0 100 32" preserveAspectRatio="none" {
                @if !points.is_empty() {
                    path class={ "area c" (color) } d=(area(&points, 32.0)) {}
                    path class={ "line c" (color) } d=(path(&points)) {}
                }
            }
        }
    }
}

/// A bar filled to a share between 0 and 1.
pub fn meter(share: f64, text: &str) -> Markup {
    let color = match share {
        s if s >= 0.95 => 4,
        s if s >= 0.8 => 3,
        _ => 1,
    };
    filled(share, color, text)
}

/// A bar like [`meter`], where being full is no reason to worry.
pub fn level(share: f64, text: &str) -> Markup {
    filled(share, 1, text)
}

fn filled(share: f64, color: u8, text: &str) -> Markup {
    let share = share.clamp(0.0, 1.0);
    html! {
        div.meter role="img" aria-label=(text) {
            svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true" {
                rect class={ "bar c" (color) } x="0" y="0" height="8" width=(format!("{:.2}", share * 100.0)) {}
            }
        }
    }
}

fn label(value: f64, scale: Scale) -> String {
    match scale {
        Scale::Number => format::short(round_to(value, 2)),
        Scale::Bytes => {
            let (number, unit) = format::bytes(value);
            format!("{number} {unit}")
        }
    }
}

fn round(line: &Line) -> Line {
    Line {
        name: line.name,
        unit: line.unit,
        values: line.values.iter().map(|value| round_to(*value, 2)).collect(),
    }
}

fn round_to(value: f64, digits: i32) -> f64 {
    let factor = 10_f64.powi(digits);
    (value * factor).round() / factor
}

/// The next round number above the highest value, so that the axis has round labels.
fn nice(highest: f64, scale: Scale) -> f64 {
    if highest <= 0.0 {
        return if scale == Scale::Bytes { 1_048_576.0 } else { 1.0 };
    }
    let (base, unit) = match scale {
        Scale::Number => (10_f64, 10_f64.powf(highest.log10().floor())),
        Scale::Bytes => (2_f64, 1024_f64.powf(highest.log(1024.0).floor())),
    };
    let steps: &[f64] = if base > 5.0 {
        // A quarter of each is a number people count in: the lines across stand on those.
        &[1.2, 2.0, 4.0, 6.0, 8.0, 12.0, 20.0]
    } else {
        &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0]
    };
    let found = steps.iter().map(|step| step * unit).find(|top| *top >= highest * 1.02);
    found.unwrap_or(highest * 1.25)
}

/// Returns the point of each sample, the newest at the right edge.
fn points(values: &[f64], top: f64, width: f64, height: f64, slots: usize) -> Vec<(f64, f64)> {
    #[expect(clippy::cast_precision_loss, reason = "a few hundred samples")]
    let step = width / (slots.max(2) - 1) as f64;
    let skipped = slots.saturating_sub(values.len());
    values
        .iter()
        .enumerate()
        .map(|(index, value)| {
            #[expect(clippy::cast_precision_loss, reason = "a few hundred samples")]
            let x = (index + skipped) as f64 * step;
            (x, height - (value / top).clamp(0.0, 1.0) * height)
        })
        .collect()
}

fn path(points: &[(f64, f64)]) -> String {
    use std::fmt::Write;
    points.iter().enumerate().fold(
        String::with_capacity(points.len() * 12),
        |mut path, (i, (x, y))| {
            let _ = write!(path, "{}{x:.1} {y:.1}", if i == 0 { 'M' } else { 'L' }); // into a String
            path
        },
    )
}

fn area(points: &[(f64, f64)], height: f64) -> String {
    match (points.first(), points.last()) {
        (Some((first, _)), Some((last, _))) => {
            format!("{}L{last:.1} {height}L{first:.1} {height}Z", path(points))
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_ends_at_a_round_number_above_the_data() {
        for (highest, expect) in [(0.0, 1.0), (0.9, 1.2), (3.0, 4.0), (41.0, 60.0), (99.0, 120.0)] {
            assert!((nice(highest, Scale::Number) - expect).abs() < 1e-9, "{highest}");
        }
        assert!((nice(3.0 * 1_048_576.0, Scale::Bytes) - 4.0 * 1_048_576.0).abs() < 1.0);
    }

    #[test]
    fn the_newest_sample_is_at_the_right_edge() {
        let points = points(&[1.0, 2.0], 2.0, 100.0, 10.0, 11);
        assert_eq!(points, [(90.0, 5.0), (100.0, 0.0)]);
    }
}
