{{/* Arguments and files of `hami scheduler` and the kube-scheduler beside it only. */}}

{{- define "hami.schedulerFlags" -}}
{{- $scheduler := .Values.scheduler -}}
- --scheduler-name={{ .Values.schedulerName }}
- --node-scheduler-policy={{ $scheduler.defaultSchedulerPolicy.nodeSchedulerPolicy }}
- --gpu-scheduler-policy={{ $scheduler.defaultSchedulerPolicy.gpuSchedulerPolicy }}
- --force-overwrite-default-scheduler={{ $scheduler.forceOverwriteDefaultScheduler }}
- --hook-path={{ .Values.global.gpuHookPath }}
- --enable-iluvatar={{ .Values.devices.iluvatar.enabled }}
- --mig-fallback-gpu={{ .Values.fallback.gpu }}
- --grant-key-dir=/etc/hami/grant
- --accept-grant-forms={{ include "hami.grantForms" . }}
- --allow-unsigned-grants={{ .Values.devicePlugin.allowUnsignedGrants }}
- --node-lock-timeout={{ $scheduler.nodeLockExpire }}
- --node-lock-retry-timeout={{ default (printf "%ds" (int $scheduler.extenderHTTPTimeout)) $scheduler.nodeLockRetryTimeout }}
- --overuse={{ $scheduler.overuse.action }}
- --overuse-grace={{ $scheduler.overuse.grace }}
- --overuse-exempt-namespaces={{ join "," $scheduler.overuse.exemptNamespaces }}
- --evict-refused={{ .Values.devicePlugin.evictRefused }}
- --legacy-metrics={{ .Values.legacyMetrics }}
{{- /* Older kube-schedulers do not know the field. */}}
- --unresolvable-nodes={{ ge (include "hami.kubeMinor" . | int) 21 }}
- --card-metrics={{ $scheduler.cardMetrics }}
- --container-metrics-limit={{ int64 $scheduler.containerMetricsLimit }}
- --leader-elect={{ $scheduler.leaderElect }}
{{- if $scheduler.leaderElect }}
- --leader-elect-resource-name={{ .Values.schedulerName }}
- --leader-elect-resource-namespace={{ include "hami.namespace" . }}
- --leader-elect-lease-duration={{ $scheduler.leaseDuration }}
- --leader-elect-renew-deadline={{ $scheduler.renewDeadline }}
- --leader-elect-retry-period={{ $scheduler.retryPeriod }}
- --leader-elect-own-lease={{ not $scheduler.kubeScheduler.enabled }}
{{- end }}
{{- with include "hami.nodeLabelSelector" . }}
- --node-label-selector={{ . }}
{{- end }}
{{- with $scheduler.admissionWebhook.highPriority.namespaces }}
- --high-priority-namespaces={{ join "," . }}
{{- end }}
{{- with $scheduler.admissionWebhook.highPriority.priorityClasses }}
- --high-priority-classes={{ join "," . }}
{{- end }}
{{- if $scheduler.clientCASecret }}
- --client-ca-file=/etc/hami/client-ca/ca.crt
{{- end }}
{{- end }}

{{/* Where the kube-scheduler in the same pod finds us. */}}
{{- define "hami.extender" -}}
{{- $https := eq (include "hami.admits" .) "true" -}}
extenders:
- urlPrefix: {{ $https | ternary "https" "http" }}://127.0.0.1:{{ .Values.scheduler.service.httpTargetPort }}
  {{- if $https }}
  {{- /* The Policy of old writes it with other letters. */}}
  {{ ge (include "hami.kubeMinor" . | int) 19 | ternary "enableHTTPS" "enableHttps" }}: true
  tlsConfig:
    # On loopback within a pod nobody else can answer.
    insecure: true
  {{- end }}
  filterVerb: filter
  bindVerb: bind
  preemptVerb: preempt
  weight: 1
  nodeCacheCapable: true
  {{- $seconds := int64 .Values.scheduler.extenderHTTPTimeout }}
  {{- if ge (include "hami.kubeMinor" . | int) 19 }}
  httpTimeout: {{ include "hami.duration" $seconds }}
  {{- else }}
  httpTimeout: {{ mul $seconds 1000000000 }}
  {{- end }}
  ignorable: false
  managedResources:
  {{- range include "hami.managedResources" . | fromJsonArray }}
  - name: {{ . }}
    ignoredByScheduler: true
  {{- end }}
{{- end }}
