//! `skiff version`.

use std::process::ExitCode;

/// skiff's own version and the Kubernetes one it speaks.
pub const TEXT: &str = concat!(env!("CARGO_PKG_VERSION"), " (Kubernetes v1.37.0)");

pub fn run() -> anyhow::Result<ExitCode> {
    println!("skiff {TEXT}");
    Ok(ExitCode::SUCCESS)
}
