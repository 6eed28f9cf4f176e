"""One burst of pods on a real cluster: its speed, and the cost by program.

Times are those of the arrival of events from the API server's watch. CPU time is the kernel's, and
durations are the programs' own histograms, each as the difference over the burst.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import yaml
from prometheus_client import parser

from tests.e2e import pods as e2e_pods
from tests.e2e.cluster.cluster import Cluster, lifeline
from tests.e2e.cluster.layout import Scheduler
from tests.e2e.install import nodes, placing, scheduler_config
from tests.e2e.install.installing import KUBE_SCHEDULER_PORT, METRICS_PORT, Install
from tests.e2e.install.replica import HAMI, KUBE_SCHEDULER, Replica
from tests.e2e.parts import catalogue
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import namespaces, pods

PLAIN, ALIKE = "plain-scheduler", "alike-scheduler"
#: Resources that no node counts, as kube-scheduler does not count ours.
UNCOUNTED = "hami.test"
#: Of the second replica's machine.
PLAIN_NUMBER = 2
WRITERS = 16
BOUND_S = 600.0
READY_S = 60.0
SHARED = ("kube-apiserver", "etcd", "kube-controller-manager", "kwok")
#: They say where a pod's time goes.
HISTOGRAMS = (
    "scheduler_scheduling_algorithm_duration_seconds",
    "scheduler_scheduling_attempt_duration_seconds",
    "scheduler_framework_extension_point_duration_seconds",
    "hami_scheduler_filter_duration_seconds",
    "hami_scheduler_bind_duration_seconds",
    "rest_client_request_duration_seconds",
    "rest_client_rate_limiter_duration_seconds",
)
LABELS = ("extension_point", "result", "verb")
PARTS = ("_count", "_sum")


#: Name of a histogram -> count and sum.
Durations = Mapping[str, tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Kind:
    name: str
    body: Callable[[str], Object]
    #: Stops its kube-scheduler for the length of a `with` block.
    stopped: Callable[[], contextlib.AbstractContextManager[None]]
    #: Program -> its process; programs may be started again.
    pids: Callable[[], Mapping[str, int]]
    #: All metrics of the programs of this kind, as text.
    metrics: Callable[[], str]


@dataclasses.dataclass(frozen=True)
class Burst:
    pods: int
    #: Seconds from when kube-scheduler went on until the first pod was bound, and the last.
    first_s: float
    last_s: float
    #: Program -> seconds of CPU.
    cpu: Mapping[str, float]
    durations: Durations

    @property
    def rate(self) -> float:
        return (self.pods - 1) / (self.last_s - self.first_s)

    def summary(self) -> str:
        return (
            f"{self.pods} pods, the first bound after {self.first_s:.1f} s, the last after "
            f"{self.last_s:.1f} s: {self.rate:.0f} a second"
        )

    def details(self) -> Iterator[str]:
        costs = sorted(self.cpu.items(), key=lambda item: -item[1])
        yield "CPU a pod: " + ", ".join(f"{k} {v / self.pods * 1e3:.1f} ms" for k, v in costs)
        for name, (count, total) in self.durations.items():
            if count:
                yield f"{name}: {count:.0f} times, {total / count * 1e3:.2f} ms each"


def kinds(install: Install, plain: Replica) -> tuple[Kind, ...]:
    """Return hami, no extender, alike and as shipped, in this order."""
    control_plane = install.cluster.control_plane

    def shared() -> dict[str, int]:
        return {name: control_plane.daemon(name).process.pid for name in SHARED}

    def own(program: str, pid: int | None) -> dict[str, int]:
        assert pid is not None, f"{program} is not running"
        return {program: pid}

    @contextlib.contextmanager
    def shipped_stopped() -> Iterator[None]:
        process = control_plane.daemon(KUBE_SCHEDULER).process
        process.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.signal(signal.SIGCONT)

    ours = install.only
    asked = nodes.limits(1, memory=500, cores=5)
    uncounted = {"limits": {f"{UNCOUNTED}/{name}": "1" for name in ("gpu", "memory", "cores")}}

    def without_cards(scheduler: str) -> Callable[[str], Object]:
        return lambda name: placing.pod(name, {}, schedulerName=scheduler)

    return (
        Kind(
            "hami",
            lambda name: placing.pod(name, asked),
            lambda: _stopped(ours),
            lambda: (
                shared() | own(HAMI, ours.pid(HAMI)) | own(KUBE_SCHEDULER, ours.pid(KUBE_SCHEDULER))
            ),
            lambda: (
                ours.http("/metrics", METRICS_PORT).body + _metrics(install.client, ours.address)
            ),
        ),
        Kind(
            "no extender",
            without_cards(PLAIN),
            lambda: _stopped(plain),
            lambda: shared() | own(KUBE_SCHEDULER, plain.pid(KUBE_SCHEDULER)),
            lambda: _metrics(install.client, plain.address),
        ),
        Kind(
            "alike",
            lambda name: placing.pod(name, {"resources": uncounted}, schedulerName=ALIKE),
            lambda: _stopped(plain),
            lambda: shared() | own(KUBE_SCHEDULER, plain.pid(KUBE_SCHEDULER)),
            lambda: _metrics(install.client, plain.address),
        ),
        Kind(
            "as shipped",
            without_cards("default-scheduler"),
            shipped_stopped,
            lambda: (
                shared() | own(KUBE_SCHEDULER, control_plane.daemon(KUBE_SCHEDULER).process.pid)
            ),
            lambda: _metrics(install.client, "127.0.0.1"),
        ),
    )


@contextlib.contextmanager
def _stopped(replica: Replica) -> Iterator[None]:
    """Stop a replica's kube-scheduler; its supervisor must not kill it for that."""
    probed = (replica.folder / f"{KUBE_SCHEDULER}.probed").exists()
    replica.probe(KUBE_SCHEDULER, on=False)
    try:
        with replica.stopped(KUBE_SCHEDULER):
            yield
    finally:
        replica.probe(KUBE_SCHEDULER, on=probed)


