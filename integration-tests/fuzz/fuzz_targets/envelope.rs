//! Entries of any writer: decoding, redeliveries, dead letters.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| millstream_fuzz::envelope(input));
