"""Attacks of a user who may patch pods, on its own pods and on those of others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hami.agent.errors import RefusalError
from hami.wire import annotation_keys, signature
from tests.attacks import attack as attacks
from tests.attacks.attack import GAP, NO_GAIN, REFUSED, Attacker, Result
from tests.attacks.gate import EDITOR, Object, Request, default_gate, merged
from tests.builders import NVIDIA
from tests.e2e.chart.our_keys import OURS_ON_PODS
from tests.scripted_api.server import ScriptedApi
from tests.unit.agent import rig as agents
from tests.unit.agent.records import devices
from tests.unit.agent.rig import CARD, KEYS, NODE, OTHER
from tests.unit.agent.test_core_forms import order, v3_pod
from tests.unit.kube.following import until
from tests.unit.scheduler import rig
from tests.unit.scheduler.conftest import Times, times
from tests.unit.scheduler.test_attack_grants import bound, keys
from tests.unit.scheduler.test_given_up import condition

__all__ = ["keys", "times"]  # fixtures

attack = attacks.by(Attacker.PATCHER)

DEVICES, MAC = annotation_keys.SIGNED_DEVICES, annotation_keys.GRANT_MAC
OURS = sorted(OURS_ON_PODS)
WHOLE = 8000
OVERBOOKED = "MiB of a card that are granted twice, by the grants on its pods"
BEYOND = "MiB beyond the grant, by the policy file of the container"


def pod(**annotations: str) -> Object:
    spec = {"nodeName": "a", "containers": [{"name": "c", "image": "i"}]}
    metadata = {"name": "p", "namespace": "team", "annotations": annotations}
    return {"metadata": metadata, "spec": spec}


# The API server.


@attack(
    "patched-grant",
    "adds, changes or removes a grant or any other annotation of hami, on any pod",
    REFUSED,
    "an admission policy keeps these annotations to hami's own accounts",
    also=("e2e",),
)
@pytest.mark.parametrize("key", OURS)
def test_an_annotation_of_ours(key: str) -> Result:
    old = pod(**{key: "ours"})
    requests: list[Request] = [
        (EDITOR, "patch", resource, old, merged(old, {"metadata": {"annotations": {key: value}}}))
        for resource in ("pods", "pods/ephemeralcontainers", "pods/resize")
        for value in ("theirs", "", None)
    ]
    bare = pod()
    new = merged(bare, {"metadata": {"annotations": {key: "theirs"}}})
    requests.append((EDITOR, "update", "pods", bare, new))
    requests.append((EDITOR, "create", "pods", None, new))
    return default_gate().tries(*requests, namespace="team")


@attack(
    "patched-label",
    "moves the label by which HAMi's monitor finds the pods of a node",
    REFUSED,
    "an admission policy keeps the label to hami's own accounts",
)
def test_the_label_of_ours() -> Result:
    old = pod()
    new = merged(old, {"metadata": {"labels": {annotation_keys.ASSIGNED_NODE: "b"}}})
    return default_gate().tries((EDITOR, "patch", "pods", old, new), namespace="team")


@attack(
    "binding-with-grant",
    "binds its pod itself, with a grant in the Binding",
    REFUSED,
    "Kubernetes' role `edit` binds no pods, and the policy reads Bindings",
)
def test_a_binding_with_a_grant() -> Result:
    binding = {"metadata": {"name": "p", "annotations": {DEVICES: "x"}}, "target": {"name": "a"}}
    ways = ("pods/binding", "bindings")
    return default_gate().tries(
        *((EDITOR, "create", way, None, binding) for way in ways), namespace="team"
    )


@attack(
    "status-finished",
    "writes that a running pod has ended, so that its cards are given away",
    REFUSED,
    "Kubernetes' role `edit` writes no pod's status",
)
def test_a_status_that_says_finished() -> Result:
    old = pod()
    new = merged(old, {"status": {"phase": "Succeeded"}})
    return default_gate().tries((EDITOR, "patch", "pods/status", old, new), namespace="team")


# The agent, where no policy is installed (before Kubernetes 1.30).


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[agents.Node]:
    async with ScriptedApi() as api:
        yield agents.Node(tmp_path / "node", api)


PART = (CARD, 4000, 30)
LARGE = devices([[(CARD, 40_000, 0)]])


def given(node: agents.Node, allocation_id: str) -> int:
    """Return the MiB that a container has beyond its grant."""
    return sum(memory for _, memory, _ in node.limits(allocation_id)) - PART[1]


@attack(
    "grant-rewritten",
    "rewrites the grant of its running pod, and lets the container restart",
    NO_GAIN,
    "a grant is frozen per pod UID at the first container",
)
async def test_a_rewritten_grant(node: agents.Node) -> Result:
    async with node.running() as agent:
        made = node.pod("p", main=[PART])
        allocation_id = await node.run_pod(agent, made, "main", "id-0")
        node.change(made, {DEVICES: LARGE, MAC: "v1:0:forged"})
        await node.seen(agent)
        await node.start(agent, "id-0")
        return Result(given(node, allocation_id), BEYOND)


@attack(
    "grant-of-another-pod",
    "copies the signed grant of another pod of the node to its own",
    REFUSED,
    "the pod's UID is part of what is signed",
)
async def test_the_grant_of_another_pod(node: agents.Node) -> Result:
    async with node.running() as agent:
        rich = node.pod("rich", main=[(OTHER, 30_000, 0)])
        stolen = {key: node.says(rich)[key] for key in (DEVICES, MAC)}
        poor = node.pod("poor", main=[PART], annotations=stolen)
        return await refused_start(node, agent, poor)


@attack(
    "grant-enlarged",
    "enlarges its own signed grant before the first container starts",
    REFUSED,
    "the device list is part of what is signed",
)
async def test_an_enlarged_grant(node: agents.Node) -> Result:
    async with node.running() as agent:
        made = node.pod("p", main=[PART], annotations={DEVICES: LARGE})
        return await refused_start(node, agent, made)


@attack(
    "grant-of-another-node",
    "brings a grant that was signed for another node",
    REFUSED,
    "the node is part of what is signed",
)
async def test_a_grant_of_another_node(node: agents.Node) -> Result:
    async with node.running() as agent:
        made = node.pod("p", main=[(CARD, 40_000, 0)], signed_for="gpu-2")
        return await refused_start(node, agent, made)


async def refused_start(node: agents.Node, agent: Any, made: Object) -> Result:
    await node.allocate(agent, made, "main", "id-0")
    refusal = ""
    try:
        await node.start(agent, "id-0")
    except RefusalError as error:
        refusal = str(error)
    return Result(len(node.prepared()), "containers that were given a card", refusal)


@attack(
    "resize-forged",
    "asks for a larger share by an unsigned resize",
    NO_GAIN,
    "a resize has a signature of its own",
)
async def test_a_forged_resize(node: agents.Node) -> Result:
    async with node.running() as agent:
        made = node.pod("p", main=[PART])
        allocation_id = await node.run_pod(agent, made, "main", "id-0")
        grant = signature.sign(KEYS, uid=agents.uid(made), node=NODE, devices=LARGE)
        for mac in ("", "v1:0:forged", grant):
            asked = {annotation_keys.RESIZE: LARGE, annotation_keys.RESIZE_MAC: mac}
            node.change(made, asked)
            await node.seen(agent)
            await agent.resizer.apply(agents.uid(made))
        return Result(given(node, allocation_id), BEYOND)


@attack(
    "resize-replayed",
    "writes an older, larger resize of its pod again, where no admission policy is installed",
    NO_GAIN,
    "orders have numbers, which are signed; an older one is not applied again",
)
async def test_a_replayed_order(node: agents.Node) -> Result:
    async with node.running() as agent:
        made = v3_pod(node, "p")
        allocation_id = await node.run_pod(agent, made, "main", "id-0")
        larger = order(node, made, 1, (CARD, 9000, 30))
        await until(lambda: given(node, allocation_id) == 5000)
        order(node, made, 2, PART)
        await until(lambda: given(node, allocation_id) == 0)
        node.change(made, larger)
        await node.seen(agent)
        await agent.resizer.apply(agents.uid(made))
        return Result(given(node, allocation_id), BEYOND)


@attack(
    "resize-replayed-v1",
    "writes an older, larger resize of form v1 again, where no admission policy is installed",
    GAP,
    "the pod has the larger share again, as far as it fits on the card",
    reference="scheduler.grantKey.acceptForms=[v3] ends it",
)
async def test_a_replayed_resize(node: agents.Node) -> Result:
    async with node.running() as agent:
        made = node.pod("p", main=[PART])
        allocation_id = await node.run_pod(agent, made, "main", "id-0")
        node.resize(made, [(CARD, 9000, 30)])
        await until(lambda: given(node, allocation_id) == 5000)
        kept = node.says(made)
        node.resize(made, [PART])
        await until(lambda: given(node, allocation_id) == 0)
        node.change(
            made, {k: kept[k] for k in (annotation_keys.RESIZE, annotation_keys.RESIZE_MAC)}
        )
        await node.seen(agent)
        await agent.resizer.apply(agents.uid(made))
        return Result(given(node, allocation_id), BEYOND)


@attack(
    "finished-but-running",
    "marks its pod as finished while its processes go on",
    NO_GAIN,
    "a share is kept while a process of its container lives, by a lock of the kernel",
)
async def test_a_finished_pod_that_runs_on(
    node: agents.Node, monkeypatch: pytest.MonkeyPatch
) -> Result:
    monkeypatch.setattr("hami.agent.reconciler._PATIENCE", 0.0)
    async with node.running() as agent:
        all_of_it = (CARD, 30_000, 0)
        old = node.pod("old", main=[all_of_it])
        allocation_id = await node.run_pod(agent, old, "main", "id-old")
        new = node.pod("new", main=[all_of_it])
        await node.allocate(agent, new, "main", "id-new")
        with agents.living(node.layout.state(allocation_id)):
            node.change(old, phase="Succeeded")
            await node.seen(agent)
            with contextlib.suppress(RefusalError):
                await agent.reconciler.admit(
                    agents.uid(new),
                    lambda _: agent.grants.record_of(agents.decoded(new), now=1.0),
                    patience=0,
                )
            return Result(len(node.ledger()) - 1, "pods that share what only one fits on")


# The scheduler, where no policy is installed.


def overbooked(api: ScriptedApi) -> int:
    """Return the MiB that bound pods were granted beyond the 8000 of the only card."""
    grants = [
        (each["metadata"].get("annotations") or {}).get(DEVICES, "")
        for each in api.objects("pods")
        if each["spec"].get("nodeName")
    ]
    return sum(int(text.split(",")[2]) for text in grants if text) - WHOLE


@attack(
    "given-up",
    "writes that kube-scheduler gave a pod up, whose cards are reserved, so that they are free",
    NO_GAIN,
    "a bind is checked against the cards again, whatever became of the reservation",
)
async def test_a_forged_condition(times: Times, keys: Path) -> Result:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, keys=keys, clock=times.clock, now=times.now) as replica:
            first = api.put(rig.pod("first", memory=WHOLE))
            assert (await replica.filter(first))["NodeNames"] == ["a"]
            first["status"]["conditions"] = [condition("forged")]
            api.put(first)
            await replica.seen()
            assert await bound(replica, rig.pod("second", memory=WHOLE)) == ""
            assert await replica.bind(first, "a") != ""
            return Result(overbooked(api), OVERBOOKED)


@attack(
    "grant-stripped",
    "removes the grant of a running pod, so that its cards look free to the scheduler",
    NO_GAIN,
    "the scheduler keeps what it has signed; one that starts counts what the pod asks for",
)
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_stripped_grant(keys: Path, *, restarted: bool) -> Result:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, keys=keys) as replica:
            assert await bound(replica, rig.pod("p", memory=WHOLE)) == ""
            strip(api)
            await replica.seen()
            if not restarted:
                return await taken_again(replica)
        async with rig.running(api, keys=keys) as replica:
            return await taken_again(replica)


def strip(api: ScriptedApi) -> None:
    stored = api.find("pods", "p")
    assert stored is not None
    stored["metadata"]["annotations"] = {}
    api.put(stored)


async def taken_again(replica: rig.Replica) -> Result:
    other = replica.api.put(rig.pod("other", memory=1000))
    answer = await replica.filter(other)
    taken = 1000 if answer["NodeNames"] else 0
    return Result(taken, "MiB of a full card that are offered again, by /filter")


@attack(
    "listed-cards",
    "lists all cards of a node on a pod of its own that no scheduler has placed",
    NO_GAIN,
    "what a pod lists counts only as long as a reservation would",
)
async def test_cards_that_a_pod_lists_itself(times: Times, keys: Path) -> Result:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, keys=keys, clock=times.clock, now=times.now) as replica:
            squatter = rig.pod("squatter", memory=1)
            squatter["metadata"]["annotations"] = {
                annotation_keys.ASSIGNED_NODE: "a",
                annotation_keys.ASSIGNED_TIME: str(int(times.wall)),
                DEVICES: f"a-0,NVIDIA,{WHOLE},100:;",
            }
            api.put(squatter)
            await replica.seen()
            times.pass_by(replica.scheduler.settings.reservation_timeout + 1)
            replica.scheduler.watched.end_expired()
            return Result(sum(replica.used("a")), "MiB that stay taken, by the scheduler's table")


@attack(
    "kept-by-finalizer",
    "keeps a finished pod by a finalizer, so that its cards stay taken",
    NO_GAIN,
    "a pod that has ended holds no card, however long its object stays",
)
async def test_a_finalizer(keys: Path) -> Result:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, keys=keys) as replica:
            assert await bound(replica, rig.pod("p", memory=WHOLE)) == ""
            stored = api.find("pods", "p")
            assert stored is not None
            stored["metadata"] |= {
                "finalizers": ["x/y"],
                "deletionTimestamp": "2026-01-01T00:00:00Z",
            }
            stored["status"]["phase"] = "Failed"
            api.put(stored)
            await replica.seen()
            return Result(sum(replica.used("a")), "MiB that stay taken, by the scheduler's table")


@attack(
    "long-grace",
    "deletes its pod with a grace of days, so that its cards look free while it runs on",
    NO_GAIN,
    "a pod that is being deleted holds its cards until it has ended",
)
async def test_a_long_grace(keys: Path) -> Result:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, keys=keys) as replica:
            assert await bound(replica, rig.pod("p", memory=WHOLE)) == ""
            stored = api.find("pods", "p")
            assert stored is not None
            # With a finalizer the scripted API keeps it, as a kubelet would.
            stored["metadata"] |= {
                "finalizers": ["x/y"],
                "deletionTimestamp": "2027-01-01T00:00:00Z",
            }
            api.put(stored)
            await replica.seen()
            return await taken_again(replica)


@attack(
    "large-explanation",
    "writes 250 KiB where the scheduler keeps its explanation",
    NO_GAIN,
    "no decision reads the note",
)
async def test_a_large_explanation(keys: Path) -> Result:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, keys=keys) as replica:
            noisy = rig.pod("noisy", memory=1000)
            text = os.urandom(125 * 1024).hex()
            noisy["metadata"]["annotations"] = {annotation_keys.EXPLANATION: text}
            api.put(noisy)
            await replica.seen()
            assert await bound(replica, rig.pod("p", memory=WHOLE)) == ""
            return Result(sum(replica.used("a")) - WHOLE, OVERBOOKED)


@attack(
    "unreadable-grant",
    "makes the grant of its running pod unreadable, so that its card is closed for others",
    NO_GAIN,
    "a list without a valid signature closes no card",
)
async def test_an_unreadable_grant(keys: Path) -> Result:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        squatter = rig.pod("squatter", memory=1)
        squatter["spec"]["nodeName"] = "a"
        lists = f"a-0,{NVIDIA.name},much,0:a-1,{NVIDIA.name},much,0:;"
        squatter["metadata"]["annotations"] = {DEVICES: lists, MAC: "v1:0:forged"}
        api.put(squatter)
        async with rig.running(api, keys=keys) as replica:
            answer = await replica.filter(api.put(rig.pod("p", memory=7000, gpu=2)))
            closed = 0 if answer["NodeNames"] else 2
            return Result(closed, "cards that are closed to others, by /filter")
