//! Admission: what may change or refuse a write after authorization, in upstream's order.
//!
//! Every plugin is a unit struct and a line in `ADMISSION`; mutating ones run in that order, then, after defaults and
//! validation of the object, the validating ones. Webhooks and policies have their place in the same order.

mod certificates;
mod classes;
mod declared_features;
mod escalation;
mod limit_ranger;
mod namespace_lifecycle;
mod node_restriction;
mod pod_groups;
mod pod_resize;
mod pod_security;
mod policies;
mod priority;
mod quota;
mod reinvocation;
pub mod series;
mod service_account;
mod storage;
mod tolerations;
mod topology_labels;
mod webhooks;

use std::time::Instant;

use api::Resource;
use api::resource::Subresource;
use apimachinery::{Status, Value};
use async_trait::async_trait;

pub use reinvocation::Reinvocation;

use crate::options::AdmissionOptions;
use crate::registry::Registry;
use crate::request::RequestContext;
use series::{Pass, Series};

/// What is about to happen to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

/// One write as admission sees it. Objects are in the stored version.
pub struct Attributes<'a> {
    pub registry: &'a Registry,
    pub request: &'a RequestContext,
    pub resource: &'static Resource,
    pub subresource: &'a str,
    pub operation: Operation,
    pub namespace: &'a str,
    /// Empty while a generated name is not made yet.
    pub name: &'a str,
    pub old: Option<&'a Value>,
    pub dry_run: bool,
    /// What the mutating pass remembers; a write begins with nothing.
    pub reinvocation: Reinvocation,
}

impl Attributes<'_> {
    /// Whether this is about the object itself of a core kind.
    pub fn is_core(&self, plural: &str) -> bool {
        self.resource.group.is_empty()
            && self.resource.plural == plural
            && self.subresource.is_empty()
    }

    /// 403 as `admission.NewForbidden` words it.
    pub fn forbidden(&self, why: &str) -> Status {
        let name = match self.name {
            "" => "Unknown",
            name => name,
        };
        Status::forbidden(self.resource.group, self.resource.plural, name, why)
    }

    /// What is posted to a subresource is of the subresource's kind: a `Binding`, not a `Pod`.
    pub fn posted(&self) -> Option<&'static Subresource> {
        match self.operation {
            Operation::Create => self.resource.subresource(self.subresource),
            _ => None,
        }
    }

    pub fn options(&self) -> &AdmissionOptions {
        &self.registry.options.admission
    }
}

/// One admission plugin.
#[async_trait]
pub trait Plugin: Send + Sync + 'static {
    fn name(&self) -> &'static str;

    /// Asked first, so that a plugin costs nothing where it has no say.
    fn handles(&self, attributes: &Attributes<'_>) -> bool;

    /// Changes or refuses the object.
    async fn admit(&self, _attributes: &Attributes<'_>, _object: &mut Value) -> Result<(), Status> {
        Ok(())
    }

    /// Refuses the object as it is going to be stored; `None` for a deletion.
    async fn validate(
        &self,
        _attributes: &Attributes<'_>,
        _object: Option<&Value>,
    ) -> Result<(), Status> {
        Ok(())
    }
}

/// All plugins in upstream's order (`AllOrderedPlugins`), and whether each is on by default.
pub static ADMISSION: &[(&dyn Plugin, bool)] = &[
    (&namespace_lifecycle::NamespaceLifecycle, true),
    (&limit_ranger::LimitRanger, true),
    (&service_account::ServiceAccount, true),
    (&node_restriction::NodeRestriction, false),
    (&tolerations::TaintNodesByCondition, true),
    (&pod_security::PodSecurity, true),
    (&priority::Priority, true),
    (&tolerations::DefaultTolerationSeconds, true),
    (&storage::DefaultStorageClass, true),
    (&storage::StorageObjectInUseProtection, true),
    (&classes::PersistentVolumeClaimResize, true),
    (&classes::RuntimeClass, true),
    (&certificates::CertificateApproval, true),
    (&certificates::CertificateSigning, true),
    (&certificates::ClusterTrustBundleAttest, true),
    (&certificates::CertificateSubjectRestriction, true),
    (&classes::DefaultIngressClass, true),
    (&topology_labels::PodTopologyLabels, true),
    (&pod_groups::PodGroupWorkloadExists, true),
    (&escalation::Escalation, true),
    (&declared_features::NodeDeclaredFeatureValidator, true),
    (&pod_resize::PodResizeValidator, true),
    (&policies::MutatingAdmissionPolicy, true),
    (&webhooks::MutatingAdmissionWebhook, true),
    (&policies::ValidatingAdmissionPolicy, true),
    (&webhooks::ValidatingAdmissionWebhook, true),
    (&quota::ResourceQuota, true),
];

