#!/usr/bin/env bash
# Clients that were not written here against a control plane alone: the Python and the JavaScript client, as hack/tools
# puts them into target/tools. conformance/clients.sh [python|node…]; without arguments, both.
#
# It starts `skiff server` on a free port and ends it at the end. Needs no root.
set -euo pipefail
cd "$(dirname "$0")/.."
. conformance/transcript.sh

tools=$(realpath "${SKIFF_TOOLS:-target/tools}")
etcd_listen=127.0.0.1:$(free_port)
serve
# What makes versions old: the clients run it, with a revision, to see how they are told.
export COMPACT=$work/compact
cat >"$COMPACT" <<SH
#!/bin/sh
pki=$work/server/pki/etcd
exec "$tools/etcd-3.5/etcdctl" --endpoints="https://$etcd_listen" --cacert="\$pki/ca.crt" --cert="\$pki/server.crt" --key="\$pki/server.key" compact "\$1"
SH
chmod +x "$COMPACT"
clients=("$@")
[ ${#clients[@]} -gt 0 ] || clients=(python node)
for client in "${clients[@]}"; do
    title "$client"
    case $client in
    python) run "$tools/python/bin/python" -W error::DeprecationWarning:__main__ conformance/clients/client.py ;;
    node) run env NODE_PATH="$tools/node/node_modules" node conformance/clients/client.mjs "$tools/node/node_modules" ;;
    *) broken "no client $client" ;;
    esac
    shows '^[0-9]+ passed, 0 failed$'
done
passed
