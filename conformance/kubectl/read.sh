# What `kubectl get` and describe show: every output, selectors, tables, raw paths, watches.

run kubectl create configmap one --from-literal=a=1 --from-literal=b=2
run kubectl create configmap two --from-literal=c=3
run kubectl label configmap one app=x tier=front
run kubectl create secret generic key --from-literal=k=v
run kubectl create secret tls pair --cert="$work/crt.pem" --key="$work/key.pem"

title "Outputs"
run kubectl get configmap one -o json
prints '{' ' "apiVersion": "v1",' ' "data": {' ' "a": "1",' ' "b": "2"' ' },' ' "kind": "ConfigMap",' ' "metadata": {' ' "creationTimestamp": "*",' ' "labels": {' ' "app": "x",' ' "tier": "front"' ' },' \
    ' "name": "one",' ' "namespace": "read",' ' "resourceVersion": "*",' ' "uid": "*"' ' }' '}'
run kubectl get configmap one -o yaml
prints 'apiVersion: v1' 'data:' ' a: "1"' ' b: "2"' 'kind: ConfigMap' 'metadata:' ' creationTimestamp: "*"' ' labels:' ' app: x' ' tier: front' ' name: one' ' namespace: read' ' resourceVersion: "*"' ' uid: *'
run kubectl get configmap one -o name
prints 'configmap/one'
run kubectl get configmap one -o wide
prints 'NAME DATA AGE' 'one 2 AGE'
run kubectl get configmap one -o 'jsonpath={.metadata.name}'
prints 'one'
run kubectl get configmaps -o 'jsonpath={range .items[?(@.data.c=="3")]}{.metadata.name}{"\n"}{end}'
prints 'two'
run kubectl get configmap one -o 'jsonpath-as-json={.data.a}'
prints '[' ' "1"' ']'
run kubectl get configmap one -o 'go-template={{range $k, $v := .data}}{{$k}}={{$v}} {{end}}'
prints 'a=1 b=2'
printf '{{.metadata.name}}' >"$work/template"
run kubectl get configmap one -o "go-template-file=$work/template"
prints 'one'
run kubectl get configmaps -o 'custom-columns=NAME:.metadata.name,A:.data.a' --no-headers
prints 'kube-root-ca.crt <none>' 'one 1' 'two <none>'
if since 34; then
    run kubectl get configmap one -o kyaml
    shows '^  kind: "ConfigMap",$'
fi
run kubectl get configmap one -o yaml --show-managed-fields
shows '^    manager: kubectl-create$'
shows '^        f:a: \{\}$'
run kubectl get configmap/one secret/key
prints 'NAME DATA AGE' 'configmap/one 2 AGE' '' 'NAME TYPE DATA AGE' 'secret/key Opaque 1 AGE'
run kubectl get configmaps --show-labels
prints 'NAME DATA AGE LABELS' 'kube-root-ca.crt 1 AGE <none>' 'one 2 AGE app=x,tier=front' 'two 1 AGE <none>'
run kubectl get configmaps -L app,tier --show-kind
prints 'NAME DATA AGE APP TIER' 'configmap/kube-root-ca.crt 1 AGE' 'configmap/one 2 AGE x front' 'configmap/two 1 AGE'
run kubectl get secrets -A --field-selector metadata.namespace=read
prints 'NAMESPACE NAME TYPE DATA AGE' 'read key Opaque 1 AGE' 'read pair kubernetes.io/tls 2 AGE'

title "Selecting and sorting"
run kubectl get configmaps --sort-by=.metadata.creationTimestamp -o name
prints 'configmap/kube-root-ca.crt' 'configmap/one' 'configmap/two'
run kubectl get configmaps -l 'app in (x,y),tier' -o name
prints 'configmap/one'
run kubectl get configmaps -l 'app notin (x),!tier' -o name
prints 'configmap/kube-root-ca.crt' 'configmap/two'
run kubectl get configmaps -l 'app!=x' -o name
prints 'configmap/kube-root-ca.crt' 'configmap/two'
run kubectl get configmaps -l 'app=none'
prints 'No resources found in read namespace.'
fails 1 kubectl get configmaps -l 'a=(b'
prints "Error from server (BadRequest): Unable to find \"/v1, Resource=configmaps\" that match label selector \"a=(b\", field selector \"\": unable to parse requirement: found '(', expected: identifier"
run kubectl get secrets --field-selector type=kubernetes.io/tls -o name
prints 'secret/pair'
run kubectl get secrets --field-selector 'type!=kubernetes.io/tls,metadata.name!=none' -o name
prints 'secret/key'
fails 1 kubectl get pods --field-selector foo=bar
prints 'Error from server (BadRequest): Unable to find "/v1, Resource=pods" that match label selector "", field selector "foo=bar": field label not supported: foo'
run kubectl get clusterroles --chunk-size=7 -o name
shows '^clusterrole.rbac.authorization.k8s.io/view$'
chunked=$(wc -l <<<"$out")
run kubectl get clusterroles --chunk-size=0 -o name
[ "$chunked" = "$(wc -l <<<"$out")" ] || broken "$chunked roles in chunks"

title "What is not there"
run kubectl get configmap nope --ignore-not-found
prints
fails 1 kubectl get configmap nope
prints 'Error from server (NotFound): configmaps "nope" not found'
fails 1 kubectl get pods/x configmap/one
shows '^Error from server \(NotFound\): pods "x" not found$'
shows '^(configmap/)?one '
fails 1 kubectl get nosuch
prints "error: the server doesn't have a resource type \"nosuch\""
fails 1 kubectl get --raw /nope
prints 'Error from server (NotFound): the server could not find the requested resource'

