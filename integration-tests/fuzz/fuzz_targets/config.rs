//! Settings as text: what is typed on the command line, and what is stored at a topic.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| millstream_fuzz::config(input));
