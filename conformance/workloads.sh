#!/usr/bin/env bash
# The controllers keep what was asked for, as a stock kubectl sees it: Deployments that roll, back and survive a node,
# DaemonSets, StatefulSets, Jobs, deletion by cascade, drained nodes. Run as root: conformance/workloads.sh [KUBECTL]
#
# It starts cluster `lab` with a kubeconfig of its own and takes it down at the end. The images come from the registry
# that hack/registry serves.
set -euo pipefail
cd "$(dirname "$0")/.."
. conformance/transcript.sh

kubectl=${1:-kubectl}
begin
apply() { "$kubectl" apply -f - <<<"$1"; }

hack/registry
run "$skiff" up --name "$cluster" --registry-mirror docker.io=http://127.0.0.1:5000 --node-monitor-grace-period 20s \
    --default-unreachable-toleration-seconds 6 --default-not-ready-toleration-seconds 6

title "A Deployment"
run kubectl create deployment web --image=nginx --replicas=3 --port=80
shows '^deployment.apps/web created$'
run kubectl rollout status deployment/web --timeout=60s
shows 'successfully rolled out$'
run kubectl get deployment web -o wide
shows '^web +3/3 +3 +3 +[0-9ms]+ +nginx +nginx +app=web$'
run kubectl get replicaset -l app=web
shows '^web-[0-9a-z]+ +3 +3 +3 +[0-9ms]+$'
run kubectl get events --field-selector involvedObject.kind=Deployment,involvedObject.name=web
shows 'ScalingReplicaSet +deployment/web +Scaled up replica set web-[0-9a-z]+ from 0 to 3'
run kubectl expose deployment web
eventually 20 "$skiff" node exec --name "$cluster" lab-control-plane -- curl -sS --max-time 5 http://web
shows '<h1>Welcome to nginx!</h1>'
pod=$(kubectl get pods -l app=web -o 'jsonpath={.items[0].metadata.name}')
run kubectl delete pod "$pod" --wait=false
eventually 30 kubectl get pods -l app=web
until_absent "$pod"
run kubectl rollout status deployment/web --timeout=60s
run kubectl scale deployment/web --replicas=5
shows '^deployment.apps/web scaled$'
run kubectl rollout status deployment/web --timeout=60s
run kubectl scale deployment/web --replicas=2
eventually 30 kubectl get deployment web
until_shows '^web +2/2 +2 +2 '

run kubectl expose deployment web --name=web-outside --type=LoadBalancer --port=80
eventually 20 kubectl get service web-outside
until_shows '^web-outside +LoadBalancer +10\.96\.[0-9]+\.[0-9]+ +[0-9]+\.[0-9.]+ +80:[0-9]+/TCP '
eventually 20 curl -sS --max-time 5 "http://$(kubectl get service web-outside -o 'jsonpath={.status.loadBalancer.ingress[0].ip}')"
shows '<h1>Welcome to nginx!</h1>'
run kubectl autoscale deployment web --min=2 --max=4
run kubectl get horizontalpodautoscaler web
shows '^web +Deployment/web +'
run kubectl delete horizontalpodautoscaler web

title "It rolls, pauses and goes back"
run kubectl set image deployment/web nginx=nginx:1.22
run kubectl rollout status deployment/web --timeout=60s
run kubectl annotate deployment/web kubernetes.io/change-cause='another image'
run kubectl rollout history deployment/web
shows '^1 +<none>$'
shows '^2 +another image$'
run kubectl rollout history deployment/web --revision=2
shows 'Image:	nginx:1.22'
run kubectl rollout undo deployment/web
shows '^deployment.apps/web rolled back$'
run kubectl rollout status deployment/web --timeout=60s
run kubectl get deployment web -o 'jsonpath={.spec.template.spec.containers[0].image} {.metadata.annotations.deployment\.kubernetes\.io/revision}'
shows '^nginx 3$'
run kubectl rollout pause deployment/web
run kubectl set env deployment/web COLOUR=blue
run kubectl get deployment web -o 'jsonpath={.status.conditions[?(@.type=="Progressing")].reason}'
sleep 1
run kubectl get pods -l app=web -o 'jsonpath={.items[*].spec.containers[0].env}'
shows '^$'
run kubectl rollout resume deployment/web
run kubectl rollout status deployment/web --timeout=60s
# The last old pod may still be terminating when the rollout is done.
eventually 30 kubectl get pods -l app=web -o 'jsonpath={.items[0].spec.containers[0].env[0].value}'
until_shows '^blue$'
run kubectl rollout restart deployment/web
run kubectl rollout status deployment/web --timeout=60s
run kubectl set image deployment/web nginx=no-such-image
run kubectl patch deployment web -p '{"spec":{"progressDeadlineSeconds":3}}'
fails 1 kubectl rollout status deployment/web --timeout=60s
shows 'deployment "web" exceeded its progress deadline'
run kubectl rollout undo deployment/web
run kubectl rollout status deployment/web --timeout=60s

title "DaemonSets and StatefulSets"
run apply '
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations: [{operator: Exists, effect: NoSchedule}]
      containers: [{name: c, image: busybox, command: [sleep, "36000"]}]'
