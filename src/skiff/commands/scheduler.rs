//! `skiff scheduler`: kube-scheduler and its flags.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::ArgAction;
use cluster::component;
use cluster::scheduler::{self, SchedulerConfig};

use super::component::SecureFlags;
use super::runtime::{self, ClientFlags, Common};
use crate::flags;

/// Flags of components of which one at a time works.
#[derive(clap::Args, Debug)]
pub struct LeaderFlags {
    /// Start a leader election client and gain leadership before executing the main loop.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = ArgAction::Set)]
    pub leader_elect: bool,
    /// The duration that non-leader candidates will wait after observing a leadership renewal.
    #[arg(long, value_parser = flags::duration, default_value = "15s")]
    pub leader_elect_lease_duration: Duration,
    /// The interval between attempts by the acting master to renew a leadership slot before it stops leading.
    #[arg(long, value_parser = flags::duration, default_value = "10s")]
    pub leader_elect_renew_deadline: Duration,
    /// The duration the clients should wait between attempting acquisition and renewal of a leadership.
    #[arg(long, value_parser = flags::duration, default_value = "2s")]
    pub leader_elect_retry_period: Duration,
}

#[derive(clap::Args, Debug)]
pub struct Scheduler {
    /// The port on which to serve HTTPS with authentication and authorization. If 0, don't serve HTTPS at all.
    #[arg(long, default_value_t = 10259)]
    secure_port: u16,
    #[command(flatten)]
    secure: SecureFlags,
    #[command(flatten)]
    client: ClientFlags,
    #[command(flatten)]
    leader: LeaderFlags,
    /// The path to the configuration file (KubeSchedulerConfiguration). It takes the place of the leader election flags.
    #[arg(long)]
    config: Option<PathBuf>,
    /// The maximum time a pod can stay in unschedulable pods before it is tried again.
    #[arg(long, value_parser = flags::duration, default_value = "5m0s")]
    pod_max_in_unschedulable_pods_duration: Duration,
    #[command(flatten)]
    common: Common,
}

impl Scheduler {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let Self {
            secure_port,
            secure,
            mut client,
            leader,
            config,
            pod_max_in_unschedulable_pods_duration,
            common,
        } = self;
        let LeaderFlags {
            leader_elect,
            leader_elect_lease_duration,
            leader_elect_renew_deadline,
            leader_elect_retry_period,
        } = leader;
        let mut config = match config {
            Some(file) => {
                let read = || anyhow::Ok(scheduler::load(&std::fs::read_to_string(&file)?)?);
                let loaded = read().with_context(|| format!("cannot use {}", file.display()))?;
                if client.kubeconfig.is_none() && !loaded.kubeconfig.is_empty() {
                    client.kubeconfig = Some(loaded.kubeconfig.into());
                }
                loaded.config
            }
            None => SchedulerConfig {
                leader_elect,
                leader_lease_duration: leader_elect_lease_duration,
                leader_renew_deadline: leader_elect_renew_deadline,
                leader_retry_period: leader_elect_retry_period,
                ..SchedulerConfig::default()
            },
        };
        config.host = cluster::process::host_name();
        config.pod_max_unschedulable = pod_max_in_unschedulable_pods_duration;
        runtime::run(&common, |shutdown| async move {
            let client = client.client("kube-scheduler")?;
            let serving = secure.serving(secure_port)?;
            let serve = super::component::serve(
                serving.map(|serving| component::scheduler(&config, serving)),
                shutdown.clone(),
            );
            let work = async { Ok(scheduler::run(client, config, shutdown).await?) };
            tokio::try_join!(work, serve).map(drop)
        })
    }
}
