#!/usr/bin/env bash
# What may break while the article's cluster works, and that it ends in the same state all the same: pulls that are cut,
# containers that crash, parts and nodes that are killed at random moments. Run as root: conformance/faults.sh [KUBECTL]
#
# It starts cluster `lab` with a kubeconfig of its own and takes it down at the end. The images come from the registry
# that hack/registry serves, through a proxy that can be told to cut connections or to be slow.
set -euo pipefail
cd "$(dirname "$0")/.."
. conformance/transcript.sh

kubectl=${1:-kubectl}
rounds=${ROUNDS:-2}
proxy_port=${PROXY_PORT:-5001}
begin
up() { "$skiff" up --name "$cluster" --registry-mirror "docker.io=http://127.0.0.1:$proxy_port" --node-monitor-grace-period 20s; }

# pod NAME NODE IMAGE [COMMAND…]: creates a pod on a node, chosen here and not by the scheduler.
pod() {
    local name=$1 node=$2 image=$3
    shift 3
    run kubectl run "$name" --image="$image" --overrides "{\"spec\":{\"nodeName\":\"$node\"}}" --override-type=strategic "$@"
}

# The id and the restarts of a pod's container.
instance() { kubectl get pod "$1" -o 'jsonpath={.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}'; }

# kill_part NODE PART: kills a process inside a node, whoever it is then.
kill_part() {
    steps=$((steps + 1))
    show kill -9 "$2" of "$1"
    "$skiff" node exec --name "$cluster" "$1" -- sh -c "kill -9 \$(pidof $2)"
}

# kill_node NODE: kills the first process of a node, and with it the node.
kill_node() {
    steps=$((steps + 1))
    show kill -9 "$1"
    local pid
    pid=$(pgrep -f "node-init .*/skiff/$cluster/nodes/$1/spec.json" | head -n 1)
    kill -9 "$pid"
}

# Up to a second and a half.
moment() { sleep "$((RANDOM % 2)).$((RANDOM % 5))"; }

hack/registry
background proxy python3 conformance/flaky_proxy.py "$proxy_port" 5000 "$work"
at_end+=(proxy)
run up

title "A connection that is cut during a pull changes nothing"
touch "$work/cut"
pod torn lab-worker nginx
run kubectl wait --for=condition=Ready pod/torn --timeout=120s
run kubectl get pod torn
shows '^torn +1/1 +Running +0 '
rm "$work/cut"
run kubectl delete pod torn --grace-period=1

title "One that finds no registry is tried again until it does"
touch "$work/dead"
pod cut lab-worker busybox --command -- sleep 36000
eventually 60 kubectl get events --field-selector involvedObject.name=cut
until_shows 'Failed +pod/cut +Failed to pull image "busybox": '
eventually 30 kubectl get pod cut
until_shows '^cut +0/1 +(ErrImagePull|ImagePullBackOff) +0 '
rm "$work/dead"
run kubectl wait --for=condition=Ready pod/cut --timeout=60s
run kubectl get pod cut -o wide
shows '^cut +1/1 +Running +0 .* lab-worker '

title "A kubelet killed during a pull goes on with it"
touch "$work/slow"
pod slow lab-worker2 nginx
sleep 1
kill_part lab-worker2 kubelet
sleep 1
rm "$work/slow"
run kubectl wait --for=condition=Ready pod/slow --timeout=60s
run kubectl get pod slow
shows '^slow +1/1 +Running +0 '

title "A container that crashes is started again, later each time"
run kubectl run crash --image=busybox -- sh -c 'exit 3'
eventually 60 kubectl get pod crash
until_shows '^crash +0/1 +CrashLoopBackOff +1 \('
node=$(kubectl get pod crash -o 'jsonpath={.spec.nodeName}')
run kubectl get pod crash -o 'jsonpath={.status.containerStatuses[0].lastState.terminated.exitCode}'
shows '^3$'
eventually 30 kubectl get events --field-selector involvedObject.name=crash
until_shows 'BackOff +pod/crash +Back-off restarting failed container crash in pod crash_default\('
eventually 40 kubectl get pod crash -o wide
until_shows "^crash +0/1 +[A-Za-z]+ +2 .* $node "
run kubectl delete pod crash --grace-period=1

