# The API through kubectl's proxy.

title "On a socket"
background socket "$kubectl" proxy --unix-socket="$work/socket"
in_background socket 10 '^Starting to serve on '
run curl -sS --unix-socket "$work/socket" http://localhost/api/
shows '"kind": "APIVersions"'
end socket

title "On any port"
background any-port "$kubectl" proxy --port=0 --disable-filter
in_background any-port 10 '^Starting to serve on 127\.0\.0\.1:[0-9]+$'
served=$(sed -nE 's/^Starting to serve on (.*)$/\1/p' "$work/any-port.out" | head -n 1)
run curl -sS "http://$served/api/"
shows '"versions": \['
run curl -sS "http://$served/api/v1/namespaces/proxy"
shows '"name": "proxy"'
run curl -sS -o /dev/null -w '%{http_code}\n' "http://$served/api/v1/namespaces/nope"
prints '404'
run curl -sS "http://$served/version"
shows '"gitVersion": "v1\.37\.'
run timeout 2 curl -sSN "http://$served/api/v1/namespaces?watch=true&timeoutSeconds=1"
shows '^\{"type":"ADDED","object":\{"kind":"Namespace"'
end any-port
