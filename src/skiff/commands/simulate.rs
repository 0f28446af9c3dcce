//! `skiff simulate`: nodes without containers, for a cluster that is there.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use cluster::simulator::{self, Config, Nodes};

use super::runtime::{self, ClientFlags, Common};

#[derive(clap::Args, Debug)]
pub struct Simulate {
    #[command(flatten)]
    client: ClientFlags,
    /// How many nodes, besides those of the configuration file.
    #[arg(long, default_value_t = 0)]
    nodes: usize,
    /// What their names begin with.
    #[arg(long, default_value = "simulated")]
    prefix: String,
    /// How many zones they are shared out among; 0 is none.
    #[arg(long, default_value_t = 0)]
    zones: usize,
    /// A file with kinds of nodes and the rules that pods follow: delays, failures, exit codes.
    #[arg(long)]
    config: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

impl Simulate {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let Self {
            client,
            nodes,
            prefix,
            zones,
            config,
            common,
        } = self;
        let mut config = match config {
            Some(file) => {
                let read = || anyhow::Ok(Config::read(&std::fs::read_to_string(&file)?)?);
                read().with_context(|| format!("cannot use {}", file.display()))?
            }
            None => Config::default(),
        };
        if nodes > 0 {
            config.nodes.push(Nodes {
                prefix,
                count: nodes,
                zones,
                ..Nodes::default()
            });
        }
        runtime::run(&common, |shutdown| async move {
            let client = client.client("simulator")?;
            Ok(simulator::run(client, config, shutdown).await?)
        })
    }
}
