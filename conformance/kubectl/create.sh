# What `kubectl create` generates, and how it is refused.

title "Namespaces, config maps and secrets"
run kubectl create namespace fresh
prints 'namespace/fresh created'
fails 1 kubectl create namespace fresh
prints 'Error from server (AlreadyExists): namespaces "fresh" already exists'
run kubectl get namespace fresh
prints 'NAME STATUS AGE' 'fresh Active AGE'
printf 'x=1\ny=2\n' >"$work/env"
run kubectl create configmap literal --from-literal=a=1 --from-literal=b=2
prints 'configmap/literal created'
run kubectl create configmap env --from-env-file="$work/env"
prints 'configmap/env created'
run kubectl create configmap file --from-file="$work/env" --from-file=named="$work/env"
run kubectl get configmaps
prints 'NAME DATA AGE' 'env 2 AGE' 'file 2 AGE' 'kube-root-ca.crt 1 AGE' 'literal 2 AGE'
run kubectl get configmap file -o 'jsonpath={.data.named}'
prints 'x=1' 'y=2'
run kubectl describe configmap env
shows '^BinaryData$'
fails 1 kubectl create configmap Bad_Name
prints "error: failed to create configmap: ConfigMap \"Bad_Name\" is invalid: metadata.name: Invalid value: \"Bad_Name\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
run kubectl create secret generic plain --from-literal=password=hidden --type=example.com/kind
prints 'secret/plain created'
run kubectl create secret tls pair --cert="$work/crt.pem" --key="$work/key.pem"
prints 'secret/pair created'
run kubectl create secret docker-registry registry --docker-username=u --docker-password=p --docker-server=registry.example --docker-email=e@example.com
prints 'secret/registry created'
run kubectl get secrets
prints 'NAME TYPE DATA AGE' 'pair kubernetes.io/tls 2 AGE' 'plain example.com/kind 1 AGE' 'registry kubernetes.io/dockerconfigjson 1 AGE'
run kubectl describe secret plain
prints 'Name: plain' 'Namespace: create' 'Labels: <none>' 'Annotations: <none>' '' 'Type: example.com/kind' '' 'Data' '====' 'password: 6 bytes'

title "Roles and bindings"
run kubectl create role reader --verb=get,list --resource=pods,pods/status,deployments.apps --resource-name=x
prints 'role.rbac.authorization.k8s.io/reader created'
run kubectl get role reader -o 'jsonpath={.rules}'
prints '[{"apiGroups":[""],"resourceNames":["x"],"resources":["pods","pods/status"],"verbs":["get","list"]},{"apiGroups":["apps"],"resourceNames":["x"],"resources":["deployments"],"verbs":["get","list"]}]'
fails 1 kubectl create role none --verb=get --resource=nosuch
prints "*the server doesn't have a resource type \"nosuch\""
run kubectl create rolebinding readers --role=reader --user=u --group=g --serviceaccount=create:default
prints 'rolebinding.rbac.authorization.k8s.io/readers created'
run kubectl get rolebinding readers -o wide
prints 'NAME ROLE AGE USERS GROUPS SERVICEACCOUNTS' 'readers Role/reader AGE u g create/default'
run kubectl create clusterrole logs --verb=get --non-resource-url='/logs/*'
prints 'clusterrole.rbac.authorization.k8s.io/logs created'
run kubectl create clusterrole sum --aggregation-rule=example.com/sum=true
prints 'clusterrole.rbac.authorization.k8s.io/sum created'
run kubectl create clusterrolebinding logs --clusterrole=logs --group=g
prints 'clusterrolebinding.rbac.authorization.k8s.io/logs created'
run kubectl get clusterrolebinding logs
prints 'NAME ROLE AGE' 'logs ClusterRole/logs AGE'

title "Policy and scheduling"
run kubectl create quota limits --hard=pods=3,cpu=1,requests.memory=1Gi --scopes=NotTerminating
prints 'resourcequota/limits created'
eventually 5 kubectl get quota limits
until_shows '^limits +(AGE|[0-9]+s)? *cpu: 0/1, pods: 0/3, requests.memory: 0/1Gi'
fails 1 kubectl create quota limits --hard=pods=3
prints 'error: failed to create quota: resourcequotas "limits" already exists'
run kubectl describe quota limits
shows '^ +\* Matches all pods that do not have an active deadline\.'
shows '^requests.memory +0 +1Gi$'
run kubectl create priorityclass low --value=1000 --description=d --preemption-policy=Never
prints 'priorityclass.scheduling.k8s.io/low created'
run kubectl get priorityclass low
prints 'NAME VALUE GLOBAL-DEFAULT AGE PREEMPTIONPOLICY' 'low 1000 false AGE Never'
run kubectl create poddisruptionbudget half --selector=app=web --min-available=50%
prints 'poddisruptionbudget.policy/half created'
run kubectl create poddisruptionbudget one --selector=app=web --max-unavailable=1
run kubectl get poddisruptionbudgets
prints 'NAME MIN AVAILABLE MAX UNAVAILABLE ALLOWED DISRUPTIONS AGE' 'half 50% N/A 0 AGE' 'one N/A 1 0 AGE'

