# Declared objects: apply, diff, prune, kustomize and replace.

shop() {
    cat <<YAML
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop, labels: {app: shop}}
spec:
  replicas: $1
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec:
      containers:
      - {name: web, image: nginx, ports: [{containerPort: 80}], env: [$2]}
---
apiVersion: v1
kind: Service
metadata: {name: shop}
spec: {selector: {app: shop}, ports: [{port: 80}]}
YAML
}
# map NAME VALUE
map() { printf 'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, labels: {set: maps}}\ndata: {a: "%s"}\n' "$1" "$2"; }
shop 2 '{name: A, value: "1"}, {name: B, value: "2"}' >"$work/shop.yaml"
shop 3 '{name: A, value: "1"}' >"$work/shop-changed.yaml"
map settings 1 >"$work/one.yaml"
map settings 2 >"$work/two.yaml"

title "Client-side apply and diff"
run kubectl apply -f "$work/shop.yaml"
prints 'deployment.apps/shop created' 'service/shop created'
run kubectl apply -f "$work/shop.yaml"
prints 'deployment.apps/shop unchanged' 'service/shop unchanged'
run kubectl diff -f "$work/shop.yaml"
prints
fails 1 kubectl diff -f "$work/shop-changed.yaml"
shows '^-  replicas: 2$'
shows '^\+  replicas: 3$'
shows '^-  generation: 1$'
shows '^\+  generation: 2$'
shows '^-        - name: B$'
run kubectl apply -f "$work/shop-changed.yaml" --dry-run=client
prints 'deployment.apps/shop configured (dry run)' 'service/shop * (dry run)'
run kubectl apply -f "$work/shop-changed.yaml" --dry-run=server
prints 'deployment.apps/shop configured (server dry run)' 'service/shop unchanged (server dry run)'
run kubectl apply -f "$work/shop-changed.yaml" -o name
prints 'deployment.apps/shop' 'service/shop'
run kubectl get deployment shop -o 'jsonpath={.spec.replicas} {.spec.template.spec.containers[0].env}'
prints '3 [{"name":"A","value":"1"}]'
run kubectl apply view-last-applied deployment/shop
shows '^  replicas: 3$'
run kubectl apply set-last-applied -f "$work/shop.yaml"
prints 'deployment.apps/shop configured' 'service/shop configured'
run editing 's/replicas:.*/replicas: 6/' kubectl apply edit-last-applied deployment/shop
prints 'deployment.apps/shop edited'
fails 1 kubectl apply -f - <<<'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"x-"}}'
prints 'error: from x-: cannot use generate name with apply'
fails 1 kubectl apply -f - <<<'{"apiVersion":"v1","kind":"Nope","metadata":{"name":"x"}}'
prints 'error: resource mapping not found for name: "x" namespace: "" from "STDIN": no matches for kind "Nope" in version "v1"' 'ensure CRDs are installed first'
fails 1 kubectl apply -f - <<<'{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"x"},"spec":{"selector":{},"template":{"spec":{"containers":[{"name":"a","image":"b"}]}}}}'
prints 'The Deployment "x" is invalid: spec.selector: Invalid value: {*}: empty selector is invalid for deployment'

title "Server-side apply and its conflicts"
run kubectl apply --server-side -f "$work/one.yaml" --field-manager one
prints 'configmap/settings serverside-applied'
fails 1 kubectl apply --server-side -f "$work/two.yaml" --field-manager two
shows '^error: Apply failed with 1 conflict: conflict with "one": \.data\.a$'
run kubectl apply --server-side -f "$work/two.yaml" --field-manager two --force-conflicts --dry-run=server
prints 'configmap/settings serverside-applied (server dry run)'
run kubectl apply --server-side -f "$work/two.yaml" --field-manager two --force-conflicts
prints 'configmap/settings serverside-applied'
run kubectl get configmap settings --show-managed-fields -o 'jsonpath={range .metadata.managedFields[*]}{.manager} {.operation} {.fieldsV1}{"\n"}{end}'
prints 'one Apply {"f:metadata":{"f:labels":{"f:set":{}}}}' 'two Apply {"f:data":{"f:a":{}},"f:metadata":{"f:labels":{"f:set":{}}}}'
run kubectl apply -f "$work/two.yaml"
shows '^Warning: resource configmaps/settings is missing the kubectl\.kubernetes\.io/last-applied-configuration annotation'
shows '^configmap/settings configured$'
run kubectl apply --server-side -f "$work/two.yaml" --field-manager kubectl
prints 'configmap/settings serverside-applied'
fails 1 kubectl diff --server-side -f "$work/one.yaml" --force-conflicts
shows '^-  a: "2"$'
shows '^\+  a: "1"$'
run kubectl apply -f - < <(map clientside 1)
fails 1 kubectl apply --server-side --field-manager other -f - < <(map clientside 2)
shows '^error: Apply failed with 1 conflict: conflict with "kubectl-client-side-apply" using v1: \.data\.a$'
run kubectl apply --server-side -f - < <(map clientside 2)
prints 'configmap/clientside serverside-applied'

