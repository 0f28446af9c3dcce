# Commands that write workloads and what stands before them; the controllers do their part, no pod ever runs.

title "Expose, scale and autoscale"
run kubectl create deployment web --image=nginx --replicas=2 --port=80
run kubectl expose deployment web --port=81 --target-port=80 --name=front
prints 'service/front exposed'
run kubectl expose deployment web --type=NodePort --name=outside --port=80
prints 'service/outside exposed'
run kubectl expose service front --name=second --port=90
prints 'service/second exposed'
run kubectl get service front -o 'jsonpath={.spec.ports} {.spec.selector}'
prints '[{"port":81,"protocol":"TCP","targetPort":80}] {"app":"web"}'
fails 1 kubectl expose deployment nope --port=80
prints 'Error from server (NotFound): deployments.apps "nope" not found'
run kubectl scale deployment web --replicas=3
prints 'deployment.apps/web scaled'
fails 1 kubectl scale deployment web --replicas=3 --current-replicas=9
prints 'error: Expected replicas to be 9, was 3'
fails 1 kubectl scale deployment/web deployment/nope --replicas=1
prints 'deployment.apps/web scaled' 'Error from server (NotFound): deployments.apps "nope" not found'
run kubectl autoscale deployment web --min=1 --max=3
prints 'horizontalpodautoscaler.autoscaling/web autoscaled'
run kubectl get horizontalpodautoscaler web
shows '^web +Deployment/web +(cpu: )?<unknown>/80% +1 +3 +[0-9] '
run kubectl delete horizontalpodautoscaler web

title "Set"
run kubectl set image deployment/web nginx=nginx:2
prints 'deployment.apps/web image updated'
fails 1 kubectl set image deployment/web nope=nginx:2
prints 'error: unable to find container named "nope"'
run kubectl set env deployment/web A=1
prints 'deployment.apps/web env updated'
run kubectl set env deployment/web --list
prints '# Deployment web, container nginx' 'A=1'
run kubectl create configmap values --from-literal=b=2
run kubectl set env deployment/web --from=configmap/values
shows '^deployment\.apps/web env updated$'
run kubectl set env deployment/web A-
run kubectl get deployment web -o 'jsonpath={.spec.template.spec.containers[0].env}'
prints '[{"name":"B","valueFrom":{"configMapKeyRef":{"key":"b","name":"values"}}}]'
run kubectl set resources deployment web --limits=cpu=200m,memory=512Mi --requests=cpu=100m
prints 'deployment.apps/web resource requirements updated'
fails 1 kubectl set resources deployment web --limits=cpu=100m --requests=cpu=200m
prints 'error: failed to patch resources update to pod template Deployment.apps "web" is invalid: spec.template.spec.containers[0].resources.requests: Invalid value: "200m": must be less than or equal to cpu limit of 100m'
run kubectl create serviceaccount robot
run kubectl set serviceaccount deployment web robot
prints 'deployment.apps/web serviceaccount updated'
run kubectl set selector service front a=b
prints 'service/front selector updated'
run kubectl create rolebinding viewers --clusterrole=view --user=bob
run kubectl set subject rolebinding viewers --user=zoe
prints 'rolebinding.rbac.authorization.k8s.io/viewers subjects updated'
run kubectl get rolebinding viewers -o 'jsonpath={.subjects[*].name}'
prints 'bob zoe'

title "Rollouts"
eventually 10 kubectl rollout history deployment/web
until_shows '^[56] +<none>$'
run kubectl rollout history deployment/web --revision=2
shows '^deployment\.apps/web with revision #2$'
shows '^    Image:	nginx:2$'
run kubectl rollout pause deployment/web
prints 'deployment.apps/web paused'
fails 1 kubectl rollout pause deployment/web
prints 'error: deployments.apps "web" is already paused'
fails 1 kubectl rollout restart deployment/web
prints "error: deployments.apps \"web\" can't restart paused deployment (run rollout resume first)"
run kubectl rollout resume deployment/web
prints 'deployment.apps/web resumed'
run kubectl rollout undo deployment/web --to-revision=2
prints 'deployment.apps/web rolled back'
run kubectl get deployment web -o 'jsonpath={.spec.template.spec.containers[0].env}'
prints
fails 1 kubectl rollout undo deployment/web --to-revision=99
prints 'error: unable to find specified revision 99 in history'
run kubectl rollout restart deployment/web
prints 'deployment.apps/web restarted'
fails 1 kubectl rollout status deployment/web --timeout=1s
shows '^Waiting for deployment "web" rollout to finish: '
shows '^error: timed out waiting for the condition$'
run kubectl rollout status deployment/web --watch=false
shows '^Waiting for deployment "web" '

title "A difference in a deployment is found"
kubectl get deployment web -o json | sed 's/"image": "nginx:2"/"image": "nginx:3"/' >"$work/live.json"
fails 1 kubectl diff -f "$work/live.json"
shows '^\+ +- image: nginx:3$|^\+ +image: nginx:3$'
