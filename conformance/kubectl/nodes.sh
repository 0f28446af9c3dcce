# A node that was made by hand: taints, cordons, drains, and what needs more than an API server.

run kubectl create -f - <<<'{"apiVersion":"v1","kind":"Node","metadata":{"name":"hand","labels":{"kubernetes.io/os":"linux"}}}'
prints 'node/hand created'

title "Nodes"
run kubectl get nodes
prints 'NAME STATUS ROLES AGE VERSION' 'hand Unknown <none> AGE'
run kubectl get nodes -o wide
shows '^hand +Unknown +<none> +[0-9]+s +<none> +<none> +<unknown> +<unknown> +<unknown>$'
run kubectl taint node hand a=b:NoSchedule
prints 'node/hand tainted'
fails 1 kubectl taint node hand a=b:NoSchedule
prints 'error: node hand already has a taint(s) with same effect(s) and --overwrite is false'
run kubectl taint node hand a=c:NoSchedule --overwrite
prints 'node/hand modified'
run kubectl get node hand -o 'jsonpath={.spec.taints[?(@.key=="a")]}'
prints '{"effect":"NoSchedule","key":"a","value":"c"}'
run kubectl taint node hand a:NoSchedule-
prints 'node/hand untainted'
fails 1 kubectl taint node hand a:NoSchedule-
prints 'error: taint "a:NoSchedule" not found'
run kubectl cordon hand
prints 'node/hand cordoned'
run kubectl cordon hand
prints 'node/hand already cordoned'
run kubectl get node hand
shows '^hand +Unknown,SchedulingDisabled +<none> '
run kubectl uncordon hand
prints 'node/hand uncordoned'
run kubectl drain hand --dry-run=server
prints 'node/hand cordoned (server dry run)' 'node/hand drained (server dry run)'
run kubectl drain hand --ignore-daemonsets --dry-run=client
prints 'node/hand cordoned (dry run)' 'node/hand drained (dry run)'
run kubectl drain hand
prints 'node/hand cordoned' 'node/hand drained'
run kubectl label node hand node-role.kubernetes.io/worker=
run kubectl get node hand
shows '^hand +Unknown,SchedulingDisabled +worker '
run kubectl describe node hand
shows '^Roles: +worker$'
shows '^Unschedulable: +true$'
shows '^Lease: +Failed to get lease: leases\.coordination\.k8s\.io "hand" not found$'
run kubectl patch node hand --subresource=status -p '{"status":{"capacity":{"cpu":"4","memory":"1Gi","pods":"10"}}}'
prints 'node/hand patched'
run kubectl get node hand -o 'jsonpath={.status.allocatable}'
prints '{"cpu":"4","memory":"1Gi","pods":"10"}'
fails 1 kubectl get --raw /api/v1/nodes/hand/proxy/metrics
shows '^(Error from server|error)'

title "What needs a metrics server"
fails 1 kubectl top pods
prints 'error: Metrics API not available'
fails 1 kubectl top nodes
prints 'error: Metrics API not available'
fails 1 kubectl get --raw /apis/metrics.k8s.io/v1beta1/nodes
prints 'Error from server (NotFound): the server could not find the requested resource'
run kubectl delete node hand
prints 'node "hand" deleted*'
