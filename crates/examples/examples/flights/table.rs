//! The table at the end.

use std::fmt::Write;
use std::time::Duration;

use millstream::Report;

use crate::board::Board;

pub(crate) struct Summary<'a> {
    pub(crate) board: &'a Board,
    pub(crate) report: Report,
    pub(crate) replayed: u64,
    /// Sends that were repeated.
    pub(crate) repeated: u64,
    /// Until the last one was stored.
    pub(crate) produced_in: Duration,
    /// Until the last one was handled or dead, the time of producing included.
    pub(crate) handled_in: Duration,
}

impl Summary<'_> {
    pub(crate) fn render(&self) -> String {
        let counts = self.board.counts();
        let rate = |took: Duration| counts.produced as f64 / took.as_secs_f64();
        let rows = [
            ("produced", counts.produced.to_string()),
            ("sent again", self.repeated.to_string()),
            ("handled", counts.handled.to_string()),
            ("retried", self.report.retried.to_string()),
            ("dead", self.report.dead.to_string()),
            ("replayed", self.replayed.to_string()),
            ("duplicates", counts.duplicates.to_string()),
            ("lost", self.board.lost().to_string()),
            ("order violations", self.board.violations().to_string()),
            ("messages/s produced", format!("{:.0}", rate(self.produced_in))),
            ("messages/s end to end", format!("{:.0}", rate(self.handled_in))),
        ];
        let mut table = String::new();
        // Writing to a string cannot fail.
        for (name, value) in rows {
            let _ = writeln!(table, "{name:<22}{value:>12}");
        }
        for (partition, count) in self.board.per_partition().into_iter().enumerate() {
            let _ = writeln!(table, "{:<22}{count:>12}", format!("partition {partition}"));
        }
        table
    }
}
