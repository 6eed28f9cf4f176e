{{/* Parts of pods that several of them have. */}}

{{/* Takes root and user (none: the cluster chooses). Fits the `restricted` Pod Security Standard. */}}
{{- define "hami.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  {{- if not (kindIs "invalid" .user) }}
  runAsUser: {{ int64 .user }}
  runAsGroup: {{ int64 .user }}
  fsGroup: {{ int64 .user }}
  {{- end }}
  {{- if ge (include "hami.kubeMinor" .root | int) 19 }}
  seccompProfile:
    type: RuntimeDefault
  {{- end }}
{{- end }}

{{/* Before 1.19 the profile was an annotation. */}}
{{- define "hami.seccompAnnotation" -}}
{{- if lt (include "hami.kubeMinor" . | int) 19 -}}
seccomp.security.alpha.kubernetes.io/pod: runtime/default
{{- end }}
{{- end }}

{{/* Keys are for the group that kubelet gives them to, where there is one. */}}
{{- define "hami.secretMode" -}}
{{- if not (kindIs "invalid" .Values.scheduler.runAsUser) -}}
defaultMode: 0440
{{- end }}
{{- end }}

{{- define "hami.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{/*
Startup and liveness. Takes root, and httpGet as text. A container that hangs is restarted within 7 s, so that with the
Lease's 8 s a replica schedules again within 15; one that starts has two minutes.
*/}}
{{- define "hami.probes" -}}
{{- if .root.Values.scheduler.livenessProbe -}}
startupProbe:
  httpGet:
    {{- .httpGet | nindent 4 }}
  initialDelaySeconds: 2
  periodSeconds: 2
  timeoutSeconds: 1
  failureThreshold: 60
livenessProbe:
  httpGet:
    {{- .httpGet | nindent 4 }}
  periodSeconds: 2
  timeoutSeconds: 1
  failureThreshold: 3
  {{- if ge (include "hami.kubeMinor" .root | int) 28 }}
  {{- /* What hangs does not end in order either; its pod's grace would only cost time. */}}
  terminationGracePeriodSeconds: 1
  {{- end }}
{{- end }}
{{- end }}

{{/* Where pods run: the scheduler's, or those of webhook-only mode. */}}
{{- define "hami.placing" -}}
{{- $scheduler := .Values.scheduler }}
{{- with $scheduler.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $scheduler.nodeName }}
nodeName: {{ . }}
{{- end }}
{{- with $scheduler.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $scheduler.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
affinity:
{{- with $scheduler.affinity }}
  {{- toYaml . | nindent 2 }}
{{- else }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "hami.serverLabels" . | nindent 12 }}
{{- end }}
{{- with $scheduler.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Labels of a pod of ours. Admission must not wait for itself. */}}
{{- define "hami.podLabels" -}}
{{ include "hami.serverLabels" . }}
hami.io/webhook: ignore
{{- with .Values.global.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Time to end: still answering, then finishing what is under way, then a margin. */}}
{{- define "hami.terminationGrace" -}}
{{- $delay := include "hami.seconds" .Values.scheduler.shutdownDelay | float64 }}
{{- $drain := include "hami.seconds" .Values.scheduler.drainTimeout | float64 }}
{{- add (ceil (addf $delay $drain)) 5 }}
{{- end }}

{{/* Flags that `hami scheduler` and `hami webhook` share. */}}
{{- define "hami.commonFlags" -}}
{{- $scheduler := .Values.scheduler -}}
- --http_bind=:{{ $scheduler.service.httpTargetPort }}
{{- if include "hami.admits" . }}
- --cert_file=/etc/hami/tls/tls.crt
- --key_file=/etc/hami/tls/tls.key
{{- end }}
- --metrics-bind-address={{ $scheduler.metricsBindAddress }}
- --device-config-file=/etc/hami/config/device-config.yaml
- --mig-fallback={{ .Values.fallback.mode }}
{{- if .Values.fallback.chains }}
- --mig-fallback-file=/etc/hami/config/mig-fallback.yaml
{{- end }}
- --shutdown-delay={{ $scheduler.shutdownDelay }}
- --drain-timeout={{ $scheduler.drainTimeout }}
{{- if ne (toString $scheduler.kubeQPS) "" }}
- --kube-qps={{ $scheduler.kubeQPS }}
{{- end }}
{{- if ne (toString $scheduler.kubeBurst) "" }}
- --kube-burst={{ $scheduler.kubeBurst }}
{{- end }}
{{- if ne (toString $scheduler.kubeTimeout) "" }}
- --kube-timeout={{ $scheduler.kubeTimeout }}
{{- end }}
{{- end }}

{{/* Ports, probes, mounts of the container that answers. */}}
{{- define "hami.serverContainer" -}}
{{- $scheme := eq (include "hami.admits" .) "true" | ternary "HTTPS" "HTTP" -}}
ports:
- name: http
  containerPort: {{ .Values.scheduler.service.httpTargetPort }}
{{- with include "hami.port" .Values.scheduler.metricsBindAddress }}
- name: metrics
  containerPort: {{ . }}
{{- end }}
{{ include "hami.probes" (dict "root" . "httpGet" (printf "path: /healthz\nport: http\nscheme: %s" $scheme)) }}
readinessProbe:
  httpGet:
    {{- /* Every replica that knows the cluster; a label names the one that schedules. */}}
    path: /readyz?webhook
    port: http
    scheme: {{ $scheme }}
  periodSeconds: 2
  timeoutSeconds: 1
  failureThreshold: 3
{{- with .Values.scheduler.extender.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{ include "hami.containerSecurity" . }}
{{- end }}

{{- define "hami.serverMounts" -}}
- name: config
  mountPath: /etc/hami/config
  readOnly: true
{{- if include "hami.admits" . }}
- name: tls
  mountPath: /etc/hami/tls
  readOnly: true
{{- end }}
{{- end }}

{{- define "hami.serverVolumes" -}}
- name: config
  configMap:
    name: {{ include "hami.server" . }}-device
{{- if include "hami.admits" . }}
- name: tls
  secret:
    secretName: {{ include "hami.tlsSecret" . }}
    {{- include "hami.secretMode" . | nindent 4 }}
{{- end }}
{{- end }}
