{{/* The jobs that make certificates and keys, tell the API server of them, and clean up. */}}

{{/* metadata of a hook's object. Takes root, name, hook and weight; cluster for an object without a namespace. */}}
{{- define "hami.hookMetadata" -}}
{{- $annotations := dict "helm.sh/hook" .hook "helm.sh/hook-weight" .weight
  "helm.sh/hook-delete-policy" "before-hook-creation,hook-succeeded" }}
{{- $namespace := .cluster | ternary "" (include "hami.namespace" .root) }}
{{- include "hami.metadata" (dict "root" .root "name" .name "namespace" $namespace "component" "hami-jobs"
  "annotations" $annotations) }}
{{- end }}

{{/* A job of our own image. Takes root, name, hook, account and args. */}}
{{- define "hami.job" -}}
{{- $patch := .root.Values.scheduler.patch -}}
apiVersion: batch/v1
kind: Job
metadata:
  {{- include "hami.hookMetadata" (dict "root" .root "name" .name "hook" .hook "weight" "0" "cluster" false) | nindent 2 }}
spec:
  backoffLimit: 5
  activeDeadlineSeconds: 300
  template:
    metadata:
      labels:
        {{- include "hami.selectorLabels" .root | nindent 8 }}
        app.kubernetes.io/component: hami-jobs
        hami.io/webhook: ignore
        {{- with .root.Values.global.labels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- $seccomp := include "hami.seccompAnnotation" .root | fromYaml }}
      {{- with merge (dict) $seccomp $patch.podAnnotations .root.Values.global.annotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      restartPolicy: OnFailure
      serviceAccountName: {{ .account }}
      {{- with include "hami.imagePullSecrets" (dict "root" .root "images" (list .root.Values.scheduler.extender.image)) }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- with $patch.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with $patch.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $patch.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- include "hami.podSecurity" (dict "root" .root "user" $patch.runAsUser) | nindent 6 }}
      containers:
      - name: hami
        image: {{ include "hami.ownImage" .root }}
        imagePullPolicy: {{ .root.Values.scheduler.extender.image.pullPolicy }}
        args:
        {{- toYaml .args | nindent 8 }}
        {{- include "hami.containerSecurity" .root | nindent 8 }}
{{- end }}

{{/*
Account of a job with its rights, hooks like the job itself. Takes root, name, hook, rules (in our namespace) and
clusterRules; either may be empty.
*/}}
{{- define "hami.jobAccount" -}}
{{- $root := .root }}
{{- $name := .name }}
{{- $namespace := include "hami.namespace" .root }}
{{- $own := dict "root" .root "name" .name "hook" .hook "weight" "-10" "cluster" false }}
{{- $cluster := dict "root" .root "name" .name "hook" .hook "weight" "-10" "cluster" true -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "hami.hookMetadata" $own | nindent 2 }}
{{- range $kind, $rules := dict "Role" .rules "ClusterRole" .clusterRules }}
{{- if $rules }}
{{- $meta := eq $kind "Role" | ternary $own $cluster }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
metadata:
  {{- include "hami.hookMetadata" $meta | nindent 2 }}
rules:
{{ toYaml $rules }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  {{- include "hami.hookMetadata" $meta | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $kind }}
  name: {{ $name }}
subjects:
- kind: ServiceAccount
  name: {{ $name }}
  namespace: {{ $namespace }}
{{- end }}
{{- end }}
{{- if include "hami.jobsNeedPsp" $root }}
---
apiVersion: policy/v1beta1
kind: PodSecurityPolicy
metadata:
  {{- include "hami.hookMetadata" $cluster | nindent 2 }}
spec:
  privileged: false
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  requiredDropCapabilities: [ALL]
  volumes: [secret, projected]
  runAsUser: {rule: MustRunAsNonRoot}
  seLinux: {rule: RunAsAny}
  supplementalGroups: {rule: RunAsAny}
  fsGroup: {rule: RunAsAny}
{{- end }}
{{- end }}

{{/* "true" where PodSecurityPolicies exist and are wanted. */}}
{{- define "hami.jobsNeedPsp" -}}
{{- if and .Values.podSecurityPolicy.enabled (lt (include "hami.kubeMinor" . | int) 25) }}true{{ end }}
{{- end }}

{{/* A rule, as a list in JSON, that lets a job's account use the policy of its name; nothing where there is none. */}}
{{- define "hami.pspRules" -}}
{{- $rules := list }}
{{- if include "hami.jobsNeedPsp" .root }}
{{- $rules = list (dict "apiGroups" (list "policy") "resources" (list "podsecuritypolicies") "resourceNames" (list .name) "verbs" (list "use")) }}
{{- end }}
{{- toJson $rules }}
{{- end }}
