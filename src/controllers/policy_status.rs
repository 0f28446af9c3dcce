//! validatingadmissionpolicy-status-controller: tells of each policy what its expressions get wrong about the types they
//! are about (`typeChecking.expressionWarnings`), once for every generation.
//!
//! **Invariant:** a warning changes nothing: what a policy does is for the API server to say.

use std::collections::BTreeSet;

use api::r::{CUSTOMRESOURCEDEFINITIONS, VALIDATINGADMISSIONPOLICIES};
use api::view::ObjectMeta;
use apimachinery::meta;
use apimachinery::schema::{Ref, structural};
use async_trait::async_trait;
use cel::Program;
use cel::check::{self, Env, Ty};
use client::workqueue::{self, Queue, Requeue};
use client::{ClientError, ListOptions, Patch, Selectors, WriteOptions};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Context, Controller, context::synced};

const NAME: &str = "validatingadmissionpolicy-status-controller";
/// Types looked at for each rule of a policy (`maxTypesToCheck`).
const MAX_TYPES: usize = 10;

pub struct PolicyStatus;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Policy {
    metadata: ObjectMeta,
    spec: Spec,
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    observed_generation: i64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    param_kind: Option<ParamKind>,
    match_constraints: MatchConstraints,
    variables: Vec<Variable>,
    validations: Vec<Validation>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ParamKind {
    api_version: String,
    kind: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct MatchConstraints {
    resource_rules: Vec<Rule>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Rule {
    api_groups: Vec<String>,
    api_versions: Vec<String>,
    resources: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Variable {
    name: String,
    expression: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Validation {
    expression: String,
    message_expression: String,
}

/// Group, version and resource.
type Wanted = (String, String, String);

/// A kind that a policy is about.
struct Kind {
    group: String,
    version: String,
    kind: String,
    ty: Ty,
}

#[async_trait]
impl Controller for PolicyStatus {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn run(&self, context: Context) {
        let policies = context.informers.informer::<Policy>(
            &VALIDATINGADMISSIONPOLICIES,
            "",
            Selectors::default(),
        );
        if !synced!(context, policies) {
            return;
        }
        let queue = Queue::default();
        let (keys, all) = (queue.clone(), policies.clone());
        policies.add_handler(move |_| {
            for policy in all.list() {
                if is_new(&policy) {
                    keys.add(policy.metadata.name.clone());
                }
            }
        });
        workqueue::run(NAME, &queue, 1, &context.shutdown, |name| {
            let (context, policies) = (&context, &policies);
            async move {
                if let Some(policy) = policies.get(&name).filter(|policy| is_new(policy)) {
                    reconcile(context, &policy).await?;
                }
                Ok::<_, ClientError>(Requeue::No)
            }
        })
        .await;
    }
}

/// Whether nothing was told of this generation yet.
fn is_new(policy: &Policy) -> bool {
    policy.metadata.generation > policy.status.observed_generation
}

async fn reconcile(context: &Context, policy: &Policy) -> Result<(), ClientError> {
    let wanted = wanted(&policy.spec.match_constraints.resource_rules);
    let param = policy.spec.param_kind.as_ref();
    let all_built_in = wanted
        .iter()
        .all(|(group, version, resource)| api::find(group, version, resource).is_some())
        && param.is_none_or(|kind| built_in(kind).is_some());
    let definitions = if all_built_in {
        Vec::new()
    } else {
        let all = ListOptions::default();
        let resource = &CUSTOMRESOURCEDEFINITIONS;
        let list = context.client.list_all::<Value>(resource, "", &all);
        list.await?.items
    };
    let warnings = plan(&policy.spec, &wanted, &definitions);
    let name = &policy.metadata.name;
    let mut checking = json!({});
    if !warnings.is_empty() {
        checking["expressionWarnings"] = warnings.into();
    }
    let applied = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
        "status": {"observedGeneration": policy.metadata.generation, "typeChecking": checking},
    });
    let options = WriteOptions {
        field_manager: NAME.into(),
        force: true,
        ..WriteOptions::default()
    };
    let patch = Patch::Apply(applied);
    let policies = &VALIDATINGADMISSIONPOLICIES;
    let written = context
        .client
        .patch::<Value>(policies, "", name, "status", &patch, &options);
    match written.await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

/// What to warn of, given the custom kinds that may be meant.
fn plan(spec: &Spec, wanted: &BTreeSet<Wanted>, definitions: &[Value]) -> Vec<Value> {
    let mut kinds: Vec<Kind> = wanted
        .iter()
        .filter_map(|(group, version, resource)| kind_of(definitions, group, version, resource))
        .collect();
    kinds.sort_by(|a, b| (&a.group, &a.version, &a.kind).cmp(&(&b.group, &b.version, &b.kind)));
    let param = spec.param_kind.as_ref();
    let params = param.and_then(|kind| type_of_params(definitions, kind));
    warnings(spec, &kinds, params)
}

/// The resources rules name, without those they only hint at (`typesToCheck`).
fn wanted(rules: &[Rule]) -> BTreeSet<Wanted> {
    let mut wanted = BTreeSet::new();
    for rule in rules {
        let any = |list: &[String]| list.iter().any(|text| text.contains('*'));
        if any(&rule.api_groups) || any(&rule.api_versions) {
            continue;
        }
        let mut count = 0;
        for group in &rule.api_groups {
            for version in &rule.api_versions {
                for resource in &rule.resources {
                    if resource.contains(['*', '/']) || count == MAX_TYPES {
                        continue;
                    }
                    count += 1;
                    wanted.insert((group.clone(), version.clone(), resource.clone()));
                }
            }
        }
    }
    wanted
}

fn kind_of(definitions: &[Value], group: &str, version: &str, resource: &str) -> Option<Kind> {
    let kind = |kind: &str, ty: Ty| Kind {
        group: group.to_owned(),
        version: version.to_owned(),
        kind: kind.to_owned(),
        ty,
    };
    if let Some(found) = api::find(group, version, resource) {
        return Some(kind(found.kind, Ty::Message(Ref::Static(found.schema))));
    }
    let definition = definitions.iter().find(|definition| {
        let spec = &definition["spec"];
        spec["group"] == group && spec["names"]["plural"] == resource
    })?;
    let ty = custom(definition, version)?;
    Some(kind(text(&definition["spec"]["names"]["kind"]), ty))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The type of a version of a custom kind.
fn custom(definition: &Value, version: &str) -> Option<Ty> {
    let versions = definition["spec"]["versions"].as_array()?;
    let version = versions
        .iter()
        .find(|have| have["name"] == version && have["served"] == true)?;
    let metadata = api::message("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta")?;
    let name = text(&definition["spec"]["names"]["kind"]);
    let schema = &version["schema"]["openAPIV3Schema"];
    let message = structural::resource(name, schema, metadata);
    Some(Ty::Message(message.into()))
}

fn built_in(kind: &ParamKind) -> Option<&'static api::Resource> {
    let (group, version) = meta::group_version(&kind.api_version);
    api::find_kind(group, version, &kind.kind)
}

fn type_of_params(definitions: &[Value], kind: &ParamKind) -> Option<Ty> {
    if let Some(found) = built_in(kind) {
        return Some(Ty::Message(Ref::Static(found.schema)));
    }
    let (group, version) = meta::group_version(&kind.api_version);
    let definition = definitions.iter().find(|definition| {
        let spec = &definition["spec"];
        spec["group"] == group && spec["names"]["kind"] == kind.kind.as_str()
    })?;
    custom(definition, version)
}

/// What is wrong with which expression, for each kind that it is wrong about.
fn warnings(spec: &Spec, kinds: &[Kind], params: Option<Ty>) -> Vec<Value> {
    let environments: Vec<(String, Env)> = kinds
        .iter()
        .map(|kind| {
            let told = match kind.group.as_str() {
                "" => format!("/{}, Kind={}", kind.version, kind.kind),
                group => format!("{group}/{}, Kind={}", kind.version, kind.kind),
            };
            (told, environment(spec, kind.ty.clone(), params.clone()))
        })
        .collect();
    let mut warnings = Vec::new();
    let mut look = |expression: &str, field: String| {
        let told: Vec<String> = environments
            .iter()
            .filter_map(|(kind, env)| {
                let made = Program::parse(expression)
                    .map_err(|why| why.trim_start_matches("compilation failed: ").to_owned())
                    .and_then(|program| program.check(env));
                made.err().map(|why| format!("{kind}: {why}\n"))
            })
            .collect();
        if !told.is_empty() {
            warnings.push(json!({"fieldRef": field, "warning": told.join("\n")}));
        }
    };
    for (index, validation) in spec.validations.iter().enumerate() {
        let field = |name: &str| format!("spec.validations[{index}].{name}");
        look(&validation.expression, field("expression"));
        if !validation.message_expression.is_empty() {
            look(&validation.message_expression, field("messageExpression"));
        }
    }
    warnings
}

/// The variables of a policy about objects of a type; one of its own that is wrong is of any type.
fn environment(spec: &Spec, object: Ty, params: Option<Ty>) -> Env {
    let mut env = check::policy(object, params);
    let mut types: Vec<(&str, Ty)> = Vec::new();
    env.set("variables", Ty::fields("kubernetes.variables", []));
    for variable in &spec.variables {
        let ty = Program::parse(&variable.expression)
            .and_then(|program| program.check(&env))
            .unwrap_or(Ty::Dyn);
        types.push((&variable.name, ty));
        env.set(
            "variables",
            Ty::fields("kubernetes.variables", types.clone()),
        );
    }
    env
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::fake::Server;

    fn spec(value: Value) -> Spec {
        serde_json::from_value(value).expect("a spec")
    }

    fn deployments() -> Kind {
        let found = api::find("apps", "v1", "deployments").expect("is known");
        Kind {
            group: "apps".into(),
            version: "v1".into(),
            kind: "Deployment".into(),
            ty: Ty::Message(Ref::Static(found.schema)),
        }
    }

    #[test]
    fn a_field_that_is_not_there_is_warned_of_with_its_place() {
        let spec = spec(
            json!({"variables": [{"name": "odd", "expression": "object.spec.replicas % 2 == 1"}], "validations": [
            {"expression": "object.spec.replicas > 1 && variables.odd", "messageExpression": "'got ' + string(object.spec.replicas)"},
            {"expression": "object.replicas > 1"}, {"expression": "object.spec.template.spec.containers.all(c, c.image != '')"},
            {"expression": "true", "messageExpression": "object.metadata.nam"},
            {"expression": "object.metadata.name == 1"}]}),
        );
        let warnings = warnings(&spec, &[deployments()], None);
        assert_eq!(
            warnings,
            [
                json!({"fieldRef": "spec.validations[1].expression",
                    "warning": "apps/v1, Kind=Deployment: ERROR: <input>:1:7: undefined field 'replicas'\n | object.replicas > 1\n | ......^\n"}),
                json!({"fieldRef": "spec.validations[3].messageExpression",
                    "warning": "apps/v1, Kind=Deployment: ERROR: <input>:1:16: undefined field 'nam'\n | object.metadata.nam\n | ...............^\n"}),
                json!({"fieldRef": "spec.validations[4].expression",
                    "warning": "apps/v1, Kind=Deployment: ERROR: <input>:1:22: found no matching overload for '_==_' applied to '(string, int)'\n | object.metadata.name == 1\n | .....................^\n"}),
            ]
        );
    }

    #[test]
    fn only_what_rules_name_is_looked_at() {
        let rules: Vec<Rule> = serde_json::from_value(json!([
            {"apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments", "deployments/scale", "*"]},
            {"apiGroups": ["*"], "apiVersions": ["v1"], "resources": ["pods"]},
            {"apiGroups": [""], "apiVersions": ["*"], "resources": ["pods"]}]))
        .expect("rules");
        let found: Vec<Wanted> = wanted(&rules).into_iter().collect();
        assert_eq!(found, [("apps".into(), "v1".into(), "deployments".into())]);
    }

    #[test]
    fn custom_kinds_have_the_types_of_their_schemas() {
        let definition = json!({"spec": {"names": {"kind": "Widget"}, "versions": [{"name": "v1", "served": true, "schema": {"openAPIV3Schema":
            {"type": "object", "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}}}}}]}});
        let ty = custom(&definition, "v1").expect("a type");
        let kind = Kind {
            group: "example.com".into(),
            version: "v1".into(),
            kind: "Widget".into(),
            ty,
        };
        let spec = spec(
            json!({"validations": [{"expression": "object.spec.size > 1 && object.metadata.name != ''"}, {"expression": "object.spec.sise > 1"}]}),
        );
        let warnings = warnings(&spec, &[kind], None);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert_eq!(warnings[0]["fieldRef"], "spec.validations[1].expression");
    }

    #[tokio::test(start_paused = true)]
    async fn a_policy_is_told_of_once_for_each_generation() {
        let server = Server::default();
        let object = json!({"metadata": {"name": "p", "generation": 2}, "spec": {"validations": [{"expression": "object.nothing"}],
            "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["pods"]}]}}});
        server.put(&VALIDATINGADMISSIONPOLICIES, object);
        let _running = crate::testing::start(&server, &[NAME]);
        crate::testing::seconds(5).await;
        let status = server
            .get(&VALIDATINGADMISSIONPOLICIES, "p")
            .expect("is there")["status"]
            .clone();
        assert_eq!(status["observedGeneration"], 2);
        let warnings = &status["typeChecking"]["expressionWarnings"];
        assert_eq!(warnings[0]["fieldRef"], "spec.validations[0].expression");
        assert!(
            warnings[0]["warning"].as_str().is_some_and(|text| text
                .starts_with("/v1, Kind=Pod: ERROR: <input>:1:7: undefined field 'nothing'")),
            "{warnings}"
        );
    }
}
