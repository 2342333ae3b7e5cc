//! Series: how the cost of a message grows with the size of something else.

use crate::args::PendingIn;
use crate::measure::Figure;
use crate::run::Case;
use crate::statistics::Comparison;

/// The quantity that grows in a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Series {
    Partitions,
    Groups,
    Pending,
    PendingInOther,
    Parked,
    Delayed,
    Members,
}

impl Series {
    /// All series, in the order in which they are shown.
    pub(super) const ALL: [Self; 7] = [
        Self::Partitions,
        Self::Groups,
        Self::Pending,
        Self::PendingInOther,
        Self::Parked,
        Self::Delayed,
        Self::Members,
    ];

    /// Returns its name in JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Partitions => "partitions",
            Self::Groups => "groups",
            Self::Pending => "pending",
            Self::PendingInOther => "pending_in_other_group",
            Self::Parked => "parked",
            Self::Delayed => "delayed",
            Self::Members => "members",
        }
    }

    /// Returns its title: the quantity, and the measured work.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Partitions => "partitions, consuming",
            Self::Groups => "groups, consuming",
            Self::Pending => "pending in the group, consuming",
            Self::PendingInOther => "pending in another group, consuming",
            Self::Parked => "parked retries, retrying",
            Self::Delayed => "delayed messages, scheduling",
            Self::Members => "members of the group, idling",
        }
    }

    /// Returns the quantity in a case.
    pub(super) fn of(self, case: &Case) -> Option<u64> {
        Some(match (self, case) {
            (Self::Partitions, case) => case.partitions().into(),
            (Self::Groups, Case::Consume(it)) => it.groups.into(),
            (Self::Pending, Case::Consume(it)) if it.pending_in == PendingIn::Own => it.pending,
            (Self::PendingInOther, Case::Consume(it)) if it.pending_in == PendingIn::Other => it.pending,
            (Self::Parked, Case::Retry(it)) => it.parked,
            (Self::Delayed, Case::Schedule(it)) => it.waiting,
            (Self::Members, Case::Idle(it)) => it.members.into(),
            _ => return None,
        })
    }

    /// Returns the figures that are the cost.
    pub(super) fn costs(self) -> &'static [Figure] {
        match self {
            Self::Members => &[Figure::IdleRequests, Figure::IdleCommands],
            _ => &[Figure::ClientCpu, Figure::RedisCpu, Figure::Commands],
        }
    }
}

/// The measurements of a series.
pub(super) struct Growth<'a> {
    pub(super) series: Series,
    /// The quantity and the cost at each point, smallest first.
    pub(super) points: Vec<(u64, &'a Comparison)>,
}

impl<'a> Growth<'a> {
    /// Returns `None` if there is nothing to compare.
    pub(super) fn new(series: Series, mut points: Vec<(u64, &'a Comparison)>) -> Option<Self> {
        points.sort_by_key(|(at, _)| *at);
        (points.first()?.0 < points.last()?.0).then_some(Self { series, points })
    }

    /// Returns the smallest and the largest quantity.
    pub(super) fn ends(&self) -> (u64, u64) {
        let at = |point: Option<&(u64, _)>| point.map_or(0, |(at, _)| *at);
        (at(self.points.first()), at(self.points.last()))
    }

    /// Returns the ratio of the cost at the largest quantity to that at the smallest.
    pub(super) fn factor(&self, figure: Figure) -> Option<f64> {
        let cost = |point: Option<&(u64, &Comparison)>| Some(point?.1.row(figure)?.ours.median);
        let factor = cost(self.points.last())? / cost(self.points.first())?;
        factor.is_finite().then_some(factor)
    }

    /// Returns that ratio for logarithmic growth.
    pub(super) fn logarithmic(&self) -> f64 {
        let (fewest, most) = self.ends();
        levels(most) / levels(fewest)
    }

    /// Whether no cost grows faster than logarithmically.
    pub(super) fn met(&self) -> bool {
        let within = |figure: &Figure| self.factor(*figure).is_some_and(|it| it <= self.logarithmic());
        self.series.costs().iter().all(within)
    }
}

/// Returns the number of steps of a search among this many items.
fn levels(of: u64) -> f64 {
    1.0 + (of.max(1) as f64).log2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Measured;
    use crate::run::Pair;

    fn cost(of: f64) -> Comparison {
        let figures = Series::Parked.costs().iter().map(|figure| (*figure, of)).collect();
        Comparison::of("case".to_owned(), &[Pair { ours: Measured { figures }, bare: None }])
    }

    #[test]
    fn a_cost_that_grows_with_the_logarithm_is_allowed_and_one_with_the_root_is_not() {
        let grown = |function: fn(f64) -> f64| {
            let costs = [1_000_000, 100, 10_000].map(|at| (at, cost(function(at as f64))));
            let points = costs.iter().map(|(at, cost)| (*at, cost)).collect();
            let growth = Growth::new(Series::Parked, points).unwrap();
            assert_eq!(growth.ends(), (100, 1_000_000));
            growth.met()
        };
        assert!(grown(|_| 7.0));
        assert!(grown(|at| 3.0 + at.log2()));
        assert!(!grown(f64::sqrt));
    }

    #[test]
    fn from_1_to_256_there_are_8_more_steps() {
        let (few, many) = (cost(2.0), cost(5.0));
        let growth = Growth::new(Series::Partitions, vec![(256, &many), (1, &few)]).unwrap();
        assert_eq!(growth.logarithmic(), 9.0);
        assert_eq!(growth.factor(Figure::RedisCpu), Some(2.5));
    }

    #[test]
    fn one_point_shows_no_growth() {
        let one = cost(1.0);
        assert!(Growth::new(Series::Parked, vec![(1, &one), (1, &one)]).is_none());
        assert!(Growth::new(Series::Parked, Vec::new()).is_none());
    }
}
