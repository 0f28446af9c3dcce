# Pods that no node runs: run, dry runs, and what the streaming commands answer.

title "Run"
run kubectl run dry --image=nginx --dry-run=client -o yaml
shows '^kind: Pod$'
run kubectl run dry --image=nginx --dry-run=server
prints 'pod/dry created (server dry run)'
run kubectl get pods
prints 'No resources found in pods namespace.'
run kubectl run alone --image=nginx --restart=Never --labels=x=y --env=A=b --port=80 --expose
shows '^pod/alone created$'
shows '^service/alone created$'
run kubectl get pod alone -o 'jsonpath={.spec.restartPolicy} {.spec.containers[0].image} {.status.phase}'
prints 'Never nginx Pending'
fails 1 kubectl run alone --image=nginx
prints 'Error from server (AlreadyExists): pods "alone" already exists'
run kubectl run host --image=nginx --overrides='{"spec":{"hostNetwork":true}}' -o 'jsonpath={.spec.hostNetwork}'
prints 'true'
fails 1 kubectl run Bad_Name --image=nginx
shows '^The Pod "Bad_Name" is invalid: ?$|^The Pod "Bad_Name" is invalid: '
shows 'metadata\.name: Invalid value: "Bad_Name": a lowercase RFC 1123 subdomain must consist of lower case'
run kubectl get pods -o wide
prints 'NAME READY STATUS RESTARTS AGE IP NODE NOMINATED NODE READINESS GATES' 'alone 0/1 Pending 0 AGE <none> <none> <none> <none>' 'host 0/1 Pending 0 AGE <none> <none> <none> <none>'
run kubectl describe pod alone
shows '^Service Account: +default$'
shows '^Status: +Pending$'
shows '^      /var/run/secrets/kubernetes\.io/serviceaccount from kube-api-access-[a-z0-9]{5} \(ro\)$'
shows '^QoS Class: +BestEffort$'
eventually 10 kubectl get events --field-selector involvedObject.name=alone
until_shows 'Warning +FailedScheduling +pod/alone +no nodes available to schedule pods'

title "A dry run on the server changes nothing"
kubectl get pod alone -o json | sed 's/"image": "nginx"/"image": "busybox"/' >"$work/pod.json"
run kubectl replace -f "$work/pod.json" --dry-run=server
prints 'pod/alone replaced (server dry run)'
run kubectl get pod alone -o 'jsonpath={.spec.containers[0].image}'
prints 'nginx'
run kubectl patch pod alone -p '{"spec":{"containers":[{"name":"alone","image":"busybox"}]}}'
run kubectl get pod alone -o 'jsonpath={.spec.containers[0].image} {.metadata.generation}'
prints 'busybox 2'
fails 1 kubectl patch pod alone -p '{"spec":{"restartPolicy":"Always"}}'
shows '^The Pod "alone" is invalid: spec: Forbidden: pod updates may not change fields other than '

title "No node, no stream"
run kubectl logs alone
prints
fails 1 kubectl exec alone -- ls
shows 'pod alone does not have a host assigned'
fails 1 kubectl port-forward alone 80
prints 'error: unable to forward port because pod is not running. Current status=Pending'
run kubectl debug alone --image=busybox --target=alone --attach=false -c debugger
run kubectl get pod alone -o 'jsonpath={.spec.ephemeralContainers[*].name}'
prints 'debugger'
run kubectl debug alone --image=busybox --copy-to=copied --attach=false -c debugger
run kubectl get pod copied -o 'jsonpath={.spec.containers[*].name}'
prints 'alone debugger'
