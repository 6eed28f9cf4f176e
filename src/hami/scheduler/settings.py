"""Settings of the scheduler process.

One struct in groups; each field names its unit and the reason for its default. Flags, environment
and file all end here (`hami.cli.flags`); the names are HAMi's where HAMi has the setting.
"""

from __future__ import annotations

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    # Serving.

    #: Where /filter, /bind, /explain and health answer. Loopback: only the kube-scheduler in the
    #: same pod needs them.
    http_bind: str = "127.0.0.1:8080"
    #: PEM files; both or none. Without them the server speaks plain HTTP.
    cert_file: str = ""
    key_file: str = ""
    #: PEM file of the CA whose clients may call the scheduling verbs from elsewhere; empty: none.
    client_ca_file: str = ""
    #: Where /metrics answers; empty: nowhere.
    metrics_bind_address: str = ":9395"
    #: Whether HAMi's old metric names are written beside the new ones.
    legacy_metrics: bool = False
    #: Whether cards and containers have metrics of their own; 10 kB for a node with 8 cards.
    card_metrics: bool = True
    #: Shares of containers with metrics of their own; with more of them none has. The monitors of
    #: the nodes have them as well, and 100,000 shares are 37 MB in each scrape.
    container_metrics_limit: int = 20_000
    #: Whether /debug answers, to clients that may call the scheduling verbs.
    profiling: bool = False
    #: Seconds that new requests are still answered after SIGTERM: clients learn late that we stop.
    shutdown_delay: float = 0.0
    #: Seconds that requests under way may take to end after that.
    drain_timeout: float = 10.0

    # Scheduling.

    #: The profile in kube-scheduler whose pods are ours; also the source of our events.
    scheduler_name: str = "hami-scheduler"
    #: Policies of pods that name none.
    node_scheduler_policy: str = "binpack"
    gpu_scheduler_policy: str = "spread"
    #: Only nodes with these labels are known; empty: all.
    node_label_selector: str = ""
    #: Empty: the built-in vendors as they are.
    device_config_file: str = ""
    #: Whether pods may ask for Iluvatar's cards, as in HAMi; of other vendors they always may.
    enable_iluvatar: bool = False
    #: Folder of the keys that sign grants (`hami.serving.grant_keys`); empty: they are not signed.
    grant_key_dir: str = "/etc/hami/grant"
    #: Forms of signatures that are made and valid, where their keys are in that folder.
    accept_grant_forms: str = "v1,v3"
    #: Whether grants without a signature are valid, as HAMi's scheduler writes them.
    allow_unsigned_grants: bool = False
    #: Seconds after which cards that are reserved and not bound are free again, at the latest: pods
    #: with volumes or claims may wait so long before kube-scheduler binds them.
    reservation_timeout: float = 900.0
    #: Whether refused nodes are answered as FailedAndUnresolvableNodes, so that kube-scheduler
    #: plans no evictions there; before 1.21 it does not know that field.
    unresolvable_nodes: bool = True
    #: Seconds /filter may wait for the watches or an earlier bind before it answers an error.
    filter_budget: float = 5.0

    # Admission.

    #: Whether pods that name default-scheduler are given to our profile.
    force_overwrite_default_scheduler: bool = True
    #: The folder above `vgpu` that the node agent mounts into containers; pods may not mount there.
    hook_path: str = "/usr/local"
    #: Namespaces and priority classes that may ask for the highest priority, with commas; `*` is
    #: every namespace.
    high_priority_namespaces: str = ""
    high_priority_classes: str = ""
    #: When a MIG profile counts as offered: off, type or available.
    mig_fallback: str = "type"
    #: What comes after the smallest profile: share or whole.
    mig_fallback_gpu: str = "share"
    #: Chains of profiles; empty: the built-in ones.
    mig_fallback_file: str = ""

    # Evictions.

    #: What becomes of pods with more of a card than they were given: report or evict.
    overuse: str = "report"
    #: Seconds of overuse, as this replica has seen it, before an eviction.
    overuse_grace: float = 120.0
    #: Namespaces whose pods are never evicted for overuse, with commas.
    overuse_exempt_namespaces: str = "kube-system"
    #: Whether pods are evicted that their node's agent has refused to start three times.
    evict_refused: bool = False

    # Nodes with a lock.

    #: Seconds, since it was first seen, after which a lock that names no pod is removed.
    node_lock_timeout: float = 300.0
    #: Seconds a member of a pod group waits for a lock; 0: it fails at once. Other pods wait as
    #: long as kube-scheduler does.
    node_lock_retry_timeout: float = 600.0

    # The API server.

    #: Empty: $KUBECONFIG, then the pod's service account, then ~/.kube/config.
    kubeconfig: str = ""
    #: Requests per second and at once; 0: without limit, the API server's fairness decides.
    kube_qps: float = 0.0
    kube_burst: int = 0
    #: Seconds for one request; 0: 30.
    kube_timeout: float = 0.0
    #: Seconds between two resyncs with the API server.
    resync_interval: float = 900.0

    # Leadership.

    #: Whether several replicas run: scheduling needs the lease.
    leader_elect: bool = False
    #: The lease of the kube-scheduler in the same pod.
    leader_elect_resource_name: str = ""
    leader_elect_resource_namespace: str = ""
    #: Whether we hold the lease ourselves, because no kube-scheduler runs beside us.
    leader_elect_own_lease: bool = False
    #: Seconds; the same numbers that kube-scheduler is configured with.
    leader_elect_lease_duration: float = 8.0
    leader_elect_renew_deadline: float = 6.0
    leader_elect_retry_period: float = 1.0
    #: This pod, for its role label; empty: no label is written.
    pod_name: str = ""
    pod_namespace: str = ""

    # Logs and traces.

    debug: bool = False
    #: Address of an OpenTelemetry collector (OTLP over HTTP); empty: no traces.
    otlp_endpoint: str = ""
