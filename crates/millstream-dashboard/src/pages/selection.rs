//! What an action is about: the filter of a form, and the count that is confirmed.

use std::collections::BTreeMap;
use std::time::SystemTime;

use bytes::Bytes;
use millstream::admin::human::{self, span};
use millstream::admin::{Filter, ShelfFilter};
use millstream::{MessageId, Partition, Reason, Timestamp};

use crate::failure::Failure;
use crate::reading::counts::FilterKey;
use crate::redaction::Redaction;
use crate::request::params::Params;
use crate::view::form::{Field, Form};
use crate::view::href::Href;

/// Names of the parameters of a filter.
/// Maximum number of those that are checked which are named, one by one: some 600 bytes.
const NAMED: usize = 20;
const NAMES: [&str; 10] =
    ["partition", "reason", "fingerprint", "error", "key", "header", "payload", "from", "until", PICK];
/// Items that were checked in a list, each as `partition:id`: the only parameter that may be there several times.
pub(crate) const PICK: &str = "pick";

/// Returns the value of a parameter of a filter, if it is not empty.
fn value(params: &Params, name: &str) -> Option<String> {
    if name != PICK {
        return params.raw(name).filter(|it| !it.is_empty()).map(str::to_owned);
    }
    let all: Vec<&str> =
        params.pairs().filter(|(of, it)| *of == PICK && !it.is_empty()).map(|(_, it)| it).collect();
    (!all.is_empty()).then(|| all.join(","))
}

/// Names those that are checked: all, or how many and the first ones.
fn picked(all: &str) -> String {
    let first: Vec<&str> = all.split(',').take(NAMED).collect();
    match all.split(',').count() {
        count if count > NAMED => format!("{count}, the first are {}", first.join(",")),
        _ => all.to_owned(),
    }
}

/// Returns the fields of a filter with their values.
pub(crate) fn fields(params: &Params, hidden: &Redaction, reasons: bool) -> Vec<Field> {
    let value = |name: &str| params.raw(name).unwrap_or_default().to_owned();
    let mut fields = vec![Field::new("error", "Error contains", value("error"))];
    if reasons {
        let reasons = Reason::ALL.iter().map(|it| (it.as_str().to_owned(), it.as_str().to_owned()));
        let choices = std::iter::once((String::new(), "any".to_owned())).chain(reasons).collect();
        fields.push(
            Field::new("reason", "Reason", value("reason")).input(crate::view::form::Input::Choice(choices)),
        );
    }
    fields.push(Field::new("fingerprint", "Fingerprint", value("fingerprint")));
    fields.push(Field::new("partition", "Partition", value("partition")));
    if !hidden.hides_key() {
        fields.push(Field::new("key", "Key is", value("key")));
    }
    fields.push(Field::new("header", "Header", value("header")).hint("name, or name=value"));
    if !hidden.hides_payload() {
        fields.push(Field::new("payload", "Payload contains", value("payload")));
    }
    let when = "2026-01-31T12:00Z, or 15m, 2h, 7d for so long ago";
    fields.push(Field::new("from", "From", value("from")).hint(when));
    fields.push(Field::new("until", "Until", value("until")).hint(when));
    fields
}

/// Adds the parameters of a filter to a link.
pub(crate) fn link(mut href: Href, params: &Params) -> Href {
    for name in NAMES {
        if let Some(value) = value(params, name) {
            href = href.with(name, value);
        }
    }
    href
}

/// Adds the parameters of a filter to a form.
pub(crate) fn hide(mut form: Form, params: &Params) -> Form {
    for name in NAMES {
        if let Some(value) = value(params, name) {
            form = form.hide(name, value);
        }
    }
    form
}

/// Returns the parameters of a filter as they are, to tell filters apart.
pub(crate) fn key(params: &Params) -> FilterKey {
    NAMES.into_iter().chain(["id"]).filter_map(|name| Some((name, value(params, name)?))).collect()
}

/// Returns the conditions that select what an action is about, for the audit log. Times are absolute there.
///
/// # Errors
/// Invalid times.
pub(crate) fn conditions(params: &Params) -> Result<Vec<(&'static str, String)>, Failure> {
    let mut found = Vec::new();
    for name in NAMES.into_iter().chain(["id", "ends"]) {
        let Some(value) = value(params, name) else { continue };
        let value = match name {
            "from" | "until" => when(params, name)?.map_or_else(String::new, |time| time.to_string()),
            PICK => picked(&value),
            _ => value,
        };
        // The newest letter of each partition: those that died later are not part of it.
        found.push((if name == "ends" { "up_to" } else { name }, value));
    }
    Ok(found)
}

