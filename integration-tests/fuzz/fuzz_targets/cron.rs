//! Recurring rules as text, and their times.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| millstream_fuzz::cron(input));