title "Two workers share the pods"
for number in 1 2 3 4; do run kubectl run "shared-$number" --image=nginx; done
run kubectl wait --for=condition=Ready pod/shared-1 pod/shared-2 pod/shared-3 pod/shared-4 --timeout=60s
run kubectl get pods -o custom-columns=NAME:.metadata.name,NODE:.spec.nodeName
shows '^shared-[1-4] +lab-worker$'
shows '^shared-[1-4] +lab-worker2$'
run kubectl delete pod shared-1 shared-2 shared-3 shared-4 --grace-period=1

title "Any part may be killed at any moment"
before="$(instance cut) $(instance slow)"
for round in $(seq "$rounds"); do
    for part in kube-scheduler kube-controller-manager kube-apiserver kubelet containerd kube-proxy; do
        node=lab-worker
        case $part in kube-*r) node=lab-control-plane ;; esac
        name=victim-$round-${part//[^a-z]/}
        eventually 30 kubectl run "$name" --image=nginx --port=80 --expose
        shows "^pod/$name created$"
        moment
        kill_part "$node" "$part"
        eventually 60 kubectl wait --for=condition=Ready "pod/$name" --timeout=30s
        # A container whose start was cut off counts as restarted, as with upstream's kubelet.
        restarts=0
        case $part in kubelet | containerd) restarts='[01]' ;; esac
        eventually 30 kubectl get pod "$name"
        shows "^$name +1/1 +Running +$restarts "
        eventually 30 "$skiff" node exec --name "$cluster" lab-worker2 -- curl -sS --max-time 5 "http://$name"
        shows '<h1>Welcome to nginx!</h1>'
        (moment && kill_part "$node" "$part") &
        eventually 60 kubectl delete "pod/$name" "service/$name" --ignore-not-found
        wait $!
        eventually 60 kubectl get pods,services,endpointslices -o name
        until_absent "$name"
    done
done
eventually 30 kubectl get pods
[ "$before" = "$(instance cut) $(instance slow)" ] || broken "a container was started anew: $before, then $(instance cut) $(instance slow)"

title "No container is left that has no pod"
for node in lab-worker lab-worker2; do
    eventually 30 "$skiff" node exec --name "$cluster" "$node" -- ctr -n k8s.io tasks ls -q
    until_lines 2
done

title "A node that is killed comes back with up"
for node in lab-worker lab-control-plane; do
    kill_node "$node"
    moment
    run up
    eventually 60 kubectl get nodes
    until_shows "^$node +Ready "
done
eventually 60 kubectl get pod cut
until_shows '^cut +1/1 +Running +1 '
eventually 60 kubectl get pod slow
until_shows '^slow +1/1 +Running +0 '

title "up goes on where a killed one was"
for node in lab-control-plane lab-worker lab-worker2; do kill_node "$node"; done
for seconds in 0.1 0.5 1; do
    steps=$((steps + 1))
    show "skiff up, and kill -9 of it after $seconds s"
    up >"$work/up" 2>&1 &
    sleep "$seconds"
    kill -9 "$(pgrep -P "$!" -x skiff || echo "$!")" 2>/dev/null || true
    wait "$!" 2>/dev/null || true
done
run up
run kubectl get nodes
shows '^lab-control-plane +Ready '
for name in cut slow; do
    eventually 60 kubectl get pod "$name"
    until_shows "^$name +1/1 +Running "
done

title "Nothing is left behind"
for node in lab-control-plane lab-worker; do kill_node "$node"; done
run "$skiff" down --name "$cluster"
nothing_left
passed
