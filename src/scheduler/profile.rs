//! A profile: the plugins one scheduler name stands for, with their weights and arguments.

use crate::{
    args::PluginArgs,
    framework::Plugin,
    plugins::{self, PLUGINS},
};

/// One scheduler of several in a process (`profiles` of KubeSchedulerConfiguration).
#[derive(Clone)]
pub struct Profile {
    /// `schedulerName` of the pods it schedules, and the component of its events.
    pub name: String,
    pub filters: Vec<&'static dyn Plugin>,
    pub scorers: Vec<(&'static dyn Plugin, i64)>,
    pub args: PluginArgs,
    /// Whether pods are evicted for others.
    pub preempts: bool,
    /// `percentageOfNodesToScore`; 0 adapts to the number of nodes.
    pub percentage_of_nodes_to_score: usize,
}

impl Default for Profile {
    /// Upstream's default scheduler.
    fn default() -> Self {
        Profile {
            name: "default-scheduler".into(),
            filters: plugins::all().collect(),
            scorers: PLUGINS
                .iter()
                .filter(|(_, weight)| *weight > 0)
                .copied()
                .collect(),
            args: PluginArgs::default(),
            preempts: true,
            percentage_of_nodes_to_score: 0,
        }
    }
}

impl std::fmt::Debug for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names =
            |all: &[&'static dyn Plugin]| all.iter().map(|one| one.name()).collect::<Vec<_>>();
        let weights: Vec<_> = self
            .scorers
            .iter()
            .map(|(one, weight)| (one.name(), *weight))
            .collect();
        f.debug_struct("Profile")
            .field("name", &self.name)
            .field("filters", &names(&self.filters))
            .field("scorers", &weights)
            .field("args", &self.args)
            .field("preempts", &self.preempts)
            .field(
                "percentage_of_nodes_to_score",
                &self.percentage_of_nodes_to_score,
            )
            .finish()
    }
}
