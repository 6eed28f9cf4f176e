{{/* Names, labels, versions and images: what every other template uses. */}}

{{- define "hami.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 41 | trimSuffix "-" }}
{{- end }}

{{/* Short enough that the longest name made of it still fits into a label. */}}
{{- define "hami.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 41 | trimSuffix "-" }}
{{- else if contains (include "hami.name" .) .Release.Name }}
{{- .Release.Name | trunc 41 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "hami.name" .) | trunc 41 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "hami.scheduler" -}}
{{ include "hami.fullname" . }}-scheduler
{{- end }}

{{- define "hami.webhook" -}}
{{ include "hami.fullname" . }}-webhook
{{- end }}

{{- define "hami.devicePlugin" -}}
{{ include "hami.fullname" . }}-device-plugin
{{- end }}

{{- define "hami.namespace" -}}
{{ default .Release.Namespace .Values.namespaceOverride }}
{{- end }}

{{- define "hami.selectorLabels" -}}
app.kubernetes.io/name: {{ include "hami.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "hami.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "hami.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.global.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
metadata of an object. Takes root and name; namespace (empty: an object of the cluster), component, labels and
annotations are optional.
*/}}
{{- define "hami.metadata" -}}
name: {{ .name }}
{{- with .namespace }}
namespace: {{ . }}
{{- end }}
labels:
  {{- include "hami.labels" .root | nindent 2 }}
  {{- with .component }}
  app.kubernetes.io/component: {{ . }}
  {{- end }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (.annotations | default dict) .root.Values.global.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Minor version as a number. Vendors write 28+ or v1.27.3-eks-a5565ad. */}}
{{- define "hami.kubeMinor" -}}
{{ regexFind "^[0-9]+" (toString .Capabilities.KubeVersion.Minor) | int }}
{{- end }}

{{/* v1.27.3 of v1.27.3-eks-a5565ad or v1.27.3+k3s1: what kube-scheduler's image is tagged with. */}}
{{- define "hami.kubeRelease" -}}
{{- $full := regexFind "[0-9]+[.][0-9]+[.][0-9]+" .Capabilities.KubeVersion.Version }}
{{- $full | default (printf "1.%s.0" (include "hami.kubeMinor" .)) | printf "v%s" }}
{{- end }}

{{/* "true" or nothing, for switches that HAMi's values.yaml writes as text. */}}
{{- define "hami.isTrue" -}}
{{- if eq (toString .) "true" }}true{{ end }}
{{- end }}

{{/* Takes image, global, and tag for an image that names none. */}}
{{- define "hami.image" -}}
{{- $registry := default .image.registry .global.imageRegistry | trimSuffix "/" }}
{{- $name := printf "%s:%s" .image.repository (.image.tag | default .tag | toString) }}
{{- if $registry }}{{ $registry }}/{{ end }}{{ $name }}
{{- end }}

{{- define "hami.ownImage" -}}
{{- $tag := .Values.global.imageTag | default .Chart.AppVersion }}
{{- include "hami.image" (dict "image" .Values.scheduler.extender.image "global" .Values.global "tag" $tag) }}
{{- end }}

{{- define "hami.kubeSchedulerImage" -}}
{{- $image := .Values.scheduler.kubeScheduler.image }}
{{- include "hami.image" (dict "image" $image "global" .Values.global "tag" (include "hami.kubeRelease" .)) }}
{{- end }}

{{/* Takes root and images; a Secret may be given as its name or as {name: it}. */}}
{{- define "hami.imagePullSecrets" -}}
{{- $given := .root.Values.global.imagePullSecrets }}
{{- range .images }}
{{- $given = concat $given .pullSecrets }}
{{- end }}
{{- $names := list }}
{{- range $given }}
{{- $names = append $names (kindIs "string" . | ternary (toString .) (get (fromYaml (toYaml .)) "name")) }}
{{- end }}
{{- with uniq $names }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* Annotations of pods that only hami writes, a JSON list. */}}
{{- define "hami.protectedPodAnnotations" -}}
{{- list
  "hami.io/vgpu-node"
  "hami.io/vgpu-time"
  "hami.io/bind-phase"
  "hami.io/bind-time"
  "hami.io/grant-mac"
  "hami.io/vgpu-devices-to-allocate"
  "hami.io/vgpu-devices-allocated"
  "hami.io/vgpu-mig-allocations"
  "hami.io/explanation"
  "hami.io/scheduler-wake-up"
  "hami.io/vgpu-resize"
  "hami.io/vgpu-resize-mac"
  "hami.io/vgpu-resized"
  "hami.io/overuse"
  "hami.io/start-refused"
  | toJson }}
{{- end }}
