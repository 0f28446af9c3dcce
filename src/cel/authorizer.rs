//! The `authorizer` of expressions: checks of permissions, built up call by call and put to an oracle.
//!
//! Evaluation does not wait, authorizers may. So an oracle answers what it was told before and notes what it was not;
//! whoever evaluates finds out about the noted questions and evaluates again, until no question is open.

use std::cell::RefCell;
use std::rc::Rc;

use super::value::Val;

/// Different permissions one evaluation may ask for.
pub const MAX_QUESTIONS: usize = 128;

/// May someone do something? Of a path, or of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Question {
    /// Namespace and name of the service account that is asked about; else it is the user of the request.
    pub service_account: Option<(String, String)>,
    /// Set when it is about a path and not a resource.
    pub path: Option<String>,
    pub group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    pub field_selector: String,
    pub label_selector: String,
    pub verb: String,
}

/// What an authorizer said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub allowed: bool,
    pub reason: String,
    pub error: String,
}

/// Answers known, and questions that are not among them.
#[derive(Debug, Default)]
pub struct Oracle {
    known: Vec<(Question, Answer)>,
    open: RefCell<Vec<Question>>,
}

impl Oracle {
    /// An oracle that knows these answers.
    pub fn new(known: Vec<(Question, Answer)>) -> Rc<Self> {
        Rc::new(Self {
            known,
            open: RefCell::default(),
        })
    }

    /// What was asked in vain.
    pub fn open(&self) -> Vec<Question> {
        self.open.borrow().clone()
    }

    fn ask(&self, question: &Question) -> Result<Answer, String> {
        if let Some((_, answer)) = self.known.iter().find(|(known, _)| known == question) {
            return Ok(answer.clone());
        }
        if self.known.len() >= MAX_QUESTIONS {
            return Err("operation cancelled: too many authorization checks".to_owned());
        }
        let mut open = self.open.borrow_mut();
        if !open.contains(question) {
            open.push(question.clone());
        }
        Err("authorization is not decided yet".to_owned())
    }

    /// The value of `authorizer`.
    pub fn authorizer<'v>(self: &Rc<Self>) -> Val<'v> {
        self.value(Stage::Authorizer, Question::default())
    }

    /// The value of `authorizer.requestResource`, about the resource of the request.
    pub fn request_resource<'v>(self: &Rc<Self>, question: Question) -> Val<'v> {
        self.value(Stage::Resource, question)
    }

    fn value<'v>(self: &Rc<Self>, stage: Stage, question: Question) -> Val<'v> {
        Val::Check(Rc::new(Check {
            oracle: self.clone(),
            stage,
            question,
        }))
    }
}

/// How far a check has been built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Authorizer,
    Path,
    Group,
    Resource,
}

/// A check as it is built.
#[derive(Debug)]
pub struct Check {
    oracle: Rc<Oracle>,
    stage: Stage,
    question: Question,
}

impl Check {
    pub(crate) fn type_name(&self) -> &'static str {
        match self.stage {
            Stage::Authorizer => "kubernetes.authorization.Authorizer",
            Stage::Path => "kubernetes.authorization.PathCheck",
            Stage::Group => "kubernetes.authorization.GroupCheck",
            Stage::Resource => "kubernetes.authorization.ResourceCheck",
        }
    }
}

/// Calls a member of the authorizer or of a check.
pub(crate) fn member<'v>(
    check: &Check,
    name: &str,
    arguments: &[Val<'v>],
) -> Result<Val<'v>, String> {
    let overload = || format!("found no matching overload for '{name}'");
    let mut texts = Vec::with_capacity(arguments.len());
    for argument in arguments {
        match argument {
            Val::Text(text) => texts.push(text.as_ref()),
            _ => return Err(overload()),
        }
    }
    let mut question = check.question.clone();
    let mut stage = check.stage;
    match (check.stage, name, texts.as_slice()) {
        (Stage::Authorizer, "path", [""]) => return Err("path must not be empty".to_owned()),
        (Stage::Authorizer, "path", [path]) => {
            stage = Stage::Path;
            question.path = Some((*path).to_owned());
        }
        (Stage::Authorizer, "group", [group]) => {
            stage = Stage::Group;
            question.group = (*group).to_owned();
        }
        (Stage::Authorizer, "serviceAccount", [namespace, account]) => {
            let wrong = apimachinery::name::dns_1123_label(namespace)
                .into_iter()
                .chain(apimachinery::name::dns_1123_subdomain(account))
                .next();
            if let Some(why) = wrong {
                return Err(format!("Invalid service account: {why}"));
            }
            question.service_account = Some(((*namespace).to_owned(), (*account).to_owned()));
        }
        (Stage::Group, "resource", [resource]) => {
            stage = Stage::Resource;
            question.resource = (*resource).to_owned();
        }
        (Stage::Resource, "subresource", [value]) => question.subresource = (*value).to_owned(),
        (Stage::Resource, "namespace", [value]) => question.namespace = (*value).to_owned(),
        (Stage::Resource, "name", [value]) => question.name = (*value).to_owned(),
        (Stage::Resource, "fieldSelector", [value]) => {
            question.field_selector = (*value).to_owned();
        }
        (Stage::Resource, "labelSelector", [value]) => {
            question.label_selector = (*value).to_owned();
        }
        (Stage::Resource | Stage::Path, "check", [verb]) => {
            question.verb = (*verb).to_owned();
            return Ok(Val::Decision(Rc::new(check.oracle.ask(&question)?)));
        }
        _ => return Err(overload()),
    }
    Ok(check.oracle.value(stage, question))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Program, Scope};

    fn run(text: &str, known: &[(Question, Answer)]) -> (Result<bool, String>, Vec<Question>) {
        let oracle = Oracle::new(known.to_vec());
        let scope = Scope::new(&[("authorizer", oracle.authorizer())]);
        let holds = Program::parse(text).expect("parses").holds(&scope);
        (holds, oracle.open())
    }

    #[test]
    fn checks_are_put_and_then_known() {
        let text = "authorizer.group('apps').resource('deployments').subresource('scale').namespace('n').name('d').check('create').allowed()";
        let (_, open) = run(text, &[]);
        let question = Question {
            group: "apps".into(),
            resource: "deployments".into(),
            subresource: "scale".into(),
            namespace: "n".into(),
            name: "d".into(),
            verb: "create".into(),
            ..Question::default()
        };
        assert_eq!(open, [question.clone()]);
        let allowed = Answer {
            allowed: true,
            ..Answer::default()
        };
        assert_eq!(run(text, &[(question, allowed)]), (Ok(true), Vec::new()));
    }

    #[test]
    fn paths_and_accounts_are_asked_about_and_nonsense_is_not() {
        let (_, open) = run(
            "authorizer.serviceAccount('kube-system', 'x').path('/healthz').check('get').reason() == ''",
            &[],
        );
        assert_eq!(open[0].path.as_deref(), Some("/healthz"));
        let account = ("kube-system".to_owned(), "x".to_owned());
        assert_eq!(open[0].service_account, Some(account));
        for text in [
            "authorizer.resource('pods').check('get').allowed()",
            "authorizer.group('').check('get').allowed()",
            "authorizer.path('').check('get').allowed()",
            "authorizer.group(1).resource('pods').check('get').allowed()",
        ] {
            let (holds, open) = run(text, &[]);
            assert!(holds.is_err() && open.is_empty(), "{text}");
        }
    }
}
