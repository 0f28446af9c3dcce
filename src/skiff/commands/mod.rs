//! The table of commands.

mod apiserver;
mod component;
mod controller_manager;
mod dns;
mod etcd_gateway;
mod kubelet;
mod node;
mod proxy;
mod runtime;
mod scheduler;
mod server;
mod simulate;
mod up;
mod version;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::flags;

/// Kubernetes in one binary: an API server, a scheduler, the controllers and a node agent.
#[derive(Parser)]
#[command(name = "skiff", version = version::TEXT, arg_required_else_help = true)]
struct Skiff {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Make a cluster on this machine, or make one that is there whole again.
    Up(up::Up),
    /// Remove a cluster without a trace.
    Down(up::Down),
    /// Tell how a cluster is.
    Status(up::Status),
    /// Look at nodes, stop and start them, run commands in them.
    #[command(subcommand)]
    Node(node::Node),
    /// Run the control plane in one process, on a folder.
    Server(Box<server::Server>),
    /// Run one API server (kube-apiserver).
    Apiserver(Box<apiserver::ApiServer>),
    /// Run the scheduler (kube-scheduler).
    Scheduler(scheduler::Scheduler),
    /// Run the controllers (kube-controller-manager).
    ControllerManager(controller_manager::ControllerManager),
    /// Run the node agent (kubelet).
    Kubelet(Box<kubelet::Kubelet>),
    /// Run the service proxy (kube-proxy).
    Proxy(proxy::Proxy),
    /// Run the cluster's DNS.
    Dns(dns::Dns),
    /// Carry connections from etcd's address to where the store is served.
    EtcdGateway(etcd_gateway::EtcdGateway),
    /// Add nodes without containers to a cluster, whose pods live by rules.
    Simulate(simulate::Simulate),
    /// Print the version.
    Version,
    /// The first process of a node and the one that starts it.
    #[command(hide = true)]
    NodeInit(node::Init),
}

/// The upstream names the program answers to, with the command each means.
const NAMES: [(&str, &str); 5] = [
    ("kube-apiserver", "apiserver"),
    ("kube-scheduler", "scheduler"),
    ("kube-controller-manager", "controller-manager"),
    ("kubelet", "kubelet"),
    ("kube-proxy", "proxy"),
];

/// Reads the arguments, the first of which is the name the program was called by.
pub fn parse(arguments: Vec<OsString>) -> Result<Command, clap::Error> {
    let mut arguments = arguments.into_iter();
    let called = arguments.next().unwrap_or_else(|| "skiff".into());
    let name = Path::new(&called)
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let mut rest: Vec<OsString> = arguments.collect();
    let alias = NAMES.iter().find(|(upstream, _)| *upstream == name);
    if let Some((_, command)) = alias {
        rest.insert(0, (*command).into());
    }
    if let Some(component) = rest
        .first()
        .and_then(|first| NAMES.iter().find(|(_, command)| first == *command))
    {
        cluster::process::set_name(component.0);
        for argument in rest.iter_mut().skip(1) {
            if let Some(text) = argument.to_str() {
                *argument = flags::normalize(text).into();
            }
        }
    }
    let all = std::iter::once(OsString::from("skiff")).chain(rest);
    let matches = Skiff::command().try_get_matches_from(all)?;
    flags::remember(&Skiff::command(), &matches);
    Ok(Skiff::from_arg_matches(&matches)?.command)
}

pub fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Up(up) => up.run(),
        Command::Down(down) => down.run(),
        Command::Status(status) => status.run(),
        Command::Node(node) => node.run(),
        Command::Server(server) => server.run(),
        Command::Apiserver(server) => server.run(),
        Command::Scheduler(scheduler) => scheduler.run(),
        Command::ControllerManager(manager) => manager.run(),
        Command::Kubelet(kubelet) => kubelet.run(),
        Command::Proxy(proxy) => proxy.run(),
        Command::Dns(dns) => dns.run(),
        Command::EtcdGateway(gateway) => gateway.run(),
        Command::Simulate(simulate) => simulate.run(),
        Command::Version => version::run(),
        Command::NodeInit(init) => init.run(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_words(words: &[&str]) -> Result<Command, clap::Error> {
        parse(words.iter().map(OsString::from).collect())
    }

    #[test]
    fn the_table_of_flags_is_consistent() {
        Skiff::command().debug_assert();
    }

    #[test]
    fn the_name_the_program_is_called_by_chooses_the_component() {
        let parsed =
            parse_words(&["/run/skiff/bin/kube-scheduler", "--kubeconfig=x"]).expect("parsed");
        assert!(matches!(parsed, Command::Scheduler(_)));
        let parsed = parse_words(&["skiff", "scheduler", "--kubeconfig", "x"]).expect("parsed");
        assert!(matches!(parsed, Command::Scheduler(_)));
    }

    #[test]
    fn an_unknown_flag_is_refused() {
        let error = parse_words(&["kube-proxy", "--no-such-flag=1"])
            .err()
            .expect("refused");
        assert_eq!(error.kind(), clap::error::ErrorKind::UnknownArgument);
    }
}
