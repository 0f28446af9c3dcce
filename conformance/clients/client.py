"""The Python client (PyPI `kubernetes`) against a server, as a program would use it.

Run by conformance/clients.sh, with KUBECONFIG naming an administrator. Prints one line per check and ends with the count.
"""

import json
import os
import subprocess
import sys
import threading

import yaml
from kubernetes import client, config, dynamic, utils, watch
from kubernetes.client.rest import ApiException

NAMESPACE = "python"
passed = 0


def check(what, holds, seen=""):
    """One line: what holds; the first that does not ends the run."""
    global passed
    if not holds:
        print(f"FAILED: {what}: {seen!r}")
        sys.exit(1)
    passed += 1
    print(f"ok: {what}")


def refused(call, code, reason):
    """The Status of a call that must be refused."""
    try:
        answer = call()
    except ApiException as error:
        status = json.loads(error.body)
        same = (error.status, status["code"], status["reason"]) == (code, code, reason)
        check(f"{code} {reason}: {status['message'][:100]}", same, status)
        return status
    check(f"{code} {reason}", False, answer)


def config_map(name, data=None, labels=None):
    metadata = client.V1ObjectMeta(name=name, labels=labels)
    return client.V1ConfigMap(metadata=metadata, data=data or {"a": "1"})


def typed(core, apps):
    made = core.create_namespaced_config_map(NAMESPACE, config_map("typed", labels={"app": "x"}))
    check("a created object has what the server gives it", made.metadata.uid and made.metadata.resource_version, made)
    check("and a time", made.metadata.creation_timestamp.tzinfo is not None, made.metadata.creation_timestamp)
    read = core.read_namespaced_config_map("typed", NAMESPACE)
    check("it reads as it was created", read == made, read)
    found = core.list_namespaced_config_map(NAMESPACE, label_selector="app in (x,y)")
    check("it is found by its label", [one.metadata.name for one in found.items] == ["typed"], found)
    found = core.list_namespaced_config_map(NAMESPACE, field_selector="metadata.name=typed")
    check("and by its name", len(found.items) == 1, found)
    read.data["b"] = "2"
    replaced = core.replace_namespaced_config_map("typed", NAMESPACE, read)
    check("it is replaced", replaced.data == {"a": "1", "b": "2"}, replaced.data)
    status = refused(lambda: core.replace_namespaced_config_map("typed", NAMESPACE, read), 409, "Conflict")
    check("a conflict names the object", status["details"]["name"] == "typed", status)
    labels = {"app": "web"}
    container = client.V1Container(
        name="c",
        image="nginx",
        ports=[client.V1ContainerPort(container_port=80)],
        resources=client.V1ResourceRequirements(requests={"cpu": "100m"}),
    )
    template = client.V1PodTemplateSpec(metadata=client.V1ObjectMeta(labels=labels), spec=client.V1PodSpec(containers=[container]))
    spec = client.V1DeploymentSpec(replicas=1, selector=client.V1LabelSelector(match_labels=labels), template=template)
    made = apps.create_namespaced_deployment(NAMESPACE, client.V1Deployment(metadata=client.V1ObjectMeta(name="web"), spec=spec))
    check("a deployment is defaulted", made.spec.strategy.rolling_update.max_surge == "25%", made.spec.strategy)
    scale = apps.read_namespaced_deployment_scale("web", NAMESPACE)
    scale.spec.replicas = 0
    # Its controller may have written meanwhile.
    scale.metadata.resource_version = None
    scaled = apps.replace_namespaced_deployment_scale("web", NAMESPACE, scale)
    check("it is scaled", scaled.spec.replicas in (0, None), scaled)
    dry = core.create_namespaced_config_map(NAMESPACE, config_map("dry"), dry_run="All")
    check("a dry run gives the object", dry.metadata.uid, dry)
    refused(lambda: core.read_namespaced_config_map("dry", NAMESPACE), 404, "NotFound")


def errors(core):
    refused(lambda: core.create_namespaced_config_map(NAMESPACE, config_map("typed")), 409, "AlreadyExists")
    status = refused(lambda: core.create_namespaced_config_map(NAMESPACE, config_map("Not_A_Name")), 422, "Invalid")
    cause = status["details"]["causes"][0]
    check("a cause says where and why", (cause["field"], cause["reason"]) == ("metadata.name", "FieldValueInvalid"), cause)
    refused(lambda: core.create_namespaced_config_map("nowhere", config_map("x")), 404, "NotFound")
    refused(lambda: core.list_namespaced_pod(NAMESPACE, field_selector="foo=bar"), 400, "BadRequest")
    refused(lambda: core.list_namespaced_pod(NAMESPACE, label_selector="a=(b"), 400, "BadRequest")


