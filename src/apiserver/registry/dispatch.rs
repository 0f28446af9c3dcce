//! From a request to its verb: which resource and subresource are meant, whether they have the verb, and the handler.

use std::sync::Arc;

use api::Resource;
use apimachinery::codec::media::{self, MediaType};
use apimachinery::{Status, Value, meta};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, Method, Request, Response, StatusCode};

use super::codec::{self, Expected};
use super::kind::Kind;
use super::options::{DeleteOptions, ListOptions, WriteOptions, manager, parse_version};
use super::output::{self, Format};
use super::strategy::Change;
use super::write::{Current, Next, Preconditions, Write};
use super::{Registry, errors, scale};
use crate::admission::{self, Attributes, Operation};
use crate::body::Body;
use crate::request::{RequestContext, Verb};
use crate::streaming::Streaming;

/// One request on one resource, its headers at hand.
pub struct Call<'a> {
    pub registry: &'a Registry,
    pub context: &'a RequestContext,
    pub kind: &'a Arc<Kind>,
    pub resource: &'static Resource,
    pub headers: &'a HeaderMap,
}

impl Registry {
    pub(super) async fn dispatch(
        &self,
        context: RequestContext,
        request: Request<Body>,
    ) -> Result<Response<Body>, Status> {
        let info = &context.info;
        let resource = self
            .served
            .find(&info.group, &info.version, &info.resource)
            .ok_or_else(Status::path_not_found)?;
        check_path(resource, &context)?;
        if Streaming::handles(info) {
            return self.streaming.handle(self, &context, request).await;
        }
        // Upstream's routes of built-in kinds are for GET; it answers HEAD of a custom object as GET.
        if *request.method() == Method::HEAD && !crate::crd::is_custom(resource.schema) {
            return Err(Status::method_not_allowed());
        }
        let storage = resource.storage();
        let Some(kind) = self.kind(storage.group, storage.plural) else {
            return crate::kinds::unstored::handle(self, &context, resource, request).await;
        };
        let (head, body) = request.into_parts();
        let call = Call {
            registry: self,
            context: &context,
            kind: &kind,
            resource,
            headers: &head.headers,
        };
        match info.verb {
            Verb::Get if info.subresource == "scale" => scale::get(&call).await,
            Verb::Get => call.get().await,
            Verb::List => call.list().await,
            Verb::Watch => call.watch().await,
            verb => {
                let body = body.collect(self.options.limits.body_bytes).await?;
                match verb {
                    Verb::Create if info.subresource.is_empty() => call.create(&body).await,
                    Verb::Create => call.post_subresource(&body).await,
                    Verb::Update if info.subresource == "scale" => {
                        scale::update(&call, &body).await
                    }
                    Verb::Update => call.update(&body).await,
                    Verb::Patch => super::patch::handle(&call, &body).await,
                    Verb::Delete => super::delete::one(&call, &body).await,
                    Verb::DeleteCollection => super::delete::collection(&call, &body).await,
                    _ => Err(Status::method_not_allowed()),
                }
            }
        }
    }
}

/// The object in the body of a request for a resource without storage.
pub(crate) async fn read_object(
    registry: &Registry,
    context: &RequestContext,
    resource: &'static Resource,
    headers: &HeaderMap,
    body: Body,
    options: &WriteOptions,
) -> Result<Value, Status> {
    let body = body.collect(registry.options.limits.body_bytes).await?;
    codec::decode_body(
        Expected::of(resource),
        body_media(headers)?,
        &body,
        options.field_validation,
        &context.warnings,
    )
}

/// The response that holds an object which is not stored.
pub(crate) fn respond_value(
    code: StatusCode,
    object: &Value,
    context: &RequestContext,
    headers: &HeaderMap,
) -> Result<Response<Body>, Status> {
    let (group, version) = meta::group_version(meta::api_version(object));
    let message = api::message_for(group, version, meta::kind(object));
    output::value(code, object, message, headers, &context.info.query)
}

/// The media type of a body; 415 for one that is not served.
fn body_media(headers: &HeaderMap) -> Result<MediaType, Status> {
    let header = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    media::content_type(header).ok_or_else(|| Status::unsupported_media_type(media::ACCEPTED))
}