title "Pruning"
mkdir "$work/maps"
map first 1 >"$work/maps/1.yaml"
map second 1 >"$work/maps/2.yaml"
run kubectl apply -f "$work/maps" --prune -l set=maps --prune-allowlist=core/v1/ConfigMap
prints 'configmap/first created' 'configmap/second created' 'configmap/clientside pruned' 'configmap/settings pruned'
rm "$work/maps/2.yaml"
run kubectl apply -f "$work/maps" --prune -l set=maps --prune-allowlist=core/v1/ConfigMap --dry-run=server
prints 'configmap/first unchanged (server dry run)' 'configmap/second pruned (server dry run)'
run kubectl apply -f "$work/maps" --prune -l set=maps --prune-allowlist=core/v1/ConfigMap
prints 'configmap/first unchanged' 'configmap/second pruned'
map second 1 >"$work/maps/2.yaml"
export KUBECTL_APPLYSET=true
run kubectl apply -f "$work/maps" --prune --applyset=parent --server-side --force-conflicts -n apply
prints 'configmap/first serverside-applied' 'configmap/second serverside-applied'
rm "$work/maps/2.yaml"
run kubectl apply -f "$work/maps" --prune --applyset=parent --server-side -n apply
prints 'configmap/first serverside-applied' 'configmap/second pruned'
run kubectl get secret parent -o 'jsonpath={.metadata.annotations.applyset\.kubernetes\.io/contains-group-kinds} {.metadata.labels}'
prints 'ConfigMap {"applyset.kubernetes.io/id":"applyset-*-v1"}'
unset KUBECTL_APPLYSET

title "Kustomize"
mkdir "$work/kustom"
map base 1 >"$work/kustom/map.yaml"
printf 'namePrefix: k-\nresources: [map.yaml]\nconfigMapGenerator: [{name: made, literals: [x=1]}]\n' >"$work/kustom/kustomization.yaml"
run kubectl kustomize "$work/kustom"
shows '^  name: k-base$'
run kubectl apply -k "$work/kustom"
prints 'configmap/k-base created' 'configmap/k-made-* created'
run kubectl diff -k "$work/kustom"
prints
run kubectl get -k "$work/kustom"
prints 'NAME DATA AGE' 'k-base 1 AGE' 'k-made-* 1 AGE'
run kubectl delete -k "$work/kustom"
prints "configmap \"k-base\" deleted$from" "configmap \"k-made-*\" deleted$from"

title "Unknown and doubtful fields"
fails 1 kubectl apply -f - <<<'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"odd"},"dada":{"a":"b"}}'
prints 'Error from server (BadRequest): error when creating "STDIN": ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: unknown field "dada"'
run kubectl apply --validate=ignore -f - <<<'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"odd"},"dada":{"a":"b"}}'
prints 'configmap/odd created'
run kubectl apply --validate=warn -f - <<<'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"odd","foo":3},"dada":{"a":"b"},"data":{"a":"1"}}'
prints 'Warning: unknown field "dada"' 'Warning: unknown field "metadata.foo"' 'configmap/odd configured'
fails 1 kubectl create --validate=strict -f - <<<'{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"odd"},"spec":{"selector":{},"template":{"spec":{"containers":[{"name":"a","image":"b","ports":[{"containerPort":"80"}]}]}}}}'
prints 'Error from server (BadRequest): error when creating "STDIN": Deployment in version "v1" cannot be handled as a Deployment: json: cannot unmarshal string into Go struct field ContainerPort.spec.template.spec.containers.ports.containerPort of type int32'
fails 1 kubectl apply --server-side -f - <<<'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"odd","foo":3},"dada":{"a":"b"}}'
prints 'Error from server: failed to create typed patch object (apply/odd; /v1, Kind=ConfigMap): errors:' ' .dada: field not declared in schema' ' .metadata.foo: field not declared in schema'

title "Replace"
run kubectl get configmap odd -o json
printf '%s' "$out" >"$work/odd.json"
run kubectl label configmap odd moved=on
fails 1 kubectl replace -f "$work/odd.json"
prints "Error from server (Conflict): error when replacing \"$work/odd.json\": Operation cannot be fulfilled on configmaps \"odd\": the object has been modified; please apply your changes to the latest version and try again"
sed -i '/"resourceVersion"/d' "$work/odd.json"
run kubectl replace -f "$work/odd.json"
prints 'configmap/odd replaced'
run kubectl replace --force -f "$work/odd.json"
shows "^configmap \"odd\" deleted"
shows '^configmap/odd replaced$'
fails 1 kubectl replace -f - <<<'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"nope"}}'
prints 'Error from server (NotFound): error when replacing "STDIN": configmaps "nope" not found'
