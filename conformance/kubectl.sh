#!/usr/bin/env bash
# Every command of a stock kubectl that needs an API server and no node, each with what it prints against a kube-apiserver
# beside it: conformance/kubectl.sh [KUBECTL [SECTION…]]. Without sections, all of conformance/kubectl/ in the order below.
#
# It starts a control plane of its own on a free port (`skiff server`) and ends it at the end. Needs no root.
set -euo pipefail
cd "$(dirname "$0")/.."
. conformance/transcript.sh

kubectl=${1:-kubectl}
shift || true
serve
minor=$(kubectl version --client -o json | sed -nE 's/^ *"minor": "([0-9]+).*/\1/p' | head -n 1)

# since MINOR: whether this kubectl is at least 1.MINOR.
since() { [ "$minor" -ge "$1" ]; }

# From 1.34 on it tells where it deletes.
from=
if since 34; then from=' from * namespace'; fi

# editing EXPRESSION COMMAND…: with an editor that is sed with this expression.
editing() {
    printf '#!/bin/sh\nexec sed -i -E %q "$1"\n' "$1" >"$work/editor"
    chmod +x "$work/editor"
    shift
    EDITOR=$work/editor "$@"
}

openssl req -x509 -newkey rsa:2048 -nodes -keyout "$work/key.pem" -out "$work/crt.pem" -subj /CN=x -days 1 2>/dev/null

sections=("$@")
[ ${#sections[@]} -gt 0 ] || sections=(create apply patch read discover explain access certificates custom workloads nodes pods delete wait proxy)
for section in "${sections[@]}"; do
    # A namespace of its own for each; the account that pods run as comes with it.
    "$kubectl" create namespace "$section" >/dev/null
    "$kubectl" config set-context --current --namespace "$section" >/dev/null
    # shellcheck source=/dev/null
    . "conformance/kubectl/$section.sh"
done
passed
