{{/*
What the two policies share. Both ask the same questions: does one of our keys change at all, may
this account write that key, and does an agent stay on its own node and leave the rest alone. The
last is asked of all that an agent writes: a node that is taken over must not change what runs
elsewhere.

With failurePolicy Fail an expression that fails refuses the write, also kubelet's. So none can:
fields are read as optionals, and loops run over our keys, whose number is known, never over what
a user has written, who could make them too costly. Variables are evaluated only where they are used:
the loop over labels concerns an agent's writes alone.
*/}}

{{/* "true" where the API server knows policies (1.30) and a part that grants cards is installed. */}}
{{- define "hami.policy.enabled" -}}
{{- if and .Values.admissionPolicy.enabled (not .Values.webhookOnly.enabled) (ge (include "hami.kubeMinor" . | int) 30) -}}
true
{{- end -}}
{{- end -}}

{{- define "hami.policy.scheduler" -}}
{{ printf "system:serviceaccount:%s:%s" (include "hami.namespace" .) (include "hami.scheduler" .) }}
{{- end -}}
{{- define "hami.policy.agent" -}}
{{ printf "system:serviceaccount:%s:%s" (include "hami.namespace" .) (include "hami.devicePlugin" .) }}
{{- end -}}

{{/* Accounts that may write every key, a JSON list; simulated plugins write those of all vendors. */}}
{{- define "hami.policy.trusted" -}}
{{- $accounts := .Values.admissionPolicy.trustedAccounts | default list }}
{{- if include "hami.simulates" . }}
{{- $accounts = append $accounts (printf "system:serviceaccount:%s:%s" (include "hami.namespace" .) (include "hami.simulatedDevices" .)) }}
{{- end }}
{{- toJson $accounts }}
{{- end -}}

{{/*
Most writes to pods and nodes are status, by kubelet. They end here, where the maps are equal; only
an agent's go on.
All in one condition: the API server evaluates every condition before it looks at the first.
*/}}
{{- define "hami.policy.matchConditions" -}}
- name: annotations-or-labels-change
  expression: >-
    oldObject == null ||
    request.?userInfo.?username.orValue("") == {{ include "hami.policy.agent" . | toJson }} ||
    object.?metadata.?annotations.orValue({}) != oldObject.?metadata.?annotations.orValue({}) ||
    object.?metadata.?labels.orValue({}) != oldObject.?metadata.?labels.orValue({})
{{- end -}}

{{/*
Who writes, and the annotations before and after. From 1.30 on the token that kubelet mounts into a
pod names the pod's node.
*/}}
{{- define "hami.policy.variables" -}}
- name: user
  expression: request.?userInfo.?username.orValue("")
- name: isTrusted
  expression: >-
    variables.user in {{ include "hami.policy.trusted" . }}
- name: isScheduler
  expression: >-
    variables.user == {{ include "hami.policy.scheduler" . | toJson }}
- name: isAgent
  expression: >-
    variables.user == {{ include "hami.policy.agent" . | toJson }} && !variables.isTrusted
- name: isPlugin
  expression: >-
    variables.user in {{ include "hami.policy.pluginAccounts" . }} && !variables.isTrusted &&
    variables.user.startsWith("system:serviceaccount:")
- name: nodesOfToken
  expression: request.?userInfo.?extra[?"authentication.kubernetes.io/node-name"].orValue([])
- name: nodeOfToken
  expression: 'variables.nodesOfToken.size() == 1 ? variables.nodesOfToken[0] : ""'
- name: annotations
  expression: object.?metadata.?annotations.orValue({})
- name: oldAnnotations
  expression: 'oldObject == null ? {} : oldObject.?metadata.?annotations.orValue({})'
{{- end -}}

{{/* Accounts of other vendors' device plugins, a JSON list. */}}
{{- define "hami.policy.pluginAccounts" -}}
{{- $accounts := list }}
{{- range include "hami.vendors" . | fromJsonArray }}{{ $accounts = concat $accounts .accounts }}{{ end }}
{{- uniq $accounts | toJson }}
{{- end -}}

