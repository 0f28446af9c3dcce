// The JavaScript client (npm `@kubernetes/client-node`) against a server, as a program would use it.
//
// Run by conformance/clients.sh with the folder of its packages, and KUBECONFIG naming an administrator. Prints one line
// per check and ends with the count.

import { spawnSync } from 'node:child_process';
import { createRequire } from 'node:module';
import { setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';

const require = createRequire(pathToFileURL(process.argv[2] + '/'));
const k8s = await import(pathToFileURL(require.resolve('@kubernetes/client-node')));

const namespace = 'node';
let passed = 0;

/** One line: what holds; the first that does not ends the run. */
function check(what, holds, seen = '') {
    if (!holds) {
        console.log(`FAILED: ${what}: ${JSON.stringify(seen)?.slice(0, 600)}`);
        process.exit(1);
    }
    passed += 1;
    console.log(`ok: ${what}`);
}

/** The Status of a call that must be refused. */
async function refused(call, code, reason) {
    let answer;
    try {
        answer = await call();
    } catch (error) {
        const status = typeof error.body === 'string' ? JSON.parse(error.body) : error.body;
        const same = error.code === code && status?.code === code && status?.reason === reason;
        check(`${code} ${reason}: ${status?.message?.slice(0, 100)}`, same, { code: error.code, status, text: String(error) });
        return status;
    }
    check(`${code} ${reason}`, false, answer);
}

/** Waits until `holds` does. */
async function eventually(what, holds, seen = () => '') {
    for (let turn = 0; turn < 100 && !holds(); turn += 1) await sleep(50);
    check(what, holds(), seen());
}

const config = new k8s.KubeConfig();
config.loadFromFile(process.env.KUBECONFIG);
const core = config.makeApiClient(k8s.CoreV1Api);
const apps = config.makeApiClient(k8s.AppsV1Api);

const map = (name, data = { a: '1' }, labels = undefined) => ({ metadata: { name, labels }, data });
const names = (list) => list.items.map((one) => one.metadata.name);

async function typed() {
    const made = await core.createNamespacedConfigMap({ namespace, body: map('typed', { a: '1' }, { app: 'x' }) });
    check('a created object has what the server gives it', made.metadata.uid && made.metadata.resourceVersion, made);
    check('and a time', made.metadata.creationTimestamp instanceof Date, made);
    const read = await core.readNamespacedConfigMap({ namespace, name: 'typed' });
    check('it reads as it was created', JSON.stringify(read) === JSON.stringify(made), [made, read]);
    check('it is found by its label', String(names(await core.listNamespacedConfigMap({ namespace, labelSelector: 'app in (x,y)' }))) === 'typed');
    check('and by its name', names(await core.listNamespacedConfigMap({ namespace, fieldSelector: 'metadata.name=typed' })).length === 1);
    read.data.b = '2';
    const replaced = await core.replaceNamespacedConfigMap({ namespace, name: 'typed', body: read });
    check('it is replaced', replaced.data.b === '2', replaced);
    const status = await refused(() => core.replaceNamespacedConfigMap({ namespace, name: 'typed', body: read }), 409, 'Conflict');
    check('a conflict names the object', status.details.name === 'typed', status);
    const labels = { app: 'web' };
    const containers = [{ name: 'c', image: 'nginx', ports: [{ containerPort: 80 }] }];
    const spec = { replicas: 1, selector: { matchLabels: labels }, template: { metadata: { labels }, spec: { containers } } };
    const web = await apps.createNamespacedDeployment({ namespace, body: { metadata: { name: 'web' }, spec } });
    check('a deployment is defaulted', web.spec.strategy.rollingUpdate.maxSurge === '25%', web.spec);
    const dry = await core.createNamespacedConfigMap({ namespace, body: map('dry'), dryRun: 'All' });
    check('a dry run gives the object', dry.metadata.uid, dry);
    await refused(() => core.readNamespacedConfigMap({ namespace, name: 'dry' }), 404, 'NotFound');
}

async function errors() {
    await refused(() => core.createNamespacedConfigMap({ namespace, body: map('typed') }), 409, 'AlreadyExists');
    const status = await refused(() => core.createNamespacedConfigMap({ namespace, body: map('Not_A_Name') }), 422, 'Invalid');
    check('a cause says where and why', status.details.causes[0].field === 'metadata.name', status.details);
    await refused(() => core.listNamespacedPod({ namespace, fieldSelector: 'foo=bar' }), 400, 'BadRequest');
}

async function patches() {
    const patch = (strategy, body, more = {}) =>
        core.patchNamespacedConfigMap({ namespace, name: 'typed', body, ...more }, k8s.setHeaderOptions('Content-Type', strategy));
    const { JsonPatch, MergePatch, StrategicMergePatch, ServerSideApply } = k8s.PatchStrategy;
    let patched = await patch(JsonPatch, [
        { op: 'test', path: '/data/a', value: '1' },
        { op: 'add', path: '/data/c', value: '3' },
    ]);
    check('a JSON patch', JSON.stringify(patched.data) === '{"a":"1","b":"2","c":"3"}', patched.data);
    patched = await patch(MergePatch, { data: { b: null } });
    check('a merge patch', JSON.stringify(patched.data) === '{"a":"1","c":"3"}', patched.data);
    const body = { spec: { template: { spec: { containers: [{ name: 'c', image: 'nginx:2' }] } } } };
    const merged = await apps.patchNamespacedDeployment({ namespace, name: 'web', body }, k8s.setHeaderOptions('Content-Type', StrategicMergePatch));
    const [container] = merged.spec.template.spec.containers;
    check('a strategic merge patch merges containers by name', container.image === 'nginx:2' && container.ports[0].containerPort === 80, container);
    await refused(() => patch(JsonPatch, [{ op: 'test', path: '/data/a', value: '9' }]), 422, 'Invalid');

    const applied = (fieldManager, data, more = {}) =>
        core.patchNamespacedConfigMap(
            { namespace, name: 'applied', fieldManager, ...more, body: { apiVersion: 'v1', kind: 'ConfigMap', metadata: { name: 'applied' }, data } },
            k8s.setHeaderOptions('Content-Type', ServerSideApply),
        );
    const made = await applied('one', { a: '1', b: '1' });
    check('apply creates, and owns', made.metadata.managedFields[0].manager === 'one', made.metadata);
    const status = await refused(() => applied('two', { a: '2' }), 409, 'Conflict');
    check('the conflict names field and owner', status.details.causes[0].field === '.data.a' && status.details.causes[0].message.includes('"one"'), status.details);
    const forced = await applied('two', { a: '2' }, { force: true });
    check('force takes it over', JSON.stringify(forced.data) === '{"a":"2","b":"1"}', forced.data);
    const left = await applied('one', {});
    check('what is no longer applied goes', JSON.stringify(left.data) === '{"a":"2"}', left.data);
}

/** Events of config maps since a version, within half a second of the last. */
async function seen(resourceVersion, query = {}) {
    const events = [];
    let ended;
    const path = `/api/v1/namespaces/${namespace}/configmaps`;
    const aborter = await new k8s.Watch(config).watch(
        path,
        { resourceVersion, timeoutSeconds: 1, ...query },
        (type, object) => events.push({ type, name: object.metadata?.name, version: object.metadata?.resourceVersion, object }),
        (error) => (ended = error ?? 'done'),
    );
    await eventually('a watch ends in its time', () => ended !== undefined);
    aborter.abort();
    return events;
}

const brief = (events) => events.map((event) => `${event.type} ${event.name}`).join(', ');

async function watches() {
    const version = (await core.listNamespacedConfigMap({ namespace })).metadata.resourceVersion;
    for (const name of ['w1', 'w2', 'w3']) await core.createNamespacedConfigMap({ namespace, body: map(name) });
    await core.deleteNamespacedConfigMap({ namespace, name: 'w2' });
    const events = await seen(version);
    check('a watch from a version gives all since, in order', brief(events) === 'ADDED w1, ADDED w2, ADDED w3, DELETED w2', events);
    const resumed = await seen(events[1].version);
    check('it is resumed from any of them', brief(resumed) === 'ADDED w3, DELETED w2', resumed);
    const marked = await seen(version, { allowWatchBookmarks: true, sendInitialEvents: true, resourceVersionMatch: 'NotOlderThan' });
    const end = marked.findIndex((event) => event.type === 'BOOKMARK' && event.object.metadata.annotations?.['k8s.io/initial-events-end'] === 'true');
    check('a list by watch ends with its bookmark', end > 3 && marked.slice(0, end).every((event) => event.type === 'ADDED'), marked);

    // More than any server keeps at hand, and what it keeps elsewhere compacted.
    let written;
    for (let turn = 0; turn < 20; turn += 1) {
        const data = { turn: String(turn), filling: 'x'.repeat(300000) };
        const body = { apiVersion: 'v1', kind: 'ConfigMap', metadata: { name: 'big' }, data };
        const options = k8s.setHeaderOptions('Content-Type', k8s.PatchStrategy.ServerSideApply);
        written = await core.patchNamespacedConfigMap({ namespace, name: 'big', fieldManager: 'me', force: true, body }, options);
    }
    const compacted = spawnSync(process.env.COMPACT, [written.metadata.resourceVersion]);
    check('what is old is compacted', compacted.status === 0, String(compacted.stderr));
    const gone = await seen(version);
    const [error] = gone;
    check('a version that is too old is gone', gone.length === 1 && error.type === 'ERROR' && error.object.code === 410 && error.object.reason === 'Expired', gone);
    const fresh = (await core.listNamespacedConfigMap({ namespace })).metadata.resourceVersion;
    setTimeout(() => core.createNamespacedConfigMap({ namespace, body: map('w4') }), 200);
    check('after it, one lists and goes on', brief(await seen(fresh)) === 'ADDED w4');
    await core.deleteNamespacedConfigMap({ namespace, name: 'big' });
}

async function informer() {
    const state = { add: [], update: [], delete: [], error: [] };
    const informer = k8s.makeInformer(
        config,
        `/api/v1/namespaces/${namespace}/configmaps`,
        () => core.listNamespacedConfigMap({ namespace, labelSelector: 'informed' }),
        'informed',
    );
    for (const event of ['add', 'update', 'delete']) informer.on(event, (object) => state[event].push(object.metadata.name));
    informer.on('error', (error) => state.error.push(String(error)));
    await core.createNamespacedConfigMap({ namespace, body: map('i1', { a: '1' }, { informed: 'yes' }) });
    await informer.start();
    await eventually('an informer lists', () => String(state.add) === 'i1', () => state);
    await core.createNamespacedConfigMap({ namespace, body: map('i2', { a: '1' }, { informed: 'yes' }) });
    await eventually('and sees what is added', () => String(state.add) === 'i1,i2', () => state);
    await core.patchNamespacedConfigMap({ namespace, name: 'i1', body: { data: { a: '2' } } }, k8s.setHeaderOptions('Content-Type', k8s.PatchStrategy.MergePatch));
    await eventually('and changed', () => String(state.update) === 'i1', () => state);
    await core.deleteNamespacedConfigMap({ namespace, name: 'i2' });
    await eventually('and deleted', () => String(state.delete) === 'i2', () => state);
    check('and keeps the rest', informer.get('i1', namespace)?.data.a === '2' && informer.list().length === 1, informer.list());
    check('without an error', state.error.length === 0, state.error);
    await informer.stop();
}

async function pages() {
    const whole = names(await core.listNamespacedConfigMap({ namespace }));
    const found = [];
    const versions = new Set();
    let token;
    do {
        const page = await core.listNamespacedConfigMap({ namespace, limit: 2, _continue: token });
        found.push(...names(page));
        versions.add(page.metadata.resourceVersion);
        if (token === undefined) check('a page says how many are left', page.metadata.remainingItemCount === whole.length - 2, page.metadata);
        token = page.metadata._continue;
    } while (token);
    check('pages make the whole, of one moment', String(found) === String(whole) && versions.size === 1, [found, whole]);
}

async function deletes() {
    const made = await core.createNamespacedConfigMap({ namespace, body: map('doomed') });
    const preconditions = { uid: '00000000-0000-4000-8000-000000000000' };
    await refused(() => core.deleteNamespacedConfigMap({ namespace, name: 'doomed', body: { preconditions } }), 409, 'Conflict');
    const gone = await core.deleteNamespacedConfigMap({ namespace, name: 'doomed', body: { preconditions: { uid: made.metadata.uid }, propagationPolicy: 'Background' } });
    check('a deletion says what went', gone.status === 'Success' && gone.details.uid === made.metadata.uid, gone);
    await core.createNamespacedPod({ namespace, body: { metadata: { name: 'p' }, spec: { containers: [{ name: 'c', image: 'i' }] } } });
    await refused(() => core.readNamespacedPodLog({ namespace, name: 'nope' }), 404, 'NotFound');
    await core.deleteNamespacedPod({ namespace, name: 'p', gracePeriodSeconds: 0 });
    await core.deleteCollectionNamespacedConfigMap({ namespace, labelSelector: 'informed' });
    check('a collection goes by its label', names(await core.listNamespacedConfigMap({ namespace, labelSelector: 'informed' })).length === 0);
}

async function objects() {
    const any = k8s.KubernetesObjectApi.makeApiClient(config);
    const [service] = k8s.loadAllYaml('apiVersion: v1\nkind: Service\nmetadata: {name: from-yaml, namespace: node}\nspec: {selector: {a: b}, ports: [{port: 80, targetPort: web}]}\n');
    const made = await any.create(service);
    check('an object of any kind has its address', made.spec.clusterIP.startsWith('10.96.'), made.spec);
    const patched = await any.patch({ ...service, metadata: { ...service.metadata, labels: { a: 'b' } } }, undefined, undefined, undefined, undefined, k8s.PatchStrategy.MergePatch);
    check('it is patched', patched.metadata.labels.a === 'b', patched.metadata);
    check('and listed', names(await any.list('v1', 'Service', namespace)).includes('from-yaml'));
    await any.delete(service);
}

async function tokens() {
    await core.createNamespacedServiceAccount({ namespace, body: { metadata: { name: 'robot' } } });
    const { status } = await core.createNamespacedServiceAccountToken({ namespace, name: 'robot', body: { spec: { audiences: [], expirationSeconds: 600 } } });
    const as = (token) => {
        const own = new k8s.KubeConfig();
        own.loadFromClusterAndUser(config.getCurrentCluster(), { name: 'robot', token });
        return own;
    };
    const who = await as(status.token).makeApiClient(k8s.AuthenticationV1Api).createSelfSubjectReview({ body: {} });
    check('a token says who I am', who.status.userInfo.username === 'system:serviceaccount:node:robot', who);
    const robot = as(status.token).makeApiClient(k8s.CoreV1Api);
    const said = await refused(() => robot.listNamespacedSecret({ namespace }), 403, 'Forbidden');
    check('and that I may not', said.message.startsWith('secrets is forbidden: User "system:serviceaccount:node:robot" cannot list resource "secrets"'), said);
    await config.makeApiClient(k8s.RbacAuthorizationV1Api).createNamespacedRoleBinding({
        namespace,
        body: {
            metadata: { name: 'robot' },
            roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'ClusterRole', name: 'edit' },
            subjects: [{ kind: 'ServiceAccount', name: 'robot', namespace }],
        },
    });
    let may = false;
    for (let turn = 0; turn < 20 && !may; turn += 1) {
        may = await robot.listNamespacedSecret({ namespace }).then(() => true, () => sleep(50));
    }
    check('until I may', may);
    // This client reads no body of a 401.
    const unknown = await as('nonsense').makeApiClient(k8s.CoreV1Api).listNamespacedSecret({ namespace }).catch((error) => error);
    check('and that a token is none', unknown.code === 401, unknown);
}

const version = await config.makeApiClient(k8s.VersionApi).getCode();
check('the server tells its version', version.gitVersion.startsWith('v1.37.'), version);
await core.createNamespace({ body: { metadata: { name: namespace } } });
for (let turn = 0; turn < 100; turn += 1) {
    if (await core.readNamespacedServiceAccount({ namespace, name: 'default' }).then(() => true, () => sleep(50))) break;
}
await typed();
await errors();
await patches();
await watches();
await informer();
await pages();
await deletes();
await objects();
await tokens();
console.log(`${passed} passed, 0 failed`);
process.exit(0);
