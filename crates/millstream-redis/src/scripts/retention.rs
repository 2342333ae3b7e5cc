//! The retention of dead letters and dead tasks as the scripts read it.

use millstream_core::dead_letters::DeadLetterRetention;

/// Returns the script's arguments for a retention: milliseconds and number, '' for no limit.
pub(crate) fn figures(retention: DeadLetterRetention) -> (String, String) {
    let text = retention.to_string();
    let figure = |word: &str| {
        let of_word = |rule: &str| rule.strip_prefix(word).map(str::to_owned);
        text.split(',').find_map(of_word).unwrap_or_default()
    };
    (figure("age:"), figure("length:"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_limit_that_is_not_set_is_empty() {
        let text = |age: &str, length: &str| (age.to_owned(), length.to_owned());
        let age = Duration::from_micros(1_500);
        assert_eq!(figures(DeadLetterRetention::age(age)), text("2", ""));
        assert_eq!(figures(DeadLetterRetention::length(7)), text("", "7"));
        assert_eq!(figures(DeadLetterRetention::age(age).and_length(7)), text("2", "7"));
        assert_eq!(figures(DeadLetterRetention::KEEP), text("", ""));
    }
}
