//! Which plugins a profile runs at which extension point: what the user enables and disables, over the defaults.

use serde::Deserialize;

use crate::{
    framework::Plugin,
    plugins::{self, PLUGINS},
    profile::Profile,
};

/// Plugins without an entry in `PLUGINS`, with the points they are for: the queue's order, the Binding, evictions.
const OTHERS: [(&str, &[&str]); 3] = [
    ("PrioritySort", &["queueSort"]),
    ("DefaultBinder", &["bind"]),
    ("DefaultPreemption", &["postFilter", "preEnqueue"]),
];

/// `plugins` of a profile.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Plugins {
    multi_point: PluginSet,
    pre_enqueue: PluginSet,
    queue_sort: PluginSet,
    pre_filter: PluginSet,
    filter: PluginSet,
    post_filter: PluginSet,
    pre_score: PluginSet,
    score: PluginSet,
    reserve: PluginSet,
    permit: PluginSet,
    pre_bind: PluginSet,
    bind: PluginSet,
    post_bind: PluginSet,
}

#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PluginSet {
    enabled: Vec<Named>,
    disabled: Vec<Named>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    name: String,
    /// 0 is the plugin's own.
    #[serde(default)]
    weight: i64,
}

impl PluginSet {
    fn disables(&self, name: &str) -> bool {
        self.disabled
            .iter()
            .any(|one| one.name == name || one.name == "*")
    }

    fn find(&self, name: &str) -> Option<&Named> {
        self.enabled.iter().find(|one| one.name == name)
    }
}

fn find(name: &str) -> Option<&'static (&'static dyn Plugin, i64)> {
    PLUGINS.iter().find(|(plugin, _)| plugin.name() == name)
}

fn exists(name: &str) -> bool {
    find(name).is_some() || OTHERS.iter().any(|(other, _)| *other == name)
}

/// The names of all default plugins, in order.
fn defaults<'a>() -> impl Iterator<Item = &'a str> {
    plugins::all()
        .map(|plugin| plugin.name())
        .chain(OTHERS.iter().map(|(name, _)| *name))
}

impl Plugins {
    /// Sets the profile's plugins.
    ///
    /// A plugin takes part in filtering if it is enabled at `filter`, and in scoring if at `score`; what it prepares
    /// before (`preFilter`, `preScore`) is part of either.
    pub fn apply(&self, profile: &mut Profile) -> Result<(), String> {
        for (point, set) in self.points() {
            if let Some(unknown) = set.enabled.iter().find(|one| !exists(&one.name)) {
                return Err(format!("{point} plugin {:?} does not exist", unknown.name));
            }
        }
        for (point, set, needed, problem) in [
            (
                "queueSort",
                &self.queue_sort,
                "PrioritySort",
                "one queue sort plugin required for profile",
            ),
            (
                "bind",
                &self.bind,
                "DefaultBinder",
                "at least one bind plugin is needed",
            ),
            (
                "preEnqueue",
                &self.pre_enqueue,
                "SchedulingGates",
                "SchedulingGates cannot be disabled",
            ),
        ] {
            if self.names(set).all(|name| name != needed) {
                return Err(format!("{point}: {problem}"));
            }
        }
        let filters = self.names(&self.filter);
        profile.filters = filters.filter_map(find_plugin).collect();
        let scorers: Vec<_> = self
            .names(&self.score)
            .filter_map(|name| {
                let (plugin, weight) = find(name)?;
                // Those without a weight do not score.
                (*weight > 0).then(|| (*plugin, self.weight(name, *weight)))
            })
            .collect();
        profile.scorers = scorers;
        profile.preempts = self
            .names(&self.post_filter)
            .any(|name| name == "DefaultPreemption");
        Ok(())
    }

    /// The plugins of a point in order: those named there, then those of `multiPoint` and the defaults that are
    /// disabled nowhere.
    fn names<'a>(&'a self, set: &'a PluginSet) -> impl Iterator<Item = &'a str> {
        let is_default = |name: &str| defaults().any(|one| one == name);
        let own = set.enabled.iter().map(|one| one.name.as_str());
        let kept = defaults().filter(|name| {
            !self.multi_point.disables(name) || self.multi_point.find(name).is_some()
        });
        let added = self.multi_point.enabled.iter().map(|one| one.name.as_str());
        let rest = kept.chain(added.filter(move |name| !is_default(name)));
        own.chain(rest.filter(move |name| !set.disables(name) && set.find(name).is_none()))
    }

    fn weight(&self, name: &str, default: i64) -> i64 {
        let named = self
            .score
            .find(name)
            .or_else(|| self.multi_point.find(name));
        named
            .map(|one| one.weight)
            .filter(|weight| *weight > 0)
            .unwrap_or(default)
    }

    fn points(&self) -> [(&'static str, &PluginSet); 13] {
        let Plugins {
            multi_point,
            pre_enqueue,
            queue_sort,
            pre_filter,
            filter,
            post_filter,
            pre_score,
            score,
            reserve,
            permit,
            pre_bind,
            bind,
            post_bind,
        } = self;
        [
            ("multiPoint", multi_point),
            ("preEnqueue", pre_enqueue),
            ("queueSort", queue_sort),
            ("preFilter", pre_filter),
            ("filter", filter),
            ("postFilter", post_filter),
            ("preScore", pre_score),
            ("score", score),
            ("reserve", reserve),
            ("permit", permit),
            ("preBind", pre_bind),
            ("bind", bind),
            ("postBind", post_bind),
        ]
    }
}

fn find_plugin(name: &str) -> Option<&'static dyn Plugin> {
    find(name).map(|(plugin, _)| *plugin)
}
