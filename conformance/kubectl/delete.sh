# Deleting: by name, by selector, by file, in cascade, on trial.

run kubectl create configmap one
run kubectl create configmap two
run kubectl create configmap three
run kubectl label configmap two three set=x
run kubectl create deployment web --image=nginx --replicas=1
run kubectl run pod --image=nginx

title "Objects"
run kubectl delete configmap one --dry-run=server
prints "configmap \"one\" deleted$from (server dry run)"
run kubectl delete configmap one --dry-run=client
prints "configmap \"one\" deleted$from (dry run)"
run kubectl delete configmap one -o name
prints 'configmap/one'
fails 1 kubectl delete configmap one
prints 'Error from server (NotFound): configmaps "one" not found'
run kubectl delete configmap one --ignore-not-found
prints
run kubectl delete configmaps -l set=x --field-selector metadata.name=two
prints "configmap \"two\" deleted$from"
run kubectl delete configmaps -l set=x
prints "configmap \"three\" deleted$from"
fails 1 kubectl delete configmap
prints 'error: resource(s) were provided, but no name was specified'
run kubectl create configmap raw
run kubectl delete --raw /api/v1/namespaces/delete/configmaps/raw
shows '"kind":"Status"'
shows '"status":"Success"'
shows '"uid":"[0-9a-f-]{36}"'
printf 'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: file}\n' >"$work/file.yaml"
run kubectl apply -f "$work/file.yaml"
run kubectl delete -f "$work/file.yaml"
prints "configmap \"file\" deleted$from"
fails 1 kubectl delete -f "$work/file.yaml"
prints "Error from server (NotFound): error when deleting \"$work/file.yaml\": configmaps \"file\" not found"

title "Pods"
run kubectl delete pod pod --now
prints "pod \"pod\" deleted$from"
run kubectl run pod --image=nginx
run kubectl delete pod pod --grace-period=0 --force
shows '^Warning: Immediate deletion does not wait for confirmation that the running resource has been terminated\.'
shows '^pod "pod" force deleted'
run kubectl run pod --image=nginx
run kubectl patch pod pod --type merge -p '{"metadata":{"finalizers":["example.com/hold"]}}'
run kubectl delete pod pod --wait=false
prints "pod \"pod\" deleted$from"
run kubectl get pod pod
prints 'NAME READY STATUS RESTARTS AGE' 'pod 0/1 Terminating 0 AGE'
background held "$kubectl" delete pod pod
in_background held 10 '^pod "pod" deleted'
run kubectl patch pod pod --type merge -p '{"metadata":{"finalizers":null}}'
run kubectl wait --for=delete pod/pod --timeout=10s
fails 1 kubectl get pod pod
prints 'Error from server (NotFound): pods "pod" not found'

title "In cascade"
eventually 10 kubectl get replicasets -o name
until_shows '^replicaset\.apps/web-'
run kubectl delete deployment web --cascade=orphan
prints "deployment.apps \"web\" deleted$from"
run kubectl get replicasets --no-headers
prints 'web-* 1 * 0 AGE'
run kubectl delete replicasets --all --cascade=foreground
prints "replicaset.apps \"web-*\" deleted$from"
eventually 10 kubectl get pods
until_shows '^No resources found in delete namespace\.$'
run kubectl create job once --image=busybox -- date
run kubectl delete job --all --wait=false --cascade=background
prints "job.batch \"once\" deleted$from"
eventually 10 kubectl get pods
until_shows '^No resources found in delete namespace\.$'
run kubectl create configmap last
run kubectl delete configmaps,secrets --all
shows '^configmap "last" deleted'

title "Namespaces go with all that is in them"
run kubectl create namespace doomed
run kubectl create configmap inside -n doomed
run kubectl delete namespace doomed
prints 'namespace "doomed" deleted*'
fails 1 kubectl get configmap inside -n doomed
prints 'Error from server (NotFound): *'
fails 1 kubectl delete namespace default
prints 'Error from server (Forbidden): namespaces "default" is forbidden: this namespace may not be deleted'