def patches(core, apps):
    def patch(media, body, **options):
        return core.patch_namespaced_config_map("typed", NAMESPACE, body, _content_type=media, **options)

    patched = patch("application/json-patch+json", [{"op": "test", "path": "/data/a", "value": "1"}, {"op": "add", "path": "/data/c", "value": "3"}])
    check("a JSON patch", patched.data == {"a": "1", "b": "2", "c": "3"}, patched.data)
    patched = patch("application/merge-patch+json", {"data": {"b": None, "d": "4"}})
    check("a merge patch", patched.data == {"a": "1", "c": "3", "d": "4"}, patched.data)
    body = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "nginx:2"}]}}}}
    patched = apps.patch_namespaced_deployment("web", NAMESPACE, body, _content_type="application/strategic-merge-patch+json")
    container = patched.spec.template.spec.containers[0]
    check("a strategic merge patch merges containers by name", (container.image, container.ports[0].container_port) == ("nginx:2", 80), container)
    refused(lambda: patch("application/json-patch+json", [{"op": "test", "path": "/data/a", "value": "9"}]), 422, "Invalid")
    # Without a type the client chooses: a list is a JSON patch, anything else a strategic one.
    patched = core.patch_namespaced_config_map("typed", NAMESPACE, [{"op": "remove", "path": "/data/d"}])
    check("a list of operations is a JSON patch", patched.data == {"a": "1", "c": "3"}, patched.data)


def apply(core):
    def applied(manager, value, **options):
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": value}
        media = "application/apply-patch+yaml"
        return core.patch_namespaced_config_map("applied", NAMESPACE, body, field_manager=manager, _content_type=media, **options)

    made = applied("one", {"a": "1", "b": "1"})
    entry = made.metadata.managed_fields[0]
    check("apply creates, and owns", (entry.manager, entry.operation) == ("one", "Apply"), entry)
    status = refused(lambda: applied("two", {"a": "2"}), 409, "Conflict")
    cause = status["details"]["causes"][0]
    check("the conflict names field and owner", (cause["field"], cause["reason"]) == (".data.a", "FieldManagerConflict") and '"one"' in cause["message"], cause)
    forced = applied("two", {"a": "2"}, force=True)
    check("force takes it over", forced.data == {"a": "2", "b": "1"}, forced.data)
    left = applied("one", {})
    check("what is no longer applied goes", left.data == {"a": "2"}, left.data)
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}}
    unnamed = lambda: core.patch_namespaced_config_map("applied", NAMESPACE, body, _content_type="application/apply-patch+yaml")
    refused(unnamed, 422, "Invalid")


def grow_old(core):
    """More than any server keeps at hand, and what it keeps elsewhere compacted."""
    for turn in range(20):
        big = {"turn": str(turn), "filling": "x" * 300_000}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "big"}, "data": big}
        written = core.patch_namespaced_config_map("big", NAMESPACE, body, field_manager="me", force=True, _content_type="application/apply-patch+yaml")
    subprocess.run([os.environ["COMPACT"], written.metadata.resource_version], check=True, capture_output=True)
    core.delete_namespaced_config_map("big", NAMESPACE)


def watches(core):
    version = core.list_namespaced_config_map(NAMESPACE).metadata.resource_version
    for name in ("w1", "w2", "w3"):
        core.create_namespaced_config_map(NAMESPACE, config_map(name, labels={"seen": "yes"}))
    core.patch_namespaced_config_map("w1", NAMESPACE, {"metadata": {"labels": {"seen": None}}})
    core.delete_namespaced_config_map("w2", NAMESPACE)

    def seen(since, **options):
        stream = watch.Watch()
        events = stream.stream(core.list_namespaced_config_map, NAMESPACE, resource_version=since, timeout_seconds=1, **options)
        return [(event["type"], event["object"].metadata.name, event["object"].metadata.resource_version) for event in events]

    events = seen(version)
    names = [(kind, name) for kind, name, _ in events]
    wanted = [("ADDED", "w1"), ("ADDED", "w2"), ("ADDED", "w3"), ("MODIFIED", "w1"), ("DELETED", "w2")]
    check("a watch from a version gives all since, in order", names == wanted, names)
    check("versions grow", [int(one) for *_, one in events] == sorted(int(one) for *_, one in events), events)
    resumed = seen(events[1][2])
    check("it is resumed from any of them", [(kind, name) for kind, name, _ in resumed] == wanted[2:], resumed)
    selected = [(kind, name) for kind, name, _ in seen(version, label_selector="seen=yes")]
    check("what no longer matches is deleted to it", selected == wanted[:3] + [("DELETED", "w1"), ("DELETED", "w2")], selected)
    token = core.list_namespaced_config_map(NAMESPACE, limit=1).metadata._continue
    grow_old(core)
    try:
        seen(version)
    except ApiException as error:
        check("a version that is too old is gone", error.status == 410 and "too old resource version" in error.reason, error)
    else:
        check("a version that is too old is gone", False)
    status = refused(lambda: core.list_namespaced_config_map(NAMESPACE, limit=1, _continue=token), 410, "Expired")
    check("an old token comes with a new one", status["metadata"]["continue"] not in ("", token), status)
    rest = core.list_namespaced_config_map(NAMESPACE, limit=1, _continue=status["metadata"]["continue"])
    check("which goes on where it was", len(rest.items) == 1, rest)
    # An informer's way out: list again, watch from there.
    fresh = core.list_namespaced_config_map(NAMESPACE)
    threading.Timer(0.2, lambda: core.create_namespaced_config_map(NAMESPACE, config_map("w4"))).start()
    after = seen(fresh.metadata.resource_version)
    check("after it, one lists and goes on", [(kind, name) for kind, name, _ in after] == [("ADDED", "w4")], after)


