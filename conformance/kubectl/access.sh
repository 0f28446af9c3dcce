# Who may what: auth, impersonation, tokens.

title "Who am I"
run kubectl auth whoami
prints 'ATTRIBUTE VALUE' 'Username kubernetes-admin' 'Groups [system:masters system:authenticated]' 'Extra: authentication.kubernetes.io/credential-id [X509SHA256=*]'
run kubectl auth whoami --as bob --as-group g --as-uid 7
prints 'ATTRIBUTE VALUE' 'Username bob' 'UID 7' 'Groups [g system:authenticated]'
if since 34; then
    run kubectl auth whoami --as bob --as-user-extra scopes=a
    prints 'ATTRIBUTE VALUE' 'Username bob' 'Groups [system:authenticated]' 'Extra: scopes [a]'
fi

title "May I"
run kubectl auth can-i create pods
prints 'yes'
run kubectl auth can-i '*' '*'
prints 'yes'
fails 1 kubectl auth can-i create pods --as bob
prints 'no'
fails 1 kubectl auth can-i get pods --subresource=log --as bob
prints 'no'
run kubectl auth can-i get /healthz --as bob --as-group system:authenticated
prints 'yes'
run kubectl auth can-i get pods/x -q
prints
run kubectl auth can-i get nosuch
shows "^Warning: the server doesn't have a resource type 'nosuch'$"
shows '^yes$'
run kubectl auth can-i --list --as bob --as-group system:authenticated
prints 'Resources Non-Resource URLs Resource Names Verbs' 'selfsubjectreviews.authentication.k8s.io [] [] [create]' 'selfsubjectaccessreviews.authorization.k8s.io [] [] [create]' 'selfsubjectrulesreviews.authorization.k8s.io [] [] [create]' \
    ' [/api/*] [] [get]' ' [/api] [] [get]' ' [/apis/*] [] [get]' ' [/apis] [] [get]' ' [/healthz] [] [get]' ' [/healthz] [] [get]' ' [/livez] [] [get]' ' [/livez] [] [get]' ' [/openapi/*] [] [get]' ' [/openapi] [] [get]' \
    ' [/readyz] [] [get]' ' [/readyz] [] [get]' ' [/version/] [] [get]' ' [/version/] [] [get]' ' [/version] [] [get]' ' [/version] [] [get]'
run kubectl create role reader --verb=get,list --resource=pods,pods/log
run kubectl create rolebinding bob --role=reader --user=bob
run kubectl auth can-i list pods --as bob
run kubectl auth can-i get pods/log --as bob
shows '^yes$'
fails 1 kubectl auth can-i list pods --as bob -n default
prints 'no'
run kubectl get pods --as bob
prints 'No resources found in access namespace.'
fails 1 kubectl get pods --as bob -n default
prints 'Error from server (Forbidden): pods is forbidden: User "bob" cannot list resource "pods" in API group "" in the namespace "default"'
fails 1 kubectl get nodes --as bob
prints 'Error from server (Forbidden): nodes is forbidden: User "bob" cannot list resource "nodes" in API group "" at the cluster scope'
fails 1 kubectl delete pod x --as bob
prints 'Error from server (Forbidden): pods "x" is forbidden: User "bob" cannot delete resource "pods" in API group "" in the namespace "access"'
fails 1 kubectl get --raw /metrics --as bob
prints 'Error from server (Forbidden): forbidden: User "bob" cannot get path "/metrics"'
run kubectl create role maker --verb=get,create --resource=roles.rbac.authorization.k8s.io
run kubectl create rolebinding maker --role=maker --user=bob
fails 1 kubectl create role more --verb=get --resource=secrets --as bob
shows '^(error: failed to create role: |Error from server \(Forbidden\): )roles\.rbac\.authorization\.k8s\.io "more" is forbidden: user "bob" \(groups=\["system:authenticated"\]\) is attempting to grant RBAC permissions not currently held:$'
shows '^\{APIGroups:\[""\], Resources:\["secrets"\], Verbs:\["get"\]\}$'
run kubectl get --raw /api/v1/namespaces/access --as system:admin --as-group system:masters

title "Reconciling roles"
rules() {
    cat <<YAML
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reconciled}
rules: [{apiGroups: [""], resources: [pods], verbs: [$1]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: reconciled}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reconciled}
subjects: [{kind: Group, name: g, apiGroup: rbac.authorization.k8s.io}]
YAML
}
run kubectl auth reconcile -f - < <(rules get)
shows '^clusterrole\.rbac\.authorization\.k8s\.io/reconciled reconciled$'
shows 'reconciliation required create$'
shows '\{Verbs:\[get\] APIGroups:\[\] Resources:\[pods\] ResourceNames:\[\] NonResourceURLs:\[\]\}'
run kubectl auth reconcile -f - < <(rules get)
prints 'clusterrole.rbac.authorization.k8s.io/reconciled reconciled' 'clusterrolebinding.rbac.authorization.k8s.io/reconciled reconciled'
run kubectl auth reconcile -f - --remove-extra-permissions < <(rules list)
shows 'reconciliation required update$'
shows 'extra rules removed:'
run kubectl get clusterrole reconciled -o 'jsonpath={.rules[*].verbs}'
prints '["list"]'

title "Tokens"
run kubectl create serviceaccount robot
token=$(kubectl create token robot)
"$kubectl" config view --raw -o json >"$work/config.json"
python3 - "$work/config.json" "$work/anonymous.json" <<'PY' || broken "no kubeconfig without a user"
import json, sys
config = json.load(open(sys.argv[1]))
config["users"] = [{"name": "skiff", "user": {}}]
json.dump(config, open(sys.argv[2], "w"))
PY
bearer() { "$kubectl" --kubeconfig "$work/anonymous.json" --token "$@"; }
run bearer "$token" auth whoami
prints 'ATTRIBUTE VALUE' 'Username system:serviceaccount:access:robot' 'UID *-*-*' 'Groups [system:serviceaccounts system:serviceaccounts:access system:authenticated]' 'Extra: authentication.kubernetes.io/credential-id [JTI=*]'
fails 1 bearer "$token" get pods
prints 'Error from server (Forbidden): pods is forbidden: User "system:serviceaccount:access:robot" cannot list resource "pods" in API group "" in the namespace "access"'
run kubectl create rolebinding robot --role=reader --serviceaccount=access:robot
run bearer "$token" get pods
prints 'No resources found in access namespace.'
fails 1 bearer "$(kubectl create token robot --audience=x)" get pods
prints 'error: You must be logged in to the server (Unauthorized)'
fails 1 bearer nonsense get pods
prints 'error: You must be logged in to the server (Unauthorized)'
run kubectl delete serviceaccount robot
is_refused() { ! bearer "$token" get pods; }
eventually 15 is_refused
shows '^error: You must be logged in to the server \(Unauthorized\)$'
# Without any, kubectl would ask for a name.
"$kubectl" config view --raw -o 'jsonpath={.clusters[0].cluster.certificate-authority-data}' | base64 -d >"$work/ca.crt"
run curl -sS --cacert "$work/ca.crt" "https://127.0.0.1:$port/api"
shows '"message": ?"forbidden: User \\"system:anonymous\\" cannot get path \\"/api\\""'
run curl -sS --cacert "$work/ca.crt" "https://127.0.0.1:$port/livez"
prints 'ok'
