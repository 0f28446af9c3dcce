//! The controllers of kube-controller-manager: each watches a few resources and writes what is missing between what
//! is wanted and what there is.
//!
//! `CONTROLLERS` lists them under upstream's names; `run` elects a leader, starts those selected over shared
//! informers, and starts all anew should one end. Within a controller, keys go through a work queue, `plan` turns
//! what is observed into actions and is pure, `apply` carries them out.
//!
//! **Invariant:** reconciling takes a key, never an event: running it twice, or late, ends in the same state.

mod autoscaling;
mod batch;
mod bootstrap;
mod certificates;
mod cluster_role_aggregation;
mod config;
mod context;
mod discovery;
mod disruption;
mod dynamic;
mod endpoints;
mod garbage;
mod legacy_tokens;
mod namespace;
mod node_ipam;
mod node_lifecycle;
mod node_ttl;
mod objects;
mod pod_gc;
mod pod_resources;
mod policy_status;
mod quota;
mod resources;
mod root_ca;
mod service_account;
mod service_cidrs;
mod service_lb;
mod storage;
mod storage_versions;
mod taint_eviction;
#[cfg(test)]
mod testing;
mod token_secrets;
mod workloads;
mod writes;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use client::{
    Client, Factory,
    leader::{LeaderConfig, LeaderElector},
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use config::ControllersConfig;
pub use context::Context;
pub use storage::provisioner::NAME as LOCAL_PROVISIONER;

/// One controller: a unit struct, listed in `CONTROLLERS`.
#[async_trait]
pub trait Controller: Sync {
    /// Upstream's name, as in `--controllers`.
    fn name(&self) -> &'static str;

