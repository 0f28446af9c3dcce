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
grace=20
toleration=6
begin

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
run kubectl -n kube-system exec etcd-lab-control-plane -- etcdctl \
    --cacert /etc/kubernetes/pki/etcd/ca.crt \
    --cert /etc/kubernetes/pki/etcd/server.crt \
    --key /etc/kubernetes/pki/etcd/server.key \
    get /registry/pods/default/nginx-demo --keys-only
shows '^/registry/pods/default/nginx-demo$'
# The same from the node itself.
pki=/etc/kubernetes/pki/etcd
etcdctl() {
    "$skiff" node exec --name "$cluster" lab-control-plane -- etcdctl --cacert "$pki/ca.crt" --cert "$pki/server.crt" --key "$pki/server.key" "$@"
}
run etcdctl get --prefix /registry/ --keys-only
shows '^/registry/services/specs/default/nginx-demo$'
shows '^/registry/minions/lab-worker$'
run etcdctl endpoint status
shows '127\.0\.0\.1:2379'
refused "$skiff" node exec --name "$cluster" lab-control-plane -- etcdctl --command-timeout=3s --cacert "$pki/ca.crt" get /registry/pods/default/nginx-demo
run kubectl -n kube-system get pods -l component=etcd,tier=control-plane
shows '^etcd-lab-control-plane +1/1 +Running +0 +[0-9ms]+$'

title "What is written to etcd is what kubectl sees"
background etcd-watch "$skiff" node exec --name "$cluster" lab-control-plane -- etcdctl --cacert "$pki/ca.crt" --cert "$pki/server.crt" --key "$pki/server.key" watch --prefix /registry/pods/
background kubectl-watch "$kubectl" get configmaps -w --output-watch-events
in_background kubectl-watch 10 '^ADDED +kube-root-ca.crt'
run kubectl label pod nginx-demo seen=by-etcdctl
in_background etcd-watch 10 '^PUT$'
in_background etcd-watch 10 '^/registry/pods/default/nginx-demo$'
in_background etcd-watch 10 '"seen":"by-etcdctl"'
end etcd-watch
config_map() { printf '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%s","namespace":"default","uid":"7d1f6a52-0000-4000-8000-00000000000%s","creationTimestamp":"2026-01-01T00:00:00Z"},"data":{"a":"%s"}}' "$1" "$2" "$2"; }
run etcdctl put /registry/configmaps/default/by-put "$(config_map by-put 1)"
shows '^OK$'
in_background kubectl-watch 10 '^ADDED +by-put +1 '
run kubectl get configmap by-put -o 'jsonpath={.data.a}'
shows '^1$'
transaction() { printf 'mod("/registry/configmaps/default/by-put") > "0"\n\nput /registry/configmaps/default/by-put %s\nput /registry/configmaps/default/by-txn %s\n\n\n' "$(config_map by-put 2)" "$(config_map by-txn 3)" | etcdctl txn; }
run transaction
shows '^SUCCESS$'
in_background kubectl-watch 10 '^MODIFIED +by-put '
in_background kubectl-watch 10 '^ADDED +by-txn '
run etcdctl del /registry/configmaps/default/by-txn
shows '^1$'
in_background kubectl-watch 10 '^DELETED +by-txn '
end kubectl-watch

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

run kubectl expose pod nginx-demo --name=nginx-headless --cluster-ip=None --port=80
run kubectl get service nginx-headless
shows '^nginx-headless +ClusterIP +None +<none> +80/TCP +[0-9ms]+$'
address=$(kubectl get pod nginx-demo -o 'jsonpath={.status.podIP}')
eventually 20 kubectl exec asker -- curl -sS --max-time 5 -o /dev/null -w '%{remote_ip}\n' http://nginx-headless.default.svc.cluster.local
shows "^$address$"
run kubectl expose pod nginx-demo --name=nginx-port --type=NodePort --port=80
port=$(kubectl get service nginx-port -o 'jsonpath={.spec.ports[0].nodePort}')
run kubectl get service nginx-port
shows "^nginx-port +NodePort +10\\.96\\.[0-9]+\\.[0-9]+ +<none> +80:$port/TCP +[0-9ms]+$"
for node in lab-control-plane lab-worker lab-worker2; do
    internal=$(kubectl get node "$node" -o 'jsonpath={.status.addresses[?(@.type=="InternalIP")].address}')
    eventually 20 curl -sS --max-time 5 "http://$internal:$port"
    shows '<h1>Welcome to nginx!</h1>'
    run "$skiff" node exec --name "$cluster" lab-worker -- curl -sS --max-time 5 "http://$internal:$port"
    shows '<h1>Welcome to nginx!</h1>'
done
run bash -c "printf 'apiVersion: v1\nkind: Pod\nmetadata: {name: moody, labels: {app: moody}}\nspec:\n  containers:\n  - {name: c, image: busybox, command: [sleep, \"3600\"], readinessProbe: {exec: {command: [test, -e, /tmp/ready]}, periodSeconds: 1}}\n' | '$kubectl' apply -f -"
run kubectl expose pod moody --port=80
eventually 30 kubectl get pod moody
until_shows '^moody +0/1 +Running '
eventually 10 kubectl get endpointslices -l kubernetes.io/service-name=moody -o 'jsonpath={.items[*].endpoints[*].conditions.ready}'
until_shows '^false$'
run kubectl exec moody -- touch /tmp/ready
eventually 10 kubectl get endpointslices -l kubernetes.io/service-name=moody -o 'jsonpath={.items[*].endpoints[*].conditions.ready}'
until_shows '^true$'
run kubectl get endpoints moody
shows '^moody +10\.244\.[0-9]+\.[0-9]+:80 '
run kubectl exec moody -- rm /tmp/ready
eventually 10 kubectl get endpoints moody
until_shows '^moody +(<none>)? +[0-9ms]+$'
run kubectl exec moody -- wget -qO- http://nginx-demo
shows '<h1>Welcome to nginx!</h1>'

