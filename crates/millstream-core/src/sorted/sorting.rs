//! A sort whose code does not depend on what is sorted.

use std::cmp::Ordering;

/// Sorts a slice. Equal values keep their order.
pub fn sort<T: Ord>(values: &mut [T]) {
    sort_by(values, T::cmp);
}

/// Sorts a slice by a comparison. Equal values keep their order.
pub fn sort_by<T>(values: &mut [T], compare: impl Fn(&T, &T) -> Ordering) {
    let order = order(values.len(), &|one, other| compare(&values[one], &values[other]));
    arrange(order, &mut |one, other| values.swap(one, other));
}

/// Returns the places of the values in their order, by merging longer and longer runs.
fn order(len: usize, compare: &dyn Fn(usize, usize) -> Ordering) -> Vec<usize> {
    let mut places: Vec<usize> = (0..len).collect();
    let (mut merged, mut run) = (Vec::with_capacity(len), 1);
    while run < len {
        for start in (0..len).step_by(2 * run) {
            let (middle, end) = (len.min(start + run), len.min(start + 2 * run));
            let (mut left, mut right) = (start, middle);
            while left < middle || right < end {
                let is_left = right == end
                    || left < middle && compare(places[left], places[right]) != Ordering::Greater;
                let next = if is_left { &mut left } else { &mut right };
                merged.push(places[*next]);
                *next += 1;
            }
        }
        std::mem::swap(&mut places, &mut merged);
        merged.clear();
        run *= 2;
    }
    places
}

/// Moves each value to the place where it is named, cycle by cycle.
fn arrange(mut order: Vec<usize>, swap: &mut dyn FnMut(usize, usize)) {
    for start in 0..order.len() {
        let mut at = start;
        loop {
            let from = std::mem::replace(&mut order[at], at);
            if from == start {
                break;
            }
            swap(at, from);
            at = from;
        }
    }
}
