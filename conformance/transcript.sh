# What the transcript scripts share: steps that print their command, their output and what was expected of it.
# Sourced, never run. A step that fails ends the script with what it saw.

# begin: a cluster of the script's own may be made: $cluster, with kubectl as $kubectl, files in $work, a kubeconfig there.
# Whatever happens, the cluster is taken down at the end; what a script needs ended besides goes into $at_end.
begin() {
    skiff=${SKIFF_BIN:-target/release/skiff}
    cluster=lab
    if "$skiff" status --name "$cluster" >/dev/null 2>&1; then
        echo "cluster $cluster is already up: take it down first (skiff down --name $cluster)" >&2
        exit 1
    fi
    work=$(mktemp -d)
    export KUBECONFIG=$work/kubeconfig
    trap finish EXIT
    trap 'exit 1' INT TERM
}

# serve ARGUMENT…: instead of begin, where no node is needed: a control plane alone, in one process, with its folder in
# $work. What kubectl remembers and leaves behind is kept there, too. etcd's API is served where $etcd_listen says.
serve() {
    skiff=${SKIFF_BIN:-target/release/skiff}
    cluster=
    work=$(mktemp -d)
    trap finish EXIT
    trap 'exit 1' INT TERM
    export HOME=$work TMPDIR=$work KUBECACHEDIR=$work/cache KUBECONFIG=$work/server/admin.kubeconfig
    port=$(free_port)
    background server "$skiff" server --data-dir "$work/server" --secure-port "$port" --etcd-listen "${etcd_listen:-}" "$@"
    at_end+=(server)
    in_background server 20 'The control plane is ready'
}

# free_port: one that nobody listens on.
free_port() {
    local port
    while :; do
        port=$(shuf -i 20000-29999 -n 1)
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    done
    echo "$port"
}

at_end=()
finish() {
    local code=$? name
    [ "$code" = 0 ] || evidence
    [ -z "$cluster" ] || "$skiff" down --name "$cluster" >/dev/null 2>&1 || true
    for name in "${at_end[@]}"; do end "$name"; done
    rm -rf "$work"
    exit "$code"
}

# The word kubectl in a step is the client under test.
kubectl() { "$kubectl" "$@"; }

steps=0
checks=0
out=

title() { printf '\n\033[1m== %s\033[0m\n' "$*"; }

# show COMMAND…: prints the command as a person would type it.
show() {
    printf '❯'
    printf ' %s' "$@"
    printf '\n'
}

# run COMMAND…: must end with 0; its output (both streams) goes into $out.
run() {
    local code=0
    steps=$((steps + 1))
    show "$@"
    out=$("$@" 2>&1) || code=$?
    printf '%s\n' "$out" | cut -c1-400 | sed -n '1,120p'
    [ "$code" = 0 ] || broken "exit code $code"
}

# fails CODE COMMAND…: must end with CODE.
fails() {
    local code=0 wanted=$1
    shift
    steps=$((steps + 1))
    show "$@"
    out=$("$@" 2>&1) || code=$?
    printf '%s\n' "$out" | cut -c1-400
    [ "$code" = "$wanted" ] || broken "exit code $code instead of $wanted"
}

# refused COMMAND…: must not end with 0.
refused() {
    steps=$((steps + 1))
    show "$@"
    if out=$("$@" 2>&1); then broken "it was not refused"; fi
    printf '%s\n' "$out" | cut -c1-400
}

# shows REGEX: the last step's output has a line that matches.
shows() {
    checks=$((checks + 1))
    grep -Eq -- "$1" <<<"$out" || broken "no line matches: $1"
}

