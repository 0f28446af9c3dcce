//! Starts a node from the machine's side and listens to what it tells until it is complete.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::spec::{Event, NodeSpec};
use crate::files::{self, FileError};
use crate::paths::NodePaths;

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("cannot start this program again: {0}")]
    Spawn(std::io::Error),
    #[error("node {node} cannot start: {reason}")]
    Failed { node: String, reason: String },
    #[error("node {node} ended before it was complete; see {log}")]
    Ended { node: String, log: PathBuf },
}

/// Writes the node's spec, starts it, and calls `each` with every event until the node is complete. The node lives on
/// when the caller does not.
pub fn launch(spec: &NodeSpec, each: &mut dyn FnMut(Event)) -> Result<(), LaunchError> {
    let paths = NodePaths::at(&spec.directory);
    super::mounts::prepare(&paths)?;
    let text = serde_json::to_vec_pretty(spec).unwrap_or_default();
    files::write(&paths.spec(), &text, 0o600)?;
    let log_path = paths.log().join("node.log");
    let log = OpenOptions::new().create(true).append(true).open(&log_path);
    let log = log.map_err(|source| FileError::new("open", &log_path, source))?;

    let executable = std::env::current_exe().map_err(LaunchError::Spawn)?;
    let mut command = Command::new(executable);
    command.arg("node-init").arg(paths.spec());
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
    let mut child = command.spawn().map_err(LaunchError::Spawn)?;
    let events = child
        .stdout
        .take()
        .map(BufReader::new)
        .into_iter()
        .flat_map(BufRead::lines);
    let mut outcome = Err(LaunchError::Ended {
        node: spec.name.clone(),
        log: log_path,
    });
    for line in events.map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(Event::Failed { reason }) => {
                outcome = Err(LaunchError::Failed {
                    node: spec.name.clone(),
                    reason,
                })
            }
            Ok(Event::Complete) => {
                outcome = Ok(());
                each(Event::Complete);
                break;
            }
            Ok(event) => each(event),
            Err(_) => {}
        }
    }
    // The outer step ends by itself; this only takes its exit status off the kernel's hands.
    let _ = child.wait();
    outcome
}
