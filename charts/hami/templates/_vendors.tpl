{{/*
Vendors whose cards are scheduled: what they call their resources, and the annotations of each. As in hami, NVIDIA is always
one of them, another where its section of device-config.yaml names the resource of its cards. Tests hold this table against
hami's own.
*/}}

{{/*
One row for each: the values `devices.<vendor>` are its own; keys of its section with their defaults, the first that of the
cards; annotations of nodes and pods that its plugin writes; the list of cards that a pod was granted.
*/}}
{{- define "hami.vendorTable" -}}
- vendor: nvidia
  section: nvidia
  keys:
  - [resourceCountName, nvidia.com/gpu]
  - [resourceMemoryName, nvidia.com/gpumem]
  - [resourceMemoryPercentageName, nvidia.com/gpumem-percentage]
  - [resourceCoreName, nvidia.com/gpucores]
  - [resourcePriorityName, nvidia.com/priority]
  register: hami.io/node-nvidia-register
  handshake: hami.io/node-handshake
  lock: hami.io/mutex.lock
  lockOwner: hami.io/lock-owner
  toAllocate: hami.io/vgpu-devices-to-allocate
  allocated: hami.io/vgpu-devices-allocated
- vendor: cambricon
  section: cambricon
  keys:
  - [resourceCountName, cambricon.com/vmlu]
  - [resourceMemoryName, cambricon.com/mlu.smlu.vmemory]
  - [resourceCoreName, cambricon.com/mlu.smlu.vcore]
  lock: cambricon.com/dsmlu.lock
  lockOwner: hami.io/dsmlu-lock-owner
  toAllocate: hami.io/cambricon-mlu-devices-to-allocate
  allocated: hami.io/cambricon-mlu-devices-allocated
  extra: [CAMBRICON_DSMLU_ASSIGNED, CAMBRICON_DSMLU_PROFILE]
- vendor: hygon
  section: hygon
  keys:
  - [resourceCountName, hygon.com/dcunum]
  - [resourceMemoryName, hygon.com/dcumem]
  - [resourceCoreName, hygon.com/dcucores]
  register: hami.io/node-dcu-register
  handshake: hami.io/node-handshake-dcu
  lock: hami.io/mutex.lock
  lockOwner: hami.io/lock-owner
  toAllocate: hami.io/dcu-devices-to-allocate
  allocated: hami.io/dcu-devices-allocated
- vendor: enflame
  section: enflame
  keys:
  - [resourceNameGCU, enflame.com/gcu]
  toAllocate: hami.io/enflame-gcu-devices-to-allocate
  allocated: hami.io/enflame-gcu-devices-allocated
- vendor: enflame
  section: enflame
  keys:
  - [resourceNameDRSGCU, enflame.com/drs-gcu]
  - [resourceNameGCUMemory, enflame.com/gcu-memory]
  - [resourceNameGCUCore, enflame.com/gcu-core]
  register: enflame.com/gcu-drs-capacity
  allocated: hami.io/enflame-vgpu-devices-allocated
  extra: [enflame.com/gcu-assigned, enflame.com/gcu-assigned-time, enflame.com/gcu-assigned-index, enflame.com/gcu-assigned-id,
    enflame.com/gcu-assigned-minor, enflame.com/gcu-request-size, assigned-containers]
- vendor: enflame
  section: enflame
  keys:
  - [resourceNameVGCU, enflame.com/vgcu]
  - [resourceNameVGCUPercentage, enflame.com/vgcu-percentage]
  allocated: hami.io/enflame-vgpu-devices-allocated
  extra: [enflame.com/gcu-assigned, enflame.com/gcu-assigned-time, enflame.com/gcu-assigned-id]
- vendor: amd
  section: amd
  keys:
  - [resourceCountName, amd.com/gpu]
  - [resourceMemoryName, amd.com/gpumem]
  - [resourceCoreName, amd.com/gpucores]
  register: hami.io/node-amd-register
  lock: hami.io/mutex.lock
  lockOwner: hami.io/lock-owner
  toAllocate: hami.io/amd-devices-to-allocate
  allocated: hami.io/amd-devices-allocated
- vendor: biren
  section: biren
  keys:
  - [resourceCountName, birentech.com/gpu]
  register: hami.io/node-biren-register
  handshake: hami.io/node-handshake-biren
  lock: hami.io/mutex.lock
  lockOwner: hami.io/lock-owner
  toAllocate: hami.io/Biren-devices-to-allocate
  allocated: hami.io/Biren-devices-allocated
{{- end }}

