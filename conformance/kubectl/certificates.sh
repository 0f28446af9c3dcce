# Signing requests: asked for, approved, denied, issued and used.

openssl req -new -newkey rsa:2048 -nodes -keyout "$work/zoe.key" -subj /O=team/CN=zoe -out "$work/zoe.csr" 2>/dev/null
# request NAME [SECONDS]
request() {
    cat <<YAML
apiVersion: certificates.k8s.io/v1
kind: CertificateSigningRequest
metadata: {name: $1}
spec:
  request: $(base64 -w0 "$work/zoe.csr")
  signerName: kubernetes.io/kube-apiserver-client
  usages: [client auth]
  expirationSeconds: ${2:-3600}
YAML
}

title "Signing requests"
run kubectl create -f - < <(request zoe)
prints 'certificatesigningrequest.certificates.k8s.io/zoe created'
run kubectl create -f - < <(request yan 7200)
run kubectl get csr
prints 'NAME AGE SIGNERNAME REQUESTOR REQUESTEDDURATION CONDITION' 'yan AGE kubernetes.io/kube-apiserver-client kubernetes-admin 120m Pending' 'zoe AGE kubernetes.io/kube-apiserver-client kubernetes-admin 60m Pending'
run kubectl certificate approve zoe
prints 'certificatesigningrequest.certificates.k8s.io/zoe approved'
run kubectl certificate deny yan
prints 'certificatesigningrequest.certificates.k8s.io/yan denied'
fails 1 kubectl certificate approve yan
prints '*certificate signing request "yan" is already Denied'
eventually 10 kubectl get csr
until_shows '^zoe .* Approved,Issued$'
shows '^yan .* Denied$'
run kubectl describe csr zoe
shows '^Requesting User: +kubernetes-admin$'
shows '^         Common Name: +zoe$'
shows '^         Organization: +team$'
fails 1 kubectl certificate approve nope
prints 'Error from server (NotFound): certificatesigningrequests.certificates.k8s.io "nope" not found'
fails 1 kubectl create -f - < <(request short 60)
prints 'The CertificateSigningRequest "short" is invalid: spec.expirationSeconds: Invalid value: 60: may not specify a duration less than 600 seconds (10 minutes)'

title "The certificate says who I am"
kubectl get csr zoe -o 'jsonpath={.status.certificate}' | base64 -d >"$work/zoe.crt"
"$kubectl" config view --raw -o 'jsonpath={.clusters[0].cluster.certificate-authority-data}' | base64 -d >"$work/ca.crt"
printf 'apiVersion: v1\nkind: Config\n' >"$work/zoe.kubeconfig"
export KUBECONFIG=$work/zoe.kubeconfig
run kubectl config set-cluster here --server="https://127.0.0.1:$port" --certificate-authority="$work/ca.crt" --embed-certs
prints 'Cluster "here" set.'
run kubectl config set-credentials zoe --client-certificate="$work/zoe.crt" --client-key="$work/zoe.key"
prints 'User "zoe" set.'
run kubectl config set-context zoe --cluster=here --user=zoe --namespace=certificates
prints 'Context "zoe" created.'
run kubectl config use-context zoe
run kubectl config get-contexts
prints 'CURRENT NAME CLUSTER AUTHINFO NAMESPACE' '* zoe here zoe certificates'
run kubectl auth whoami
prints 'ATTRIBUTE VALUE' 'Username zoe' 'Groups [team system:authenticated]' 'Extra: authentication.kubernetes.io/credential-id [X509SHA256=*]'
fails 1 kubectl get pods
prints 'Error from server (Forbidden): pods is forbidden: User "zoe" cannot list resource "pods" in API group "" in the namespace "certificates"'
export KUBECONFIG=$work/server/admin.kubeconfig