@contextlib.contextmanager
def plain_scheduler(cluster: Cluster) -> Iterator[Replica]:
    """Run a kube-scheduler without extenders, with the client limits of the one beside hami."""
    kubeconfig = cluster.layout.secrets / "kube-scheduler.conf"
    text = scheduler_config.text(Scheduler.NEWEST, url="http://unused", kubeconfig=kubeconfig)
    config = yaml.safe_load(text)
    # The rest is kube-scheduler's default, also how many nodes it looks at for each pod.
    del config["extenders"], config["percentageOfNodesToScore"]
    config["leaderElection"] = {"leaderElect": False}
    ignore = {"name": "NodeResourcesFit", "args": {"ignoredResourceGroups": [UNCOUNTED]}}
    alike = {"schedulerName": ALIKE, "percentageOfNodesToScore": 100, "pluginConfig": [ignore]}
    config["profiles"] = [{"schedulerName": PLAIN}, alike]
    with lifeline() as pipe:
        one = Replica.start(cluster, PLAIN_NUMBER, lifeline=pipe)
        try:
            path = one.folder / "kube-scheduler.yaml"
            path.write_text(yaml.safe_dump(config))
            one.run(
                KUBE_SCHEDULER,
                [
                    str(catalogue.folder(catalogue.kubernetes()) / "kube-scheduler"),
                    f"--config={path}",
                    f"--authentication-kubeconfig={kubeconfig}",
                    f"--authorization-kubeconfig={kubeconfig}",
                    "--v=2",
                ],
                {},
            )
            with cluster.client as client:
                wait_for("kube-scheduler to answer", lambda: _answers(client, one.address), READY_S)
            yield one
        finally:
            one.end()


