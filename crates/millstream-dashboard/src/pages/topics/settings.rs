//! Settings of a topic as fields of a form.

use millstream::admin::human::{exact, span};
use millstream::crates::core::packing::Packing;
use millstream::{DeadLetterRetention, Retention, TopicChange, TopicSpec};

use crate::audit::subject::Subject;
use crate::failure::Failure;
use crate::request::params::Params;
use crate::view::form::{Field, Form, Input};

/// Names of the fields.
const NAMES: [&str; 7] =
    ["retention", "keep_time", "keep_length", "max_length", "dead_time", "dead_length", "packing"];

/// Settings that can be changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    retention: Retention,
    max_length: Option<u64>,
    dead: DeadLetterRetention,
    packing: Option<Packing>,
}

impl Settings {
    /// Those of a topic.
    pub(super) fn from(spec: &TopicSpec) -> Self {
        let TopicSpec { retention, max_length, dead_letter_retention: dead, packing, .. } = *spec;
        Self { retention, max_length, dead, packing }
    }

    /// Reads the fields of a form.
    ///
    /// # Errors
    /// Invalid values, and a rule without its time or number.
    pub(super) fn of(params: &Params) -> Result<Self, Failure> {
        let time = |name: &str| {
            let bad = |text: &str| {
                Failure::invalid(format!("{name} {text:?} is no duration: 7d, 12h, 30m, 10s")).of(name)
            };
            let read = |text: &str| span(text.trim()).filter(|time| !time.is_zero()).ok_or_else(|| bad(text));
            params.text(name)?.map(read).transpose()
        };
        let number = |name: &str| match params.parsed::<u64>(name)? {
            Some(0) => Err(Failure::invalid(format!("{name} is 0")).of(name)),
            number => Ok(number),
        };
        let missing = |name: &str| Failure::invalid(format!("{name} is missing")).of(name);
        let keep = || time("keep_time")?.ok_or_else(|| missing("keep_time"));
        let retention = match params.text("retention")?.unwrap_or("consumed") {
            "consumed" => Retention::Consumed,
            "consumed-after" => Retention::ConsumedAfter(keep()?),
            "age" => Retention::Age(keep()?),
            "length" => Retention::Length(number("keep_length")?.ok_or_else(|| missing("keep_length"))?),
            "keep" => Retention::Keep,
            other => return Err(Failure::invalid(format!("{other:?} is no retention")).of("retention")),
        };
        let mut dead = DeadLetterRetention::KEEP;
        if let Some(age) = time("dead_time")? {
            dead = dead.and_age(age);
        }
        if let Some(length) = number("dead_length")? {
            dead = dead.and_length(length);
        }
        let packing = params
            .text("packing")?
            .map(|text| Packing::parse(text.trim()).map_err(|why| Failure::from(why).of("packing")));
        Ok(Self { retention, max_length: number("max_length")?, dead, packing: packing.transpose()? })
    }

    /// Returns the fields with these values. A topic that is not packed cannot become so: only a new one has a field for that.
    pub(super) fn fields(&self, is_new: bool) -> Vec<Field> {
        let [retention, keep_time, keep_length, max_length, dead_time, dead_length, packing] = self.values();
        let choices = [
            ("consumed", "until every group has settled them"),
            ("consumed-after", "until every group has settled them, and at least for a time"),
            ("age", "for a time, read or not"),
            ("length", "the newest ones of each partition, read or not"),
            ("keep", "for ever"),
        ];
        let choices = choices.map(|(value, label)| (value.to_owned(), label.to_owned())).to_vec();
        let number = || Input::Number { min: 1, max: u64::MAX };
        let mut fields = vec![
            Field::new("retention", "Entries are kept", retention).input(Input::Choice(choices)),
            Field::new("keep_time", "Time", keep_time).hint("7d, 12h, 30m; with a time"),
            Field::new("keep_length", "Number of newest ones", keep_length)
                .input(number())
                .hint("with the newest ones"),
            Field::new("max_length", "Producers hold back at so many entries in a partition", max_length)
                .input(number())
                .hint("empty: no bound"),
            Field::new("dead_time", "Dead letters are kept for", dead_time).hint("30d; empty: for ever"),
            Field::new("dead_length", "Dead letters that are kept of each partition", dead_length)
                .input(number())
                .hint("empty: all"),
        ];
        if is_new || self.packing.is_some() {
            let hint = "zstd:4:500:65536: compression (none, lz4, zstd, zstd-dictionary), least and most messages of a pack, bytes";
            let hint = if is_new { format!("{hint}; empty: not packed") } else { hint.to_owned() };
            fields.push(Field::new("packing", "Messages are packed", packing).hint(hint));
        }
        fields
    }

