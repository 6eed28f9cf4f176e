"""Settings of `hami simulate-devices`, named as the agent's where it has them too."""

from __future__ import annotations

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One field for each flag."""

    # The node.

    #: The name of our Node object.
    node_name: str = ""
    #: kubelet's folder, with that of plugins' sockets.
    kubelet_dir: str = "/var/lib/kubelet"

    # Devices.

    #: The description (`hami.simulation.description`).
    devices_file: str = ""
    #: Overrides of the built-in vendors; empty: none.
    device_config_file: str = ""

    # Serving.

    #: Address of health; empty: not served.
    metrics_bind_address: str = ":9397"

    # The API server.

    #: Empty: $KUBECONFIG, then the pod's service account, then ~/.kube/config.
    kubeconfig: str = ""
    #: Requests per second and at once; 0: no limit, the API server's priority and fairness applies.
    kube_qps: float = 0.0
    kube_burst: int = 0
    #: Seconds for one request; 0: 30.
    kube_timeout: float = 0.0

    # Logs.

    debug: bool = False
