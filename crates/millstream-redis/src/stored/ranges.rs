//! Partitions as text: `0-3,7`. So the assignment of a thousand members to ten thousand partitions stays short and
//! readable.

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::sorted::SortedSet;
use millstream_core::topic::{MAX_PARTITIONS, Partition};

use crate::error::unexpected;

/// Formats partitions as ranges, in order and without duplicates; empty for none.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for a partition that no topic can have.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for a partition that no topic can have.
pub(crate) fn write(partitions: &[Partition]) -> Result<String> {
    let numbers: SortedSet<u32> = partitions.iter().map(|partition| partition.0).collect();
    if let Some(largest) = numbers.last().filter(|largest| **largest >= MAX_PARTITIONS) {
        let why = format!("there is no partition {largest}, the last one possible is {}", MAX_PARTITIONS - 1);
        return Err(Error::new(ErrorKind::InvalidConfig, why));
    }
    let mut text = String::new();
    let mut numbers = numbers.into_iter().peekable();
    while let Some(first) = numbers.next() {
        let mut last = first;
        while let Some(next) = numbers.next_if(|next| *next == last + 1) {
            last = next;
        }
        let comma = if text.is_empty() { "" } else { "," };
        let dash = if last == first { String::new() } else { format!("-{last}") };
        text += &format!("{comma}{first}{dash}");
    }
    Ok(text)
}

/// Parses the output of [`write()`], and nothing else: ascending, without spaces, within the limits of a topic.
pub(crate) fn read(text: &str) -> Result<Vec<Partition>> {
    let mut partitions = Vec::new();
    let mut free = 0;
    for range in text.split(',').filter(|_| !text.is_empty()) {
        let number = |digits: &str| match digits.parse::<u32>() {
            Ok(number) if digits.bytes().all(|byte| byte.is_ascii_digit()) => Some(number),
            _ => None,
        };
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        match (number(first), number(last)) {
            (Some(first), Some(last)) if free <= first && first <= last && last < MAX_PARTITIONS => {
                partitions.extend((first..=last).map(Partition));
                free = last + 1;
            }
            _ => {
                let shown: String = text.chars().take(64).collect();
                return Err(unexpected(format_args!("{shown:?} instead of ranges of partitions")));
            }
        }
    }
    Ok(partitions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partitions(numbers: &[u32]) -> Vec<Partition> {
        numbers.iter().copied().map(Partition).collect()
    }

    #[test]
    fn text_and_back() {
        let all: Vec<u32> = (0..MAX_PARTITIONS).collect();
        let cases: [(&[u32], &str); 5] = [
            (&[], ""),
            (&[7], "7"),
            (&[0, 1, 2, 3, 7], "0-3,7"),
            (&[1, 3, 5, 6], "1,3,5-6"),
            (&all, "0-16383"),
        ];
        for (numbers, text) in cases {
            assert_eq!(write(&partitions(numbers)).expect("valid"), text);
            assert_eq!(read(text).expect(text), partitions(numbers));
        }
        assert_eq!(
            write(&partitions(&[7, 0, 1, 7])).expect("valid"),
            "0-1,7",
            "order and repeats do not matter"
        );
    }

    #[test]
    fn what_is_no_partition_is_refused() {
        assert_eq!(write(&partitions(&[16_384])).expect_err("too large").kind(), ErrorKind::InvalidConfig);
        let nonsense =
            [",", "1,", ",1", "-", "1-", "-1", "3-1", "1,1", "0-3,2", "0-4294967295", "+1", "16384", "a"];
        for text in nonsense {
            assert_eq!(read(text).expect_err(text).kind(), ErrorKind::Protocol, "{text}");
        }
    }
}
