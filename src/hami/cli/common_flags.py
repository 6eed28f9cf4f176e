"""Flags that several processes have, described once."""

from __future__ import annotations

API_SERVER = {
    "kubeconfig": "file that says where the API server is; empty: the pod's service account, "
    "then ~/.kube/config",
    "kube_qps": "requests per second to it; 0: without limit",
    "kube_burst": "requests at once to it; 0: without limit",
    "kube_timeout": "how long one request may take; 0: 30 seconds",
    "resync_interval": "time between two comparisons of the caches with it",
}
DEBUG = {"debug": "log every decision; klog's -v=4 and above do the same"}
TELLING = {
    **DEBUG,
    "otlp_endpoint": "address of an OpenTelemetry collector (OTLP over HTTP); empty: no traces",
}
NODE = {
    "node_name": "our node's name in the API; kubelet gives it to a pod as spec.nodeName",
    "hook_path": "folder above vgpu, on the node and in containers",
    "state_dir": "folder of the ledger, on a disk that survives a reboot",
    "run_dir": "folder of containers' state files, in memory",
    "driver_root": "where the driver's root file system is mounted, as /driver-root; empty: its "
    "libraries are where the linker looks",
}
