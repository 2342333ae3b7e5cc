//! Medians and spreads over the runs.

use crate::measure::{Figure, Measured};
use crate::run::Pair;

/// The median, the minimum and the maximum of some values.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    /// All values, in the order of the runs.
    pub(crate) values: Vec<f64>,
}

impl Spread {
    /// Computes the spread of some values. Values that are not finite are ignored; `None` if no value is left.
    fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let (lower, upper) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        Some(Self { median: f64::midpoint(lower, upper), min, max, values })
    }
}

/// A figure on both sides.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) figure: Figure,
    pub(crate) ours: Spread,
    pub(crate) bare: Option<Spread>,
    /// Millstream divided by the baseline, of runs that were next to each other in time. It is therefore not the
    /// ratio of the medians. `None` if the baseline is zero.
    pub(crate) ratio: Option<Spread>,
}

/// A case with its figures.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    pub(crate) case: String,
    pub(crate) rows: Vec<Row>,
}

impl Comparison {
    /// Returns the row of a figure.
    pub(crate) fn row(&self, figure: Figure) -> Option<&Row> {
        self.rows.iter().find(|row| row.figure == figure)
    }

    /// Compares the runs of both sides, or summarises those of Millstream alone.
    pub(crate) fn of(case: String, pairs: &[Pair]) -> Self {
        let figures = pairs.first().map(|pair| pair.ours.figures.as_slice()).unwrap_or_default();
        let row = |&(figure, _): &(Figure, f64)| {
            let value = |measured: &Measured| {
                let found = measured.figures.iter().find(|(it, _)| *it == figure);
                found.map(|(_, value)| *value)
            };
            let bare = |pair: &Pair| value(pair.bare.as_ref()?);
            Some(Row {
                figure,
                ours: Spread::of(pairs.iter().filter_map(|pair| value(&pair.ours)))?,
                bare: Spread::of(pairs.iter().filter_map(bare)),
                ratio: Spread::of(pairs.iter().filter_map(|pair| Some(value(&pair.ours)? / bare(pair)?))),
            })
        };
        Self { case, rows: figures.iter().filter_map(row).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_between_the_middle_ones() {
        let of = |values: &[f64]| Spread::of(values.iter().copied()).map(|it| (it.median, it.min, it.max));
        assert_eq!(of(&[4.0, 1.0, 2.0]), Some((2.0, 1.0, 4.0)));
        assert_eq!(of(&[4.0, 1.0]), Some((2.5, 1.0, 4.0)));
        assert_eq!(of(&[7.0]), Some((7.0, 7.0, 7.0)));
        assert_eq!(of(&[f64::NAN]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn values_stay_in_the_order_of_the_runs() {
        let spread = Spread::of([4.0, f64::INFINITY, 1.0, 2.0]).unwrap();
        assert_eq!(spread.values, [4.0, 1.0, 2.0]);
    }

    #[test]
    fn one_run_that_was_disturbed_does_not_move_the_median() {
        let spread = Spread::of([1.0, 1.1, 50.0, 0.9, 1.0]).unwrap();
        assert_eq!((spread.median, spread.max), (1.0, 50.0));
    }

    #[test]
    fn a_ratio_is_that_of_neighbours() {
        let pair = |ours, bare| Pair {
            ours: Measured::of(Figure::Throughput, ours),
            bare: Some(Measured::of(Figure::Throughput, bare)),
        };
        // The machine was half as fast during the second pair, for both sides.
        let comparison = Comparison::of("c".to_owned(), &[pair(90.0, 100.0), pair(45.0, 50.0)]);
        let ratio = comparison.rows[0].ratio.clone().unwrap();
        assert_eq!((ratio.median, ratio.min, ratio.max), (0.9, 0.9, 0.9));
    }

    #[test]
    fn without_a_baseline_there_is_no_ratio() {
        let pair = Pair { ours: Measured::of(Figure::Bytes, 1.0), bare: None };
        let row = Comparison::of("c".to_owned(), &[pair]).rows.remove(0);
        assert!(row.bare.is_none() && row.ratio.is_none());
    }
}