{{/*
Annotations of nodes that are a vendor's alone, a JSON list: all but the lock that vendors share. Takes a row of hami.vendors.
*/}}
{{- define "hami.policy.ownOnNodes" -}}
{{- $lock := get . "lock" | default "" }}
{{- if eq $lock "hami.io/mutex.lock" }}{{ $lock = "" }}{{ end }}
{{- compact (list (get . "register") (get . "handshake") $lock) | toJson }}
{{- end -}}

{{/*
Keys that the device plugins of other vendors may change in this write, a list in CEL. Takes root and pods (or not: nodes).
A vendor without an account lets everybody write as its plugin does. What vendors share, bind-phase and the lock, is a plugin's
only where its cards are: on pods that the scheduler has granted some, and on nodes that have registered some.
*/}}
{{- define "hami.policy.ofPlugins" -}}
{{- $parts := list }}
{{- range include "hami.vendors" .root | fromJsonArray }}
{{- if ne .vendor "nvidia" }}
{{- $who := .accounts | empty | ternary (list) (list (printf "variables.user in %s" (toJson .accounts))) }}
{{- $locks := eq (get . "lock" | default "") "hami.io/mutex.lock" }}
{{- if $.pods }}
{{- $keys := compact (list (get . "toAllocate") ($locks | ternary "hami.io/bind-phase" "")) }}
{{- $keys = concat $keys (get . "extra" | default list) }}
{{- $when := append $who (printf "variables.oldAnnotations[?%s].orValue(\"\") != \"\"" (toJson .allocated)) }}
{{- if $keys }}{{ $parts = append $parts (printf "(%s ? %s : [])" (join " && " $when) (toJson $keys)) }}{{ end }}
{{- else }}
{{- $own := include "hami.policy.ownOnNodes" . | fromJsonArray }}
{{- if and $who $own }}{{ $parts = append $parts (printf "(%s ? %s : [])" (join " && " $who) (toJson $own)) }}{{ end }}
{{- if $locks }}
{{- $when := append $who (printf "variables.oldAnnotations[?%s].orValue(\"\") != \"\"" (toJson .register)) }}
{{- $parts = append $parts (printf "(%s ? [\"hami.io/mutex.lock\"] : [])" (join " && " $when)) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- $parts | empty | ternary "[]" (join " +\n" $parts) }}
{{- end -}}

{{/* Owners and finalizers are as they were; needs an oldObject. */}}
{{- define "hami.policy.keepsOwners" -}}
object.?metadata.?ownerReferences.orValue([]) == oldObject.?metadata.?ownerReferences.orValue([]) &&
        object.?metadata.?finalizers.orValue([]) == oldObject.?metadata.?finalizers.orValue([])
{{- end -}}

{{/* How a refusal about an agent's or a plugin's node begins: our keys that it would change, if any. */}}
{{- define "hami.policy.whatIsWritten" -}}
(variables.changed.size() == 0 ? "" : variables.changed.join(", ") + ": ") + variables.user +
{{- end -}}

{{/* How a refusal goes on after the keys and the account. */}}
{{- define "hami.policy.whoMay" -}}
{{ printf " must not add, change or remove this. Only hami does, each account its part: %s, and on its own node %s. Leave it as it is, and out of what you write. If this account must write it, add it to the chart's value admissionPolicy.trustedAccounts, or, if it is the device plugin of another vendor, to devices.<vendor>.pluginAccounts." (include "hami.policy.scheduler" .) (include "hami.policy.agent" .) }}
{{- end -}}

{{/* The binding that puts a policy in force; both have one name. Takes root and name. */}}
{{- define "hami.policy.binding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  {{- include "hami.metadata" . | nindent 2 }}
spec:
  policyName: {{ .name }}
  validationActions: [Deny]
{{- end -}}