title "A process in a pod calls the API"
account=/var/run/secrets/kubernetes.io/serviceaccount
from_a_pod() { kubectl exec asker -- sh -c "curl -sS --max-time 5 --cacert $account/ca.crt -H \"Authorization: Bearer \$(cat $account/token)\" https://kubernetes.default.svc/api/v1/namespaces/\$(cat $account/namespace)/$1"; }
run from_a_pod pods/nginx-demo
shows 'pods \\"nginx-demo\\" is forbidden: User \\"system:serviceaccount:default:default\\" cannot get resource \\"pods\\" in API group \\"\\" in the namespace \\"default\\"'
run kubectl create rolebinding reader --clusterrole=view --serviceaccount=default:default
run from_a_pod pods/nginx-demo
shows '"phase": ?"Running"'
server=$(kubectl config view --minify -o 'jsonpath={.clusters[0].cluster.server}')
run curl -sS "http://${server#https://}/"
shows '^Client sent an HTTP request to an HTTPS server\.$'
run curl -ksS -o /dev/null -w '%{http_code}\n' "$(kubectl config view --minify -o 'jsonpath={.clusters[0].cluster.server}')/api/v1/pods"
shows '^40[13]$'

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
for output in json yaml kyaml name wide 'jsonpath={.metadata.name}' 'jsonpath-as-json={.metadata.name}' 'go-template={{.metadata.name}}{{"\n"}}' 'custom-columns=NAME:.metadata.name'; do
    # kyaml is newer than 1.32.
    if [ "$output" = kyaml ] && ! kubectl get --help | grep -q kyaml; then continue; fi
    run kubectl get pod nginx-demo -o "$output"
    shows 'nginx-demo'
done
printf '{.metadata.uid}' >"$work/jsonpath"
run kubectl get pod nginx-demo -o "jsonpath-file=$work/jsonpath"
shows '^[0-9a-f-]{36}$'
printf '{{.status.phase}}\n' >"$work/template"
run kubectl get pod nginx-demo -o "go-template-file=$work/template"
shows '^Running$'
printf 'NAME          PHASE\nmetadata.name status.phase\n' >"$work/columns"
run kubectl get pod nginx-demo -o "custom-columns-file=$work/columns"
shows '^nginx-demo +Running$'
for kind in pods services events nodes namespaces configmaps secrets serviceaccounts endpoints endpointslices leases; do
    run kubectl get "$kind" -A
    run kubectl get "$kind" -A -o wide
    run kubectl describe "$kind" -A
done
background pods-watch "$kubectl" get pods -w
in_background pods-watch 10 '^nginx-demo +1/1 +Running'
run kubectl run ticker --image=busybox --restart=Never --command -- sh -c 'n=0; while :; do n=$((n+1)); echo tick $n; sleep 0.2; done'
in_background pods-watch 30 '^ticker +0/1 +Pending '
in_background pods-watch 30 '^ticker +0/1 +ContainerCreating '
in_background pods-watch 30 '^ticker +1/1 +Running '
background logs "$kubectl" logs -f --since=1s ticker
background attach "$kubectl" attach ticker
in_background logs 10 '^tick [0-9]+$'
in_background attach 10 '^tick [0-9]+$'
seen=$(grep -E '^tick [0-9]+$' "$work/logs.out" | tail -n 1)
in_background logs 10 "^tick $((${seen#tick } + 5))$"
end attach
run kubectl delete pod ticker --grace-period=1
end logs
in_background pods-watch 10 '^ticker +1/1 +Terminating '
end pods-watch
run bash -c "printf 'from my side\n' | '$kubectl' run talker -i --rm --quiet --image=busybox --restart=Never -- sh -c 'read line; echo \"heard: \$line\"'"
shows '^heard: from my side'
run script -qec "'$kubectl' exec -it nginx-demo -- sh -c 'test -t 0 && tty'" /dev/null
shows '/dev/pts/[0-9]+'
run kubectl label pod nginx-demo tier=web
run kubectl annotate pod nginx-demo note=read
run kubectl get pod nginx-demo --show-labels
shows 'run=nginx-demo,seen=by-etcdctl,tier=web'
run kubectl patch pod nginx-demo -p '{"metadata":{"labels":{"tier":null,"seen":null}}}'
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
run env EDITOR="sed -i s/c:/edited:/" "$kubectl" edit configmap settings
shows '^configmap/settings edited$'
run kubectl get configmap settings -o 'jsonpath={.data.edited}'
shows '^3$'
run env KUBE_EDITOR=true "$kubectl" edit configmap settings
shows 'no changes made'
run bash -c "printf 'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: strict}\ndada: {c: \"3\"}\n' | '$kubectl' apply --validate=strict -f - 2>&1 | cat"
shows 'unknown field "dada"'
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
eventually 10 kubectl get service kubernetes
until_shows '^kubernetes +ClusterIP +10\.96\.0\.1 +<none> +443/TCP '
eventually 10 kubectl get endpointslices kubernetes
until_shows '^kubernetes +IPv4 +6443 '

title "Nothing is left behind"
run "$skiff" up --name "$cluster" --kubeconfig "$work/second"
run kubectl --kubeconfig "$work/second" config current-context
shows '^skiff-lab$'
run "$skiff" down --name "$cluster"
run test ! -e "$work/second"
run "$skiff" down --name "$cluster"
nothing_left
passed
