{{/* Who answers admission, and where its certificate comes from. */}}

{{/* "true" where there is a webhook at all. */}}
{{- define "hami.admits" -}}
{{- if or .Values.webhookOnly.enabled .Values.scheduler.admissionWebhook.enabled }}true{{ end }}
{{- end }}

{{/* The workload that answers: its Deployment, ServiceAccount and ConfigMap have this name. */}}
{{- define "hami.server" -}}
{{- .Values.webhookOnly.enabled | ternary (include "hami.webhook" .) (include "hami.scheduler" .) }}
{{- end }}

{{- define "hami.component" -}}
{{- .Values.webhookOnly.enabled | ternary "hami-webhook" "hami-scheduler" }}
{{- end }}

{{- define "hami.serverLabels" -}}
{{ include "hami.selectorLabels" . }}
app.kubernetes.io/component: {{ include "hami.component" . }}
{{- end }}

{{/* The Secret that is made, by a job or by cert-manager. */}}
{{- define "hami.madeTlsSecret" -}}
{{ include "hami.server" . }}-tls
{{- end }}

{{- define "hami.tlsSecret" -}}
{{ .Values.scheduler.admissionWebhook.existingSecret | default (include "hami.madeTlsSecret" .) }}
{{- end }}

{{/* The key of grants of form v1, which an older release of the chart has made. */}}
{{- define "hami.grantKeySecret" -}}
{{ .Values.scheduler.grantKey.existingSecret | default (printf "%s-grant-key" (include "hami.fullname" .)) }}
{{- end }}

{{/* The key that signs grants, for schedulers only. */}}
{{- define "hami.grantSigningSecret" -}}
{{ .Values.scheduler.grantKey.existingSigningSecret | default (printf "%s-grant-signing-key" (include "hami.fullname" .)) }}
{{- end }}

{{/* Its public key, for the agents. */}}
{{- define "hami.grantPublicSecret" -}}
{{ .Values.scheduler.grantKey.existingPublicSecret | default (printf "%s-grant-public-key" (include "hami.fullname" .)) }}
{{- end }}

{{/* Forms of grants that count; `helm upgrade --reuse-values` from an older chart gives none. */}}
{{- define "hami.grantForms" -}}
{{ join "," (.Values.scheduler.grantKey.acceptForms | default (list "v1" "v3")) }}
{{- end }}

{{/*
The volume with the keys of grants. Takes root, the Secret of form v3, and a mode. A Secret may be missing: a cluster has none of
v1 unless an older release made it. Without any key the process does not start, and says so.
*/}}
{{- define "hami.grantVolume" -}}
{{- $secrets := list .secret }}
{{- if has "v1" (include "hami.grantForms" .root | splitList ",") }}
{{- $secrets = append $secrets (include "hami.grantKeySecret" .root) }}
{{- end -}}
- name: grant-key
  projected:
    {{- with .mode }}
    {{- . | nindent 4 }}
    {{- end }}
    sources:
    {{- range $secrets }}
    - secret: {name: {{ . }}, optional: true}
    {{- end }}
{{- end }}

{{/* "true" where cert-manager makes the certificate. */}}
{{- define "hami.certManager" -}}
{{- if and (include "hami.admits" .) .Values.scheduler.certManager.enabled }}true{{ end }}
{{- end }}

{{/* "true" where the create job makes the certificate. */}}
{{- define "hami.makesTls" -}}
{{- $scheduler := .Values.scheduler }}
{{- if and (include "hami.admits" .) $scheduler.patch.enabled (not $scheduler.certManager.enabled)
  (not $scheduler.admissionWebhook.existingSecret) }}true{{ end }}
{{- end }}

{{/* "true" where the create job makes the key that signs grants. */}}
{{- define "hami.makesGrantKey" -}}
{{- if not (or .Values.webhookOnly.enabled .Values.scheduler.grantKey.existingSigningSecret) }}true{{ end }}
{{- end }}

{{/* "true" where the patch job tells the API server of the CA. */}}
{{- define "hami.patchesCa" -}}
{{- $scheduler := .Values.scheduler }}
{{- if and (include "hami.admits" .) $scheduler.patch.enabled (not $scheduler.certManager.enabled)
  (not $scheduler.admissionWebhook.caBundle) }}true{{ end }}
{{- end }}

{{/* Names under which the server is called, a JSON list. */}}
{{- define "hami.hosts" -}}
{{- $namespace := include "hami.namespace" . }}
{{- $hosts := list (printf "%s.%s.svc" (include "hami.webhook" .) $namespace) }}
{{- if not .Values.webhookOnly.enabled }}
{{- $hosts = append $hosts (printf "%s.%s.svc" (include "hami.scheduler" .) $namespace) }}
{{- end }}
{{- $hosts = append $hosts "127.0.0.1" }}
{{- with .Values.scheduler.admissionWebhook.customURL }}
{{- if .enabled }}{{- $hosts = append $hosts .host }}{{- end }}
{{- end }}
{{- uniq $hosts | toJson }}
{{- end }}

{{/*
Which pods the API server asks us about. It must hold for every pod that admission would change or refuse. It cannot fail,
which would let such a pod pass: each field is asked for before it is read, and loops run over our own names where they can,
not over what a user wrote.
*/}}
{{- define "hami.cel.concernsUs" -}}
{{- $tests := list }}
{{- if not .Values.webhookOnly.enabled }}
{{- $tests = append $tests (printf "%s.exists(name, name in given)" (include "hami.managedResources" .)) }}
{{- end }}
{{- if ne .Values.fallback.mode "off" }}
{{- $tests = append $tests "given.exists(name, name.startsWith('nvidia.com/mig-'))" }}
{{- end -}}
has(object.spec) && (
(has(object.spec.containers) ? object.spec.containers : []) +
(has(object.spec.initContainers) ? object.spec.initContainers : [])
).exists(c, has(c.resources) && [
has(c.resources.limits) ? c.resources.limits : {},
has(c.resources.requests) ? c.resources.requests : {}
].exists(given, {{ join " || " $tests }}))
{{- if not .Values.webhookOnly.enabled }} ||
has(object.metadata) && (
has(object.metadata.annotations) &&
{{ include "hami.protectedPodAnnotations" . }}.exists(key, key in object.metadata.annotations) ||
has(object.metadata.labels) && 'hami.io/vgpu-node' in object.metadata.labels)
{{- end }}
{{- end }}
