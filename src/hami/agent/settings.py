"""What the node agent can be told.

One struct, grouped by what it is about; each field says its unit and why its default is what it is.
The names are HAMi's where HAMi's device plugin has the setting. What may differ from node to node
stands in the node configuration (`hami.agent.cards.node_config`), and goes before what is here.
"""

from __future__ import annotations

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    # The node.

    #: Our node, as the API server calls it.
    node_name: str = ""
    #: kubelet's folder: sockets of plugins and pod resources, its device checkpoint.
    kubelet_dir: str = "/var/lib/kubelet"
    #: Where the runtime looks for CDI specs that come and go.
    cdi_dir: str = "/var/run/cdi"
    #: Where NVIDIA's own specs are looked for, with commas.
    nvidia_cdi_dirs: str = "/etc/cdi,/var/run/cdi"
    #: The folder above `vgpu`, on the node and in containers.
    hook_path: str = "/usr/local"
    #: The ledger's folder, on a disk that survives a reboot.
    state_dir: str = "/var/lib/hami"
    #: The folder of containers' state files, in memory.
    run_dir: str = "/run/hami"
    #: The runtime's CRI socket, or several of which one answers, with commas; empty: where
    #: containerd and CRI-O have theirs.
    runtime_endpoint: str = ""
    #: Where the driver's libraries are, for example /driver-root; empty: where the linker looks.
    driver_root: str = ""

    # Devices.

    #: Empty: the built-in vendors as they are.
    device_config_file: str = ""
    #: Settings by node name (HAMi's config.json); empty or absent: none.
    node_config_file: str = ""
    #: What of static MIG is offered: none, single or mixed.
    mig_strategy: str = "none"
    #: Which XIDs say nothing (comma list, or `all`), and which do nevertheless.
    disable_health_checks: str = ""
    enable_health_checks: str = ""
    #: Seconds that a card is left out after its last critical error, before it may come back.
    quarantine: float = 300.0
    #: Whether gpumem and gpucores stand in the node's status beside the count.
    advertise_shares: bool = False
    #: Whether kubelet is asked for the ids of the card that the waiting pod was given.
    enable_get_preferred_allocation: bool = True

    # Binding.

    #: auto: late where kubelet and runtime can; late or lock: as told.
    binding: str = "auto"
    #: How cards get into containers: auto, cdi (NVIDIA's spec is merged) or runtime (NVIDIA's own).
    driver_injection: str = "auto"
    #: Folder of the keys that sign grants; empty: grants are not checked.
    grant_key_dir: str = "/etc/hami/grant"
    #: Whether grants without a signature count, as HAMi's scheduler writes them.
    allow_unsigned_grants: bool = False
    #: Namespaces in which CUDA_DISABLE_CONTROL turns the limiter off, with commas.
    uncontrolled_namespaces: str = ""
    #: Seconds that a container's start waits for its pod to be known.
    pod_wait: float = 20.0
    #: Whether a pod is evicted whose start was refused again and again.
    evict_refused: bool = False

    # Serving.

    #: Where /metrics and health answer; empty: nowhere.
    metrics_bind_address: str = ":9396"

    # The API server.

    #: Empty: $KUBECONFIG, then the pod's service account, then ~/.kube/config.
    kubeconfig: str = ""
    #: Requests per second and at once; 0: without limit, the API server's fairness decides.
    kube_qps: float = 0.0
    kube_burst: int = 0
    #: Seconds for one request; 0: 30.
    kube_timeout: float = 0.0
    #: Seconds between two comparisons of the caches with the API server.
    resync_interval: float = 900.0

    # Logs and traces.

    debug: bool = False
    #: Address of an OpenTelemetry collector (OTLP over HTTP); empty: no traces.
    otlp_endpoint: str = ""
