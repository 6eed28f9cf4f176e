"""Settings of the node agent.

One struct, grouped by subject; each field has its unit and, where needed, the reason for its
default. The names are HAMi's where HAMi's device plugin has the setting. The node configuration
(`hami.agent.cards.node_config`) overrides some of them for single nodes.
"""

from __future__ import annotations

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings, with their defaults."""

    # The node.

    #: The name of our Node object.
    node_name: str = ""
    #: kubelet's folder: sockets of plugins and pod resources, its device checkpoint.
    kubelet_dir: str = "/var/lib/kubelet"
    #: The folder where we write CDI specs and the runtime reads them.
    cdi_dir: str = "/var/run/cdi"
    #: Folders of NVIDIA's own specs, separated by commas.
    nvidia_cdi_dirs: str = "/etc/cdi,/var/run/cdi"
    #: The folder above `vgpu`, on the node and in containers.
    hook_path: str = "/usr/local"
    #: The ledger's folder, on a disk that survives a reboot.
    state_dir: str = "/var/lib/hami"
    #: The folder of containers' state files, in memory.
    run_dir: str = "/run/hami"
    #: The folder of the node's processes; needs the host's PID namespace.
    proc_dir: str = "/proc"
    #: The runtime's CRI socket, or several separated by commas of which one answers; empty: the
    #: usual ones of containerd and CRI-O.
    runtime_endpoint: str = ""
    #: The root that the driver is installed below, for example /driver-root; empty: the linker's
    #: folders.
    driver_root: str = ""

    # Devices.

    #: Overrides of the built-in vendors; empty: none.
    device_config_file: str = ""
    #: Settings by node name (HAMi's config.json); empty or absent: none.
    node_config_file: str = ""
    #: How existing MIG devices are offered: none, single or mixed.
    mig_strategy: str = "none"
    #: XIDs that do not count (comma list, or `all`), and XIDs that do nevertheless.
    disable_health_checks: str = ""
    enable_health_checks: str = ""
    #: Seconds that a card stays unhealthy after its last critical XID.
    quarantine: float = 300.0
    #: Whether gpumem and gpucores are in the node's status beside the count.
    advertise_shares: bool = False
    #: Whether kubelet gets preferred device ids: those of the cards that the next pod was granted.
    enable_get_preferred_allocation: bool = True

    # Binding.

    #: auto: late where kubelet and runtime support it; late or lock: always that.
    binding: str = "auto"
    #: How cards get into containers: auto, cdi (merge NVIDIA's spec) or runtime (NVIDIA's own).
    driver_injection: str = "auto"
    #: Folder of the keys that verify grants (`hami.serving.grant_keys`); empty: they are not
    #: verified.
    grant_key_dir: str = "/etc/hami/grant"
    #: Forms of signatures that are valid, where their keys are in that folder.
    accept_grant_forms: str = "v1,v3"
    #: Whether grants without a signature count, as HAMi's scheduler writes them.
    allow_unsigned_grants: bool = False
    #: Namespaces in which CUDA_DISABLE_CONTROL turns the limiter off, separated by commas.
    uncontrolled_namespaces: str = ""
    #: Seconds that a container's start waits for its pod to be known.
    pod_wait: float = 20.0
    #: Seconds that an agent serves kubelet after SIGTERM, until kubelet has taken up every pod
    #: that is bound to the node; 0: it ends at once.
    drain_timeout: float = 20.0

    # Serving.

    #: Address of /metrics and health; empty: not served.
    metrics_bind_address: str = ":9396"

    # The API server.

    #: Empty: $KUBECONFIG, then the pod's service account, then ~/.kube/config.
    kubeconfig: str = ""
    #: Requests per second and at once; 0: no limit, the API server's priority and fairness applies.
    kube_qps: float = 0.0
    kube_burst: int = 0
    #: Seconds for one request; 0: 30.
    kube_timeout: float = 0.0
    #: Seconds between two resyncs of the informers with the API server.
    resync_interval: float = 900.0

    # Logs and traces.

    debug: bool = False
    #: Address of an OpenTelemetry collector (OTLP over HTTP); empty: no traces.
    otlp_endpoint: str = ""
