"""Containers get their own limits, in every order of kubelet's calls."""

from __future__ import annotations

import contextlib
import datetime as dt
import signal
import time
from collections.abc import Iterator

from hami.wire import annotation_keys
from tests.e2e import pods
from tests.e2e.agent import workloads
from tests.e2e.agent.fixtures import _audited, _diagnosed  # noqa: F401 (for every test)
from tests.e2e.agent.installation import LATE, LOCK, Agents
from tests.e2e.agent.workloads import MIB
from tests.e2e.fakegpu import image
from tests.e2e.fakegpu.nodes import GpuNode
from tests.e2e.install import nodes as registering
from tests.e2e.install import placing, scheduler_config
from tests.e2e.kubelet_api import checkpoint
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import core
from tests.kubeapi.paths import nodes as nodes_path
from tests.kubeapi.paths import pods as pods_path

GATE: Object = {"schedulingGates": [{"name": "hami.test/turn"}]}
ASKED = ("init", "count", "total 0")
TIMES = (annotation_keys.ASSIGNED_TIME, annotation_keys.BIND_TIME)
SOON_S = 60
#: An event follows the third refusal, and kubelet takes its time between two tries.
REFUSED_S = 180


@contextlib.contextmanager
def kubelet_paused(agents: Agents, node: str) -> Iterator[None]:
    kubelet = agents.cluster.machine(node).daemon("kubelet").process
    kubelet.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        kubelet.signal(signal.SIGCONT)


def gated(agents: Agents, client: Client, namespace: str, where: str, **memory: int) -> None:
    """Create pods in this order, not in one second, that wait until they are let go."""
    node = agents.nodes[where]
    for name, asked in memory.items():
        main = workloads.container("main", *ASKED, node=node, memory=asked)
        (made,) = pods.create(client, namespace, workloads.pod(name, main, node=node, **GATE))
        # Times of creation have whole seconds.
        created = dt.datetime.fromisoformat(made["metadata"]["creationTimestamp"]).timestamp()
        wait_for("the next second", lambda: time.time() >= created + 1, SOON_S, 0.05)  # noqa: B023 - awaited here


def let_go(client: Client, namespace: str, name: str) -> None:
    client.patch(pods_path(namespace, name), {"spec": {"schedulingGates": None}})


def bind(client: Client, namespace: str, name: str) -> Object:
    let_go(client, namespace, name)
    return placing.await_one_bound(client, namespace, name, SOON_S)


def sees(memory: int) -> list[str]:
    return ["ok", "ok 1", f"ok {memory * MIB}"]


def allocated(agents: Agents, where: str, known: int) -> list[str]:
    """Name the pods whose Allocate was answered since, in that order."""
    lines = agents.log(where)[known:]
    ids = [line["device_ids"][0] for line in lines if line["message"] == "Allocate"]
    entries = checkpoint.read(agents.nodes[where].path(str(checkpoint.PATH))).entries
    owner = {entry.device_ids: entry.pod_uid for entry in entries}
    return [owner[frozenset(each)] for each in ids]


def test_late_two_pods_allocated_in_another_order_than_they_were_bound(
    agents: Agents, client: Client, namespace: str
) -> None:
    """Kubelet takes them as they were bound; all that stands on the pods says the opposite."""
    gated(agents, client, namespace, LATE, older=300, newer=700)
    known = len(agents.log(LATE))
    later = {name: f"{time.time() + 3600:.0f}" for name in TIMES}
    with kubelet_paused(agents, LATE):
        bound = [bind(client, namespace, name) for name in ("newer", "older")]
        client.patch(pods_path(namespace, "newer"), {"metadata": {"annotations": later}})
    for name, memory in (("older", 300), ("newer", 700)):
        pod = pods.await_phase(client, namespace, name)
        assert workloads.answers(client, pod, "main", len(ASKED)) == sees(memory)
    assert allocated(agents, LATE, known) == [pod["metadata"]["uid"] for pod in bound]


