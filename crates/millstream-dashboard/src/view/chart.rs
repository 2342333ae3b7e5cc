//! Sparklines and lines over time, drawn as SVG by the server.

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

/// Width and height of lines over the same time, in units of their view box.
const WIDE: (f64, f64) = (720.0, 120.0);

/// Lines over the same time, from zero, with what they are.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Lines {
    pub(crate) title: String,
    /// Name, class, `points` of the polylines (a gap begins another one), and the value now.
    pub(crate) lines: Vec<Line>,
    /// Text at the top of the scale.
    pub(crate) most: String,
    /// Time at the left end.
    pub(crate) from: String,
}

/// One of several lines.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Line {
    pub(crate) name: &'static str,
    pub(crate) points: Vec<String>,
    pub(crate) now: String,
}

impl Lines {
    /// Draws values over time, oldest first, the last one at the right end. `span` is the number of values of the whole width.
    pub(crate) fn of(
        title: &str,
        from: impl Into<String>,
        span: usize,
        values: &[(&'static str, Vec<Option<f64>>)],
        format: fn(Option<f64>) -> String,
    ) -> Self {
        let most = values.iter().flat_map(|(_, values)| values).flatten().copied().fold(0.0, f64::max);
        let steps = span.saturating_sub(1).max(1) as f64;
        let line = |(name, values): &(&'static str, Vec<Option<f64>>)| {
            let first = span.saturating_sub(values.len());
            let mut points = vec![String::new()];
            for (at, value) in values.iter().enumerate() {
                match value {
                    Some(value) => {
                        let x = (first + at) as f64 / steps * WIDE.0;
                        let y = WIDE.1 - if most > 0.0 { value / most * (WIDE.1 - 2.0) } else { 0.0 } - 1.0;
                        if let Some(line) = points.last_mut() {
                            // Writing to a string does not fail.
                            let _ = write!(line, "{x:.0},{y:.1} ");
                        }
                    }
                    None => points.push(String::new()),
                }
            }
            points.retain(|points| !points.is_empty());
            Line { name, points, now: format(values.last().copied().flatten()) }
        };
        let lines = values.iter().map(line).collect();
        Self { title: title.to_owned(), lines, most: format(Some(most)), from: from.into() }
    }
}

impl Chart {
    /// Draws numbers over time as bars from zero.
    pub(crate) fn bars(what: &str, numbers: &[u64]) -> Self {
        let most = numbers.iter().copied().max().unwrap_or_default().max(1) as f64;
        let width = SIZE.0 / numbers.len().max(1) as f64;
        let mut points = String::new();
        for (at, number) in numbers.iter().enumerate() {
            let (left, right) = (at as f64 * width, (at + 1) as f64 * width);
            let y = SIZE.1 - 1.0 - *number as f64 / most * (SIZE.1 - 2.0);
            // Writing to a string does not fail.
            let _ = write!(points, "{left:.0},{y:.0} {right:.0},{y:.0} ");
        }
        let peak = numbers.iter().max().copied().unwrap_or_default();
        let sum: u64 = numbers.iter().sum();
        Self {
            points: points.trim_end().to_owned(),
            label: format!("{what}: {sum}, at most {peak} at a time"),
        }
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

    #[test]
    fn lines_share_a_scale_and_a_gap_is_one() {
        let rate = |it: Option<f64>| it.map_or_else(|| "?".to_owned(), |it| format!("{it}/s"));
        let values = [("produced", vec![Some(10.0), None, Some(5.0)]), ("failed", vec![Some(0.0)])];
        let lines = Lines::of("An hour", "1 h ago", 5, &values, rate);
        assert_eq!(lines.most, "10/s");
        assert_eq!(lines.lines[0].points, ["360,1.0 ", "720,60.0 "]);
        assert_eq!(
            lines.lines[1],
            Line { name: "failed", points: vec!["720,119.0 ".into()], now: "0/s".into() }
        );
    }
}
