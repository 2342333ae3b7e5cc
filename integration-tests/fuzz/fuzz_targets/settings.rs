//! Settings as numbers: those of consumers, producers, workers and locks, which are refused or run.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| millstream_fuzz::settings(input));
