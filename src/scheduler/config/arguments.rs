//! The `pluginConfig` of a profile: each plugin's arguments over its defaults.

use std::time::Duration;

use api::view::NodeAffinity;
use apimachinery::{Value, selector::LabelSelector, time::parse_go_duration};
use serde::{Deserialize, de::DeserializeOwned};

use crate::{
    args::{PluginArgs, ResourceWeight, ShapePoint, SpreadDefaults, Strategy},
    pod::SpreadConstraint,
};

/// `apiVersion` and `kind`, which arguments may have and need not.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TypeMeta {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct NodeResourcesFitArgs {
    ignored_resources: Vec<String>,
    ignored_resource_groups: Vec<String>,
    scoring_strategy: Option<ScoringStrategy>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct ScoringStrategy {
    r#type: String,
    resources: Vec<ResourceWeight>,
    requested_to_capacity_ratio: Option<Shape>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Shape {
    shape: Vec<ShapePoint>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct BalancedAllocationArgs {
    resources: Vec<ResourceWeight>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct InterPodAffinityArgs {
    hard_pod_affinity_weight: Option<i64>,
    ignore_preferred_terms_of_existing_pods: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct NodeAffinityArgs {
    added_affinity: Option<NodeAffinity>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct PodTopologySpreadArgs {
    default_constraints: Vec<DefaultConstraint>,
    defaulting_type: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct DefaultConstraint {
    max_skew: i64,
    topology_key: String,
    when_unsatisfiable: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct DefaultPreemptionArgs {
    min_candidate_nodes_percentage: Option<i64>,
    min_candidate_nodes_absolute: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct VolumeBindingArgs {
    bind_timeout_seconds: Option<i64>,
    /// Counts only where storage capacity is scored, which is off.
    #[serde(rename = "shape")]
    _shape: Vec<ShapePoint>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct DynamicResourcesArgs {
    /// How long one filter call may take; here the number of its steps is bounded instead.
    filter_timeout: Option<String>,
    binding_timeout: Option<String>,
}

/// Puts the arguments of the plugin `name` into `args`. What is not set keeps its default.
pub(super) fn apply(name: &str, value: Value, args: &mut PluginArgs) -> Result<(), String> {
    match name {
        "NodeResourcesFit" => fit(read(value)?, args),
        "NodeResourcesBalancedAllocation" => {
            let read: BalancedAllocationArgs = read(value)?;
            set_resources(read.resources, &mut args.balanced, "resources")
        }
        "InterPodAffinity" => {
            let read: InterPodAffinityArgs = read(value)?;
            if let Some(weight) = read.hard_pod_affinity_weight {
                args.hard_pod_affinity_weight = within("hardPodAffinityWeight", weight, 0, 100)?;
            }
            args.ignore_preferred_terms_of_existing_pods =
                read.ignore_preferred_terms_of_existing_pods;
            Ok(())
        }
        "NodeAffinity" => {
            let read: NodeAffinityArgs = read(value)?;
            args.added_affinity = read.added_affinity;
            Ok(())
        }
        "PodTopologySpread" => spread(read(value)?, args),
        "DefaultPreemption" => preemption(read(value)?, args),
        "VolumeBinding" => {
            let read: VolumeBindingArgs = read(value)?;
            if let Some(seconds) = read.bind_timeout_seconds {
                let seconds = u64::try_from(seconds).map_err(|_| {
                    format!("args.bindTimeoutSeconds: Invalid value: {seconds}: invalid BindTimeoutSeconds, should not be a negative value")
                })?;
                args.volume_bind_timeout = Duration::from_secs(seconds);
            }
            Ok(())
        }
        _ if value.is_null() || value == serde_json::json!({}) => Ok(()),
        "DynamicResources" => devices(read(value)?, args),
        _ => Err(format!("plugin {name:?} takes no args")),
    }
}

fn read<T: DeserializeOwned + Default>(mut value: Value) -> Result<T, String> {
    if value.is_null() {
        return Ok(T::default());
    }
    if let Some(object) = value.as_object_mut() {
        let kept = TypeMeta::deserialize(&Value::Object(object.clone()));
        kept.map_err(|error| format!("args: {error}"))?;
        object.remove("apiVersion");
        object.remove("kind");
    }
    serde_json::from_value(value).map_err(|error| {
        format!(
            "args: strict decoding error: {}",
            super::file::strict(&error)
        )
    })
}

fn devices(read: DynamicResourcesArgs, args: &mut PluginArgs) -> Result<(), String> {
    /// Upstream's least bindingTimeout.
    const LEAST: Duration = Duration::from_secs(1);
    let DynamicResourcesArgs {
        filter_timeout,
        binding_timeout,
    } = read;
    let duration = |field: &str, text: &str| {
        let nanoseconds = parse_go_duration(text)
            .ok_or_else(|| format!("args.{field}: time: invalid duration {text:?}"))?;
        u64::try_from(nanoseconds)
            .map(Duration::from_nanos)
            .map_err(|_| format!("args.{field}: Invalid value: {text:?}: must be zero or positive"))
    };
    if let Some(text) = filter_timeout {
        duration("filterTimeout", &text)?;
    }
    if let Some(text) = binding_timeout {
        args.device_bind_timeout = duration("bindingTimeout", &text)?;
        if args.device_bind_timeout < LEAST {
            return Err(format!(
                "args.bindingTimeout: Invalid value: {text:?}: must be at least 1 second"
            ));
        }
    }
    Ok(())
}

fn within(field: &str, number: i64, least: i64, most: i64) -> Result<i64, String> {
    if (least..=most).contains(&number) {
        return Ok(number);
    }
    Err(format!(
        "args.{field}: Invalid value: {number}: not in valid range [{least}-{most}]"
    ))
}

fn set_resources(
    read: Vec<ResourceWeight>,
    into: &mut Vec<ResourceWeight>,
    field: &str,
) -> Result<(), String> {
    if read.is_empty() {
        return Ok(());
    }
    let mut resources = read;
    for (index, resource) in resources.iter_mut().enumerate() {
        // Not set is 1.
        if resource.weight == 0 {
            resource.weight = 1;
        }
        within(&format!("{field}[{index}].weight"), resource.weight, 1, 100)?;
    }
    *into = resources;
    Ok(())
}

fn fit(read: NodeResourcesFitArgs, args: &mut PluginArgs) -> Result<(), String> {
    for (index, group) in read.ignored_resource_groups.iter().enumerate() {
        if group.contains('/') {
            return Err(format!(
                "args.ignoredResourceGroups[{index}]: Invalid value: {group:?}: resource group name can't contain '/'"
            ));
        }
    }
    args.fit.ignored_resources = read.ignored_resources;
    args.fit.ignored_resource_groups = read.ignored_resource_groups;
    let Some(strategy) = read.scoring_strategy else {
        return Ok(());
    };
    let shape = strategy
        .requested_to_capacity_ratio
        .map(|ratio| ratio.shape);
    args.fit.strategy = match strategy.r#type.as_str() {
        "" | "LeastAllocated" => Strategy::LeastAllocated,
        "MostAllocated" => Strategy::MostAllocated,
        "RequestedToCapacityRatio" => {
            Strategy::RequestedToCapacityRatio(points(shape.unwrap_or_default())?)
        }
        other => {
            return Err(format!(
                "args.scoringStrategy.type: Unsupported value: {other:?}: supported values: \"LeastAllocated\", \
                 \"MostAllocated\", \"RequestedToCapacityRatio\""
            ));
        }
    };
    set_resources(
        strategy.resources,
        &mut args.fit.resources,
        "scoringStrategy.resources",
    )
}

fn points(shape: Vec<ShapePoint>) -> Result<Vec<ShapePoint>, String> {
    let field = "scoringStrategy.requestedToCapacityRatio.shape";
    if shape.is_empty() {
        return Err(format!(
            "args.{field}: Required value: at least one point must be specified"
        ));
    }
    for (index, point) in shape.iter().enumerate() {
        within(
            &format!("{field}[{index}].utilization"),
            point.utilization,
            0,
            100,
        )?;
        within(&format!("{field}[{index}].score"), point.score, 0, 10)?;
    }
    if shape
        .windows(2)
        .any(|pair| pair[0].utilization >= pair[1].utilization)
    {
        return Err(format!(
            "args.{field}: utilization values must be sorted in increasing order"
        ));
    }
    Ok(shape)
}

fn spread(read: PodTopologySpreadArgs, args: &mut PluginArgs) -> Result<(), String> {
    match read.defaulting_type.as_str() {
        "" | "System" if read.default_constraints.is_empty() => {
            args.spread = SpreadDefaults::System;
            return Ok(());
        }
        "System" => {
            return Err("args.defaultingType: when .defaultingType is System, .defaultConstraints must be empty".into());
        }
        "" | "List" => {}
        other => return Err(format!("args.defaultingType: Unsupported value: {other:?}")),
    }
    let mut list = Vec::new();
    for (index, one) in read.default_constraints.into_iter().enumerate() {
        let field = format!("args.defaultConstraints[{index}]");
        if one.max_skew <= 0 {
            return Err(format!(
                "{field}.maxSkew: Invalid value: {}: not in valid range (0, inf)",
                one.max_skew
            ));
        }
        if one.topology_key.is_empty() {
            return Err(format!(
                "{field}.topologyKey: Required value: can not be empty"
            ));
        }
        let is_hard = match one.when_unsatisfiable.as_str() {
            "DoNotSchedule" => true,
            "ScheduleAnyway" => false,
            other => {
                return Err(format!(
                    "{field}.whenUnsatisfiable: Unsupported value: {other:?}"
                ));
            }
        };
        list.push(SpreadConstraint {
            max_skew: one.max_skew,
            topology_key: one.topology_key,
            is_hard,
            selector: LabelSelector::nothing(),
            min_domains: 1,
            honors_affinity: true,
            honors_taints: false,
        });
    }
    args.spread = SpreadDefaults::List(list);
    Ok(())
}

fn preemption(read: DefaultPreemptionArgs, args: &mut PluginArgs) -> Result<(), String> {
    let number = |field: &str, number: i64, most: Option<i64>| {
        let fits = number >= 0 && most.is_none_or(|most| number <= most);
        let range = most.map_or("inf)".into(), |most| format!("{most}]"));
        let number = usize::try_from(number).ok().filter(|_| fits).ok_or(number);
        number.map_err(|number| {
            format!("args.{field}: Invalid value: {number}: not in valid range [0, {range}")
        })
    };
    let into = &mut args.preemption;
    if let Some(percentage) = read.min_candidate_nodes_percentage {
        into.min_candidate_nodes_percentage =
            number("minCandidateNodesPercentage", percentage, Some(100))?;
    }
    if let Some(absolute) = read.min_candidate_nodes_absolute {
        into.min_candidate_nodes_absolute = number("minCandidateNodesAbsolute", absolute, None)?;
    }
    if into.min_candidate_nodes_percentage == 0 && into.min_candidate_nodes_absolute == 0 {
        return Err("args: cannot set both minCandidateNodesPercentage and minCandidateNodesAbsolute to zero".into());
    }
    Ok(())
}
