//! `skiff node`: look at nodes, stop and start them, run commands in them. `skiff node-init`: a node's own beginning.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use cluster::local::state::{Cluster, lock_machine};
use cluster::local::{nodes, prepare};
use cluster::node::spec::Event;
use cluster::node::{exec, init};
use cluster::process::Process;

use super::runtime;

#[derive(Subcommand)]
pub enum Node {
    /// List the nodes.
    Ls(Name),
    /// Kill a node and everything in it.
    Stop(Which),
    /// Start a node that was stopped.
    Start(Which),
    /// Run a command in a node.
    Exec(Exec),
}

#[derive(clap::Args)]
pub struct Name {
    /// The cluster.
    #[arg(long = "name", default_value = "lab")]
    cluster: String,
}

#[derive(clap::Args)]
pub struct Which {
    #[command(flatten)]
    name: Name,
    /// The node.
    node: String,
}

#[derive(clap::Args)]
pub struct Exec {
    #[command(flatten)]
    name: Name,
    /// The node.
    node: String,
    /// Taken as `docker exec` takes them: a command has the caller's input and terminal anyway.
    #[arg(short, long, hide = true)]
    interactive: bool,
    #[arg(short, long, hide = true)]
    tty: bool,
    /// The command and its arguments, after `--` or not.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

impl Node {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Ls(name) => list(&name.cluster),
            Self::Stop(which) => stop(&which),
            Self::Start(which) => start(&which),
            Self::Exec(exec) => run_inside(&exec),
        }
    }
}

/// Names, how they are, and where: what `docker ps` tells of kind's nodes.
fn list(name: &str) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::open(name)?;
    let rows: Vec<[String; 4]> = cluster
        .nodes
        .iter()
        .map(|node| {
            let status = if node.is_running() {
                "Running"
            } else {
                "Stopped"
            };
            let ports = if node.control_plane {
                format!("127.0.0.1:{}->6443/tcp", cluster.port)
            } else {
                String::new()
            };
            [
                node.name.clone(),
                status.into(),
                node.address.to_string(),
                ports,
            ]
        })
        .collect();
    print_table(["NAME", "STATUS", "ADDRESS", "PORTS"], &rows);
    Ok(ExitCode::SUCCESS)
}

/// Columns as wide as their widest cell, three blanks between.
pub fn print_table<const N: usize>(header: [&str; N], rows: &[[String; N]]) {
    let mut all = vec![header.map(String::from)];
    all.extend(rows.iter().cloned());
    let widths: Vec<usize> = (0..N)
        .map(|column| all.iter().map(|row| row[column].len()).max().unwrap_or(0))
        .collect();
    for row in &all {
        let line: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        println!("{}", line.join("   ").trim_end());
    }
}

fn stop(which: &Which) -> anyhow::Result<ExitCode> {
    let _lock = lock_machine()?;
    let cluster = Cluster::open(&which.name.cluster)?;
    nodes::stop(&cluster.name, cluster.expect_node(&which.node)?)?;
    println!("{}", which.node);
    Ok(ExitCode::SUCCESS)
}

fn start(which: &Which) -> anyhow::Result<ExitCode> {
    let _lock = lock_machine()?;
    let mut cluster = Cluster::open(&which.name.cluster)?;
    let node = cluster.expect_node(&which.node)?.clone();
    if node.is_running() {
        println!("{}", which.node);
        return Ok(ExitCode::SUCCESS);
    }
    let pki = prepare::certificates(&cluster)?;
    let spec = nodes::specify(&cluster, &node, &pki)?;
    let mut process = None;
    let mut tell = |event| match event {
        Event::Started { pid } => process = Process::of(pid),
        Event::Restarting { service, reason } => {
            eprintln!("! {service} ended ({reason}); starting it again")
        }
        _ => {}
    };
    let started = nodes::start(&cluster, &spec, &mut tell);
    if let Some(node) = cluster.node_mut(&which.node) {
        node.process = process;
    }
    cluster.save()?;
    started?;
    println!("{}", which.node);
    Ok(ExitCode::SUCCESS)
}

fn run_inside(exec: &Exec) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::open(&exec.name.cluster)?;
    let node = cluster.expect_node(&exec.node)?;
    let code = exec::exec(
        &cluster.name,
        &node.name,
        nodes::first_process(node)?,
        &exec.command,
    )?;
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)))
}

#[derive(clap::Args)]
pub struct Init {
    /// This is the first process already.
    #[arg(long)]
    inside: bool,
    spec: PathBuf,
}

impl Init {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        runtime::log(0);
        if self.inside {
            init::inside(&self.spec)?;
        } else {
            init::outside(&self.spec)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        exec: Exec,
    }

    #[test]
    fn a_command_may_be_written_as_for_docker() {
        let lines: [&[&str]; 4] = [
            &["--name", "a", "n", "--", "ss", "-ltnp"],
            &["--name", "a", "n", "ss", "-ltnp"],
            &["n", "--name", "a", "--", "ss", "-ltnp"],
            &["-it", "--name=a", "n", "ss", "-ltnp"],
        ];
        for line in lines {
            let words = std::iter::once(&"exec").chain(line);
            let exec = Line::try_parse_from(words).expect("understood").exec;
            assert_eq!((exec.name.cluster.as_str(), exec.node.as_str()), ("a", "n"));
            assert_eq!(exec.command, ["ss", "-ltnp"], "{line:?}");
        }
        let inner = Line::try_parse_from(["exec", "n", "sh", "-c", "x", "--", "--name"]);
        let inner = inner.expect("understood").exec;
        assert_eq!(inner.command, ["sh", "-c", "x", "--", "--name"]);
        assert!(Line::try_parse_from(["exec", "n"]).is_err());
    }
}