/// The plugins a server runs, and what they remember.
pub struct Chain {
    plugins: Vec<&'static dyn Plugin>,
    ledger: quota::Ledger,
    ending: namespace_lifecycle::Ending,
    programs: cel::Programs,
    pub series: Series,
}

impl Chain {
    /// The default plugins, less the disabled, plus the enabled ones.
    pub fn new(options: &AdmissionOptions) -> Self {
        let named =
            |list: &[String], plugin: &dyn Plugin| list.iter().any(|name| name == plugin.name());
        let plugins: Vec<&'static dyn Plugin> = ADMISSION
            .iter()
            .filter(|(plugin, on)| {
                (*on || named(&options.enable, *plugin)) && !named(&options.disable, *plugin)
            })
            .map(|(plugin, _)| *plugin)
            .collect();
        Self {
            series: Series::new(plugins.iter().map(|plugin| plugin.name())),
            plugins,
            ledger: quota::Ledger::default(),
            ending: namespace_lifecycle::Ending::default(),
            programs: cel::Programs::default(),
        }
    }
}

/// What a pass over the plugins is about.
enum Subject<'a> {
    /// The object, which may still change.
    Changing(&'a mut Value),
    /// The object as it is going to be stored; `None` for a deletion.
    Whole(Option<&'a Value>),
}

impl Subject<'_> {
    fn pass(&self) -> Pass {
        match self {
            Self::Changing(_) => Pass::Admit,
            Self::Whole(_) => Pass::Validate,
        }
    }
}

/// The mutating pass, and a second one when something was changed late.
pub async fn admit(attributes: &Attributes<'_>, object: &mut Value) -> Result<(), Status> {
    let since = Instant::now();
    let mut outcome = run(attributes, Subject::Changing(object)).await;
    if outcome.is_ok() && attributes.reinvocation.begin_second() {
        outcome = run(attributes, Subject::Changing(object)).await;
    }
    finish(attributes, Pass::Admit, since, outcome)
}

/// The validating pass.
pub async fn validate(attributes: &Attributes<'_>, object: Option<&Value>) -> Result<(), Status> {
    let since = Instant::now();
    let outcome = run(attributes, Subject::Whole(object)).await;
    finish(attributes, Pass::Validate, since, outcome)
}

fn finish(
    attributes: &Attributes<'_>,
    pass: Pass,
    since: Instant,
    outcome: Result<(), Status>,
) -> Result<(), Status> {
    let series = &attributes.registry.admission.series;
    series.step(pass, attributes.operation, since, outcome.is_err());
    outcome
}

/// Asks the plugins that have a say, one after the other, until one refuses; each is timed.
async fn run(attributes: &Attributes<'_>, mut subject: Subject<'_>) -> Result<(), Status> {
    let chain = &attributes.registry.admission;
    let (pass, operation) = (subject.pass(), attributes.operation);
    for (at, plugin) in chain.plugins.iter().enumerate() {
        if !plugin.handles(attributes) {
            continue;
        }
        let since = Instant::now();
        let outcome = match &mut subject {
            Subject::Changing(object) => plugin.admit(attributes, object).await,
            Subject::Whole(object) => plugin.validate(attributes, *object).await,
        };
        let refused = outcome.is_err();
        chain.series.plugin(at, pass, operation, since, refused);
        outcome?;
    }
    Ok(())
}
