//! Carries plans out: the one place that changes the kernel's rules and flows.
//!
//! Owns the order of a sync: rules first, then stale UDP flows (so that a flow cannot come back by the old
//! rules), then health check ports. Level-triggered: it is given everything, and finds out what changed.

use std::time::Instant;

use crate::conntrack::{self, UdpTargets};
use crate::endpoints::NodeInfo;
use crate::health::{Health, ServicePorts};
use crate::model::{EndpointSlice, Family, Service};
use crate::nft::{self, KernelTable, NftError};
use crate::plan::{Plan, plan};
use crate::ruleset::{self, Options};

/// The proxy's hold on the kernel.
pub struct Proxier {
    options: Options,
    health: Health,
    service_ports: ServicePorts,
    tables: [FamilyState; 2],
    /// The last plan that was carried out completely.
    done: Option<Plan>,
}

struct FamilyState {
    family: Family,
    table: KernelTable,
    udp: UdpTargets,
    /// Whether there is or was a table: a node without IPv6 Services gets no IPv6 rules.
    in_use: bool,
}

impl Proxier {
    /// Looks at nothing yet.
    pub fn new(options: Options, health: Health, service_ports: ServicePorts) -> Self {
        let family = |family| FamilyState {
            family,
            table: KernelTable::new(family),
            udp: UdpTargets::default(),
            in_use: family == Family::V4,
        };
        Self {
            options,
            health,
            service_ports,
            tables: [family(Family::V4), family(Family::V6)],
            done: None,
        }
    }

    /// Makes the node serve exactly these Services. Does nothing when the plan is the one already carried out.
    ///
    /// # Errors
    /// What nft said; the kernel keeps the rules of the last sync that succeeded.
    pub async fn sync<'a>(
        &mut self,
        services: impl IntoIterator<Item = &'a Service>,
        slices: impl IntoIterator<Item = &'a EndpointSlice>,
        node: &NodeInfo,
    ) -> Result<(), NftError> {
        let started = Instant::now();
        let plan = plan(services, slices, node);
        if self.done.as_ref() == Some(&plan) {
            self.health.updated(started.elapsed());
            return Ok(());
        }
        let first = self.done.is_none();
        for state in &mut self.tables {
            if !state.in_use {
                state.in_use = plan.of(state.family).next().is_some()
                    || (first && nft::exists(state.family).await?);
            }
            if !state.in_use {
                continue;
            }
            let wanted = ruleset::table(state.family, plan.of(state.family), &self.options);
            if let Err(error) = state.table.apply(&wanted).await {
                self.health.failed();
                return Err(error);
            }
            state.clean_flows(&plan).await;
        }
        self.service_ports.update(&plan.health).await;
        tracing::debug!(ports = plan.ports.len(), took = ?started.elapsed(), "synced proxy rules");
        self.done = Some(plan);
        self.health.updated(started.elapsed());
        Ok(())
    }

    /// Makes the next sync write all rules again, whatever is remembered. Traffic is not interrupted.
    pub fn resync(&mut self) {
        self.done = None;
        for state in &mut self.tables {
            state.table.forget();
        }
    }
}

impl FamilyState {
    async fn clean_flows(&mut self, plan: &Plan) {
        let udp = UdpTargets::of(plan.of(self.family));
        if udp == self.udp {
            return;
        }
        let targets = udp.clone().with_removed(&self.udp);
        self.udp = udp;
        if targets.is_empty() {
            return;
        }
        let family = self.family;
        match tokio::task::spawn_blocking(move || conntrack::clean(family, &targets)).await {
            Ok(Ok(0)) => {}
            Ok(Ok(deleted)) => tracing::info!(deleted, "forgot stale UDP flows"),
            Ok(Err(error)) => tracing::warn!(%error, "looking for stale UDP flows"),
            Err(error) => tracing::error!(%error, "looking for stale UDP flows"),
        }
    }
}
