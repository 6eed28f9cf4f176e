{{/* What the values say about devices and times, in the form in which programs read it. */}}

{{/* Seconds of a duration as Go writes it: 5m, 1h30m, 1.5s. */}}
{{- define "hami.seconds" -}}
{{- $units := dict "h" 3600.0 "m" 60.0 "s" 1.0 "ms" 0.001 }}
{{- $total := 0.0 }}
{{- range regexFindAll "[0-9.]+(h|ms|m|s)" (toString .) -1 }}
{{- $total = addf $total (mulf (regexFind "^[0-9.]+" . | float64) (get $units (regexFind "[a-z]+$" .))) }}
{{- end }}
{{- $total }}
{{- end }}

{{/* A duration of so many seconds, as `hami scheduler config` writes it: minutes where they are whole. */}}
{{- define "hami.duration" -}}
{{- $seconds := float64 . }}
{{- if ne $seconds (floor $seconds) }}{{ $seconds }}s
{{- else if mod (int64 $seconds) 60 }}{{ int64 $seconds }}s
{{- else }}{{ div (int64 $seconds) 60 }}m
{{- end }}
{{- end }}

{{- define "hami.deviceConfig" -}}
{{- with get (get .Values "device-config" | default dict) "content" }}
{{- . }}
{{- else -}}
nvidia:
  resourceCountName: {{ .Values.resourceName | quote }}
  resourceMemoryName: {{ .Values.resourceMem | quote }}
  resourceMemoryPercentageName: {{ .Values.resourceMemPercentage | quote }}
  resourceCoreName: {{ .Values.resourceCores | quote }}
  resourcePriorityName: {{ .Values.resourcePriority | quote }}
  overwriteEnv: {{ eq (include "hami.isTrue" .Values.scheduler.overwriteEnv) "true" }}
  deviceSplitCount: {{ int64 .Values.devicePlugin.deviceSplitCount }}
  deviceMemoryScaling: {{ .Values.devicePlugin.deviceMemoryScaling }}
  deviceCoreScaling: {{ .Values.devicePlugin.deviceCoreScaling }}
  preConfiguredDeviceMemory: {{ int64 .Values.devicePlugin.preConfiguredDeviceMemory }}
  disableCoreLimit: {{ eq (include "hami.isTrue" .Values.devicePlugin.disablecorelimit) "true" }}
  enableNumaTopology: {{ eq (include "hami.isTrue" .Values.devicePlugin.enableNumaTopology) "true" }}
  runtimeClassName: {{ .Values.devicePlugin.runtimeClassName | quote }}
  gpuCorePolicy: {{ .Values.devices.nvidia.gpuCorePolicy | quote }}
  libCudaLogLevel: {{ int .Values.devices.nvidia.libCudaLogLevel }}
{{- end }}
{{- end }}

{{/* Names of resources that make a pod ours, a JSON list; like hami, an absent key has its default, an empty one none. */}}
{{- define "hami.managedResources" -}}
{{- $given := get (include "hami.deviceConfig" . | fromYaml) "nvidia" | default dict }}
{{- $names := list }}
{{- range list
  (list "resourceCountName" "nvidia.com/gpu")
  (list "resourceMemoryName" "nvidia.com/gpumem")
  (list "resourceMemoryPercentageName" "nvidia.com/gpumem-percentage")
  (list "resourceCoreName" "nvidia.com/gpucores")
  (list "resourcePriorityName" "nvidia.com/priority") }}
{{- $name := get $given (first .) }}
{{- if kindIs "invalid" $name }}{{- $name = last . }}{{- end }}
{{- if not (hasKey $given (first .)) }}{{- $name = last . }}{{- end }}
{{- if trim $name }}{{- $names = append $names (trim $name) }}{{- end }}
{{- end }}
{{- toJson $names }}
{{- end }}

{{/* Whether pods without a GPU are changed, too: then all must pass through admission. */}}
{{- define "hami.overwritesEnv" -}}
{{- $given := get (include "hami.deviceConfig" . | fromYaml) "nvidia" | default dict }}
{{- include "hami.isTrue" (get $given "overwriteEnv") }}
{{- end }}

{{/* Labels of the nodes that we know, as a selector; empty: all nodes. */}}
{{- define "hami.nodeLabelSelector" -}}
{{- $labels := .Values.scheduler.nodeLabelSelector | default dict }}
{{- if .Values.global.managedNodeSelectorEnable }}
{{- $labels = merge (dict) $labels .Values.global.managedNodeSelector }}
{{- end }}
{{- $parts := list }}
{{- range $key, $value := $labels }}
{{- $parts = append $parts (printf "%s=%s" $key (toString $value)) }}
{{- end }}
{{- join "," $parts }}
{{- end }}

{{/* Port of an address like :9395; empty where there is none. */}}
{{- define "hami.port" -}}
{{ regexFind "[0-9]+$" . }}
{{- end }}
