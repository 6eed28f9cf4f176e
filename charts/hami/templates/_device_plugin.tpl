{{/* The pod on GPU nodes: its labels, the arguments of its containers, and their view of the node. */}}

{{/* "true" where our own agent offers the cards. */}}
{{- define "hami.onNodes" -}}
{{- if and .Values.devicePlugin.enabled (not .Values.webhookOnly.enabled) }}true{{ end }}
{{- end }}

{{- define "hami.devicePluginLabels" -}}
{{ include "hami.selectorLabels" . }}
app.kubernetes.io/component: hami-device-plugin
{{- end }}

{{/* An image as JSON. Takes images: the first that says something about a part of it counts. */}}
{{- define "hami.firstSaid" -}}
{{- $image := dict }}
{{- range .images }}
{{- range $part, $given := . }}
{{- if and $given (not (hasKey $image $part)) }}{{ $_ := set $image $part $given }}{{ end }}
{{- end }}
{{- end }}
{{- /* The registry may be empty everywhere. */}}
{{- merge $image (dict "registry" "") | toJson }}
{{- end }}

{{/* image and imagePullPolicy of a container on GPU nodes. Takes root and images. */}}
{{- define "hami.nodeImage" -}}
{{- $image := include "hami.firstSaid" . | fromJson }}
{{- $tag := .root.Values.global.imageTag | default .root.Chart.AppVersion -}}
image: {{ include "hami.image" (dict "image" $image "global" .root.Values.global "tag" $tag) }}
imagePullPolicy: {{ $image.pullPolicy }}
{{- end }}

{{/* kubelet's own folder: plugins register in a folder of it. */}}
{{- define "hami.kubeletDir" -}}
{{ .Values.devicePlugin.pluginPath | trimSuffix "/" | dir }}
{{- end }}

{{- define "hami.vgpuDir" -}}
{{ .Values.global.gpuHookPath | trimSuffix "/" }}/vgpu
{{- end }}

{{/* The runtime's socket on the node, without unix://; empty: looked for. */}}
{{- define "hami.runtimeSocket" -}}
{{ .Values.devicePlugin.runtimeEndpoint | trimPrefix "unix://" }}
{{- end }}

{{/*
Where the node's /run, or the folder of the runtime's socket, is in the agent. Not at its own path: beside it lies the token
of the service account. The folder, not the socket: a runtime that restarts makes a new one.
*/}}
{{- define "hami.runtimeFolder" -}}
{{ dir (include "hami.runtimeSocket" . | default "/run/any") }}
{{- end }}

{{- define "hami.runtimeEndpoints" -}}
{{- $sockets := list "/run/containerd/containerd.sock" "/run/crio/crio.sock" "/run/cri-dockerd.sock"
  "/run/k3s/containerd/containerd.sock" "/run/k0s/containerd.sock" }}
{{- with include "hami.runtimeSocket" . }}{{ $sockets = list . }}{{ end }}
{{- $found := list }}
{{- range $sockets }}{{ $found = append $found (printf "/host%s" .) }}{{ end }}
{{- join "," $found }}
{{- end }}

{{/* Flags that agent and monitor share. */}}
{{- define "hami.nodeFlags" -}}
{{- $plugin := .Values.devicePlugin -}}
- --hook-path={{ .Values.global.gpuHookPath }}
- --state-dir={{ $plugin.stateDir }}
- --run-dir={{ $plugin.runDir }}
{{- if $plugin.nvidiaDriverRoot }}
- --driver-root=/driver-root
{{- end }}
{{- end }}

