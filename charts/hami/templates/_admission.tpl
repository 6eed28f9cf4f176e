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

{{- define "hami.grantKeySecret" -}}
{{ .Values.scheduler.grantKey.existingSecret | default (printf "%s-grant-key" (include "hami.fullname" .)) }}
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

{{/* "true" where the create job makes the grant key. */}}
{{- define "hami.makesGrantKey" -}}
{{- if not (or .Values.webhookOnly.enabled .Values.scheduler.grantKey.existingSecret) }}true{{ end }}
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
