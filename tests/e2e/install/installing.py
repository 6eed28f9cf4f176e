"""The scheduler on the test cluster, for as long as a test needs it.

Without the chart: account and roles, grant keys, and replicas in machines of their own, whose
programs can be killed, stopped and slowed down. Pods name the scheduler themselves
(scheduler_config.NAME). The chart's own tests are in tests/e2e/chart.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from pathlib import Path

from prometheus_client import parser

from tests.e2e import pods as e2e_pods
from tests.e2e.cluster.cluster import Cluster, lifeline
from tests.e2e.cluster.images import BUSYBOX
from tests.e2e.cluster.layout import Scheduler
from tests.e2e.install import identity, replica, scheduler_config
from tests.e2e.install.replica import HAMI, KUBE_SCHEDULER, Replica
from tests.e2e.parts import catalogue
from tests.kubeapi.client import ApiError, Client, wait_for
from tests.kubeapi.paths import leases, pods

PORT = 9443
METRICS_PORT = 9395
KUBE_SCHEDULER_PORT = 10259
PROXY = "proxy"
PROXY_PORT = 6080
READY_S = 60
COMPONENT = {"app.kubernetes.io/component": "hami-scheduler"}
ROLE_LABEL = "hami.io/scheduler-role"
PRODUCT = (sys.executable, "-m", "hami", "scheduler")


@dataclasses.dataclass(frozen=True)
class Install:
    cluster: Cluster
    client: Client
    replicas: tuple[Replica, ...]
    elect: bool = True

    @property
    def only(self) -> Replica:
        (one,) = self.replicas
        return one

    def leader(self) -> Replica | None:
        """Give the replica that the lease names; whether it lives is another question."""
        if not self.elect:
            return self.only
        found = self.client.find(leases(identity.NAMESPACE, identity.LEASE))
        holder = (found or {}).get("spec", {}).get("holderIdentity") or ""
        host = holder.rpartition("_")[0]
        return next((one for one in self.replicas if one.name == host), None)

    def other(self, than: Replica) -> Replica:
        (one,) = (each for each in self.replicas if each is not than)
        return one

    def at(self, address: str) -> Replica | None:
        """Tell which replica a request came from."""
        return next((one for one in self.replicas if one.address == address), None)

    def await_ready(self) -> Replica:
        """Wait until all caches are filled and the leader is ready; give the leader."""

        def ready() -> Replica | None:
            for one in self.replicas:
                if one.http("/readyz?webhook", PORT).status != HTTPStatus.OK:
                    return None
            leader = self.leader()
            if leader is None or leader.http("/readyz", PORT).status != HTTPStatus.OK:
                return None
            return leader

        try:
            return wait_for("the scheduler's leader to be ready", ready, READY_S)
        except TimeoutError as error:
            said = [
                f"{one.name} {program}: {line}"
                for one in self.replicas
                for program in one.pids()
                for line in one.logs(program)[-5:]
            ]
            raise AssertionError("\n".join([str(error), *said])) from None

    def metric(self, of: Replica, name: str, **labels: str) -> float:
        """Add up a metric of `hami` over all samples that have these labels."""
        return _sum(of.http("/metrics", METRICS_PORT).body, name, labels)

    def kube_scheduler_metric(self, of: Replica, name: str, **labels: str) -> float:
        """Add up a metric of the replica's kube-scheduler, which shows them to administrators."""
        server = f"https://{of.address}:{KUBE_SCHEDULER_PORT}"
        access = dataclasses.replace(self.client.access, server=server, ca=None, verify=False)
        with Client.from_access(access) as client:
            answer = client.request("GET", "/metrics", accept="text/plain")
        return _sum(answer.body.decode(), name, labels)

    def delay_watches(self, of: Replica, seconds: float, path: str = "") -> None:
        """Make watches late, all or those with this in their path."""
        where, body = f"/-/watch-delay?path={path}", str(seconds).encode()
        answer = of.http(where, PROXY_PORT, method="PUT", body=body)
        assert answer.status == HTTPStatus.OK, answer


