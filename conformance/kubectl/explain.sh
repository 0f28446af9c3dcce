# `kubectl explain` of every kind, from OpenAPI v3 and v2.

title "Fields and their words"
run kubectl explain pods
shows '^KIND: +Pod$'
shows '^VERSION: +v1$'
shows '^    Pod is a collection of containers that can run on a host\. This resource is$'
shows '^  metadata	<ObjectMeta>$'
shows '^  spec	<PodSpec>$'
run kubectl explain pod.spec.containers.resources.claims.name
shows '^FIELD: name <string>$'
shows 'Name must match the name of one entry in pod\.spec\.resourceClaims'
run kubectl explain horizontalpodautoscaler.spec --api-version=autoscaling/v1
shows '^GROUP: +autoscaling$'
shows '^VERSION: +v1$'
shows '^  targetCPUUtilizationPercentage	<integer>$'
run kubectl explain events --api-version=events.k8s.io/v1
shows '^GROUP: +events\.k8s\.io$'
fails 1 kubectl explain pod.nope
shows '^error: field "nope" does not exist$'
fails 1 kubectl explain cronjob --api-version=batch/v1beta1
prints "*couldn't find resource for \"batch/v1beta1, Resource=cronjobs\""
fails 1 kubectl explain nosuch
prints "*the server doesn't have a resource type \"nosuch\""

title "Every kind, recursively"
# explained FLAG…: explains every resource with these flags.
explained() {
    local resource count=0 named
    for resource in $("$kubectl" api-resources -o name); do
        named=("$resource")
        # Two kinds of events have one name.
        [ "$resource" != events.events.k8s.io ] || named=(events --api-version=events.k8s.io/v1)
        "$kubectl" explain --recursive "$@" "${named[@]}" >"$work/explained" || return
        grep -q '^FIELDS:' "$work/explained" || { echo "no fields of $resource"; return 1; }
        count=$((count + 1))
    done
    echo "$count kinds explained"
}
run explained
shows '^[6-9][0-9] kinds explained$'
# From OpenAPI v2: a few, since each takes the whole document.
for kind in pods deployments.apps validatingadmissionpolicies.admissionregistration.k8s.io resourceclaims.resource.k8s.io; do
    run kubectl explain --recursive --output=plaintext-openapiv2 "$kind"
    shows '^FIELDS:$'
    shows '^   metadata	<Object>$'
done