/// Whether the path names something that is served with the verb.
fn check_path(resource: &'static Resource, context: &RequestContext) -> Result<(), Status> {
    let info = &context.info;
    let on_all_namespaces = info.namespace.is_empty() && resource.namespaced;
    if !resource.namespaced && !info.namespace.is_empty() && resource.plural != "namespaces" {
        return Err(Status::path_not_found());
    }
    if on_all_namespaces && info.name_in_path {
        return Err(Status::path_not_found());
    }
    let verbs = if info.subresource.is_empty() {
        resource.verbs
    } else {
        let sub = resource
            .subresource(&info.subresource)
            .ok_or_else(Status::path_not_found)?;
        sub.verbs
    };
    let needs_namespace = matches!(info.verb, Verb::Create | Verb::DeleteCollection);
    let misplaced = match info.verb {
        Verb::Create => info.name_in_path && info.subresource.is_empty(),
        Verb::Update | Verb::Patch | Verb::Delete => !info.name_in_path,
        _ => false,
    };
    // OPTIONS, which only proxies have.
    let is_passed_on = info.verb == Verb::Other && info.subresource == "proxy";
    let is_known = is_passed_on || verbs.contains(&info.verb.as_str());
    if misplaced || (on_all_namespaces && needs_namespace) || !is_known {
        return Err(Status::method_not_allowed());
    }
    Ok(())
}