def pages(core):
    whole = [one.metadata.name for one in core.list_namespaced_config_map(NAMESPACE).items]
    names, token, versions = [], None, set()
    while True:
        page = core.list_namespaced_config_map(NAMESPACE, limit=2, _continue=token)
        names += [one.metadata.name for one in page.items]
        versions.add(page.metadata.resource_version)
        if token is None:
            check("a page says how many are left", page.metadata.remaining_item_count == len(whole) - 2, page.metadata)
            core.create_namespaced_config_map(NAMESPACE, config_map("between"))
        token = page.metadata._continue
        if not token:
            break
    check("pages make the whole, of one moment", names == whole and len(versions) == 1, (names, whole, versions))
    refused(lambda: core.list_namespaced_config_map(NAMESPACE, limit=2, _continue="nonsense"), 400, "BadRequest")


def deletes(core):
    made = core.create_namespaced_config_map(NAMESPACE, config_map("doomed"))
    other = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid="00000000-0000-4000-8000-000000000000"))
    refused(lambda: core.delete_namespaced_config_map("doomed", NAMESPACE, body=other), 409, "Conflict")
    same = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid=made.metadata.uid), propagation_policy="Background")
    gone = core.delete_namespaced_config_map("doomed", NAMESPACE, body=same)
    gone = gone if isinstance(gone, dict) else gone.to_dict()
    check("a deletion says what went", (gone["status"], gone["details"]["uid"]) == ("Success", made.metadata.uid), gone)
    pod = client.V1Pod(metadata=client.V1ObjectMeta(name="p"), spec=client.V1PodSpec(containers=[client.V1Container(name="c", image="i")]))
    core.create_namespaced_pod(NAMESPACE, pod)
    log = core.read_namespaced_pod_log("p", NAMESPACE)
    check("a pod without a node has no log", not log, log)
    deleted = core.delete_namespaced_pod("p", NAMESPACE, grace_period_seconds=0)
    deleted = deleted if isinstance(deleted, dict) else deleted.to_dict()
    check("a pod goes at once", deleted["metadata"]["name"] == "p", deleted)
    core.delete_collection_namespaced_config_map(NAMESPACE, label_selector="seen=yes")
    left = core.list_namespaced_config_map(NAMESPACE, label_selector="seen=yes").items
    check("a collection goes by its label", left == [], left)


def dynamically(api):
    dynamic_client = dynamic.DynamicClient(api)
    definitions = dynamic_client.resources.get(api_version="apiextensions.k8s.io/v1", kind="CustomResourceDefinition")
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer", "default": 1}}}}}
    definitions.create(
        body={
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "pythons.zoo.example.com"},
            "spec": {
                "group": "zoo.example.com",
                "scope": "Namespaced",
                "names": {"kind": "Python", "plural": "pythons"},
                "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
            },
        }
    )
    for event in definitions.watch(name="pythons.zoo.example.com", timeout=10):
        conditions = {one.type: one.status for one in event["object"].status.conditions or []}
        if conditions.get("Established") == "True":
            break
    check("a definition is established", conditions.get("Established") == "True", conditions)
    dynamic_client.resources.invalidate_cache()
    pythons = dynamic_client.resources.get(api_version="zoo.example.com/v1", kind="Python")
    body = {"apiVersion": "zoo.example.com/v1", "kind": "Python", "metadata": {"name": "kaa"}, "spec": {}}
    made = pythons.create(body=body, namespace=NAMESPACE)
    check("a custom object is defaulted", made.spec.size == 1, made)
    patched = pythons.patch(name="kaa", namespace=NAMESPACE, body={"spec": {"size": 5}}, content_type="application/merge-patch+json")
    check("and patched", patched.spec.size == 5, patched)
    body["spec"]["size"] = 7
    try:
        pythons.server_side_apply(body=body, name="kaa", namespace=NAMESPACE, field_manager="zoo")
    except dynamic.exceptions.ConflictError as error:
        check("and applied, with conflicts", "conflict" in str(error.body), error)
    applied = pythons.server_side_apply(body=body, name="kaa", namespace=NAMESPACE, field_manager="zoo", force_conflicts=True)
    check("and applied by force", applied.spec.size == 7, applied)
    check("and listed", [one.metadata.name for one in pythons.get(namespace=NAMESPACE).items] == ["kaa"], "")
    try:
        pythons.create(body={**body, "metadata": {"name": "x"}, "spec": {"size": "big"}}, namespace=NAMESPACE)
    except dynamic.exceptions.UnprocessibleEntityError as error:
        check("and held to its schema", "must be of type integer" in str(error.body), error)
    pythons.delete(name="kaa", namespace=NAMESPACE)
    definitions.delete(name="pythons.zoo.example.com")


