# What the server says of itself: versions, resources, and where it is.

title "Versions"
run kubectl version
shows '^Client Version: v1\.[0-9]+\.[0-9]+$'
shows '^Server Version: v1\.37\.[0-9]+'
run kubectl version -o json
shows '"serverVersion": \{'
shows '"gitVersion": "v1\.37\.[0-9]+"'
shows '"gitTreeState": "clean"'
shows '"platform": "linux/'
run kubectl api-versions
shows '^v1$'
shows '^apps/v1$'
[ "$(sort <<<"$out")" = "$out" ] || broken "not sorted"

title "Resources"
run kubectl api-resources
shows '^NAME +SHORTNAMES +APIVERSION +NAMESPACED +KIND$'
shows '^pods +po +v1 +true +Pod$'
shows '^customresourcedefinitions +crd,crds +apiextensions.k8s.io/v1 +false +CustomResourceDefinition$'
run kubectl api-resources --api-group=apps --verbs=list,create --sort-by=kind -o wide
prints 'NAME SHORTNAMES APIVERSION NAMESPACED KIND VERBS CATEGORIES' \
    'controllerrevisions apps/v1 true ControllerRevision create,delete,deletecollection,get,list,patch,update,watch' \
    'daemonsets ds apps/v1 true DaemonSet create,delete,deletecollection,get,list,patch,update,watch all' \
    'deployments deploy apps/v1 true Deployment create,delete,deletecollection,get,list,patch,update,watch all' \
    'replicasets rs apps/v1 true ReplicaSet create,delete,deletecollection,get,list,patch,update,watch all' \
    'statefulsets sts apps/v1 true StatefulSet create,delete,deletecollection,get,list,patch,update,watch all'
run kubectl api-resources --namespaced=false --api-group=rbac.authorization.k8s.io -o name
prints 'clusterrolebindings.rbac.authorization.k8s.io' 'clusterroles.rbac.authorization.k8s.io'
run kubectl api-resources --namespaced=true --api-group=networking.k8s.io --no-headers
prints 'ingresses ing networking.k8s.io/v1 true Ingress' 'networkpolicies netpol networking.k8s.io/v1 true NetworkPolicy'
run kubectl api-resources --categories=all --no-headers --cached=false -o name
prints pods replicationcontrollers services daemonsets.apps deployments.apps replicasets.apps statefulsets.apps horizontalpodautoscalers.autoscaling cronjobs.batch jobs.batch
run kubectl api-resources --verbs=create --api-group=authorization.k8s.io -o name
prints localsubjectaccessreviews.authorization.k8s.io selfsubjectaccessreviews.authorization.k8s.io selfsubjectrulesreviews.authorization.k8s.io subjectaccessreviews.authorization.k8s.io

title "Where it is"
run env TERM=dumb "$kubectl" cluster-info
shows "Kubernetes control plane.* is running at .*https://127\.0\.0\.1:$port"
run kubectl cluster-info dump --output-directory="$work/dump" --namespaces default,discover
prints "Cluster info dumped to $work/dump"
run ls "$work/dump" "$work/dump/discover"
shows '^nodes\.json$'
shows '^replication-controllers\.json$'
run kubectl cluster-info dump --namespaces discover -o json
shows '"kind": "NodeList"'
run kubectl config view --minify -o 'jsonpath={.clusters[0].cluster.server} {.contexts[0].context.namespace} {.users[0].user.client-key-data}'
prints "https://127.0.0.1:$port discover DATA+OMITTED"
