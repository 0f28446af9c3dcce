#!/usr/bin/env bash
# The article, command by command, with a stock kubectl against a three-node cluster: what each command
# must print is beside it. Run as root: conformance/article.sh [KUBECTL [UP-ARGUMENT…]]
#
# It starts cluster `lab` with a kubeconfig of its own and short time-outs, and takes it down at the end.
# The images come from the registry that hack/registry serves.
set -euo pipefail
cd "$(dirname "$0")/.."
. conformance/transcript.sh

kubectl=${1:-kubectl}
shift || true
skiff=${SKIFF_BIN:-target/release/skiff}
cluster=lab
work=$(mktemp -d)
export KUBECONFIG=$work/kubeconfig
grace=20
toleration=6

if "$skiff" status --name "$cluster" >/dev/null 2>&1; then
    echo "cluster $cluster is already up: take it down first (skiff down --name $cluster)" >&2
    exit 1
fi
finish() {
    local code=$?
    [ "$code" = 0 ] || evidence
    "$skiff" down --name "$cluster" >/dev/null 2>&1 || true
    rm -rf "$work"
    exit "$code"
}
# What a reader of a failed run wants to see.
evidence() {
    set +e
    echo "--- evidence"
    "$kubectl" get nodes,pods,svc,endpointslices -A -o wide
    "$kubectl" get events -A --sort-by=.lastTimestamp | tail -n 40
    "$skiff" status --name "$cluster"
    tail -n 30 /var/lib/skiff/"$cluster"/nodes/*/log/*.log 2>/dev/null | cut -c1-400
}
trap finish EXIT
trap 'exit 1' INT TERM

# The word kubectl in a step is the client under test.
kubectl() { "$kubectl" "$@"; }

title "A cluster of three nodes"
hack/registry
run "$skiff" up --name "$cluster" --registry-mirror docker.io=http://127.0.0.1:5000 \
    --node-monitor-grace-period "${grace}s" --default-unreachable-toleration-seconds "$toleration" \
    --default-not-ready-toleration-seconds "$toleration" "$@"
run kubectl config current-context
shows '^skiff-lab$'
run kubectl get nodes
shows '^NAME +STATUS +ROLES +AGE +VERSION$'
shows '^lab-control-plane +Ready +control-plane +[0-9ms]+ +v1\.37\.[0-9]+$'
shows '^lab-worker +Ready +<none> +[0-9ms]+ +v1\.37\.[0-9]+$'
shows '^lab-worker2 +Ready +<none> +[0-9ms]+ +v1\.37\.[0-9]+$'

title "Who kubectl talks to"
run kubectl run nginx-demo --image=nginx --port=80 --expose -v=6
shows 'POST.*/api/v1/namespaces/default/pods\?fieldManager=kubectl-run.*201 Created'
shows 'POST.*/api/v1/namespaces/default/services\?fieldManager=kubectl-run.*201 Created'
shows '^service/nginx-demo created$'
shows '^pod/nginx-demo created$'
run "$skiff" node ls --name "$cluster"
shows 'lab-control-plane.*127\.0\.0\.1:[0-9]+->6443/tcp'
run "$skiff" node exec --name "$cluster" lab-control-plane -- ss -ltnp
shows ':6443 .*kube-apiserver'

title "What it sends"
run kubectl delete pod,svc nginx-demo
shows '^pod "nginx-demo" deleted'
shows '^service "nginx-demo" deleted'
run kubectl run nginx-demo --image=nginx --port=80 --expose -v=8
shows '"name":"nginx-demo"'
shows '"restartPolicy":"Always"'
shows '^pod/nginx-demo created$'

title "Who does the work"
run kubectl wait --for=condition=Ready pod/nginx-demo --timeout=60s
run kubectl get events --field-selector involvedObject.name=nginx-demo --sort-by=.lastTimestamp \
    -o custom-columns=REASON:.reason,FROM:.source.component,NODE:.source.host,MESSAGE:.message
shows '^REASON +FROM +NODE +MESSAGE$'
shows '^Scheduled +default-scheduler +<none> +Successfully assigned default/nginx-demo to lab-worker2?$'
shows '^Pulling +kubelet +lab-worker2? +Pulling image "nginx"$'
shows '^Pulled +kubelet +lab-worker2? +Successfully pulled image "nginx" in [0-9.]+m?s \([0-9.]+m?s including waiting\)\. Image size: [0-9]+ bytes\.$'
shows '^Created +kubelet +lab-worker2? +Container created$'
shows '^Started +kubelet +lab-worker2? +Container started$'

title "Where the pod lives"
run kubectl get pod nginx-demo -o yaml
shows '^  nodeName: lab-worker2?$'
shows '^  phase: Running$'
shows '^  podIP: 10\.244\.[0-9]+\.[0-9]+$'
shows '^        startedAt: "20[0-9-]+T[0-9:]+Z"$'
run kubectl get pod nginx-demo -o wide
shows '^NAME +READY +STATUS +RESTARTS +AGE +IP +NODE +NOMINATED NODE +READINESS GATES$'
shows '^nginx-demo +1/1 +Running +0 +[0-9ms]+ +10\.244\.[0-9]+\.[0-9]+ +lab-worker2? +<none> +<none>$'
pki=/etc/kubernetes/pki/etcd
etcdctl() {
    "$skiff" node exec --name "$cluster" lab-control-plane -- etcdctl --cacert "$pki/ca.crt" --cert "$pki/server.crt" --key "$pki/server.key" "$@"
}
run etcdctl get /registry/pods/default/nginx-demo --keys-only
shows '^/registry/pods/default/nginx-demo'
run etcdctl get --prefix /registry/ --keys-only
shows '^/registry/services/specs/default/nginx-demo$'
shows '^/registry/minions/lab-worker$'
run etcdctl endpoint status
shows '127\.0\.0\.1:2379'
refused "$skiff" node exec --name "$cluster" lab-control-plane -- etcdctl --command-timeout=3s --cacert "$pki/ca.crt" get /registry/pods/default/nginx-demo

title "A service has an address, a name and the pod behind it"
run kubectl get service nginx-demo
shows '^nginx-demo +ClusterIP +10\.96\.[0-9]+\.[0-9]+ +<none> +80/TCP +[0-9ms]+$'
run kubectl get endpointslices -l kubernetes.io/service-name=nginx-demo
shows '^nginx-demo-[a-z0-9]{5} +IPv4 +80 +10\.244\.[0-9]+\.[0-9]+ +[0-9ms]+$'
for node in lab-control-plane lab-worker lab-worker2; do
    eventually 20 "$skiff" node exec --name "$cluster" "$node" -- curl -sS --max-time 5 http://nginx-demo
    shows '<h1>Welcome to nginx!</h1>'
done
run kubectl run asker --image=nginx --restart=Never --command -- sleep 3600
run kubectl wait --for=condition=Ready pod/asker --timeout=60s
run kubectl exec asker -- curl -sS --max-time 5 http://nginx-demo
shows '<h1>Welcome to nginx!</h1>'

title "What its reader tries next"
run kubectl logs nginx-demo
shows 'GET / HTTP/1\.1" 200'
run kubectl describe pod nginx-demo
shows '^Node: +lab-worker2?/'
shows 'Started container|Container started'
run kubectl exec nginx-demo -- nginx -v
shows 'nginx version'
for protocol in true false; do
    export KUBECTL_REMOTE_COMMAND_WEBSOCKETS=$protocol KUBECTL_PORT_FORWARD_WEBSOCKETS=$protocol
    run bash -c "echo over-stdin-$protocol | '$kubectl' exec -i nginx-demo -- cat"
    shows "^over-stdin-$protocol$"
    fails 7 kubectl exec nginx-demo -- sh -c 'exit 7'
    run kubectl cp "$0" asker:/tmp/article
    run kubectl exec asker -- wc -c /tmp/article
    shows "^$(wc -c <"$0") "
    port_forward pod/nginx-demo 80
    shows '<h1>Welcome to nginx!</h1>'
done
unset KUBECTL_REMOTE_COMMAND_WEBSOCKETS KUBECTL_PORT_FORWARD_WEBSOCKETS
run kubectl label pod nginx-demo tier=web
run kubectl annotate pod nginx-demo note=read
run kubectl get pod nginx-demo --show-labels
shows 'run=nginx-demo,tier=web'
run kubectl patch pod nginx-demo -p '{"metadata":{"labels":{"tier":null}}}'
run kubectl get pod nginx-demo -o 'jsonpath={.metadata.labels}'
shows '^\{"run":"nginx-demo"\}'
run bash -c "printf 'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {a: \"1\"}\n' | '$kubectl' apply -f -"
shows '^configmap/settings created$'
run bash -c "printf 'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {b: \"2\"}\n' | '$kubectl' apply -f -"
shows '^configmap/settings configured$'
run kubectl get configmap settings -o 'jsonpath={.data}'
shows '^\{"b":"2"\}'
run bash -c "printf 'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {c: \"3\"}\n' | '$kubectl' apply --server-side --force-conflicts -f -"
shows '^configmap/settings serverside-applied$'
run kubectl explain pod.spec.containers
shows '^FIELDS?:'
run kubectl api-resources
shows '^pods +po +v1 +true +Pod$'
run kubectl api-versions
shows '^apps/v1$'
run kubectl cluster-info
shows 'Kubernetes control plane.* is running at'
run kubectl version
shows '^Server Version: v1\.37'
run kubectl auth can-i create pods
shows '^yes$'
fails 1 kubectl top pods
shows 'Metrics API not available'

title "What happens if one of the nodes dies"
node=$(kubectl get pod nginx-demo -o 'jsonpath={.spec.nodeName}')
run "$skiff" node stop --name "$cluster" "$node"
eventually $((grace + 30)) kubectl get nodes "$node"
until_shows "^$node +NotReady +<none> +[0-9ms]+ +v1\.37\.[0-9]+$"
run kubectl get node "$node" -o 'jsonpath={.spec.taints[*].key}'
eventually 20 kubectl get node "$node" -o 'jsonpath={range .spec.taints[*]}{.key}:{.effect}{"\n"}{end}'
until_shows '^node.kubernetes.io/unreachable:NoExecute$'
eventually $((toleration + 30)) kubectl get pod nginx-demo -o wide
until_shows "^nginx-demo +1/1 +Terminating +0 +[0-9ms]+ +10\.244\.[0-9]+\.[0-9]+ +$node +<none> +<none>$"
sleep 3
run kubectl get pods -o wide --no-headers
shows "^nginx-demo +1/1 +Terminating .* $node "
run "$skiff" node start --name "$cluster" "$node"
eventually 60 kubectl get pods nginx-demo
until_shows 'pods "nginx-demo" not found'
eventually 30 kubectl get nodes "$node"
until_shows "^$node +Ready "
run kubectl delete pod,svc,configmap --all --grace-period=1

title "Nothing is left behind"
run "$skiff" down --name "$cluster"
run "$skiff" down --name "$cluster"
run bash -c "! ip link show | grep -F skiff-$cluster"
run bash -c "! grep -F /skiff/$cluster /proc/mounts"
run bash -c "! nft list ruleset | grep -F skiff-$cluster"
run bash -c "! grep -F skiff-$cluster '$KUBECONFIG'"
run test ! -e "/var/lib/skiff/$cluster"
passed