/// Reads the part of a filter that is about the message itself. What is hidden cannot be searched: the number of matches
/// would give it away.
///
/// # Errors
/// Invalid values, and conditions on what is hidden.
pub(crate) fn message(params: &Params, hidden: &Redaction) -> Result<Filter, Failure> {
    let text = |name| params.text(name).map(|text| text.map(|text| Bytes::copy_from_slice(text.as_bytes())));
    let header = params.text("header")?.map(|header| match header.split_once('=') {
        Some((name, value)) => (name.to_owned(), Some(Bytes::copy_from_slice(value.as_bytes()))),
        None => (header.to_owned(), None),
    });
    let filter = Filter { id: None, key: text("key")?, header, payload: text("payload")? };
    let is_hidden = (filter.key.is_some() && hidden.hides_key())
        || (filter.payload.is_some() && hidden.hides_payload())
        || filter.header.as_ref().is_some_and(|(name, value)| value.is_some() && hidden.hides_header(name));
    if is_hidden { Err(Failure::forbidden("this part of messages is redacted here")) } else { Ok(filter) }
}

/// Reads a time: `2026-01-31T12:00Z`, or `2h` for two hours ago.
///
/// # Errors
/// A text that is neither.
pub(crate) fn when(params: &Params, name: &str) -> Result<Option<Timestamp>, Failure> {
    let Some(text) = params.text(name)? else { return Ok(None) };
    let bad = || {
        let why = format!(
            "{name} {text:?} is no time: 2026-01-31T12:00Z, 2026-01-31T13:00+01:00, or 2h for two hours ago"
        );
        Failure::invalid(why).of(name)
    };
    let now = Timestamp::from(SystemTime::now());
    parse_when(text.trim(), now).map(Some).ok_or_else(bad)
}

fn parse_when(text: &str, now: Timestamp) -> Option<Timestamp> {
    let when = human::when(text).or_else(|| span(text).map(human::When::Ago));
    when.map(|when| when.at(now))
}

/// Reads a filter.
///
/// # Errors
/// Invalid values, and conditions on what is hidden.
pub(crate) fn filter(params: &Params, hidden: &Redaction) -> Result<ShelfFilter, Failure> {
    // A list sends an empty one with those that are checked: without any, the action would be one on all of them.
    if params.raw(PICK).is_some() && value(params, PICK).is_none() {
        return Err(Failure::invalid("none is checked"));
    }
    Ok(ShelfFilter {
        partitions: params.parsed("partition")?.map(|partition| vec![Partition(partition)]),
        ids: params.parsed::<MessageId>("id")?.map(|id| vec![id]),
        picked: value(params, PICK).map(|text| read_pairs(&text)).transpose()?,
        undecodable_error: hidden.undecodable_error(),
        reason: params.text("reason")?.map(Reason::parse),
        error: params.text("error")?.map(str::to_owned),
        fingerprint: params.parsed("fingerprint")?,
        from: when(params, "from")?,
        before: when(params, "until")?,
        message: message(params, hidden)?,
        ..ShelfFilter::default()
    })
}

/// Writes the ends of a selection for a form: `0:1700000000000-0,3:1700000000000-1`.
pub(crate) fn write_ends(ends: &BTreeMap<Partition, MessageId>) -> String {
    ends.iter().map(|(partition, id)| format!("{}:{id}", partition.0)).collect::<Vec<_>>().join(",")
}

/// Reads the ends of a selection.
///
/// # Errors
/// A text that `write_ends` does not write.
pub(crate) fn read_ends(text: &str) -> Result<BTreeMap<Partition, MessageId>, Failure> {
    read_pairs(text)
}