def run(cluster: Cluster, kind: Kind, count: int) -> Burst:
    """Create pods, wait until all are bound, and remove them again."""
    namespace = f"burst-{kind.name.replace(' ', '-')}"
    with cluster.client as client:
        client.create(namespaces(), {"metadata": {"name": namespace}})
        e2e_pods.await_account(client, namespace)
        try:
            return _measured(client, kind, namespace, count)
        finally:
            _remove_pods(client, namespace)
            client.delete(namespaces(namespace))
            e2e_pods.await_no_namespace(client, namespace)


def _measured(client: Client, kind: Kind, namespace: str, count: int) -> Burst:
    bound: list[float] = []
    with (
        concurrent.futures.ThreadPoolExecutor(WRITERS + 1) as pool,
        client.watch(
            pods(namespace),
            timeout_seconds=int(BOUND_S),
            query={"fieldSelector": "spec.nodeName!="},
        ) as watch,  # closed before the pool waits for its reader
    ):
        counting = pool.submit(_count, watch, count, bound)
        durations = _durations(kind.metrics())
        with kind.stopped():
            bodies = [kind.body(f"pod-{number}") for number in range(count)]
            list(pool.map(lambda body: client.create(pods(namespace), body), bodies))
            cpu = _cpu(kind.pids())
        begin = time.monotonic()
        counting.result(BOUND_S)
        spent = _cpu(kind.pids())
    return Burst(
        pods=count,
        first_s=bound[0] - begin,
        last_s=bound[-1] - begin,
        cpu={name: seconds - cpu.get(name, 0.0) for name, seconds in spent.items()},
        durations=_difference(_durations(kind.metrics()), durations),
    )


def _difference(after: Durations, before: Durations) -> Durations:
    none = (0.0, 0.0)
    return {
        name: (count - before.get(name, none)[0], total - before.get(name, none)[1])
        for name, (count, total) in after.items()
    }


def _count(watch: Iterator[Object], count: int, bound: list[float]) -> None:
    """Note when each pod is first seen with a node: for this watch it begins to exist then."""
    for event in watch:
        if event["type"] == "ADDED":
            bound.append(time.monotonic())
            if len(bound) == count:
                return


def _remove_pods(client: Client, namespace: str) -> None:
    """Remove all pods at once; a request for all of them would be carried out one by one."""

    def remove(pod: Object) -> None:
        client.delete(pods(namespace, pod["metadata"]["name"]), {"gracePeriodSeconds": 0})

    with concurrent.futures.ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(remove, client.get(pods(namespace))["items"]))


def _cpu(pids: Mapping[str, int]) -> dict[str, float]:
    """Return the seconds of CPU that each process has used."""
    tick = os.sysconf("SC_CLK_TCK")
    used = {}
    for name, pid in pids.items():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        used[name] = (int(fields[11]) + int(fields[12])) / tick
    return used


def _metrics(client: Client, address: str) -> str:
    server = f"https://{address}:{KUBE_SCHEDULER_PORT}"
    access = dataclasses.replace(client.access, server=server, ca=None, verify=False)
    with Client.from_access(access) as there:
        return there.request("GET", "/metrics", accept="text/plain").body.decode()


def _answers(client: Client, address: str) -> bool:
    try:
        return bool(_metrics(client, address))
    except OSError:
        return False


def _durations(text: str) -> Durations:
    """Return count and sum of each histogram, by its name and the labels that tell it apart."""
    found: dict[str, list[float]] = {}
    for family in parser.text_string_to_metric_families(text):
        if family.name not in HISTOGRAMS:
            continue
        for sample in family.samples:
            part = sample.name.removeprefix(family.name)
            if part in PARTS:
                labels = [sample.labels[label] for label in LABELS if label in sample.labels]
                key = " ".join([family.name, *labels])
                found.setdefault(key, [0.0, 0.0])[PARTS.index(part)] += sample.value
    return {name: (count, total) for name, (count, total) in found.items()}
