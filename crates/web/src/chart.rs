//! Charts and small lines. A chart is drawn by `assets/chart.js` from `GET /api/v1/history`, so that its range can
//! be picked and all charts of a page share one axis; what is here reserves its place. The small lines of
//! tiles are drawn here.

use maud::{Markup, html};
use serde::Serialize;

/// One line of a chart.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// Its name in the legend.
    pub name: &'static str,
    /// Unit of its values.
    pub unit: &'static str,
    /// The series of the history, with the percentile where it is a histogram: `http.latency:p99`.
    pub series: String,
}

impl Line {
    /// A line of a series.
    pub fn new(name: &'static str, unit: &'static str, series: impl Into<String>) -> Line {
        Line { name, unit, series: series.into() }
    }
}

/// The unit of the axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Plain numbers.
    Number,
    /// Bytes.
    Bytes,
}

/// A chart of the range picked on its page, with a legend that tells the newest values or those under the
/// pointer. A page with a chart gets the range picker from the frame.
pub fn chart(title: &str, lines: &[Line], scale: Scale) -> Markup {
    let data = serde_json::to_string(lines).unwrap_or_default();
    let bytes = (scale == Scale::Bytes).then_some("bytes");
    html! {
        // Whatever is inside belongs to the script: a live part leaves it alone.
        figure.chart data-chart=(data) data-title=(title) data-scale=[bytes] data-own="" {
            ul.legend {
                @for (index, line) in lines.iter().enumerate() {
                    li class={ "c" (index + 1) } { (line.name) " " b { "–" } }
                }
            }
            div.plot-box {
                div.y aria-hidden="true" {}
                div.plot tabindex="0" role="img" aria-label=(title) {}
                div.x aria-hidden="true" {}
            }
            noscript { "Charts need JavaScript." }
        }
    }
}

/// A small line without axes, for tiles.
pub fn spark(values: &[Option<f64>], color: u8) -> Markup {
    let top = values.iter().flatten().copied().fold(0.0, f64::max).max(f64::MIN_POSITIVE) * 1.1;
    let pieces = pieces(values, top, 100.0, 30.0);
    html! {
        div.spark aria-hidden="true" {
            svg viewBox="0 0 100 32" preserveAspectRatio="none" {
                @for points in &pieces {
                    path class={ "area c" (color) } d=(area(points, 32.0)) {}
                    path class={ "line c" (color) } d=(path(points)) {}
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

/// The points of each stretch of samples without a gap.
fn pieces(values: &[Option<f64>], top: f64, width: f64, height: f64) -> Vec<Vec<(f64, f64)>> {
    #[expect(clippy::cast_precision_loss, reason = "a few hundred samples")]
    let step = width / values.len().saturating_sub(1).max(1) as f64;
    let mut pieces: Vec<Vec<(f64, f64)>> = vec![Vec::new()];
    for (index, value) in values.iter().enumerate() {
        #[expect(clippy::cast_precision_loss, reason = "a few hundred samples")]
        let x = index as f64 * step;
        match (value, pieces.last_mut()) {
            (Some(value), Some(piece)) => {
                piece.push((x, height - (value / top).clamp(0.0, 1.0) * height));
            }
            (None, Some(piece)) if !piece.is_empty() => pieces.push(Vec::new()),
            _ => {}
        }
    }
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

fn path(points: &[(f64, f64)]) -> String {
    use std::fmt::Write;
    points.iter().enumerate().fold(
        String::with_capacity(points.len() * 10),
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
    fn a_gap_parts_the_line_and_the_newest_is_at_the_right_edge() {
        let values = [Some(1.0), None, Some(2.0), Some(0.0), None];
        let pieces = pieces(&values, 2.0, 100.0, 10.0);
        assert_eq!(pieces, [vec![(0.0, 5.0)], vec![(50.0, 0.0), (75.0, 10.0)]]);
        assert!(
            spark(&[None; 60], 1).into_string().find("path").is_none(),
            "no line without samples"
        );
    }
}
