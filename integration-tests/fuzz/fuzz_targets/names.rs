//! Names and the keys that are made of them.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| millstream_fuzz::names(input));