def test_by_lock_two_pods_allocated_in_another_order_than_they_were_bound(
    agents: Agents, client: Client, namespace: str
) -> None:
    """Somebody takes the lock away, so the second is bound before the first was served."""
    gated(agents, client, namespace, LOCK, older=300, newer=700)
    with kubelet_paused(agents, LOCK):
        bind(client, namespace, "older")
        let_go(client, namespace, "newer")
        registering.annotate(client, LOCK, {annotation_keys.NODE_LOCK: None})
        placing.await_one_bound(client, namespace, "newer", SOON_S)
        kept = client.get(nodes_path(LOCK))["metadata"]["annotations"]
        assert kept[annotation_keys.NODE_LOCK].endswith(",newer")

    # The newer pod ends at once. Its record, which the older one was given, may be released before
    # the older one's first start.
    whys = ("in another order", "its allocation is not in this node's ledger")

    def refused() -> bool:
        found = workloads.events(client, namespace, "older")
        return any(why in event["message"] for event in found for why in whys)

    wait_for("the older to be refused", refused, REFUSED_S)
    wait_for(
        "the newer to fail",
        lambda: client.get(pods_path(namespace, "newer"))["status"]["phase"] == "Failed",
        SOON_S,
    )
    for name in ("older", "newer"):
        found = client.get(pods_path(namespace, name))
        statuses = found["status"].get("containerStatuses", [])
        assert not any(each.get("containerID") or each["restartCount"] for each in statuses)
    client.delete(pods_path(namespace))
    pods.await_gone(client, namespace)
    # Nothing is stuck: the next pod is served.
    node = agents.nodes[LOCK]
    main = workloads.container("main", *ASKED, node=node, memory=500)
    pods.create(client, namespace, workloads.pod("next", main, node=node))
    pod = pods.await_phase(client, namespace, "next")
    assert workloads.answers(client, pod, "main", len(ASKED)) == sees(500)


MANY = {"first": 900, "second": 800, "side": 400, "main": 600, "other": 500}


def many(node: GpuNode) -> Object:
    """Describe a pod of two init containers, a sidecar and two others, each with its own share."""
    described = {
        name: workloads.container(name, *ASKED, node=node, memory=asked)
        for name, asked in MANY.items()
    }
    return workloads.pod(
        f"many-{node.name}",
        described["main"],
        described["other"],
        node=node,
        initContainers=[
            workloads.ending(described["first"]),
            workloads.ending(described["second"]),
            described["side"] | {"restartPolicy": "Always"},
        ],
    )


def test_init_sidecar_and_main_containers_each_have_their_own(
    agents: Agents, client: Client, namespace: str
) -> None:
    pods.create(client, namespace, *map(many, agents.nodes.values()))
    for where, node in agents.nodes.items():
        pod = pods.await_phase(client, namespace, f"many-{where}")
        for name, asked in MANY.items():
            assert workloads.answers(client, pod, name, len(ASKED)) == sees(asked), name
        granted = [[grant.memory for grant in slot] for slot in workloads.slots(pod)]
        assert granted == [[asked] for asked in MANY.values()]

        # kubelet gave ids of those that ended to those that came after.
        entries = checkpoint.read(node.path(str(checkpoint.PATH))).entries
        held = [entry for entry in entries if entry.pod_uid == pod["metadata"]["uid"]]
        assert {entry.container for entry in held} == set(MANY)
        assert len(frozenset().union(*(entry.device_ids for entry in held))) < len(MANY)


def test_an_image_that_wants_all_cards_sees_its_share_only(
    agents: Agents, client: Client, namespace: str
) -> None:
    for where, node in agents.nodes.items():
        main = workloads.container("main", *ASKED, node=node, memory=300, image=image.WANTS_ALL)
        pods.create(client, namespace, workloads.pod(f"greedy-{where}", main, node=node))
    for where in agents.nodes:
        pod = pods.await_phase(client, namespace, f"greedy-{where}")
        assert workloads.answers(client, pod, "main", len(ASKED)) == sees(300)


