//! Asserts which crate may import which (the table in src/README.md), and the tree's tidiness.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Crate, then every crate of the workspace it may name in its `Cargo.toml`.
const EDGES: &[(&str, &[&str])] = &[
    ("apimachinery", &[]),
    ("api", &["apimachinery"]),
    ("cel", &["apimachinery"]),
    ("store", &["apimachinery"]),
    ("apiserver", &["apimachinery", "api", "cel", "store"]),
    ("client", &["apimachinery", "api"]),
    ("scheduler", &["apimachinery", "api", "cel", "client"]),
    ("controllers", &["apimachinery", "api", "cel", "client"]),
    ("kubelet", &["apimachinery", "api", "client"]),
    ("proxy", &["apimachinery", "api", "client"]),
    ("dns", &["apimachinery", "api", "client"]),
    ("simulator", &["apimachinery", "api", "client"]),
    (
        "cluster",
        &[
            "apimachinery",
            "api",
            "store",
            "apiserver",
            "client",
            "scheduler",
            "controllers",
            "kubelet",
            "proxy",
            "dns",
            "simulator",
        ],
    ),
    ("skiff", &["cluster"]),
];

/// No hand-written file is longer.
const LONGEST_FILE: usize = 1_000;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn crates() -> BTreeSet<String> {
    std::fs::read_dir(root().join("src"))
        .expect("src is there")
        .filter_map(Result::ok)
        .filter(|entry| entry.path().join("Cargo.toml").exists())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// The workspace's crates that a manifest names under any of its dependency tables.
fn dependencies(name: &str, all: &BTreeSet<String>) -> BTreeSet<String> {
    let manifest = std::fs::read_to_string(root().join("src").join(name).join("Cargo.toml"))
        .expect("a manifest");
    let mut inside = false;
    let mut found = BTreeSet::new();
    for line in manifest.lines() {
        if let Some(section) = line.strip_prefix('[') {
            inside = section.contains("dependencies");
        } else if inside {
            let key = line.split(['.', ' ', '=']).next().unwrap_or_default();
            if all.contains(key) {
                found.insert(key.to_owned());
            }
        }
    }
    found
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder)
        .expect("a readable folder")
        .filter_map(Result::ok)
    {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() && name != "generated" && name != "target" {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_crate_imports_only_what_the_table_allows() {
    let all = crates();
    let named: BTreeSet<String> = EDGES.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(
        all, named,
        "the table names every crate of src and no other"
    );
    for (name, allowed) in EDGES {
        let allowed: BTreeSet<String> = allowed.iter().map(|name| (*name).to_owned()).collect();
        let extra: Vec<String> = dependencies(name, &all)
            .difference(&allowed)
            .cloned()
            .collect();
        assert!(extra.is_empty(), "{name} may not use {extra:?}");
    }
}

#[test]
fn every_file_says_first_what_it_owns_and_is_short_enough_to_read() {
    let mut files = Vec::new();
    for folder in ["src", "tests", "conformance"] {
        rust_files(&root().join(folder), &mut files);
    }
    for file in files {
        let text = std::fs::read_to_string(&file).expect("readable");
        assert!(
            text.starts_with("//!"),
            "{} does not open with //!",
            file.display()
        );
        let lines = text.lines().count();
        assert!(
            lines <= LONGEST_FILE,
            "{} has {lines} lines",
            file.display()
        );
    }
}
