#!/usr/bin/env bash
# What a stock kubectl does with the controllers where no container needs to run: a control plane alone and three
# simulated nodes. Needs no root: conformance/simulated.sh [KUBECTL]
set -euo pipefail
cd "$(dirname "$0")/.."
. conformance/transcript.sh

kubectl=${1:-kubectl}
serve
apply() { "$kubectl" apply -f - <<<"$1"; }
cat >"$work/nodes.yaml" <<'EOF'
nodes:
- {prefix: node, count: 3}
rules:
- {name: unending, match: {labels: 'ends=never'}, finish: {after: 1h}}
EOF
background nodes "$skiff" simulate --config "$work/nodes.yaml" --kubeconfig "$KUBECONFIG"
at_end+=(nodes)
in_background nodes 20 'The simulated nodes are registered'

title "What a Deployment is made of is changed"
run kubectl create deployment web --image=nginx --replicas=2 --port=80
run kubectl wait --for=jsonpath='{.status.readyReplicas}'=2 deployment/web --timeout=30s
shows '^deployment.apps/web condition met$'
run kubectl create serviceaccount robot
run kubectl set serviceaccount deployment/web robot
shows '^deployment.apps/web serviceaccount updated$'
run kubectl set resources deployment/web --requests=cpu=100m,memory=64Mi --limits=memory=128Mi
shows '^deployment.apps/web resource requirements updated$'
run kubectl set env deployment/web COLOUR=blue SHAPE=round
run kubectl set env deployment/web SHAPE-
run kubectl set env deployment/web --list
shows '^COLOUR=blue$'
run kubectl rollout status deployment/web --timeout=30s
shows '^deployment "web" successfully rolled out$'
run kubectl rollout history deployment/web --revision=5
shows 'Service Account:	robot'
shows 'COLOUR:	blue'
shows 'memory:	128Mi'
run kubectl rollout undo deployment/web --to-revision=2
run kubectl rollout status deployment/web --timeout=30s
run kubectl get deployment web -o 'jsonpath={.spec.template.spec.containers[0].env}|{.spec.template.spec.serviceAccountName}'
shows '^\|robot$'
fails 1 kubectl rollout undo deployment/web --to-revision=2
shows 'unable to find specified revision 2 in history'

title "Nothing rolled out is rolled out, too"
run kubectl create deployment none --image=nginx --replicas=0
run kubectl rollout status deployment/none --timeout=10s
run kubectl get deployment none -o 'jsonpath={.status.conditions[?(@.type=="Progressing")].message}'
shows '^ReplicaSet "none-[0-9a-z]+" has successfully progressed\.$'

title "It is scaled by its memory, or by its processors"
if "$kubectl" autoscale --help | grep -q -- '--memory='; then
    run kubectl autoscale deployment web --min=2 --max=4 --memory=80% --cpu=500m
    run kubectl get horizontalpodautoscaler web -o 'jsonpath={range .spec.metrics[*]}{.resource.name}={.resource.target.type} {end}'
    shows 'memory=Utilization'
    shows 'cpu=AverageValue'
else
    run kubectl autoscale deployment web --min=2 --max=4 --cpu-percent=80
fi
run kubectl wait --for=condition=AbleToScale horizontalpodautoscaler/web --timeout=30s
run kubectl describe horizontalpodautoscaler web
shows 'SucceededGetScale +the HPA controller was able to get the target.s current scale'
run kubectl delete horizontalpodautoscaler web

title "Everything that has pods is exposed"
replicaset=$(kubectl get replicaset -l app=web -o 'jsonpath={.items[?(@.spec.replicas==2)].metadata.name}')
pod=$(kubectl get pods -l app=web -o 'jsonpath={.items[0].metadata.name}')
run kubectl expose deployment web --name=of-deployment --target-port=80
run kubectl expose service of-deployment --name=of-service --port=81 --target-port=80
run kubectl expose replicaset "$replicaset" --name=of-replicaset --port=80
run kubectl expose pod "$pod" --name=of-pod --port=80
run apply '
apiVersion: v1
kind: ReplicationController
metadata: {name: old}
spec:
  replicas: 1
  selector: {app: old}
  template:
    metadata: {labels: {app: old}}
    spec: {containers: [{name: c, image: nginx}]}'
run kubectl expose replicationcontroller old --name=of-controller --port=80
for of in deployment:2 service:2 replicaset:2 pod:2 controller:1; do
    eventually 20 kubectl get endpointslices -l "kubernetes.io/service-name=of-${of%:*}" -o 'jsonpath={.items[*].endpoints[*].conditions.ready}'
    until_shows "^true$([ "${of#*:}" = 1 ] || echo ' true')$"
done

title "What is left alone is adopted by the next that selects it"
run kubectl delete replicationcontroller old --cascade=orphan
left=$(kubectl get pods -l app=old -o name)
run kubectl get pods -l app=old -o 'jsonpath={.items[*].metadata.ownerReferences}'
shows '^$'
run apply '
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: new}
spec:
  replicas: 1
  selector: {matchLabels: {app: old}}
  template:
    metadata: {labels: {app: old}}
    spec: {containers: [{name: c, image: nginx}]}'