# prints LINE…: the last step's whole output, line by line. Blanks count as one, * stands for anything, AGE for an age.
prints() {
    checks=$((checks + 1))
    local lines=() number=0 line
    [ -z "$out" ] || mapfile -t lines < <(sed -E 's/[ \t]+/ /g; s/ $//' <<<"$out")
    for line in "$@"; do
        is_like "${lines[number]-}" "$line" || broken "line $((number + 1)) is not: $line"
        number=$((number + 1))
    done
    [ "$number" = ${#lines[@]} ] || broken "more than $number lines"
}

# is_like TEXT PATTERN: equal, but for what prints says of a pattern.
is_like() {
    local pattern=${2//\\/\\\\}
    pattern=${pattern//\[/\\[}
    pattern=${pattern//\?/\\?}
    pattern=${pattern//\(/\\(}
    # A heading AGE is itself.
    pattern=${pattern//AGE/+([0-9smhdyAGE])}
    # shellcheck disable=SC2053
    [[ $1 == $pattern ]]
}

# eventually SECONDS COMMAND…: repeats until it ends with 0 (alone), or as until_shows says.
eventually() {
    eventually_limit=$1
    shift
    eventually_command=("$@")
    steps=$((steps + 1))
    show "$@"
    local deadline=$((SECONDS + eventually_limit))
    while ! out=$("$@" 2>&1); do
        # An answer that the next until_shows may be waiting for counts as one.
        if grep -q 'not found' <<<"$out"; then break; fi
        [ "$SECONDS" -lt "$deadline" ] || broken "still failing after $eventually_limit s"
        sleep 0.3
    done
    printf '%s\n' "$out" | cut -c1-400
}

# until_shows REGEX: repeats the last `eventually` until a line matches.
until_shows() {
    checks=$((checks + 1))
    local deadline=$((SECONDS + eventually_limit))
    until grep -Eq -- "$1" <<<"$out"; do
        [ "$SECONDS" -lt "$deadline" ] || broken "no line matches after $eventually_limit s: $1"
        sleep 0.3
        out=$("${eventually_command[@]}" 2>&1) || true
    done
    printf '%s\n' "$out" | cut -c1-400
}

# background NAME COMMAND…: runs on while the script goes on; what it prints is read with in_background.
background() {
    local name=$1
    shift
    steps=$((steps + 1))
    show "$@" '&'
    : >"$work/$name.out"
    setsid "$@" >"$work/$name.out" 2>&1 &
    printf '%s' "$!" >"$work/$name.pid"
}

# in_background NAME SECONDS REGEX: a line of what it printed matches, or will in time.
in_background() {
    checks=$((checks + 1))
    local deadline=$((SECONDS + $2))
    until grep -Eq -- "$3" "$work/$1.out"; do
        out=$(cat "$work/$1.out")
        [ "$SECONDS" -lt "$deadline" ] || broken "no line matches after $2 s: $3"
        sleep 0.1
    done
    grep -m 3 -E -- "$3" "$work/$1.out" | cut -c1-400
}

# end NAME: ends what background started, and all it started.
end() {
    local pid
    pid=$(cat "$work/$1.pid")
    kill -- "-$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
}

# port_forward TARGET PORT: forwards a free local port and fetches / through it.
port_forward() {
    steps=$((steps + 1))
    show kubectl port-forward "$1" ":$2"
    local log=$work/port-forward pid port=
    : >"$log"
    "$kubectl" port-forward "$1" ":$2" >"$log" 2>&1 &
    pid=$!
    for _ in $(seq 50); do
        port=$(sed -nE 's/^Forwarding from 127\.0\.0\.1:([0-9]+) .*/\1/p' "$log" | head -n 1)
        [ -z "$port" ] || break
        sleep 0.1
    done
    out=$(curl -sS --max-time 10 "http://127.0.0.1:${port:-1}/" 2>&1) || true
    kill "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    cat "$log"
}

# until_absent WORD: repeats the last `eventually` until no line has the word.
until_absent() {
    checks=$((checks + 1))
    local deadline=$((SECONDS + eventually_limit))
    while grep -Fq -- "$1" <<<"$out"; do
        [ "$SECONDS" -lt "$deadline" ] || broken "still there after $eventually_limit s: $1"
        sleep 0.3
        out=$("${eventually_command[@]}" 2>&1) || true
    done
}

# until_lines COUNT: repeats the last `eventually` until it prints so many lines.
until_lines() {
    checks=$((checks + 1))
    local deadline=$((SECONDS + eventually_limit))
    until [ "$(wc -l <<<"$out")" = "$1" ]; do
        [ "$SECONDS" -lt "$deadline" ] || broken "not $1 lines after $eventually_limit s"
        sleep 0.3
        out=$("${eventually_command[@]}" 2>&1) || true
    done
}

# nothing_left: no trace of $cluster is on the machine.
nothing_left() {
    run bash -c "! ip link show | grep -F skiff-$cluster"
    run bash -c "! grep -F /skiff/$cluster /proc/mounts"
    run bash -c "! nft list ruleset | grep -F skiff-$cluster"
    run bash -c "! grep -F skiff-$cluster '$KUBECONFIG'"
    run bash -c "! ls -d /sys/fs/cgroup/skiff/$cluster /sys/fs/cgroup/*/skiff/$cluster 2>/dev/null"
    # Whose a route is, only its priority tells: they can be missed when no other cluster is there.
    run bash -c "ls -d /var/lib/skiff/* >/dev/null 2>&1 || ! ip -4 route show proto 107 | grep ."
    run bash -c "! pgrep -af '[/]skiff/$cluster/'"
    run test ! -e "/var/lib/skiff/$cluster"
}

failed_with=
broken() {
    failed_with=$(
        printf '\n\033[31mFAILED:\033[0m %s\n--- the end of the last output\n' "$1"
        printf '%s\n' "$out" | tail -n 30 | cut -c1-400
    )
    printf '%s\n' "$failed_with" >&2
    exit 1
}

# What a reader of a failed run wants to see: how the cluster is, and the failure itself last.
evidence() {
    set +e
    echo "--- evidence"
    if [ -z "$cluster" ]; then
        tail -n 30 "$work/server.out" | cut -c1-400
        printf '%s\n' "$failed_with" "--- the end of the evidence; what failed is above"
        return
    fi
    "$kubectl" get nodes,pods,svc,endpointslices -A -o wide
    "$kubectl" get events -A --sort-by=.lastTimestamp | tail -n 40
    "$skiff" status --name "$cluster"
    tail -n 30 /var/lib/skiff/"$cluster"/nodes/*/log/*.log 2>/dev/null | cut -c1-400
    printf '%s\n' "$failed_with" "--- the end of the evidence; what failed is above"
}

passed() { printf '\n%s passed, 0 failed\n' "$checks"; }