run kubectl rollout status daemonset/agent --timeout=60s
run kubectl get daemonset agent
shows '^agent +3 +3 +3 +3 +3 +<none> +[0-9ms]+$'
run apply '
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, selector: {app: db}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: c, image: nginx}]'
run kubectl rollout status statefulset/db --timeout=60s
run kubectl get pods -l app=db -o name
shows '^pod/db-0$'
shows '^pod/db-1$'
eventually 20 kubectl exec db-0 -- curl -sS --max-time 5 http://db-1.db
shows '<h1>Welcome to nginx!</h1>'
run kubectl scale statefulset/db --replicas=1
eventually 30 kubectl get pods -l app=db -o name
until_absent pod/db-1

title "A claim gets a volume that outlives its pods"
run kubectl get storageclass
shows '^[a-z-]+ \(default\) +'
user='
apiVersion: v1
kind: Pod
metadata: {name: user}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: busybox, command: [sleep, "36000"], volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]'
run apply '
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}'
run apply "$user"
run kubectl wait --for=condition=Ready pod/user --timeout=60s
run kubectl get persistentvolumeclaim data
shows '^data +Bound +pvc-[0-9a-f-]+ +1Gi +RWO +'
run kubectl exec user -- sh -c 'echo kept >/data/file'
run kubectl delete pod user
run apply "$user"
run kubectl wait --for=condition=Ready pod/user --timeout=60s
run kubectl exec user -- cat /data/file
shows '^kept$'
run kubectl delete pod user
run kubectl delete persistentvolumeclaim data
eventually 30 kubectl get persistentvolumes -o name
until_absent persistentvolume

title "Jobs and CronJobs"
run kubectl create job once --image=busybox -- echo done
run kubectl wait --for=condition=Complete job/once --timeout=60s
run kubectl get job once
shows '^once +Complete +1/1 +[0-9ms]+ +[0-9ms]+$'
run kubectl logs job/once
shows '^done$'
run kubectl create cronjob tick --image=busybox --schedule='*/5 * * * *' -- date
run kubectl create job --from=cronjob/tick by-hand
run kubectl wait --for=condition=Complete job/by-hand --timeout=60s
run kubectl get cronjob tick
shows '^tick +\*/5 \* \* \* \* +<none> +False +[01] +'
run apply '
apiVersion: batch/v1
kind: Job
metadata: {name: indexed}
spec:
  completions: 3
  parallelism: 2
  completionMode: Indexed
  backoffLimit: 0
  ttlSecondsAfterFinished: 2
  template:
    spec:
      restartPolicy: Never
      containers: [{name: c, image: busybox, command: [sh, -c, "echo $JOB_COMPLETION_INDEX"]}]'
run kubectl wait --for=condition=Complete job/indexed --timeout=60s
eventually 30 kubectl get jobs,pods -o name
until_absent indexed

title "What belongs to something goes with it, or stays when that is asked for"
run kubectl create deployment kept --image=busybox --replicas=1 -- sleep 36000
run kubectl rollout status deployment/kept --timeout=60s
run kubectl delete deployment kept --cascade=orphan
run kubectl get replicasets -l app=kept -o name
shows '^replicaset.apps/kept-'
run kubectl delete replicaset -l app=kept --cascade=foreground
eventually 60 kubectl get replicasets,pods -l app=kept -o name
until_absent kept

title "A node is drained and comes back"
node=$(kubectl get pods -l app=web -o 'jsonpath={.items[0].spec.nodeName}')
run kubectl create poddisruptionbudget web --selector=app=web --min-available=1
run kubectl drain "$node" --ignore-daemonsets --delete-emptydir-data --force --timeout=90s
shows "^node/$node drained$"
run kubectl get nodes
shows "^$node +Ready,SchedulingDisabled "
run kubectl rollout status deployment/web --timeout=60s
run kubectl get pods -l app=web -o 'jsonpath={.items[*].spec.nodeName}'
out=${out//lab-control-plane/}
if grep -Fqw "$node" <<<"${out// /$'\n'}"; then broken "a pod is on the drained node"; fi
run kubectl uncordon "$node"
shows "^node/$node uncordoned$"
run kubectl taint nodes "$node" busy=yes:NoSchedule
run kubectl taint nodes "$node" busy-
shows "^node/$node untainted$"

title "nginx as a Deployment: its node dies, and a replacement runs on the other"
run kubectl create deployment nginx-demo --image=nginx
run kubectl rollout status deployment/nginx-demo --timeout=60s
node=$(kubectl get pods -l app=nginx-demo -o 'jsonpath={.items[0].spec.nodeName}')
run "$skiff" node stop --name "$cluster" "$node"
other=lab-worker
[ "$node" = lab-worker ] && other=lab-worker2
eventually 120 kubectl get pods -l app=nginx-demo -o wide
until_shows "^nginx-demo-[0-9a-z]+-[0-9a-z]+ +1/1 +Running +0 .* $other "
shows "^nginx-demo-[0-9a-z]+-[0-9a-z]+ +1/1 +Terminating +0 .* $node "
run kubectl rollout status deployment/nginx-demo --timeout=60s
run "$skiff" node start --name "$cluster" "$node"
eventually 60 kubectl get pods -l app=nginx-demo -o wide
until_absent " $node "

title "Nothing is left behind"
run "$skiff" down --name "$cluster"
nothing_left
passed
