//! The targets of a case, and the check whether they were met.

use crate::measure::Figure;
use crate::report::number;
use crate::statistics::Comparison;

/// A limit of a median.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) figure: Figure,
    pub(super) of: Of,
    pub(super) limit: Limit,
}

/// The value that the limit applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// The ratio of Millstream to the baseline.
    Ratio,
    /// The value of Millstream.
    Value,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Limit {
    AtLeast(f64),
    AtMost(f64),
}

/// Requires a minimum ratio to bare redis-rs.
pub(super) const fn ratio_at_least(figure: Figure, limit: f64) -> Target {
    Target { figure, of: Of::Ratio, limit: Limit::AtLeast(limit) }
}

/// Requires a maximum ratio to bare redis-rs.
pub(super) const fn ratio_at_most(figure: Figure, limit: f64) -> Target {
    Target { figure, of: Of::Ratio, limit: Limit::AtMost(limit) }
}

/// Requires a maximum of the figure itself.
pub(super) const fn at_most(figure: Figure, limit: f64) -> Target {
    Target { figure, of: Of::Value, limit: Limit::AtMost(limit) }
}

impl Target {
    /// Returns the measured value; `None` if it was not measured.
    pub(super) fn reached(&self, comparison: &Comparison) -> Option<f64> {
        let row = comparison.row(self.figure)?;
        Some(match self.of {
            Of::Ratio => row.ratio.as_ref()?.median,
            Of::Value => row.ours.median,
        })
    }

    /// Whether the target was met. A value that was not measured does not meet it.
    pub(super) fn met(&self, comparison: &Comparison) -> bool {
        self.reached(comparison).is_some_and(|reached| match self.limit {
            Limit::AtLeast(limit) => reached >= limit,
            Limit::AtMost(limit) => reached <= limit,
        })
    }

    /// Formats the target: `messages/s ≥ 0.90×`.
    pub(super) fn text(&self) -> String {
        let (sign, limit) = match self.limit {
            Limit::AtLeast(limit) => ('≥', limit),
            Limit::AtMost(limit) => ('≤', limit),
        };
        format!("{} {sign} {}", self.figure.short(), self.with_unit(limit))
    }

    fn with_unit(&self, value: f64) -> String {
        match self.of {
            Of::Ratio => format!("{value:.2}×"),
            Of::Value => format!("{}{}", number(value), self.figure.unit()),
        }
    }
}

/// Whether all targets were met; `None` if there are none.
pub(super) fn met(targets: &[Target], comparison: &Comparison) -> Option<bool> {
    (!targets.is_empty()).then(|| targets.iter().all(|target| target.met(comparison)))
}

/// Formats all targets.
pub(super) fn asked(targets: &[Target]) -> String {
    match targets {
        [] => "–".to_owned(),
        some => some.iter().map(Target::text).collect::<Vec<_>>().join(", "),
    }
}

/// Returns `met`, or the missed targets and by how much they were missed.
pub(super) fn verdict(targets: &[Target], comparison: &Comparison) -> String {
    let missed = targets.iter().filter(|target| !target.met(comparison)).map(|target| {
        let reached = target.reached(comparison).map_or("not measured".to_owned(), |it| target.with_unit(it));
        format!("{} {reached}", target.figure.short())
    });
    match (met(targets, comparison), missed.collect::<Vec<_>>()) {
        (None, _) => "–".to_owned(),
        (Some(true), _) => "met".to_owned(),
        (Some(false), missed) => format!("missed: {}", missed.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Measured;
    use crate::run::Pair;

    fn comparison(ours: f64, bare: Option<f64>) -> Comparison {
        let of = |value| Measured::of(Figure::Throughput, value);
        Comparison::of("case".to_owned(), &[Pair { ours: of(ours), bare: bare.map(of) }])
    }

    #[test]
    fn a_ratio_is_judged_by_its_limit() {
        let target = [ratio_at_least(Figure::Throughput, 0.9)];
        assert_eq!(verdict(&target, &comparison(90.0, Some(100.0))), "met");
        assert_eq!(verdict(&target, &comparison(89.0, Some(100.0))), "missed: messages/s 0.89×");
        assert_eq!(asked(&target), "messages/s ≥ 0.90×");
        let target = [ratio_at_most(Figure::Throughput, 1.1)];
        assert_eq!(verdict(&target, &comparison(112.0, Some(100.0))), "missed: messages/s 1.12×");
    }

    #[test]
    fn a_value_is_judged_without_a_baseline() {
        let target = [at_most(Figure::Throughput, 10.0)];
        assert_eq!(verdict(&target, &comparison(10.0, None)), "met");
        assert_eq!(verdict(&target, &comparison(10.1, None)), "missed: messages/s 10.1");
    }

    #[test]
    fn what_was_not_measured_is_missed() {
        let target = [ratio_at_least(Figure::Throughput, 0.9), at_most(Figure::Bytes, 400.0)];
        let all = verdict(&target, &comparison(90.0, None));
        assert_eq!(all, "missed: messages/s not measured, bytes/message not measured");
        assert_eq!(met(&[], &comparison(1.0, None)), None);
    }
}