@contextlib.contextmanager
def running(
    cluster: Cluster,
    *,
    replicas: int = 1,
    scheduler: Scheduler = Scheduler.NEWEST,
    proxied: bool = False,
    elect: bool = True,
    product: Sequence[str] = PRODUCT,
) -> Iterator[Install]:
    """Install the scheduler, wait until it is ready, and take all of it away afterwards.

    `proxied` puts a proxy between `hami` and the API server, which can make its watches late.
    Without `elect` there is no lease: a kube-scheduler may be stopped for as long as it takes.
    """
    if scheduler is Scheduler.OLDEST:
        catalogue.provide(catalogue.oldest_kube_scheduler())
    with contextlib.ExitStack() as stack:
        stack.enter_context(cluster.joined_network())
        client = stack.enter_context(cluster.client)
        identity.grant(client)
        e2e_pods.await_account(client, identity.NAMESPACE)
        pipe = stack.enter_context(lifeline())
        _forget_lease(client)
        started: list[Replica] = []
        for number in range(1, replicas + 1):
            one = Replica.start(cluster, number, lifeline=pipe)
            stack.callback(one.end)
            stack.enter_context(_pod(client, one))
            _run_hami(client, one, product, proxied=proxied, elect=elect)
            _run_kube_scheduler(one, scheduler, elect=elect)
            started.append(one)
        install = Install(cluster, client, tuple(started), elect=elect)
        install.await_ready()
        yield install


def _run_hami(
    client: Client, one: Replica, product: Sequence[str], *, proxied: bool, elect: bool
) -> None:
    kubeconfig = one.folder / "hami.conf"
    identity.write_kubeconfig(client, kubeconfig)
    if proxied:
        one.run(
            PROXY,
            [
                *(sys.executable, "-m", "tests.e2e.install.delaying_proxy"),
                *("--kubeconfig", str(kubeconfig), "--port", str(PROXY_PORT)),
            ],
            {},
        )
        wait_for("the proxy", lambda: one.http("/version", PROXY_PORT), READY_S)
        kubeconfig = one.folder / "hami-proxied.conf"
        identity.write_open_kubeconfig(kubeconfig, f"http://127.0.0.1:{PROXY_PORT}")
    one.run(
        HAMI,
        [
            *product,
            f"--http_bind=127.0.0.1:{PORT}",
            f"--metrics-bind-address=:{METRICS_PORT}",
            f"--kubeconfig={kubeconfig}",
            f"--scheduler-name={scheduler_config.NAME}",
            f"--leader-elect={str(elect).lower()}",
            f"--leader-elect-resource-name={identity.LEASE}",
            f"--leader-elect-resource-namespace={identity.NAMESPACE}",
            f"--grant-key-dir={identity.key_folder(one.cluster)}",
            "--device-config-file=",
            "--debug",
        ],
        {"POD_NAME": one.name, "POD_NAMESPACE": identity.NAMESPACE},
        probe_url=f"http://127.0.0.1:{PORT}/healthz",
    )


def _run_kube_scheduler(one: Replica, version: Scheduler, *, elect: bool) -> None:
    kubeconfig = one.cluster.layout.secrets / "kube-scheduler.conf"
    config = one.folder / "kube-scheduler.yaml"
    url = f"http://127.0.0.1:{PORT}"
    config.write_text(scheduler_config.text(version, url=url, kubeconfig=kubeconfig, elect=elect))
    # The older one has only this address, and in it the watchdog of its lease.
    live = "healthz" if version is Scheduler.OLDEST else "livez"
    one.run(
        KUBE_SCHEDULER,
        [
            str(_kube_scheduler(version)),
            f"--config={config}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--v=2",
        ],
        {},
        probe_url=f"https://127.0.0.1:{KUBE_SCHEDULER_PORT}/{live}",
    )


def _kube_scheduler(version: Scheduler) -> Path:
    old = version is Scheduler.OLDEST
    part = catalogue.oldest_kube_scheduler() if old else catalogue.kubernetes()
    return catalogue.folder(part) / "kube-scheduler"


@contextlib.contextmanager
def _pod(client: Client, one: Replica) -> Iterator[None]:
    """Make the object that stands for the replica, for its role label. Nobody runs it."""
    path = pods(identity.NAMESPACE, one.name)
    _delete(client, path)
    body = {
        "metadata": {"name": one.name, "labels": COMPONENT},
        "spec": {
            "schedulerName": "nobody",
            "containers": [{"name": name, "image": BUSYBOX} for name in replica.PAIR],
        },
    }
    client.create(pods(identity.NAMESPACE), body)
    try:
        yield
    finally:
        _delete(client, path)


def _forget_lease(client: Client) -> None:
    """Remove the lease of an earlier installation: nobody has to wait for its end."""
    _delete(client, leases(identity.NAMESPACE, identity.LEASE))


def _delete(client: Client, path: str) -> None:
    try:
        client.delete(path, gracePeriodSeconds=0)
    except ApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise


def _sum(text: str, name: str, labels: dict[str, str]) -> float:
    return sum(
        sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
