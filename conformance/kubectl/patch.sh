# Changes in place: every type of patch, subresources, edit, labels and annotations.

run kubectl create configmap map --from-literal=a=1
run kubectl create deployment web --image=nginx --replicas=2

title "Patches"
run kubectl patch configmap map -p '{"data":{"b":"2"}}'
prints 'configmap/map patched'
run kubectl patch configmap map -p '{"data":{"b":"2"}}'
prints 'configmap/map patched (no change)'
run kubectl patch configmap map --type merge -p '{"data":{"b":null}}'
prints 'configmap/map patched'
run kubectl patch configmap map --type json -p '[{"op":"test","path":"/data/a","value":"1"},{"op":"add","path":"/data/c","value":"3"}]'
prints 'configmap/map patched'
run kubectl get configmap map -o 'jsonpath={.data}'
prints '{"a":"1","c":"3"}'
run kubectl patch deployment web -p '{"spec":{"template":{"spec":{"containers":[{"name":"nginx","env":[{"name":"A","value":"1"},{"name":"B","value":"2"}]}]}}}}'
prints 'deployment.apps/web patched'
run kubectl patch deployment web -p '{"spec":{"template":{"spec":{"containers":[{"name":"nginx","env":[{"name":"A","$patch":"delete"}]}]}}}}'
run kubectl get deployment web -o 'jsonpath={.spec.template.spec.containers[0].env}'
prints '[{"name":"B","value":"2"}]'
run kubectl patch deployment web --dry-run=server -p '{"spec":{"replicas":7}}' -o 'jsonpath={.spec.replicas}'
prints '7'
kubectl get configmap map -o json >"$work/map.json"
run kubectl patch --local -f "$work/map.json" -p '{"data":{"a":"9"}}' -o 'jsonpath={.data.a}'
prints '9'

title "Patches that are refused"
for operation in '{"op":"test","path":"/data/a","value":"9"}' '{"op":"remove","path":"/data/zz"}' '{"op":"nope","path":"/data/zz"}'; do
    fails 1 kubectl patch configmap map --type json -p "[$operation]"
    prints 'The request is invalid: the server rejected our request due to an error in our request'
done
fails 1 kubectl patch configmap map -p '{"data":{"b":2}}'
prints 'The request is invalid: patch: Invalid value: "map[data:map[b:2]]": cannot convert int64 to string'
fails 1 kubectl patch deployment web -p '{"spec":{"replicas":"two"}}'
prints 'The request is invalid: patch: Invalid value: "map[spec:map[replicas:two]]": unrecognized type: int32'
fails 1 kubectl patch configmap map --type merge -p '{"data":{"b":2}}'
shows '^The request is invalid: patch: Invalid value: ".*\\"b\\":2.*": json: cannot unmarshal number into Go struct field ConfigMap\.data of type string$'
fails 1 kubectl patch configmap map --type json -p '{"data":"x"}'
prints 'Error from server (BadRequest): error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp'
fails 1 kubectl patch deployment web -p '{"spec":{"selector":{"matchLabels":{"a":"b"}}}}'
prints 'The Deployment "web" is invalid:' '* spec.template.metadata.labels: Invalid value: {"app":"web"}: `selector` does not match template `labels`' \
    '* spec.selector: Invalid value: {"matchLabels":{"a":"b","app":"web"}}: field is immutable'
fails 1 kubectl patch configmap nope -p '{}'
prints 'Error from server (NotFound): configmaps "nope" not found'
fails 1 kubectl patch configmap map -p '{"metadata":{"name":"other"}}'
prints 'Error from server (BadRequest): the name of the object (other) does not match the name on the URL (map)'

