//! Bytes of a server. However they are split on their way, the same replies are found, and never more bytes are waited for
//! than a reply has; whatever they announce, no more room is reserved than there are bytes; what is read is what the client
//! reads; and an error quotes a bounded part.
//!
//! Input: the number of replies that are waited for, then the bytes.

use millstream_redis::fuzzing;

/// Inputs up to this length are split at every byte; of longer ones 64 places are tried.
const SHORT: usize = 256;
/// Maximum length of an error about an answer that the protocol does not allow, in bytes.
const MAX_ERROR: usize = 1_100;

pub(crate) fn check(input: &[u8]) {
    let Some((wanted, bytes)) = input.split_first() else { return };
    let wanted = usize::from(wanted % 4) + 1;
    let whole = fuzzing::scan(bytes, wanted, [bytes.len()]);

    let step = if bytes.len() <= SHORT { 1 } else { bytes.len().div_ceil(64) };
    for at in (0..=bytes.len()).step_by(step) {
        same(bytes, &whole, &fuzzing::scan(bytes, wanted, [at, bytes.len()]), &[at]);
    }
    let one_by_one = (0..=bytes.len()).step_by(step).chain([bytes.len()]);
    same(bytes, &whole, &fuzzing::scan(bytes, wanted, one_by_one), &[]);

    // RESP3, which only the client reads: maps, sets, floats, pushes.
    let _ = fuzzing::read_by_client(bytes);
    short(bytes);
    for again in fuzzing::stored(bytes) {
        assert_eq!(fuzzing::stored(&again).first(), Some(&again), "written forms are read back");
    }

    let Ok(Some(lengths)) = whole else { return };
    let end: usize = lengths.iter().sum();
    for at in (0..end).step_by(step) {
        let missing = fuzzing::missing(&bytes[..at], wanted).expect("the beginning of replies");
        assert!((1..=end - at).contains(&missing), "cut at {at}, {missing} are missing: {bytes:?}");
    }
    let mut rest = bytes;
    for length in lengths {
        // The replies are the bytes, in order and without a gap.
        let (reply, behind) = rest.split_at(length);
        rest = behind;
        if let (Ok(ours), Some(theirs)) = (fuzzing::read(reply), fuzzing::read_by_client(reply)) {
            assert_eq!(ours, theirs);
        }
        short(reply);
    }
}

fn short(reply: &[u8]) {
    for error in fuzzing::errors(reply) {
        let shown = error.to_string();
        let ours = shown.contains("unexpected answer") || shown.contains("not a message id");
        assert!(!ours || shown.len() <= MAX_ERROR, "{} bytes: {shown:.80}", shown.len());
    }
}

type Scanned = millstream_core::Result<Option<Vec<usize>>>;

fn same(bytes: &[u8], whole: &Scanned, split: &Scanned, at: &[usize]) {
    match (whole, split) {
        (Ok(whole), Ok(split)) => assert_eq!(whole, split, "split at {at:?}: {bytes:?}"),
        (Err(_), Err(_)) => {}
        _ => panic!("split at {at:?}: {whole:?} is {split:?}: {bytes:?}"),
    }
}
