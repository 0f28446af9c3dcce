# Waiting for what comes, and for what does not.

run kubectl run idle --image=nginx
run kubectl create configmap map

title "Wait"
run kubectl wait --for='jsonpath={.status.phase}=Pending' pod/idle --timeout=5s
prints 'pod/idle condition met'
run kubectl wait --for=condition=PodScheduled=False pod/idle --timeout=10s
prints 'pod/idle condition met'
fails 1 kubectl wait --for=condition=Ready pod/idle --timeout=1s
shows '^error: timed out waiting for the condition on pods/idle$'
run kubectl wait --for=create configmap/map --timeout=2s
prints 'configmap/map condition met'
background created "$kubectl" wait --for=create configmap/later --timeout=10s
sleep 0.5
run kubectl create configmap later
in_background created 10 '^configmap/later condition met$'
run kubectl wait --for=delete configmap/nope --timeout=2s
prints
fails 1 kubectl wait --for=delete configmap/map --timeout=1s
shows '^error: timed out waiting for the condition on configmaps/map$'
background deleted "$kubectl" wait --for=delete configmap/map --timeout=10s
sleep 0.5
run kubectl delete configmap map
in_background deleted 10 '^configmap/map condition met$'
background labelled "$kubectl" wait --for='jsonpath={.metadata.labels.ready}=yes' pod/idle --timeout=10s
sleep 0.5
run kubectl label pod idle ready=yes
in_background labelled 10 '^pod/idle condition met$'
