//! The command line: `skiff COMMAND`, or one component when the program is called by its upstream name.
//!
//! Every command is a file in `commands` with its flags and a `run`. Nothing is decided here but which one it is.
//!
//! **Invariant:** no thread exists before a command's `run`: those of nodes change namespaces, which a thread would not
//! follow.

mod commands;
mod flags;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    // rustls refuses to choose between providers by itself. There is one, so a second call is no error either.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match commands::parse(arguments) {
        Ok(command) => match commands::run(command) {
            Ok(code) => code,
            Err(error) => {
                eprintln!("Error: {}", told(&error));
                ExitCode::FAILURE
            }
        },
        Err(error) => refused(&error),
    }
}

/// An error and its causes, but for those that it names itself.
fn told(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Prints what is wrong with the arguments as upstream's components word it.
fn refused(error: &clap::Error) -> ExitCode {
    let flag = || {
        error
            .get(clap::error::ContextKind::InvalidArg)
            .map(ToString::to_string)
            .unwrap_or_default()
    };
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // A closed output is no reason to fail.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        ErrorKind::UnknownArgument if flag().starts_with('-') => {
            let name = flag().split('=').next().unwrap_or_default().to_string();
            eprintln!("Error: unknown flag: {name}");
        }
        _ => {
            let _ = error.print();
        }
    }
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let missing = || std::io::Error::other("no such file");
        let plain = anyhow::Error::new(missing()).context("cannot read a");
        assert_eq!(told(&plain), "cannot read a: no such file");
        let named = anyhow::Error::new(missing()).context("cannot read a: no such file");
        assert_eq!(told(&named), "cannot read a: no such file");
    }
}