fn read_pairs<C: FromIterator<(Partition, MessageId)>>(text: &str) -> Result<C, Failure> {
    let end = |end: &str| {
        let (partition, id) = end.split_once(':')?;
        Some((Partition(partition.parse().ok()?), id.parse().ok()?))
    };
    let ends = text.split(',').filter(|it| !it.is_empty()).map(end);
    ends.collect::<Option<_>>().ok_or_else(|| Failure::invalid("the selection is not valid: count again"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        for (text, expected) in [
            ("1970-01-01", Some(0)),
            ("2026-01-31T12:00Z", Some(1_769_860_800_000)),
            ("2026-01-31T13:00+01:00", Some(1_769_860_800_000)),
            ("2026-01-31 12:00:00.000 UTC", Some(1_769_860_800_000)),
            ("2026-01-31T13:00", None),
            ("2026-02-31", None),
            ("2h ago", Some(1_800_000_000_000 - 7_200_000)),
            ("2024-02-29 23:59:59.5Z", Some(1_709_251_199_500)),
            ("2h", Some(1_800_000_000_000 - 7_200_000)),
            ("15m", Some(1_800_000_000_000 - 900_000)),
            ("99999999d", Some(0)),
            ("yesterday", None),
            ("2026-13-01", None),
            ("2026-01-31T25:00Z", None),
            ("2026-01-31T12:00:00:00Z", None),
            ("ü", None),
            ("", None),
        ] {
            assert_eq!(parse_when(text, now).map(Timestamp::as_millis), expected, "{text}");
        }
        let shown = Timestamp::from_millis(1_769_860_800_123).to_string();
        assert_eq!(parse_when(&shown, now), Some(Timestamp::from_millis(1_769_860_800_123)), "{shown}");
    }

    /// One that is missing would be dropped by the form that acts on all that match.
    #[test]
    fn each_condition_that_can_be_entered_is_passed_on() {
        let fields = fields(&Params::default(), &Redaction::default(), true);
        assert!(fields.len() > 5);
        for field in fields {
            assert!(NAMES.contains(&field.name), "{}", field.name);
        }
    }

    #[test]
    fn ends_are_text_and_back() {
        let ends =
            BTreeMap::from([(Partition(0), MessageId::new(5, 1)), (Partition(7), MessageId::new(9, 0))]);
        assert_eq!(write_ends(&ends), "0:5-1,7:9-0");
        assert_eq!(read_ends("0:5-1,7:9-0").expect("ends"), ends);
        assert!(read_ends("0:5-1,x").is_err());
        assert!(read_ends("").expect("none").is_empty());
    }

    #[test]
    fn those_that_are_checked_are_all_passed_on() {
        let pick = |value: &str| (PICK.to_owned(), value.to_owned());
        let params = Params::new(vec![pick("0:5-1"), pick(""), pick("7:9-0")]);
        assert_eq!(link(Href::default(), &params).path(), "?pick=0%3A5-1%2C7%3A9-0");
        let picked = filter(&params, &Redaction::none()).expect("valid").picked.expect("two");
        let expected = [(Partition(0), MessageId::new(5, 1)), (Partition(7), MessageId::new(9, 0))];
        assert!(picked.into_iter().eq(expected));
        assert!(filter(&Params::new(vec![pick("5-1")]), &Redaction::none()).is_err());
        let recorded = |params: &Params| conditions(params).expect("valid").remove(0);
        assert_eq!(recorded(&params), (PICK, "0:5-1,7:9-0".to_owned()));
        let many = |count: usize| {
            Params::new((0..count).map(|it| pick(&format!("3:1700000000{it:03}-0"))).collect())
        };
        let (_, all) = recorded(&many(20));
        assert!(all.split(',').count() == 20 && all.len() < 1_000, "{all}");
        let (_, some) = recorded(&many(500));
        assert!(
            some.starts_with("500, the first are 3:1700000000000-0,3:1700000000001-0,") && some.len() < 1_000
        );
    }

    #[test]
    fn a_record_names_the_ids_and_what_else_was_chosen() {
        let params = Params::new(vec![("error".into(), "timeout".into()), ("pick".into(), "0:5-1".into())]);
        let recorded = conditions(&params).expect("valid");
        assert_eq!(recorded, [("error", "timeout".to_owned()), (PICK, "0:5-1".to_owned())]);
    }

    #[test]
    fn what_is_hidden_cannot_be_searched() {
        let params = |name: &str, value: &str| Params::new(vec![(name.into(), value.into())]);
        let hidden = Redaction::none().payload().key().header("token");
        for (name, value) in [("payload", "x"), ("key", "x"), ("header", "token=x"), ("header", "TOKEN=x")] {
            let failure = filter(&params(name, value), &hidden).expect_err(value);
            assert_eq!(failure.status, axum::http::StatusCode::FORBIDDEN);
            assert!(filter(&params(name, value), &Redaction::none()).is_ok());
        }
        assert!(filter(&params("header", "token"), &hidden).is_ok(), "its name is shown");
        assert!(filter(&params("error", "x"), &hidden).is_ok());
    }
}