{{/* The row of an entry of `iluvatars`: its word is a part of each key. */}}
{{- define "hami.iluvatarRow" -}}
vendor: iluvatar
keys:
- [resourceCountName, iluvatar.ai/{{ . }}-vgpu]
- [resourceMemoryName, iluvatar.ai/{{ . }}.vMem]
- [resourceCoreName, iluvatar.ai/{{ . }}.vCore]
register: hami.io/node-{{ . }}-register
handshake: hami.io/node-handshake-{{ . }}
lock: hami.io/mutex.lock
lockOwner: hami.io/lock-owner
toAllocate: hami.io/{{ . }}-devices-to-allocate
allocated: hami.io/{{ . }}-devices-allocated
{{- end }}

{{/*
The rows of the vendors that are served, a JSON list; each with the names of its resources and, in accounts, the value
devices.<vendor>.pluginAccounts. What is wrong in device-config.content is hami's to refuse: here it is no name.
*/}}
{{- define "hami.vendors" -}}
{{- $config := include "hami.deviceConfig" . | fromYaml }}
{{- $rows := list }}
{{- range include "hami.vendorTable" . | fromYamlArray }}
{{- $given := get $config .section }}
{{- if not (kindIs "map" $given) }}{{ $given = dict }}{{ end }}
{{- $rows = append $rows (dict "row" . "given" $given) }}
{{- end }}
{{- $listed := get $config "iluvatars" }}
{{- if and .Values.devices.iluvatar.enabled (kindIs "slice" $listed) }}
{{- range $entry := $listed }}
{{- if kindIs "map" $entry }}
{{- $rows = append $rows (dict "row" (include "hami.iluvatarRow" (get $entry "commonWord") | fromYaml) "given" $entry) }}
{{- end }}
{{- end }}
{{- end }}
{{- $served := list }}
{{- range $each := $rows }}
{{- $names := list }}
{{- range $each.row.keys }}
{{- $name := get $each.given (first .) }}
{{- if or (not (hasKey $each.given (first .))) (not (kindIs "string" $name)) }}{{ $name = last . }}{{ end }}
{{- if trim $name }}{{ $names = append $names (trim $name) }}{{ end }}
{{- end }}
{{- $count := get $each.given (first (first $each.row.keys)) }}
{{- if or (eq $each.row.vendor "nvidia") (and (kindIs "string" $count) (trim (toString $count))) }}
{{- $values := get $.Values.devices $each.row.vendor | default dict }}
{{- $served = append $served (merge (dict "names" $names "accounts" (get $values "pluginAccounts" | default list)) $each.row) }}
{{- end }}
{{- end }}
{{- toJson $served }}
{{- end }}

{{/* Names of resources that make a pod ours, a JSON list. */}}
{{- define "hami.managedResources" -}}
{{- $names := list }}
{{- range include "hami.vendors" . | fromJsonArray }}
{{- $names = concat $names .names }}
{{- end }}
{{- toJson $names }}
{{- end }}

{{/* Vendors beside NVIDIA whose plugins have no account: names in `devices`, a JSON list. */}}
{{- define "hami.openVendors" -}}
{{- $open := list }}
{{- range include "hami.vendors" . | fromJsonArray }}
{{- if and (ne .vendor "nvidia") (not .accounts) }}{{ $open = append $open .vendor }}{{ end }}
{{- end }}
{{- uniq $open | toJson }}
{{- end }}

{{/* Annotations of pods that only hami writes, a JSON list. */}}
{{- define "hami.protectedPodAnnotations" -}}
{{- $keys := list
  "hami.io/vgpu-node"
  "hami.io/vgpu-time"
  "hami.io/bind-phase"
  "hami.io/bind-time"
  "hami.io/grant-mac"
  "hami.io/vgpu-mig-allocations"
  "hami.io/explanation"
  "hami.io/scheduler-wake-up"
  "hami.io/vgpu-resize"
  "hami.io/vgpu-resize-mac"
  "hami.io/vgpu-resized"
  "hami.io/overuse"
  "hami.io/start-refused" }}
{{- range include "hami.vendors" . | fromJsonArray }}
{{- $keys = concat $keys (compact (list (get . "toAllocate") (get . "allocated"))) (get . "extra" | default list) }}
{{- end }}
{{- uniq $keys | toJson }}
{{- end }}
