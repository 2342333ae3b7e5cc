//! Sparklines, drawn as SVG by the server.

use std::fmt::Write as _;

/// Width and height of a sparkline, in units of its view box.
const SIZE: (f64, f64) = (120.0, 24.0);

/// Points of a line over time, and its description.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Chart {
    /// The `points` of a polyline.
    pub(crate) points: String,
    /// Text for screen readers.
    pub(crate) label: String,
}

impl Chart {
    /// Draws values over time, oldest first, of which unknown ones are left out. `None` if fewer than two are known.
    pub(crate) fn of(what: &str, values: &[Option<f64>]) -> Option<Self> {
        let known: Vec<(usize, f64)> =
            values.iter().enumerate().filter_map(|(at, it)| Some((at, (*it)?))).collect();
        let (first, last) = (known.first()?, known.last()?);
        if known.len() < 2 {
            return None;
        }
        let most = known.iter().map(|(_, value)| *value).fold(0.0, f64::max);
        let steps = (last.0 - first.0).max(1) as f64;
        let mut points = String::new();
        for (at, value) in &known {
            let x = (at - first.0) as f64 / steps * SIZE.0;
            let y = if most > 0.0 { SIZE.1 - 1.0 - value / most * (SIZE.1 - 2.0) } else { SIZE.1 - 1.0 };
            // Writing to a string does not fail.
            let _ = write!(points, "{x:.1},{y:.1} ");
        }
        let label = format!("{what}: {:.0} to {:.0}, at most {most:.0}", first.1, last.1);
        Some(Self { points: points.trim_end().to_owned(), label })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_spans_its_box() {
        let chart = Chart::of("lag", &[None, Some(0.0), Some(5.0), Some(10.0)]).expect("points");
        assert_eq!(chart.points, "0.0,23.0 60.0,12.0 120.0,1.0");
        assert_eq!(chart.label, "lag: 0 to 10, at most 10");
        assert_eq!(Chart::of("lag", &[Some(1.0), None]), None);
        assert_eq!(Chart::of("lag", &[Some(0.0), Some(0.0)]).expect("points").points, "0.0,23.0 120.0,23.0");
    }
}