impl Call<'_> {
    pub fn name(&self) -> &str {
        &self.context.info.name
    }

    /// The namespace of the object; empty for cluster-scoped ones (a namespace is in its own namespace's path).
    pub fn namespace(&self) -> &str {
        if self.kind.storage.namespaced {
            &self.context.info.namespace
        } else {
            ""
        }
    }

    pub fn subresource(&self) -> &str {
        &self.context.info.subresource
    }

    pub fn format(&self) -> Result<Format, Status> {
        let query = &self.context.info.query;
        Format::new(self.kind, self.resource, self.headers, query)
    }

    /// The media type of the body; 415 for one that is not served.
    pub fn media(&self) -> Result<MediaType, Status> {
        body_media(self.headers)
    }

    pub fn manager(&self, options: &WriteOptions) -> String {
        let agent = self
            .headers
            .get(USER_AGENT)
            .and_then(|value| value.to_str().ok())
            .unwrap_or("");
        manager(options, agent)
    }

    pub fn write<'a>(&'a self, options: &'a WriteOptions, manager: &'a str) -> Write<'a> {
        Write {
            registry: self.registry,
            request: self.context,
            kind: self.kind,
            resource: self.resource,
            subresource: self.subresource(),
            namespace: self.namespace(),
            options,
            manager,
        }
    }

    async fn get(&self) -> Result<Response<Body>, Status> {
        let format = self.format()?;
        let cache = self.kind.cache(self.registry);
        let key = self.kind.key(self.namespace(), self.name());
        let version = self.context.info.query.get("resourceVersion").unwrap_or("");
        let entry = match parse_version(version)? {
            // `0` is any state, another number one not older.
            Some(revision) => {
                cache.wait(revision).await.map_err(errors::cache)?;
                cache.get(&key)
            }
            None => cache.read(&key).await.map_err(errors::read)?.0,
        };
        let entry = entry.ok_or_else(|| self.kind.not_found(self.name()))?;
        format.object(StatusCode::OK, &entry, entry.revision())
    }

    async fn list(&self) -> Result<Response<Body>, Status> {
        let options = ListOptions::parse(&self.context.info.query, false)?;
        let format = self.format()?;
        let listing = self
            .registry
            .list(self.kind, self.resource, self.namespace(), &options)
            .await?;
        format.list(listing)
    }

    async fn watch(&self) -> Result<Response<Body>, Status> {
        let mut options = ListOptions::parse(&self.context.info.query, true)?;
        let info = &self.context.info;
        if info.name_in_path {
            // The deprecated watch of one object by path.
            let term = format!("metadata.name={}", info.name);
            options.field_selector = match options.field_selector.as_str() {
                "" => term,
                more => format!("{more},{term}"),
            };
        }
        let format = self.format()?;
        self.registry
            .watch(format, self.namespace(), &options)
            .await
    }

    async fn create(&self, body: &Bytes) -> Result<Response<Body>, Status> {
        let options = WriteOptions::parse(&self.context.info.query, "CreateOptions")?;
        let format = self.format()?;
        let object = codec::decode_body(
            Expected::of(self.resource),
            self.media()?,
            body,
            options.field_validation,
            &self.context.warnings,
        )?;
        let manager = self.manager(&options);
        let written = self.write(&options, &manager).create(object).await?;
        format.object(StatusCode::CREATED, &written.entry, written.revision)
    }

    async fn update(&self, body: &Bytes) -> Result<Response<Body>, Status> {
        let options = WriteOptions::parse(&self.context.info.query, "UpdateOptions")?;
        let format = self.format()?;
        let object = codec::decode_body(
            Expected::of(self.resource),
            self.media()?,
            body,
            options.field_validation,
            &self.context.warnings,
        )?;
        self.check_name(&object)?;
        let preconditions = Preconditions {
            uid: Some(meta::uid(&object).to_owned()).filter(|uid| !uid.is_empty()),
        };
        let manager = self.manager(&options);
        let write = self.write(&options, &manager);
        let creates = self.subresource().is_empty() && self.may_create_on_update().await;
        let written = write
            .update(self.name(), &preconditions, creates, |_: Current<'_>| {
                Ok(Next {
                    object: object.clone(),
                    managed: false,
                })
            })
            .await?;
        let code = if written.created {
            StatusCode::CREATED
        } else {
            StatusCode::OK
        };
        format.object(code, &written.entry, written.revision)
    }

    /// A PUT that creates needs the right to create, too.
    async fn may_create_on_update(&self) -> bool {
        if !self.kind.strategy.creates_on_update() {
            return false;
        }
        let mut attributes = crate::authz::Attributes::of(&self.context.user, &self.context.info);
        attributes.verb = "create";
        self.context
            .authorizers
            .authorize(&attributes)
            .await
            .is_allowed()
    }

    /// An object's name and namespace must be those of the path (`checkName`).
    pub fn check_name(&self, object: &Value) -> Result<(), Status> {
        let name = meta::name(object);
        if name.is_empty() {
            return Err(Status::bad_request(format!(
                "the name of the object ({} based on URL) was undeterminable: name must be provided",
                self.name()
            )));
        }
        if name != self.name() {
            return Err(Status::bad_request(format!(
                "the name of the object ({name}) does not match the name on the URL ({})",
                self.name()
            )));
        }
        let namespace = meta::namespace(object);
        if !self.namespace().is_empty() && !namespace.is_empty() && namespace != self.namespace() {
            return Err(Status::bad_request(format!(
                "the namespace of the object ({namespace}) does not match the namespace on the request ({})",
                self.namespace()
            )));
        }
        Ok(())
    }

    /// The same of an applied configuration, which without a name is one for the object there is.
    pub fn name_applied(&self, applied: &mut Value, exists: bool) -> Result<(), Status> {
        if exists && meta::name(applied).is_empty() {
            meta::set_name(applied, self.name());
        }
        self.check_name(applied)
    }

    async fn post_subresource(&self, body: &Bytes) -> Result<Response<Body>, Status> {
        let options = WriteOptions::parse(&self.context.info.query, "CreateOptions")?;
        let name = self.subresource();
        let sub = self
            .resource
            .subresource(name)
            .ok_or_else(Status::path_not_found)?;
        let expected = Expected {
            group: sub.group,
            version: sub.version,
            kind: sub.kind,
            message: sub.schema,
        };
        let mut object = codec::decode_body(
            expected,
            self.media()?,
            body,
            options.field_validation,
            &self.context.warnings,
        )?;
        let attributes = Attributes {
            registry: self.registry,
            request: self.context,
            resource: self.kind.storage,
            subresource: name,
            operation: Operation::Create,
            namespace: self.namespace(),
            name: self.name(),
            old: None,
            dry_run: options.dry_run,
            reinvocation: Default::default(),
        };
        admission::admit(&attributes, &mut object).await?;
        admission::validate(&attributes, Some(&object)).await?;
        let change = Change {
            registry: self.registry,
            request: self.context,
            resource: self.kind.storage,
            subresource: name,
            namespace: self.namespace(),
            dry_run: options.dry_run,
        };
        let answer = self
            .kind
            .strategy
            .post_subresource(&change, self.name(), object, &options)
            .await?;
        respond_value(StatusCode::CREATED, &answer, self.context, self.headers)
    }

    /// The options of a delete, from the body when there is one.
    pub fn delete_options(&self, body: &Bytes) -> Result<DeleteOptions, Status> {
        if body.is_empty() {
            return DeleteOptions::parse(None, &self.context.info.query);
        }
        let parsed = codec::parse(self.media()?, body)
            .and_then(|parsed| parsed.conform(&api::schema::META_V1_DELETE_OPTIONS))
            .map_err(|error| {
                apimachinery::codec::bad_request("", "v1", "DeleteOptions", &error, body)
            })?;
        let kind = meta::kind(&parsed.value);
        if !matches!(kind, "" | "DeleteOptions") {
            return Err(Status::bad_request(format!(
                "decoded object cannot be converted to DeleteOptions: {kind}"
            )));
        }
        DeleteOptions::parse(Some(&parsed.value), &self.context.info.query)
    }
}
