"""Settings of `hami monitor`; those that the agent has too are named alike."""

from __future__ import annotations

import socket

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One field for each flag."""

    # The node.

    #: Our node, as the API server names it; empty: the host name.
    node_name: str = ""
    #: The folder above `vgpu`, as for the agent.
    hook_path: str = "/usr/local"
    #: The ledger's folder.
    state_dir: str = "/var/lib/hami"
    #: The folder of containers' state files.
    run_dir: str = "/run/hami"
    #: The node's processes; needs the host's PID namespace.
    proc_dir: str = "/proc"
    #: Where the driver's libraries are, for example /driver-root; empty: where the linker looks.
    driver_root: str = ""
    #: Seconds after which files of HAMi's plugin for a deleted pod are removed.
    hami_resync_interval: float = 300.0
    #: MiB above its limit that each process of a container excuses before its pod is marked.
    overuse_tolerance: int = 128

    # Serving.

    #: Address of /metrics and health; empty: neither is served.
    metrics_bind_address: str = ":9394"
    #: Write HAMi's old metric names beside the new ones.
    legacy_metrics: bool = False

    # The API server.

    #: Empty: $KUBECONFIG, then the pod's service account, then ~/.kube/config.
    kubeconfig: str = ""
    #: Requests per second and at once; 0: without limit, the API server's fairness decides.
    kube_qps: float = 0.0
    kube_burst: int = 0
    #: Seconds for one request; 0: 30.
    kube_timeout: float = 0.0
    #: Seconds between two resyncs of the informers with the API server.
    resync_interval: float = 900.0

    # Logs.

    debug: bool = False

    @property
    def node(self) -> str:
        return self.node_name or socket.gethostname()
