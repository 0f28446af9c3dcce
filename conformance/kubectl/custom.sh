# Custom resources: defined, validated, explained, changed and gone.

bell() { printf 'apiVersion: ring.example.com/v1\nkind: Bell\nmetadata: {name: %s}\nspec: {tone: %s%s}\n' "$1" "$2" "${3:-}"; }

title "A definition is served at once"
run kubectl create -f - <<'YAML'
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: bells.ring.example.com}
spec:
  group: ring.example.com
  names: {kind: Bell, plural: bells, singular: bell, shortNames: [bl], categories: [all]}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        description: A bell rings.
        properties:
          spec:
            type: object
            required: [tone]
            properties:
              tone: {type: string, enum: [low, high], description: How it sounds.}
              count: {type: integer, default: 3, minimum: 1}
              replicas: {type: integer}
          status:
            type: object
            properties: {rung: {type: integer}, replicas: {type: integer}}
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}
    additionalPrinterColumns:
    - {name: Tone, type: string, jsonPath: .spec.tone}
    - {name: Count, type: integer, jsonPath: .spec.count, priority: 1}
    selectableFields: [{jsonPath: .spec.tone}]
YAML
prints 'customresourcedefinition.apiextensions.k8s.io/bells.ring.example.com created'
run kubectl wait --for=condition=Established crd/bells.ring.example.com --timeout=10s
prints 'customresourcedefinition.apiextensions.k8s.io/bells.ring.example.com condition met'
run kubectl api-resources --api-group=ring.example.com
prints 'NAME SHORTNAMES APIVERSION NAMESPACED KIND' 'bells bl ring.example.com/v1 true Bell'
run kubectl get bells
prints 'No resources found in custom namespace.'

title "Objects are held to their schema"
run kubectl apply -f - < <(bell one low)
prints 'bell.ring.example.com/one created'
run kubectl apply -f - < <(bell one low)
prints 'bell.ring.example.com/one unchanged'
fails 1 kubectl diff -f - < <(bell one high)
shows '^-  tone: low$'
run kubectl apply -f - < <(bell one high)
prints 'bell.ring.example.com/one configured'
run kubectl apply -f - < <(bell one low)
fails 1 kubectl apply -f - < <(bell two loud)
prints 'The Bell "two" is invalid: spec.tone: Unsupported value: "loud": supported values: "low", "high"'
fails 1 kubectl create -f - < <(bell two high ', count: 0')
prints 'The Bell "two" is invalid: spec.count: Invalid value: 0: spec.count in body should be greater than or equal to 1'
fails 1 kubectl create -f - <<<'{"apiVersion":"ring.example.com/v1","kind":"Bell","metadata":{"name":"two"},"spec":{}}'
prints 'The Bell "two" is invalid: spec.tone: Required value'
fails 1 kubectl create -f - < <(bell two high ', extra: 1')
prints 'Error from server (BadRequest): error when creating "STDIN": Bell in version "v1" cannot be handled as a Bell: strict decoding error: unknown field "spec.extra"'
run kubectl create --validate=warn -f - < <(bell two high ', extra: 1')
prints 'Warning: unknown field "spec.extra"' 'bell.ring.example.com/two created'
run kubectl apply --server-side -f - < <(bell three high)
prints 'bell.ring.example.com/three serverside-applied'
fails 1 kubectl apply --server-side --field-manager other -f - < <(bell three low)
shows '^error: Apply failed with 1 conflict: conflict with "kubectl": \.spec\.tone$'

title "They are shown as it says"
run kubectl get bells
prints 'NAME TONE' 'one low' 'three high' 'two high'
run kubectl get bl -o wide
prints 'NAME TONE COUNT' 'one low 3' 'three high 3' 'two high 3'
run kubectl get bells --field-selector spec.tone=low
prints 'NAME TONE' 'one low'
fails 1 kubectl get bells --field-selector spec.count=3
prints 'Error from server (BadRequest): Unable to find "ring.example.com/v1, Resource=bells" that match label selector "", field selector "spec.count=3": field label not supported: spec.count'
run kubectl get all
prints 'NAME TONE' 'bell.ring.example.com/one low' 'bell.ring.example.com/three high' 'bell.ring.example.com/two high'
run kubectl describe bell one
shows '^API Version: +ring\.example\.com/v1$'
shows '^  Tone: +low$'

title "They are explained"
eventually 5 kubectl explain bells
until_shows '^    A bell rings\.$'
run kubectl explain bell.spec.tone
shows '^    How it sounds\.$'
run kubectl explain bell --recursive
shows '^    tone	<string> -required-$'
shows '^      blockOwnerDeletion	<boolean>$'
run kubectl explain bell --output=plaintext-openapiv2
shows '^     A bell rings\.$'

title "They are changed"
run kubectl scale bell/one --replicas=4
prints 'bell.ring.example.com/one scaled'
run kubectl get bell one --subresource scale
prints 'NAME DESIRED AVAILABLE AGE' 'one 4 0 AGE'
run kubectl patch bell one --subresource status --type merge -p '{"status":{"rung":2}}'
prints 'bell.ring.example.com/one patched'
run kubectl patch bell one --type merge -p '{"status":{"rung":9},"spec":{"count":7}}'
run kubectl get bell one -o 'jsonpath={.spec}{.status} {.metadata.generation}'
prints '{"count":7,"replicas":4,"tone":"low"}{"rung":2} *'
fails 1 kubectl patch bell one -p '{"spec":{"count":8}}'
shows '^error: application/strategic-merge-patch\+json is not supported by ring\.example\.com/v1, Kind=Bell: the body of the request was in an unknown format - accepted media types include: application/json-patch\+json, application/merge-patch\+json, application/apply-patch\+yaml'
fails 1 kubectl patch bell one --type json -p '[{"op":"replace","path":"/spec/tone","value":"loud"}]'
prints 'The Bell "one" is invalid: spec.tone: Unsupported value: "loud": supported values: "low", "high"'
run editing 's/count: 7/count: 9/' kubectl edit bell one
prints 'bell.ring.example.com/one edited'
run kubectl label bells --all rung=yes
prints 'bell.ring.example.com/one labeled' 'bell.ring.example.com/three labeled' 'bell.ring.example.com/two labeled'
run kubectl wait --for='jsonpath={.status.rung}=2' bell/one --timeout=5s
prints 'bell.ring.example.com/one condition met'

title "They go with it"
run kubectl delete bell two
prints "bell.ring.example.com \"two\" deleted$from"
run kubectl delete crd bells.ring.example.com
prints 'customresourcedefinition.apiextensions.k8s.io "bells.ring.example.com" deleted*'
fails 1 kubectl get --raw /apis/ring.example.com/v1/namespaces/custom/bells
prints 'Error from server (NotFound): the server could not find the requested resource'