title "Services and ingresses"
run kubectl create service clusterip web --tcp=80:8080
prints 'service/web created'
run kubectl create service clusterip headless --clusterip=None
prints 'service/headless created'
run kubectl create service nodeport outside --tcp=80 --node-port=30080
prints 'service/outside created'
fails 1 kubectl create service nodeport taken --tcp=80 --node-port=30080
prints 'error: failed to create NodePort service: Service "taken" is invalid: spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated'
run kubectl create service loadbalancer balanced --tcp=80
prints 'service/balanced created'
run kubectl create service externalname named --external-name=example.com
prints 'service/named created'
run kubectl get services -o wide
prints 'NAME TYPE CLUSTER-IP EXTERNAL-IP PORT(S) AGE SELECTOR' \
    'balanced LoadBalancer 10.96.* <pending> 80:*/TCP AGE app=balanced' \
    'headless ClusterIP None <none> <none> AGE app=headless' \
    'named ExternalName <none> example.com <none> AGE app=named' \
    'outside NodePort 10.96.* <none> 80:30080/TCP AGE app=outside' \
    'web ClusterIP 10.96.* <none> 80/TCP AGE app=web'
run kubectl create ingress shop --class=nginx --rule='shop.example/path*=web:8080' --rule='shop.example/other=web:http,tls=cert' \
    --default-backend=outside:80 --annotation=a=b
prints 'ingress.networking.k8s.io/shop created'
run kubectl get ingress
prints 'NAME CLASS HOSTS ADDRESS PORTS AGE' 'shop nginx shop.example 80, 443 AGE'

title "Workloads"
run kubectl create deployment web --image=nginx --replicas=2 --port=80
prints 'deployment.apps/web created'
run kubectl create deployment two --image=a --image=b --dry-run=server -o name
prints 'deployment.apps/two'
run kubectl create job once --image=busybox -- date
prints 'job.batch/once created'
run kubectl create cronjob often --image=busybox --schedule='*/5 * * * *' -- date
prints 'cronjob.batch/often created'
run kubectl create job now --from=cronjob/often
prints 'job.batch/now created'
run kubectl get jobs
prints 'NAME STATUS COMPLETIONS DURATION AGE' 'now Running 0/1 AGE AGE' 'once Running 0/1 AGE AGE'
run kubectl get cronjobs
prints 'NAME SCHEDULE TIMEZONE SUSPEND ACTIVE LAST SCHEDULE AGE' 'often */5 * * * * <none> False * <none> AGE'
fails 1 kubectl create cronjob bad --image=busybox --schedule=bad
prints 'error: failed to create cronjob: CronJob.batch "bad" is invalid: spec.schedule: Invalid value: "bad": expected exactly 5 fields, found 1: [bad]'

title "Accounts and tokens"
run kubectl create serviceaccount robot
prints 'serviceaccount/robot created'
run kubectl create token robot --duration=10m --audience=x
shows '^[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+$'
run kubectl create token robot --bound-object-kind=Secret --bound-object-name=plain
fails 1 kubectl create token robot --duration=1s
prints 'error: failed to create token: TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 1: may not specify a duration less than 10 minutes'
fails 1 kubectl create token nobody
prints 'error: failed to create token: serviceaccounts "nobody" not found'
fails 1 kubectl create token robot --bound-object-kind=Secret --bound-object-name=nosuch
prints 'error: failed to create token: secrets "nosuch" not found'

title "From files"
run kubectl create -f - -o name <<<'{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"first"}},{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"second-"}}]}'
prints 'configmap/first' 'configmap/second-*'
run kubectl create -f - --save-config <<<'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"saved"}}'
run kubectl get configmap saved -o 'jsonpath={.metadata.annotations.kubectl\.kubernetes\.io/last-applied-configuration}'
shows '"name":"saved"'
run kubectl create --raw /api/v1/namespaces/create/configmaps -f - <<<'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"raw"}}'
shows '"name":"raw"'