{{- define "hami.agentFlags" -}}
{{- $plugin := .Values.devicePlugin -}}
{{ include "hami.nodeFlags" . }}
- --kubelet-dir={{ include "hami.kubeletDir" . }}
- --cdi-dir={{ $plugin.cdiDir }}
- --nvidia-cdi-dirs={{ join "," $plugin.nvidiaCdiDirs }}
- --runtime-endpoint={{ include "hami.runtimeEndpoints" . }}
- --device-config-file=/etc/hami/config/device-config.yaml
- --node-config-file=/etc/hami/node/config.json
- --mig-strategy={{ $plugin.migStrategy }}
{{- with $plugin.disableHealthChecks }}
- --disable-health-checks={{ . }}
{{- end }}
{{- with $plugin.enableHealthChecks }}
- --enable-health-checks={{ . }}
{{- end }}
- --quarantine={{ $plugin.quarantine }}
- --advertise-shares={{ $plugin.advertiseShares }}
- --enable-get-preferred-allocation={{ $plugin.enableGetPreferredAllocation }}
- --binding={{ $plugin.binding }}
- --driver-injection={{ $plugin.driverInjection }}
- --grant-key-dir=/etc/hami/grant
- --accept-grant-forms={{ include "hami.grantForms" . }}
- --allow-unsigned-grants={{ $plugin.allowUnsignedGrants }}
{{- with $plugin.uncontrolledNamespaces }}
- --uncontrolled-namespaces={{ join "," . }}
{{- end }}
- --metrics-bind-address={{ $plugin.metricsBindAddress }}
{{- range $plugin.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- define "hami.monitorFlags" -}}
{{- $monitor := .Values.devicePlugin.monitor -}}
{{ include "hami.nodeFlags" . }}
- --hami-resync-interval={{ $monitor.resyncInterval }}
- --overuse-tolerance={{ int64 $monitor.overuseTolerance }}
- --metrics-bind-address=:9394
- --legacy-metrics={{ .Values.legacyMetrics }}
{{- range $monitor.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{/* Variables of a container on GPU nodes. Takes extra and mig: whether it may look into cards that are cut by MIG. */}}
{{- define "hami.nodeEnv" -}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
{{- /* NVIDIA's runtime brings the driver and all cards for them. */}}
- name: NVIDIA_VISIBLE_DEVICES
  value: all
- name: NVIDIA_DRIVER_CAPABILITIES
  value: utility
{{- if .mig }}
- name: NVIDIA_MIG_MONITOR_DEVICES
  value: all
{{- end }}
{{- range $name, $value := .extra }}
- name: {{ $name }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- end }}

{{/*
Rights of the monitor. It reads files that tenants made as they liked, hence DAC_OVERRIDE; every user may read what it needs of /proc.
NVIDIA's runtime gives it the devices; where it opens the driver itself, only a privileged container may.
*/}}
{{- define "hami.monitorSecurity" -}}
{{- $plugin := .Values.devicePlugin }}
{{- if $plugin.monitor.securityContext }}
{{- toYaml $plugin.monitor.securityContext }}
{{- else if $plugin.nvidiaDriverRoot -}}
privileged: true
readOnlyRootFilesystem: true
{{- else -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  {{- /* NVIDIA's runtime asks for the second before it shows the parts of a card. */}}
  add: [DAC_OVERRIDE{{ if ne $plugin.migStrategy "none" }}, SYS_ADMIN{{ end }}]
{{- /* It reads the agent's files, and /proc of other containers' processes. Without SELinux this means nothing. */}}
seLinuxOptions: {type: spc_t}
{{- end }}
{{- end }}

{{/* Takes the name of a port. What hangs is restarted within half a minute; running containers do not notice. */}}
{{- define "hami.nodeProbes" -}}
startupProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: {{ . }}}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 3
{{- end }}

{{/* Folders with NVIDIA's own specs, a JSON list, less the one that we write to. */}}
{{- define "hami.readCdiDirs" -}}
{{- without (.Values.devicePlugin.nvidiaCdiDirs | uniq) .Values.devicePlugin.cdiDir | toJson }}
{{- end }}

{{/* Mounts of the agent: the node's folders at their own paths, since it tells kubelet and the runtime of what lies there. */}}
{{- define "hami.agentMounts" -}}
{{- $plugin := .Values.devicePlugin -}}
- name: device-plugins
  mountPath: {{ $plugin.pluginPath }}
- name: pod-resources
  mountPath: {{ include "hami.kubeletDir" . }}/pod-resources
  readOnly: true
- name: vgpu
  mountPath: {{ include "hami.vgpuDir" . }}
- name: state
  mountPath: {{ $plugin.stateDir }}
{{- /* It mounts a little file system for each container there, which the node must see. */}}
- name: run
  mountPath: {{ $plugin.runDir }}
  mountPropagation: Bidirectional
- name: cdi
  mountPath: {{ $plugin.cdiDir }}
{{- range $index, $folder := include "hami.readCdiDirs" . | fromJsonArray }}
- name: nvidia-cdi-{{ $index }}
  mountPath: {{ $folder }}
  readOnly: true
{{- end }}
- name: runtime
  mountPath: /host{{ include "hami.runtimeFolder" . }}
  readOnly: true
  {{- /* Containers come and go in it; a deleted one must not stay mounted here. */}}
  mountPropagation: HostToContainer
{{- if $plugin.nvidiaDriverRoot }}
- name: driver-root
  mountPath: /driver-root
  readOnly: true
  mountPropagation: HostToContainer
{{- end }}
- name: config
  mountPath: /etc/hami/config
  readOnly: true
- name: node-config
  mountPath: /etc/hami/node
  readOnly: true
- name: grant-key
  mountPath: /etc/hami/grant
  readOnly: true
{{- with $plugin.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Mounts of the monitor: it reads what the agent writes, and tidies up after HAMi's plugin. */}}
{{- define "hami.monitorMounts" -}}
{{- $plugin := .Values.devicePlugin -}}
- name: vgpu
  mountPath: {{ include "hami.vgpuDir" . }}
  readOnly: true
- name: hami-containers
  mountPath: {{ include "hami.vgpuDir" . }}/containers
- name: state
  mountPath: {{ $plugin.stateDir }}
  readOnly: true
- name: run
  mountPath: {{ $plugin.runDir }}
  readOnly: true
  mountPropagation: HostToContainer
{{- if $plugin.nvidiaDriverRoot }}
- name: driver-root
  mountPath: /driver-root
  readOnly: true
  mountPropagation: HostToContainer
{{- end }}
{{- with $plugin.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "hami.nodeVolumes" -}}
{{- $plugin := .Values.devicePlugin -}}
- name: device-plugins
  hostPath: {path: {{ $plugin.pluginPath }}, type: Directory}
- name: pod-resources
  hostPath: {path: {{ include "hami.kubeletDir" . }}/pod-resources, type: DirectoryOrCreate}
- name: vgpu
  hostPath: {path: {{ include "hami.vgpuDir" . }}, type: DirectoryOrCreate}
- name: hami-containers
  hostPath: {path: {{ include "hami.vgpuDir" . }}/containers, type: DirectoryOrCreate}
- name: state
  hostPath: {path: {{ $plugin.stateDir }}, type: DirectoryOrCreate}
- name: run
  hostPath: {path: {{ $plugin.runDir }}, type: DirectoryOrCreate}
- name: cdi
  hostPath: {path: {{ $plugin.cdiDir }}, type: DirectoryOrCreate}
{{- range $index, $folder := include "hami.readCdiDirs" . | fromJsonArray }}
- name: nvidia-cdi-{{ $index }}
  hostPath: {path: {{ $folder }}, type: DirectoryOrCreate}
{{- end }}
- name: runtime
  hostPath: {path: {{ include "hami.runtimeFolder" . }}, type: Directory}
{{- with $plugin.nvidiaDriverRoot }}
- name: driver-root
  hostPath: {path: {{ . }}, type: Directory}
{{- end }}
{{- if $plugin.gpuOperatorToolkitReady.enabled }}
- name: validations
  hostPath: {path: {{ $plugin.gpuOperatorToolkitReady.hostPath }}, type: DirectoryOrCreate}
{{- end }}
- name: config
  configMap:
    name: {{ include "hami.scheduler" . }}-device
- name: node-config
  configMap:
    name: {{ $plugin.nodeConfiguration.externalConfigName | default (include "hami.devicePlugin" .) }}
{{ include "hami.grantVolume" (dict "root" . "secret" (include "hami.grantPublicSecret" .) "mode" "defaultMode: 0400") }}
{{- with $plugin.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