def tokens(core, api):
    core.create_namespaced_service_account(NAMESPACE, client.V1ServiceAccount(metadata=client.V1ObjectMeta(name="robot")))
    request = client.AuthenticationV1TokenRequest(spec=client.V1TokenRequestSpec(audiences=[], expiration_seconds=600))
    token = core.create_namespaced_service_account_token("robot", NAMESPACE, request).status.token
    own = client.Configuration()
    own.host = api.configuration.host
    own.ssl_ca_cert = api.configuration.ssl_ca_cert
    own.api_key = {"authorization": f"Bearer {token}"}
    robot = client.ApiClient(own)
    who = client.AuthenticationV1Api(robot).create_self_subject_review(client.V1SelfSubjectReview())
    check("a token says who I am", who.status.user_info.username == f"system:serviceaccount:{NAMESPACE}:robot", who)
    status = refused(lambda: client.CoreV1Api(robot).list_namespaced_secret(NAMESPACE), 403, "Forbidden")
    wanted = f'secrets is forbidden: User "system:serviceaccount:{NAMESPACE}:robot" cannot list resource "secrets" in API group "" in the namespace "{NAMESPACE}"'
    check("and that I may not", status["message"] == wanted, status)
    subject = client.RbacV1Subject(kind="ServiceAccount", name="robot", namespace=NAMESPACE)
    role = client.V1RoleRef(api_group="rbac.authorization.k8s.io", kind="ClusterRole", name="edit")
    binding = client.V1RoleBinding(metadata=client.V1ObjectMeta(name="robot"), role_ref=role, subjects=[subject])
    client.RbacAuthorizationV1Api(api).create_namespaced_role_binding(NAMESPACE, binding)
    check("until I may", client.CoreV1Api(robot).list_namespaced_secret(NAMESPACE).items == [], "")
    own.api_key = {"authorization": "Bearer nonsense"}
    refused(lambda: client.CoreV1Api(client.ApiClient(own)).list_namespaced_secret(NAMESPACE), 401, "Unauthorized")


def from_yaml(api, core):
    text = "apiVersion: v1\nkind: Service\nmetadata: {name: from-yaml}\nspec: {selector: {a: b}, ports: [{port: 80, targetPort: web}]}\n"
    utils.create_from_dict(api, yaml.safe_load(text), namespace=NAMESPACE)
    service = core.read_namespaced_service("from-yaml", NAMESPACE)
    check("an object from YAML has its address", service.spec.cluster_ip.startswith("10.96."), service.spec)
    check("a port may have a name", service.spec.ports[0].target_port == "web", service.spec.ports)


def main():
    api = config.new_client_from_config(os.environ["KUBECONFIG"])
    core, apps = client.CoreV1Api(api), client.AppsV1Api(api)
    check("the server tells its version", client.VersionApi(api).get_code().git_version.startswith("v1.37."), "")
    groups = [group.name for group in client.ApisApi(api).get_api_versions().groups]
    check("and its groups", {"apps", "batch", "rbac.authorization.k8s.io"} <= set(groups), groups)
    core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=NAMESPACE)))
    for event in watch.Watch().stream(core.list_namespaced_service_account, NAMESPACE, timeout_seconds=10):
        if event["object"].metadata.name == "default":
            break
    typed(core, apps)
    errors(core)
    patches(core, apps)
    apply(core)
    watches(core)
    pages(core)
    deletes(core)
    dynamically(api)
    tokens(core, api)
    from_yaml(api, core)
    print(f"{passed} passed, 0 failed")


main()