title "Raw paths"
run kubectl get --raw /healthz
prints 'ok'
run kubectl get --raw '/readyz?verbose'
shows '^\[\+\]etcd ok$'
shows '^readyz check passed$'
run kubectl get --raw '/livez/ping'
prints 'ok'
run kubectl get --raw /api/v1/namespaces/read/configmaps/one
shows '^\{"kind":"ConfigMap","apiVersion":"v1","metadata":\{"name":"one"|^\{"kind":"ConfigMap","apiVersion":"v1","metadata":\{'
run kubectl get --raw '/api/v1/namespaces/read/configmaps?limit=1'
shows '"continue":"[^"]+"'
shows '"remainingItemCount":2'

title "Watching"
background map-watch "$kubectl" get configmaps --watch --output-watch-events
in_background map-watch 10 '^ADDED +two +1 '
background map-watch-only "$kubectl" get configmaps -l app=x --watch-only -o name
sleep 0.5
run kubectl label configmap two app=x
in_background map-watch 10 '^MODIFIED +two +1 '
in_background map-watch-only 10 '^configmap/two$'
run kubectl delete configmap two
in_background map-watch 10 '^DELETED +two +1 '
end map-watch
end map-watch-only

title "Kinds that every cluster has"
run kubectl get service kubernetes -n default
prints 'NAME TYPE CLUSTER-IP EXTERNAL-IP PORT(S) AGE' 'kubernetes ClusterIP 10.96.0.1 <none> 443/TCP AGE'
run kubectl get endpointslice kubernetes -n default
prints 'NAME ADDRESSTYPE PORTS ENDPOINTS AGE' "kubernetes IPv4 $port * AGE"
run kubectl get endpoints kubernetes -n default
shows '^Warning: v1 Endpoints is deprecated in v1\.33\+; use discovery\.k8s\.io/v1 EndpointSlice$'
run kubectl get namespaces default kube-system kube-public kube-node-lease -o name
prints 'namespace/default' 'namespace/kube-system' 'namespace/kube-public' 'namespace/kube-node-lease'
run kubectl get ipaddress 10.96.0.1
prints 'NAME PARENTREF' '10.96.0.1 services/default/kubernetes'
run kubectl get servicecidr
prints 'NAME CIDRS AGE' 'kubernetes 10.96.0.0/16 AGE'
run kubectl get flowschema exempt
prints 'NAME PRIORITYLEVEL MATCHINGPRECEDENCE DISTINGUISHERMETHOD AGE MISSINGPL' 'exempt exempt 1 <none> AGE False'
run kubectl get apiservices
shows '^v1\. +Local +True '
shows '^v2\.autoscaling +Local +True '
shows '^v1\.storagemigration\.k8s\.io +Local +True '
run kubectl get componentstatuses
shows '^Warning: v1 ComponentStatus is deprecated in v1\.19\+$'
shows '^etcd-0 +Healthy +ok'
run kubectl get leases -n kube-system
shows '^apiserver-[a-z0-9]+ +apiserver-'

title "Describing and events"
run kubectl describe configmap one
prints 'Name: one' 'Namespace: read' 'Labels: app=x' ' tier=front' 'Annotations: <none>' '' 'Data' '====' 'a:' '----' '1' '' 'b:' '----' '2' '' '' 'BinaryData' '====' '' 'Events: <none>'
run kubectl describe namespace read
shows '^Status: +Active$'
shows '^No resource quota\.$'
run kubectl describe service kubernetes -n default
shows '^IP: +10\.96\.0\.1$'
uid=$(kubectl get configmap one -o 'jsonpath={.metadata.uid}')
event() { printf '{"apiVersion":"v1","kind":"Event","metadata":{"name":"%s","namespace":"read"},"involvedObject":{"apiVersion":"v1","kind":"ConfigMap","name":"one","namespace":"read","uid":"%s"},"reason":"%s","message":"%s","type":"%s","source":{"component":"me"},"firstTimestamp":"%s","lastTimestamp":"%s","count":2}' "$1" "$uid" "$2" "$3" "$4" "$(date -u +%FT%TZ)" "$(date -u +%FT%TZ)"; }
run kubectl create -f - < <(event e1 Seen 'it was seen' Normal)
prints 'event/e1 created'
run kubectl create -f - < <(event e2 Lost 'it was lost' Warning)
run kubectl get events
prints 'LAST SEEN TYPE REASON OBJECT MESSAGE' 'AGE Normal Seen configmap/one it was seen' 'AGE Warning Lost configmap/one it was lost'
run kubectl get events --field-selector type=Warning,reason=Lost -o name
prints 'event/e2'
run kubectl get events.events.k8s.io e1 -o 'jsonpath={.regarding.name} {.note} {.deprecatedCount}'
prints 'one it was seen 2'
run kubectl events --for configmap/one --types=Warning
prints 'LAST SEEN TYPE REASON OBJECT MESSAGE' 'AGE (x2 over AGE) Warning Lost ConfigMap/one it was lost'
run kubectl describe configmap one
shows '^  Normal +Seen +[0-9]+s \(x2 over [0-9]+s\) +me +it was seen$'