    /// Upstream's earlier names, also understood by `--controllers`.
    fn aliases(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether `*` selects it.
    fn default_on(&self) -> bool {
        true
    }

    /// Works until `context.shutdown`. Returning earlier restarts all controllers.
    async fn run(&self, context: Context);
}

/// Every controller there is.
pub static CONTROLLERS: &[&dyn Controller] = &[
    &service_account::ServiceAccounts,
    &root_ca::RootCa,
    &cluster_role_aggregation::ClusterRoleAggregation,
    &namespace::Namespaces,
    &pod_gc::PodGc,
    &garbage::GarbageCollector,
    &node_ipam::NodeIpam,
    &node_lifecycle::NodeLifecycle,
    &taint_eviction::TaintEviction,
    &endpoints::legacy::EndpointsController,
    &endpoints::slice_controller::EndpointSlices,
    &endpoints::mirroring::Mirroring,
    &workloads::replica_set::ReplicaSets,
    &workloads::replica_set::ReplicationControllers,
    &workloads::deployment::Deployments,
    &workloads::daemon_set::DaemonSets,
    &workloads::stateful_set::StatefulSets,
    &batch::job::Jobs,
    &batch::cron_job::CronJobs,
    &batch::ttl::TtlAfterFinished,
    &disruption::Disruption,
    &quota::ResourceQuotas,
    &autoscaling::Autoscaling,
    &certificates::approve::Approving,
    &certificates::sign::Signing,
    &certificates::clean::Cleaner,
    &certificates::clean_pods::PodRequestCleaner,
    &certificates::publish::Publisher,
    &bootstrap::signer::BootstrapSigner,
    &bootstrap::cleaner::TokenCleaner,
    &storage::binder::Binder,
    &storage::protection::ClaimProtection,
    &storage::protection::VolumeProtection,
    &storage::ephemeral::EphemeralVolumes,
    &storage::expander::Expander,
    &storage::attributes_class::AttributesClassProtection,
    &storage::attach_detach::AttachDetach,
    &storage::provisioner::LocalProvisioner,
    &resources::claims::ResourceClaims,
    &resources::taints::DeviceTaintEviction,
    &node_ttl::NodeTtl,
    &token_secrets::TokenSecrets,
    &legacy_tokens::LegacyTokens,
    &storage_versions::StorageVersions,
    &service_cidrs::ServiceCidrs,
    &service_lb::ServiceLoadBalancers,
    &policy_status::PolicyStatus,
];

/// Why `run` cannot work at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0:?} is not in the list of known controllers")]
    UnknownController(String),
    #[error("{0}")]
    Config(String),
}

/// How long controllers may take to end.
const LAST_WRITES: Duration = Duration::from_secs(5);

/// Runs the selected controllers until `shutdown`; if `config.leader_elect`, only while holding the lease
/// `kube-system/kube-controller-manager`, which is sought again when lost.
pub async fn run(
    client: Client,
    config: ControllersConfig,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    /// Pause before everything is started anew.
    const RESTART: Duration = Duration::from_secs(1);
    let selected = select(&config.controllers)?;
    config.check().map_err(Error::Config)?;
    let config = Arc::new(config);
    let client = client.with_user_agent("kube-controller-manager");
    while !shutdown.is_cancelled() {
        if config.leader_elect {
            let mut lease = LeaderConfig::new("kube-controller-manager", &config.host);
            lease.lease_duration = config.leader_lease_duration;
            lease.renew_deadline = config.leader_renew_deadline;
            lease.retry_period = config.leader_retry_period;
            let context = Context::new(client.clone(), config.clone(), shutdown.clone());
            let recorder = context.recorder("kube-controller-manager");
            let mut elector = LeaderElector::new(client.clone(), lease).with_recorder(recorder);
            let lead = |leading| run_all(&selected, client.clone(), config.clone(), leading);
            elector.run(&shutdown, lead).await;
        } else {
            run_all(
                &selected,
                client.clone(),
                config.clone(),
                shutdown.child_token(),
            )
            .await;
        }
        let _ = tokio::time::timeout(RESTART, shutdown.cancelled()).await;
    }
    Ok(())
}

/// Runs the controllers until `leading` is cancelled or one of them (or an informer) ends.
async fn run_all(
    selected: &[&'static dyn Controller],
    client: Client,
    config: Arc<ControllersConfig>,
    leading: CancellationToken,
) {
    let context = Context::new(client, config, leading.clone());
    let mut tasks = JoinSet::new();
    for controller in selected.iter().copied() {
        let context = context.clone();
        tasks.spawn(async move {
            controller.run(context).await;
            controller.name()
        });
    }
    let informers: &Factory = &context.informers;
    tokio::select! {
        () = leading.cancelled() => {}
        ended = informers.join() => if let Err(error) = ended {
            tracing::error!(%error, "restarting the controllers");
        },
        ended = tasks.join_next(), if !tasks.is_empty() => match ended {
            Some(Ok(name)) if !leading.is_cancelled() => {
                tracing::error!(controller = name, "ended, restarting the controllers");
            }
            Some(Err(error)) => tracing::error!(%error, "a controller failed, restarting the controllers"),
            _ => {}
        },
    }
    leading.cancel();
    // Writes under way are waited for, but not for a server that does not answer.
    let ended = async { while tasks.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(LAST_WRITES, ended).await;
    tasks.shutdown().await;
}

/// The controllers `--controllers` selects: `*` is all that are on by default, `foo` adds, `-foo` removes; a name
/// decides for itself before `*` does (app.IsControllerEnabled).
fn select(words: &[String]) -> Result<Vec<&'static dyn Controller>, Error> {
    let named = |controller: &&dyn Controller, name: &str| {
        controller.name() == name || controller.aliases().contains(&name)
    };
    for word in words.iter().filter(|word| *word != "*") {
        let name = word.strip_prefix('-').unwrap_or(word);
        let known = CONTROLLERS.iter().any(|controller| named(controller, name));
        if !known && !config::LATER.contains(&name) {
            return Err(Error::UnknownController(name.to_string()));
        }
    }
    let all = words.is_empty() || words.iter().any(|word| word == "*");
    let enabled = |controller: &&&'static dyn Controller| {
        let own = words.iter().find_map(|word| match word.strip_prefix('-') {
            Some(name) => named(controller, name).then_some(false),
            None => named(controller, word).then_some(true),
        });
        own.unwrap_or(all && controller.default_on())
    };
    Ok(CONTROLLERS.iter().filter(enabled).copied().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::r::{CONFIGMAPS, NAMESPACES, NODES, SERVICEACCOUNTS};
    use client::fake::Server;
    use serde_json::json;

    fn names(words: &[&str]) -> Vec<&'static str> {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        let selected = select(&words).unwrap();
        selected
            .iter()
            .map(|controller| controller.name())
            .collect()
    }

    #[test]
    fn controllers_are_selected_by_star_name_and_minus() {
        let default = CONTROLLERS.iter().filter(|one| one.default_on());
        assert_eq!(names(&[]).len(), default.count());
        assert!(names(&["*", "bootstrapsigner"]).contains(&"bootstrap-signer-controller"));
        assert_eq!(
            names(&["serviceaccount-controller"]),
            ["serviceaccount-controller"]
        );
        assert_eq!(names(&["serviceaccount"]), ["serviceaccount-controller"]);
        assert!(!names(&["*", "-node-ipam-controller"]).contains(&"node-ipam-controller"));
        assert!(select(&["nonsense".into()]).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_namespace_gets_its_account_and_ca_and_a_new_node_its_range() {
        let server = Server::default();
        server.put(&NAMESPACES, json!({"metadata": {"name": "default"}}));
        let config = ControllersConfig {
            root_ca: Some("CA".into()),
            allocate_node_cidrs: true,
            cluster_cidrs: vec!["10.244.0.0/16".into()],
            ..ControllersConfig::default()
        };
        let shutdown = CancellationToken::new();
        let work = tokio::spawn(run(server.client(), config, shutdown.clone()));
        tokio::time::sleep(Duration::from_secs(5)).await;
        server.put(&NAMESPACES, json!({"metadata": {"name": "n"}}));
        server.put(&NODES, json!({"metadata": {"name": "w"}}));
        server.remove(&SERVICEACCOUNTS, "default/default");
        tokio::time::sleep(Duration::from_secs(5)).await;
        for namespace in ["default", "n"] {
            let account = format!("{namespace}/default");
            assert!(
                server.get(&SERVICEACCOUNTS, &account).is_some(),
                "{account}"
            );
            let map = server
                .get(&CONFIGMAPS, &format!("{namespace}/kube-root-ca.crt"))
                .unwrap();
            assert_eq!(map["data"]["ca.crt"], "CA");
        }
        let node = server.get(&NODES, "w").unwrap();
        assert_eq!(
            node["spec"],
            json!({"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24"]})
        );
        shutdown.cancel();
        work.await.unwrap().unwrap();
    }
}