    /// Hides the values in a form.
    pub(super) fn hide(&self, form: Form) -> Form {
        NAMES.into_iter().zip(self.values()).fold(form, |form, (name, value)| form.hide(name, value))
    }

    fn values(&self) -> [String; 7] {
        let number = |it: Option<u64>| it.map_or_else(String::new, |it| it.to_string());
        let time = |it: Option<std::time::Duration>| it.map_or_else(String::new, exact);
        let (word, keep_time, keep_length) = match self.retention {
            Retention::ConsumedAfter(time) => ("consumed-after", Some(time), None),
            Retention::Age(time) => ("age", Some(time), None),
            Retention::Length(entries) => ("length", None, Some(entries)),
            Retention::Keep => ("keep", None, None),
            _ => ("consumed", None, None),
        };
        [
            word.to_owned(),
            time(keep_time),
            number(keep_length),
            number(self.max_length),
            time(self.dead.max_age()),
            number(self.dead.max_length()),
            self.packing.map_or_else(String::new, |it| it.to_string()),
        ]
    }

    pub(super) fn apply(&self, spec: TopicSpec) -> TopicSpec {
        spec.with_retention(self.retention)
            .with_max_length(self.max_length)
            .with_dead_letter_retention(self.dead)
            .with_packing(self.packing)
    }

    pub(super) fn change(&self) -> TopicChange {
        let change = TopicChange::new()
            .retention(self.retention)
            .max_length(self.max_length)
            .dead_letter_retention(self.dead);
        self.packing.into_iter().fold(change, TopicChange::packing)
    }

    /// Adds them to an entry of the audit log, in the form in which a topic stores them.
    pub(super) fn record(&self, subject: Subject) -> Subject {
        let bound = self.max_length.map_or_else(|| "none".to_owned(), |it| it.to_string());
        let subject = subject
            .set("retention", self.retention.to_string())
            .set("max_length", bound)
            .set("dead_letter_retention", self.dead.to_string());
        self.packing.into_iter().fold(subject, |subject, packing| subject.set("packing", packing.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn params(fields: &[(&str, &str)]) -> Params {
        Params::new(fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn they_are_read_as_they_are_written() {
        let week = Duration::from_secs(7 * 86_400);
        let all = [
            Retention::Consumed,
            Retention::ConsumedAfter(week),
            Retention::Age(Duration::from_millis(1_500)),
            Retention::Length(7),
            Retention::Keep,
        ];
        for (retention, max_length) in all.into_iter().zip([None, Some(9), None, Some(1), None]) {
            for dead in [DeadLetterRetention::KEEP, DeadLetterRetention::age(week).and_length(5)] {
                let packing = max_length.map(|_| Packing::new().min_messages(2));
                let settings = Settings { retention, max_length, dead, packing };
                let values = settings.values();
                let fields: Vec<_> = NAMES.into_iter().zip(values.iter().map(String::as_str)).collect();
                assert_eq!(Settings::of(&params(&fields)).expect("valid"), settings);
            }
        }
        assert_eq!(Settings::of(&params(&[])).expect("valid"), Settings::default());
    }

    #[test]
    fn a_rule_needs_its_figure() {
        for fields in [
            &[("retention", "age")][..],
            &[("retention", "consumed-after"), ("keep_time", "0s")],
            &[("retention", "length"), ("keep_time", "7d")],
            &[("retention", "length"), ("keep_length", "0")],
            &[("retention", "all")],
            &[("max_length", "0")],
            &[("max_length", "many")],
            &[("dead_time", "soon")],
            &[("dead_length", "-1")],
            &[("packing", "gzip:4:500:65536")],
            &[("packing", "zstd:4")],
        ] {
            assert!(Settings::of(&params(fields)).is_err(), "{fields:?}");
        }
    }
}
