//! Bytes of a server: the scanner and the cursor of connections of our own, conversions, stored forms.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| millstream_fuzz::replies(input));