title "Subresources"
run kubectl patch deployment web --subresource scale --type merge -p '{"spec":{"replicas":1}}'
prints 'scale.autoscaling/web patched'
run kubectl get deployment web --subresource scale
prints 'NAME DESIRED AVAILABLE AGE' 'web 1 * AGE'
run kubectl get deployment web --subresource scale -o 'jsonpath={.kind} {.spec.replicas} {.status.selector}'
prints 'Scale 1 app=web'
run kubectl create -f - <<<'{"apiVersion":"v1","kind":"ReplicationController","metadata":{"name":"hand"},"spec":{"replicas":0,"selector":{"a":"b"},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}'
prints 'replicationcontroller/hand created'
run kubectl create -f - <<<'{"apiVersion":"v1","kind":"PersistentVolume","metadata":{"name":"patched"},"spec":{"capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"],"hostPath":{"path":"/tmp"},"storageClassName":"none"}}'
prints 'persistentvolume/patched created'
run kubectl patch persistentvolume patched --subresource status --type merge -p '{"status":{"message":"seen"},"spec":{"capacity":{"storage":"2Gi"}}}'
prints 'persistentvolume/patched patched'
run kubectl get persistentvolume patched --subresource status -o 'jsonpath={.status.message} {.spec.capacity.storage}'
prints 'seen 1Gi'
run editing 's/message: seen/message: edited/' kubectl edit persistentvolume patched --subresource=status
prints 'persistentvolume/patched edited'
run kubectl get persistentvolume patched -o 'jsonpath={.status.message}'
prints 'edited'
run kubectl delete persistentvolume patched

title "Editing"
run editing 's/^  c: .*/  c: edited/' kubectl edit configmap map
prints 'configmap/map edited'
run env KUBE_EDITOR=true "$kubectl" edit configmap map
prints 'Edit cancelled, no changes made.'
fails 1 editing 's/^data:/dada:/' kubectl edit configmap map
shows '^error: configmaps "map" is invalid$'
fails 1 editing 's/^  name: .*/  name: other/' kubectl edit configmap map
shows '^error: At least one of apiVersion, kind and name was changed$'
run kubectl get configmap map -o 'jsonpath={.data}'
prints '{"a":"1","c":"edited"}'

title "Labels and annotations"
run kubectl label configmap map a=b c=d
prints 'configmap/map labeled'
fails 1 kubectl label configmap map a=x
prints "error: 'a' already has a value (b), and --overwrite is false"
run kubectl label configmap map a=x --overwrite
prints 'configmap/map labeled'
run kubectl label configmap map a-
prints 'configmap/map unlabeled'
run kubectl label configmap map nope-
prints 'label "nope" not found.' 'configmap/map not labeled'
fails 1 kubectl label configmap map 'bad key=x'
shows '^The ConfigMap "map" is invalid: metadata\.labels: Invalid value: "bad key": name part must consist of alphanumeric characters'
run kubectl label configmap --all all=yes
prints 'configmap/kube-root-ca.crt labeled' 'configmap/map labeled'
run kubectl label configmap -l all=yes all-
prints 'configmap/kube-root-ca.crt unlabeled' 'configmap/map unlabeled'
fails 1 kubectl label configmap map q=w --resource-version=1
prints 'Error from server (Conflict): Operation cannot be fulfilled on configmaps "map": the object has been modified; please apply your changes to the latest version and try again'
run kubectl label configmap map e=f --resource-version="$(kubectl get configmap map -o 'jsonpath={.metadata.resourceVersion}')"
run kubectl label configmap map --list
shows '^c=d$'
run kubectl label configmap map a=b --dry-run=server
prints 'configmap/map labeled (server dry run)'
run kubectl label --local -f "$work/map.json" foo=bar -o 'jsonpath={.metadata.labels}'
prints '{"foo":"bar"}'
run kubectl annotate configmap map n=1
prints 'configmap/map annotated'
fails 1 kubectl annotate configmap map n=2
prints "error: --overwrite is false but found the following declared annotation(s): 'n' already has a value (1)"
run kubectl annotate configmap map n=2 --overwrite
run kubectl annotate configmap map n-
prints 'configmap/map annotated'
run kubectl annotate configmap --all x=y
prints 'configmap/kube-root-ca.crt annotated' 'configmap/map annotated'
run kubectl annotate configmap map --list
prints 'x=y'
fails 1 kubectl annotate configmap map v=1 --resource-version=1
shows '^Error from server \(Conflict\): Operation cannot be fulfilled on configmaps "map"'
