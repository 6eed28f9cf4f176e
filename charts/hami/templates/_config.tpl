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
{{- include "hami.deviceConfig.others" . }}
{{- end }}
{{- end }}

{{/* The sections of the other vendors that are enabled. */}}
{{- define "hami.deviceConfig.others" -}}
{{- $devices := .Values.devices }}
{{- if $devices.cambricon.enabled }}
cambricon:
  resourceCountName: {{ .Values.mluResourceName | quote }}
  resourceMemoryName: {{ .Values.mluResourceMem | quote }}
  resourceCoreName: {{ .Values.mluResourceCores | quote }}
{{- end }}
{{- if $devices.hygon.enabled }}
hygon:
  resourceCountName: {{ .Values.dcuResourceName | quote }}
  resourceMemoryName: {{ .Values.dcuResourceMem | quote }}
  resourceCoreName: {{ .Values.dcuResourceCores | quote }}
{{- end }}
{{- if $devices.metax.enabled }}
metax:
  resourceCountName: metax-tech.com/gpu
  resourceVCountName: {{ .Values.metaxResourceName | quote }}
  resourceVMemoryName: {{ .Values.metaxResourceMem | quote }}
  resourceVCoreName: {{ .Values.metaxResourceCore | quote }}
  sgpuTopologyAware: {{ eq (include "hami.isTrue" .Values.metaxsGPUTopologyAware) "true" }}
{{- end }}
{{- if $devices.enflame.enabled }}
enflame:
  resourceNameGCU: enflame.com/gcu
  resourceNameDRSGCU: {{ .Values.enflameResourceNameDRSGCU | quote }}
  resourceNameGCUMemory: {{ .Values.enflameResourceNameGCUMemory | quote }}
  resourceNameGCUCore: {{ .Values.enflameResourceNameGCUCore | quote }}
  resourceNameVGCU: {{ .Values.enflameResourceNameVGCU | quote }}
  resourceNameVGCUPercentage: {{ .Values.enflameResourceNameVGCUPercentage | quote }}
{{- end }}
{{- if $devices.mthreads.enabled }}
mthreads:
  resourceCountName: mthreads.com/vgpu
  resourceMemoryName: mthreads.com/sgpu-memory
  resourceCoreName: mthreads.com/sgpu-core
{{- end }}
{{- if $devices.kunlun.enabled }}
kunlun:
  resourceCountName: {{ .Values.kunlunResourceName | quote }}
  resourceVCountName: {{ .Values.kunlunResourceVCountName | quote }}
  resourceVMemoryName: {{ .Values.kunlunResourceVMemoryName | quote }}
{{- end }}
{{- if $devices.awsneuron.enabled }}
awsneuron:
  resourceCountName: aws.amazon.com/neuron
  resourceCoreName: aws.amazon.com/neuroncore
{{- end }}
{{- if $devices.amd.enabled }}
amd:
  resourceCountName: amd.com/gpu
  resourceMemoryName: amd.com/gpumem
  resourceCoreName: amd.com/gpucores
{{- end }}
{{- if $devices.vastai.enabled }}
vastai:
  resourceCountName: {{ .Values.vastaiResourceName | quote }}
{{- end }}
{{- if $devices.biren.enabled }}
biren:
  resourceCountName: {{ .Values.birenResourceName | quote }}
{{- end }}
{{- if $devices.iluvatar.enabled }}
iluvatars:
{{- range list "MR-V100" "MR-V50" "BI-V150" "BI-V100" }}
- chipName: {{ . }}
  commonWord: {{ . }}
  resourceCountName: iluvatar.ai/{{ . }}-vgpu
  resourceMemoryName: iluvatar.ai/{{ . }}.vMem
  resourceCoreName: iluvatar.ai/{{ . }}.vCore
{{- end }}
{{- end }}
{{- if $devices.ascend.enabled }}
vnpus:
  hamiVnpuCore: {{ eq (include "hami.isTrue" $devices.ascend.hamiVnpuCore) "true" }}
  configs:
  {{- range include "hami.ascendChips" . | fromYamlArray }}
  {{- $word := .word }}
  - chipName: {{ .chip | quote }}
    commonWord: {{ $word }}
    resourceName: huawei.com/{{ $word }}
    resourceMemoryName: huawei.com/{{ $word }}-memory
    resourceCoreName: huawei.com/{{ $word }}-core
    memoryAllocatable: {{ first .memory | int64 }}
    memoryCapacity: {{ last .memory | int64 }}
    aiCore: {{ first .ai | int }}
    aiCPU: {{ last .ai | int }}
    superPod: {{ eq $word "Ascend910C" }}
    runtimeClassName: {{ $devices.ascend.runtimeClassName | quote }}
    overwriteEnv: {{ eq (include "hami.isTrue" $.Values.scheduler.overwriteEnv) "true" }}
    templates:
    {{- range .templates }}
    - name: {{ index . 0 }}
      memory: {{ index . 1 | int64 }}
      aiCore: {{ index . 2 | int }}
      aiCPU: {{ index . 3 | int }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{/*
Ascend's cards: memory is MiB to allocate and in all, ai the number of AI cores and AI CPUs; a template has name, MiB, AI cores
and AI CPUs.
*/}}
{{- define "hami.ascendChips" -}}
- {chip: 910A, word: Ascend910A, memory: [32768, 32768], ai: [30, 0],
  templates: [[vir02, 2184, 2, 0], [vir04, 4369, 4, 0], [vir08, 8738, 8, 0], [vir16, 17476, 16, 0]]}
- {chip: 910B2, word: Ascend910B2, memory: [65536, 65536], ai: [24, 6],
  templates: [[vir03_1c_8g, 8192, 3, 1], [vir06_1c_16g, 16384, 6, 1], [vir12_3c_32g, 32768, 12, 3]]}
- {chip: 910B3, word: Ascend910B3, memory: [65536, 65536], ai: [20, 7],
  templates: [[vir05_1c_16g, 16384, 5, 1], [vir10_3c_32g, 32768, 10, 3]]}
- {chip: 910B4-1, word: Ascend910B4-1, memory: [65536, 65536], ai: [20, 7],
  templates: [[vir05_1c_16g, 16384, 5, 1], [vir10_3c_32g, 32768, 10, 3]]}
- {chip: 910B4, word: Ascend910B4, memory: [32768, 32768], ai: [20, 7],
  templates: [[vir05_1c_8g, 8192, 5, 1], [vir10_3c_16g, 16384, 10, 3]]}
- {chip: 310P3, word: Ascend310P, memory: [21527, 24576], ai: [8, 7],
  templates: [[vir01, 3072, 1, 1], [vir02, 6144, 2, 2], [vir04, 12288, 4, 4]]}
- {chip: Ascend910, word: Ascend910C, memory: [65536, 65536], ai: [20, 7],
  templates: [[vir05_1c_16g, 16384, 5, 1], [vir10_3c_32g, 32768, 10, 3]]}
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
