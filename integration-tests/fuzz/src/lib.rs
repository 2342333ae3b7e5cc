//! Functions of the fuzz targets: each panics if a property does not hold for an input.

// Files of the command line are compiled here too, and name the library so.
extern crate millstream_core as millstream;

#[path = "../../tests/fuzzing/harness/mod.rs"]
#[allow(dead_code)]
mod harness;

macro_rules! targets {
    ($($name:ident),*) => {
        $(
            #[doc = concat!("Checks an input of the target `", stringify!($name), "`.")]
            pub fn $name(input: &[u8]) {
                harness::$name::check(input);
            }
        )*
    };
}

targets!(config, cron, envelope, names, replies, settings, url);
