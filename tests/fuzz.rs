//! The decoders on input that means harm: every seed of the corpus, what a seeded mutator makes of them, and inputs made to
//! cost more than their size. Nothing may panic, and each call stays within a bound of CPU and memory.
//!
//! `SKIFF_FUZZ_ROUNDS` changes how many inputs are made of each corpus, `SKIFF_FUZZ_SEED` which. With cargo-fuzz the same
//! targets run under libFuzzer: `cd tests && cargo +nightly fuzz run json`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use integration::input::hostile;
use integration::input::meter::{Cost, Counting, measure};
use integration::input::mutate::Random;
use integration::input::{TARGETS, Target};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Inputs made of each corpus.
const ROUNDS: usize = 2_000;

/// CPU for one call whatever its size, and for each byte. Without optimisation, some twenty times what the server needs.
const CPU: Duration = Duration::from_secs(2);
const CPU_PER_BYTE: Duration = Duration::from_micros(12);

/// Bytes held at once for one call whatever its size, and for each byte: `{"":0},` of seven bytes becomes a map of 650, and
/// a target keeps a few copies of what it read.
const MEMORY: usize = 24 << 20;
const MEMORY_PER_BYTE: usize = 700;

/// Longest hostile input (bytes): what grows with the square of its size is far past the bound by then.
const HOSTILE: usize = 512 << 10;

fn seeds(target: &Target) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(target.name);
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some())
        .collect();
    files.sort();
    files
        .into_iter()
        .map(|file| std::fs::read(file).expect("a seed"))
        .collect()
}

fn number(variable: &str, otherwise: usize) -> usize {
    std::env::var(variable)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(otherwise)
}

/// An input is put through the target; what went wrong, if something did.
fn fault(target: &Target, input: &[u8]) -> Option<String> {
    let mut outcome = Ok(());
    let Cost { cpu, bytes } =
        measure(|| outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(input))));
    if let Err(panic) = outcome {
        let words = panic.downcast_ref::<String>().cloned();
        let words = words.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        return Some(format!("panicked: {}", words.unwrap_or_default()));
    }
    if cpu > CPU + CPU_PER_BYTE * u32::try_from(input.len()).unwrap_or(u32::MAX) {
        return Some(format!("took {cpu:?} for {} bytes", input.len()));
    }
    if bytes > MEMORY + MEMORY_PER_BYTE * input.len() {
        return Some(format!("held {} MB for {} bytes", bytes >> 20, input.len()));
    }
    None
}

/// The beginning of an input, as a byte string of Rust.
fn shown(input: &[u8]) -> String {
    const SHOWN: usize = 600;
    let more = if input.len() > SHOWN { " …" } else { "" };
    format!(
        "b\"{}\"{more}",
        input[..input.len().min(SHOWN)].escape_ascii()
    )
}

#[track_caller]
fn check(faults: Vec<String>) {
    assert!(
        faults.is_empty(),
        "{} faults:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

#[test]
fn every_target_takes_its_seeds() {
    let mut faults = Vec::new();
    for target in TARGETS {
        let seeds = seeds(target);
        assert!(
            seeds.len() >= 3,
            "{} has {} seeds",
            target.name,
            seeds.len()
        );
        for seed in seeds {
            faults.extend(
                fault(target, &seed)
                    .map(|what| format!("{}: {what}: {}", target.name, shown(&seed))),
            );
        }
    }
    check(faults);
}

#[test]
fn damaged_seeds_cost_no_more_than_their_size() {
    let rounds = number("SKIFF_FUZZ_ROUNDS", ROUNDS);
    let mut faults = Vec::new();
    for target in TARGETS {
        let seeds = seeds(target);
        let mut random = Random::new(number("SKIFF_FUZZ_SEED", 1) as u64);
        for _ in 0..rounds {
            let input = random.input(&seeds, target.words);
            if let Some(what) = fault(target, &input) {
                faults.push(format!("{}: {what}: {}", target.name, shown(&input)));
                break;
            }
        }
    }
    check(faults);
}

#[test]
fn hostile_inputs_cost_no_more_than_their_size() {
    let mut faults = Vec::new();
    for target in TARGETS {
        for (what, input) in hostile::inputs(target.name, target.longest.min(HOSTILE)) {
            faults.extend(
                fault(target, &input).map(|fault| format!("{}: {what}: {fault}", target.name)),
            );
        }
    }
    check(faults);
}
