//! `quantity` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| integration::input::texts::quantity(bytes));