#: As the restricted Pod Security Standard has it, and a root that nobody can write to.
WITHOUT_RIGHTS: Object = {
    "runAsUser": 1024,
    "runAsGroup": 1024,
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def test_containers_without_rights_on_a_read_only_root_have_their_share(
    agents: Agents, client: Client, namespace: str
) -> None:
    """Also where /run is a file system of the pod's own, and where it is a link."""
    asked = (*ASKED, "device 0", "fill alloc 16777216")
    memory = 600
    for where, node in agents.nodes.items():
        plain = workloads.container("plain", *asked, node=node, memory=memory)
        linked = workloads.container("linked", *asked, node=node, memory=memory, image=image.LINKED)
        over = workloads.container("over", *asked, node=node, memory=memory)
        run = {"name": "run", "mountPath": "/run"}
        over["volumeMounts"] = [*over.get("volumeMounts", []), run]
        for each in (plain, linked, over):
            each["securityContext"] = WITHOUT_RIGHTS
        body = workloads.pod(f"small-{where}", plain, linked, over, node=node)
        volumes = body["spec"].setdefault("volumes", [])
        volumes.append({"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}})
        pods.create(client, namespace, body)
    for where in agents.nodes:
        pod = pods.await_phase(client, namespace, f"small-{where}")
        for name in ("plain", "linked", "over"):
            *seen, _context, filled = workloads.answers(client, pod, name, len(asked))
            assert seen == sees(memory), (where, name)
            word, _count, size, code, _function = filled.split()
            assert (word, code) == ("ok", "2"), (where, name)
            room = memory * MIB - workloads.CONTEXT
            assert room - 32 * MIB <= int(size) <= room, (where, name)


def test_where_there_is_cdi_variables_and_mounts_of_the_pod_change_nothing(
    agents: Agents, client: Client, namespace: str
) -> None:
    node = agents.nodes[LATE]
    wanted = {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "20000m",
        "CUDA_DISABLE_CONTROL": "true",
        "LD_PRELOAD": "",
    }
    empty = {"name": "empty", "mountPath": "/run/hami/share/policy"}
    # Admission would refuse it, and is not asked.
    past = {"metadata": {"labels": {"hami.io/webhook": "ignore"}}}
    main = workloads.container(
        "main",
        *ASKED,
        node=node,
        memory=300,
        env=[{"name": name, "value": value} for name, value in wanted.items()],
        volumeMounts=[empty],
    )
    body = workloads.pod(
        "greedy",
        main,
        node=node,
        volumes=[{"name": "empty", "emptyDir": {}}],
        schedulerName=scheduler_config.NAME,
        **past,
    )
    pods.create(client, namespace, body)
    pod = pods.await_phase(client, namespace, "greedy")
    assert workloads.answers(client, pod, "main", len(ASKED)) == sees(300)


#: What a tenant hopes for, in a ConfigMap that admission does not read.
HOPED = {
    "NVIDIA_VISIBLE_DEVICES": "all",
    "CUDA_DEVICE_MEMORY_LIMIT": "0",
    "CUDA_DEVICE_MEMORY_LIMIT_0": "20000m",
    "CUDA_DISABLE_CONTROL": "true",
}
CARDS = 4


def test_variables_of_a_config_map_gain_nothing(
    agents: Agents, client: Client, namespace: str
) -> None:
    client.create(
        core("configmaps", namespace), {"metadata": {"name": "hoped"}, "data": dict(HOPED)}
    )
    taken = [{"configMapRef": {"name": "hoped"}}]
    # Where the lock binds, kubelet lets the pod's variables win over those of Allocate.
    every = ("init", "count", *(f"total {card}" for card in range(CARDS)))
    asked = {LATE: ASKED, LOCK: every}
    for where, node in agents.nodes.items():
        main = workloads.container("main", *asked[where], node=node, memory=300, envFrom=taken)
        pods.create(client, namespace, workloads.pod(f"hoping-{where}", main, node=node))

    late = pods.await_phase(client, namespace, f"hoping-{LATE}")
    assert workloads.answers(client, late, "main", len(ASKED)) == sees(300)

    # It sees cards that it was not given, without any memory, and gets nothing of them.
    locked = pods.await_phase(client, namespace, f"hoping-{LOCK}")
    begin, *totals = workloads.answers(client, locked, "main", len(every))
    assert (begin, totals.pop(0)) == ("ok", f"ok {CARDS}")
    assert sorted(totals) == sorted([f"ok {300 * MIB}", *["ok 0"] * (CARDS - 1)])
    for card, total in enumerate(totals):
        answer = workloads.ask(agents, locked, "init", f"device {card}", "take alloc a 1m")
        gained = all(line.startswith("ok") for line in answer)
        assert gained == (total != "ok 0"), answer
