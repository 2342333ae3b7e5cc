//! URLs and configurations, which never show a password.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| millstream_fuzz::url(input));