eventually 20 kubectl get "$left" -o 'jsonpath={.metadata.ownerReferences[0].kind}/{.metadata.ownerReferences[0].name}'
until_shows '^ReplicaSet/new$'
run kubectl get pods -l app=old -o name
shows "^$left$"
run kubectl get deployment web -o yaml
yaml=$out
run kubectl delete deployment web --cascade=orphan
run kubectl get replicaset "$replicaset" -o 'jsonpath={.metadata.ownerReferences}'
shows '^$'
run apply "$yaml"
eventually 20 kubectl get replicaset "$replicaset" -o 'jsonpath={.metadata.ownerReferences[0].kind}'
until_shows '^Deployment$'
run kubectl rollout status deployment/web --timeout=30s
run kubectl get "pod/$pod" -o 'jsonpath={.status.phase}'
shows '^Running$'

title "Jobs wait, go on, and count their time anew"
run apply '
apiVersion: batch/v1
kind: Job
metadata: {name: twice}
spec:
  suspend: true
  template:
    metadata: {labels: {ends: never}}
    spec: {restartPolicy: Never, containers: [{name: c, image: busybox}]}'
for round in 1 2; do
    run kubectl wait --for=condition=Suspended job/twice --timeout=20s
    run kubectl patch job twice -p '{"spec":{"suspend":false}}'
    run kubectl wait --for=condition=Suspended=false job/twice --timeout=20s
    run kubectl wait --for=jsonpath='{.status.active}'=1 job/twice --timeout=20s
    run kubectl get job twice -o 'jsonpath={.status.startTime}'
    if [ "$round" = 1 ]; then
        first=$out
        sleep 1
        run kubectl patch job twice -p '{"spec":{"suspend":true}}'
    elif [ "$out" = "$first" ]; then
        broken "it did not start anew"
    fi
done
run kubectl create cronjob tick --image=busybox --schedule='0 0 31 2 *' -- date
run kubectl create job by-hand --from=cronjob/tick
run kubectl get job by-hand -o 'jsonpath={.metadata.annotations.cronjob\.kubernetes\.io/instantiate} {.metadata.ownerReferences[0].kind}'
shows '^manual CronJob$'
run kubectl wait --for=condition=Complete job/by-hand --timeout=20s
run kubectl delete cronjob tick --cascade=foreground
run kubectl get jobs -o name
if grep -Fqw by-hand <<<"$out"; then broken "the cron job's job is left"; fi

title "A node is drained as far as budgets and local data allow"
run apply '
apiVersion: v1
kind: Pod
metadata: {name: scratch}
spec:
  containers: [{name: c, image: busybox}]
  volumes: [{name: v, emptyDir: {}}]'
run kubectl wait --for=condition=Ready pod/scratch --timeout=20s
node=$(kubectl get pod scratch -o 'jsonpath={.spec.nodeName}')
fails 1 kubectl drain "$node"
shows 'cannot delete Pods (with local storage|that declare no controller)'
run kubectl create poddisruptionbudget web --selector=app=web --min-available=2
eventually 20 kubectl get poddisruptionbudget web -o 'jsonpath={.status.currentHealthy}/{.status.desiredHealthy} {.status.disruptionsAllowed}'
until_shows '^2/2 0$'
for one in $(kubectl get nodes -o name); do run kubectl cordon "$one"; done
node=$(kubectl get pods -l app=web -o 'jsonpath={.items[0].spec.nodeName}')
fails 1 kubectl drain "$node" --force --delete-emptydir-data --timeout=3s
shows 'Cannot evict pod as it would violate the pod.s disruption budget\.'
run kubectl delete poddisruptionbudget web
run kubectl drain "$node" --force --delete-emptydir-data --timeout=30s
shows "^node/$node drained$"
for one in $(kubectl get nodes -o name); do run kubectl uncordon "$one"; done
run kubectl rollout status deployment/web --timeout=30s

title "Endpoints written by hand are mirrored, and go with their Service"
run kubectl create service clusterip outside --tcp=80
run kubectl patch service outside -p '{"spec":{"selector":null}}'
eventually 20 kubectl delete endpoints outside --ignore-not-found
run apply '
apiVersion: v1
kind: Endpoints
metadata: {name: outside, annotations: {note: first}}
subsets: [{addresses: [{ip: 192.0.2.7}], ports: [{port: 80}]}]'
slice=(kubectl get endpointslices -l kubernetes.io/service-name=outside,endpointslice.kubernetes.io/managed-by=endpointslicemirroring-controller.k8s.io)
eventually 20 "${slice[@]}" -o 'jsonpath={.items[*].endpoints[*].addresses[*]} {.items[*].metadata.annotations.note}'
until_shows '^192\.0\.2\.7 first$'
run kubectl annotate --overwrite endpoints outside note=second
eventually 20 "${slice[@]}" -o 'jsonpath={.items[*].metadata.annotations.note}'
until_shows '^second$'
run kubectl delete service outside
eventually 20 kubectl get endpoints,endpointslices -o name
until_absent outside

passed
