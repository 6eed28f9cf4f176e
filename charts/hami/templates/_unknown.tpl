{{/*
Values without effect: HAMi's for parts that this version lacks, and misspelt ones. A JSON list of their names. The
lists of what is read are those of values.yaml; a test holds them equal.
*/}}
{{- define "hami.unknownValues" -}}
{{- $known := dict
  "" (list "global" "nameOverride" "fullnameOverride" "namespaceOverride" "resourceName" "resourceMem" "resourceMemPercentage"
    "resourceCores" "resourcePriority" "mluResourceName" "mluResourceMem" "mluResourceCores" "dcuResourceName" "dcuResourceMem"
    "dcuResourceCores" "enflameResourceNameDRSGCU" "enflameResourceNameGCUMemory" "enflameResourceNameGCUCore"
    "enflameResourceNameVGCU" "enflameResourceNameVGCUPercentage" "birenResourceName" "metaxResourceName" "metaxResourceCore"
    "metaxResourceMem" "metaxsGPUTopologyAware" "kunlunResourceName" "kunlunResourceVCountName" "kunlunResourceVMemoryName"
    "vastaiResourceName" "schedulerName" "legacyMetrics" "prometheus" "grafana" "podSecurityPolicy" "fallback"
    "admissionPolicy" "webhookOnly" "scheduler" "devicePlugin" "simulatedDevices" "devices" "device-config")
  "scheduler" (list "replicas" "leaderElect" "leaseDuration" "renewDeadline" "retryPeriod" "nodeName" "nodeSelector" "tolerations"
    "affinity" "topologySpreadConstraints" "priorityClassName" "podAnnotations" "runAsUser" "nodeLabelSelector" "overwriteEnv"
    "forceOverwriteDefaultScheduler" "defaultSchedulerPolicy" "nodeLockExpire" "nodeLockRetryTimeout" "overuse" "removeRejected" "extenderHTTPTimeout"
    "kubeQPS" "kubeBurst" "kubeTimeout" "metricsBindAddress" "cardMetrics" "containerMetricsLimit"
    "livenessProbe" "shutdownDelay" "drainTimeout"
    "clientCASecret" "grantKey" "kubeScheduler" "extender" "admissionWebhook" "certManager" "patch" "service")
  "scheduler.kubeScheduler" (list "enabled" "image" "resources" "extraArgs" "extraNewArgs")
  "scheduler.extender" (list "image" "resources" "extraArgs")
  "scheduler.admissionWebhook" (list "enabled" "failurePolicy" "reinvocationPolicy" "timeoutSeconds" "whitelistNamespaces"
    "manageNamespaceSelector" "namespaceSelector" "objectSelector" "customURL" "existingSecret" "caBundle" "highPriority")
  "scheduler.overuse" (list "action" "grace" "exemptNamespaces")
  "scheduler.patch" (list "enabled" "lifetime" "priorityClassName" "podAnnotations" "nodeSelector" "tolerations" "runAsUser")
  "scheduler.service" (list "type" "httpPort" "schedulerPort" "httpTargetPort" "monitorPort" "monitorTargetPort" "labels" "annotations")
  "fallback" (list "mode" "gpu" "chains")
  "admissionPolicy" (list "enabled" "trustedAccounts")
  "webhookOnly" (list "enabled" "replicas")
  "devicePlugin" (list "enabled" "image" "deviceSplitCount" "deviceMemoryScaling" "deviceCoreScaling" "preConfiguredDeviceMemory"
    "disablecorelimit" "enableNumaTopology" "migStrategy" "nodeConfiguration" "enableGetPreferredAllocation" "advertiseShares"
    "binding" "driverInjection" "allowUnsignedGrants" "evictRefused" "uncontrolledNamespaces" "quarantine" "disableHealthChecks"
    "enableHealthChecks" "libPath" "pluginPath" "cdiDir" "nvidiaCdiDirs" "stateDir" "runDir" "runtimeEndpoint" "nvidiaDriverRoot"
    "runtimeClassName" "createRuntimeClass" "gpuOperatorToolkitReady" "nvidiaNodeSelector" "tolerations" "priorityClassName"
    "updateStrategy" "podAnnotations" "hostPID" "hostNetwork" "resources" "extraArgs" "extraEnvs" "extraVolumes"
    "extraVolumeMounts" "metricsBindAddress" "monitor" "service")
  "simulatedDevices" (list "enabled" "image" "nodes" "nodeSelector" "tolerations" "resources")
  "devicePlugin.nodeConfiguration" (list "config" "externalConfigName")
  "devicePlugin.gpuOperatorToolkitReady" (list "enabled" "hostPath")
  "devicePlugin.monitor" (list "image" "resyncInterval" "overuseTolerance" "securityContext" "resources" "extraArgs" "extraEnvs")
  "devicePlugin.service" (list "type" "httpPort" "labels" "annotations")
  "devices" (list "nvidia" "amd" "ascend" "awsneuron" "biren" "cambricon" "enflame" "hygon" "iluvatar" "kunlun" "metax" "mthreads" "vastai")
  "devices.nvidia" (list "gpuCorePolicy" "libCudaLogLevel")
  "devices.amd" (list "enabled" "pluginAccounts")
  "devices.biren" (list "enabled" "pluginAccounts")
  "devices.cambricon" (list "enabled" "pluginAccounts")
  "devices.enflame" (list "enabled" "pluginAccounts")
  "devices.hygon" (list "enabled" "pluginAccounts")
  "devices.iluvatar" (list "enabled" "pluginAccounts")
  "devices.ascend" (list "enabled" "hamiVnpuCore" "runtimeClassName")
  "devices.awsneuron" (list "enabled")
  "devices.kunlun" (list "enabled")
  "devices.metax" (list "enabled")
  "devices.mthreads" (list "enabled")
  "devices.vastai" (list "enabled") }}
{{- $unknown := list }}
{{- range $section, $names := $known }}
{{- $values := $.Values }}
{{- range (compact (splitList "." $section)) }}{{ $values = get $values . | default dict }}{{ end }}
{{- range $name := keys $values | sortAlpha }}
{{- if not (has $name $names) }}{{ $unknown = append $unknown (trimPrefix "." (printf "%s.%s" $section $name)) }}{{ end }}
{{- end }}
{{- end }}
{{- toJson $unknown }}
{{- end }}
