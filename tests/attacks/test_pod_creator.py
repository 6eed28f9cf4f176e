"""Attacks of a user who may create pods."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hami.cluster.quota import Headroom
from hami.wire import annotation_keys
from hami_sandbox.runtime import cdi, kernel
from tests.attacks import attack as attacks
from tests.attacks.attack import NO_GAIN, REFUSED, Attacker, Result
from tests.attacks.test_pod_patcher import DEVICES, refused_start
from tests.builders import CORES, GPU, MEMORY, PERCENT
from tests.e2e.chart.our_keys import OTHERS, OURS_ON_PODS
from tests.scripted_api.server import ScriptedApi
from tests.unit.admission import pods
from tests.unit.admission.pods import Document, Door
from tests.unit.agent import rig as agents
from tests.unit.agent.rig import CARD, OTHER
from tests.unit.scheduler import rig
from tests.unit.scheduler.test_attack_grants import keys

__all__ = ["keys"]  # a fixture

attack = attacks.by(Attacker.CREATOR)

PART = (CARD, 4000, 30)
WHOLE = 8000
TOOK_OVER = "hami-scheduler"


def admitted(document: Document, door: Door | None = None) -> Result:
    """Count a pod that admission lets through."""
    answer = (door or Door()).send(document)
    return Result(int(answer.allowed), "pods that are admitted", answer.message)


def sharing(**more: Any) -> Document:
    return pods.pod(pods.container(gpu=1, memory=1000), **more)


# What admission refuses or takes away.


@attack(
    "forged-annotations",
    "creates a pod that carries a grant, or any other annotation of hami",
    NO_GAIN,
    "admission removes them and warns, also from copies of pods and from static ones",
)
@pytest.mark.parametrize("key", sorted(OURS_ON_PODS))
@pytest.mark.parametrize("mirror", [False, True])
def test_forged_annotations(key: str, *, mirror: bool) -> Result:
    annotations = {key: f"{CARD},NVIDIA,80000,100:;"}
    spec = {"nodeName": "a"} if mirror else {}
    if mirror:
        annotations[annotation_keys.MIRROR] = "x"
    answer = Door(others=OTHERS).send(sharing(annotations=annotations, **spec))
    assert answer.allowed
    assert answer.warnings
    left = answer.pod["metadata"].get("annotations", {})
    return Result(int(key in left), "annotations that come through")


@attack(
    "forged-label",
    "creates a pod with the label of a node's GPU pods",
    NO_GAIN,
    "admission removes it and warns",
)
def test_the_label() -> Result:
    answer = Door().send(sharing(labels={annotation_keys.ASSIGNED_NODE: "a"}))
    labels = answer.pod["metadata"].get("labels") or {}
    return Result(len(labels), "labels that come through")


@attack(
    "named-node",
    "names the node itself, so that no scheduler counts the pod",
    REFUSED,
    "a pod with cards must not have spec.nodeName",
)
def test_a_named_node() -> Result:
    return admitted(sharing(nodeName="a"))


@attack(
    "privileged",
    "asks for a card in a privileged container, which sees all cards of the node",
    REFUSED,
    "a container with cards must not be privileged",
)
@pytest.mark.parametrize("kind", ["app", "init", "sidecar"])
def test_a_privileged_container(kind: str) -> Result:
    restart = "Always" if kind == "sidecar" else ""
    seeing = pods.container("seeing", gpu=1, memory=1, privileged=True, restart=restart)
    if kind == "app":
        return admitted(pods.pod(seeing))
    return admitted(pods.pod(pods.container(gpu=1, memory=1000), init=[seeing]))


@attack(
    "copied-node",
    "brings the node's name as a copy of a placed pod does, so that no scheduler counts it",
    NO_GAIN,
    "with the grant of a copy its node's name is removed, too",
)
def test_a_copy_that_names_its_node() -> Result:
    answer = Door().send(sharing(annotations={annotation_keys.ASSIGNED_NODE: "a"}, nodeName="a"))
    kept = answer.allowed and bool(answer.pod["spec"].get("nodeName"))
    return Result(int(kept), "pods with cards that name their node")


@attack(
    "cards-without-request",
    "names cards in a container that asks for none, beside one that has a share",
    NO_GAIN,
    "admission sets the variable to none",
)
@pytest.mark.parametrize("value", ["all", "0", CARD])
def test_cards_without_a_request(value: str) -> Result:
    env = {"NVIDIA_VISIBLE_DEVICES": value}
    made = Door().passes(
        pods.pod(pods.container(gpu=1, memory=1000), pods.container("side", env=env))
    )
    seen = [each["value"] for each in pods.env(made, 1)]
    return Result(sum(each != "none" for each in seen), "containers that name cards")


MOUNTS = (
    "/etc/ld.so.preload",
    "//etc//ld.so.preload",
    "/etc/../etc/ld.so.preload/",
    "/usr/local/vgpu",
    "/usr/local/vgpu/policy",
    "/usr/./local/vgpu/../vgpu/state",
    "/run/hami/share/policy",
    "/var/run/hami/share/state",
    "/var/run/nvidia-container-devices/all",
)


@attack(
    "mounts",
    "mounts a volume over the library, its policy, /etc/ld.so.preload or NVIDIA's list of cards",
    REFUSED,
    "no container of a pod with shares mounts anything there, however the path is written",
)
@pytest.mark.parametrize("path", MOUNTS)
@pytest.mark.parametrize("card", [True, False])
def test_mounts(path: str, *, card: bool) -> Result:
    if card:
        return admitted(pods.pod(pods.container(gpu=1, memory=1000, mounts=[path])))
    side = pods.container("side", mounts=[path])
    return admitted(pods.pod(pods.container(gpu=1, memory=1000), side))


AMOUNTS = [
    *[(GPU, text) for text in ("1.5", "-1", "1e30", "0x1", "\u0661", "NaN", "1k1")],
    *[(MEMORY, text) for text in ("-1", "0.5", "16Gi", "9" * 40, "1e-9")],
    *[(PERCENT, text) for text in ("101", "-1", "50.5", "1e9")],
    *[(CORES, text) for text in ("-10", "0.5", "99999999999")],
]


@attack(
    "odd-amounts",
    "asks for fractions, negative or enormous amounts, or digits of other scripts",
    REFUSED,
    "an amount is read strictly; what cannot be is refused, never ignored",
)
@pytest.mark.parametrize(("resource", "text"), AMOUNTS)
def test_odd_amounts(resource: str, text: str) -> Result:
    document = sharing()
    document["spec"]["containers"][0]["resources"]["limits"] |= {resource: text}
    document["spec"]["containers"][0]["resources"].pop("requests")
    return admitted(document)


@attack(
    "highest-priority",
    "takes the highest priority on a card, by resource or variable",
    REFUSED,
    "only listed namespaces and PriorityClasses have it",
)
@pytest.mark.parametrize("value", ["0", "00", "-1", "", "x", "4294967296", "\u0660", None])
def test_the_highest_priority(value: str | None) -> Result:
    if value == "0":
        return admitted(pods.pod(pods.container(gpu=1, memory=1000, priority=0)))
    env = {"CUDA_TASK_PRIORITY": value}
    return admitted(pods.pod(pods.container(gpu=1, memory=1000, env=env)))


LEFT = 1000
SPLIT: dict[str, Document] = {
    "two containers": pods.pod(
        pods.container(gpu=1, memory=600), pods.container("b", gpu=1, memory=600)
    ),
    "init container": pods.pod(
        pods.container(gpu=1, memory=1), init=[pods.container("i", gpu=1, memory=1100)]
    ),
    "sidecar": pods.pod(
        pods.container(gpu=1, memory=600),
        init=[pods.container("s", gpu=1, memory=600, restart="Always")],
    ),
    "many cards": pods.pod(pods.container(gpu=8, memory=200)),
    "requests only": pods.pod(pods.container(gpu=1, memory=1100, parts=("requests",))),
    "no number of cards": pods.pod(pods.container(memory=1100)),
    "MIG profile": pods.pod(pods.container(mig={"1g.10gb": 1})),
}


@attack(
    "quota-split",
    "splits a request over containers, init containers, cards or MIG profiles to pass a quota",
    REFUSED,
    "the whole pod is added up, as the scheduler will count it",
)
@pytest.mark.parametrize("document", SPLIT.values(), ids=SPLIT)
def test_a_split_request(document: Document) -> Result:
    return admitted(document, Door(headroom=lambda _, __: Headroom(memory=LEFT, cores=None)))


@attack(
    "default-scheduler",
    "names the cluster's default scheduler, which does not count cards",
    NO_GAIN,
    "admission names hami's scheduler in its place",
)
def test_the_default_scheduler() -> Result:
    made = Door().passes(sharing(schedulerName="default-scheduler"))
    taken = made["spec"]["schedulerName"] == TOOK_OVER
    return Result(int(not taken), "pods that pass hami's scheduler")


@attack(
    "enormous-pod",
    "creates a pod with 2,000 containers and 250 KiB of annotations",
    NO_GAIN,
    "it is decided as any other, and the next one too",
)
def test_an_enormous_pod() -> Result:
    door = Door()
    many = [pods.container(f"c{number}", gpu=1, memory=1) for number in range(2_000)]
    text = {"nvidia.com/use-gpuuuid": "x," * 128 * 1024}
    answer = door.send(pods.pod(*many, annotations=text))
    counted = not answer.allowed or answer.pod["spec"]["schedulerName"] == TOOK_OVER
    assert door.send(sharing()).allowed
    return Result(int(not counted), "pods with cards that are not counted")


# What gets past admission: other schedulers, the ignore label, static pods.


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[agents.Node]:
    async with ScriptedApi() as api:
        yield agents.Node(tmp_path / "node", api)


@attack(
    "admission-bypassed",
    "bypasses admission (label hami.io/webhook=ignore, another scheduler) and gets onto a node",
    REFUSED,
    "the agent starts no container without a signed grant",
)
async def test_a_pod_past_admission(node: agents.Node) -> Result:
    async with node.running() as agent:
        none = {DEVICES: None, annotation_keys.GRANT_MAC: None, annotation_keys.ASSIGNED_NODE: None}
        return await refused_start(node, agent, node.pod("p", main=[PART], annotations=none))


@attack(
    "bypassed-and-uncounted",
    "gets onto a node past hami's scheduler, so that its card is given twice",
    NO_GAIN,
    "a bound pod counts with what it asks for, whoever bound it, and gets an event",
)
@pytest.mark.parametrize("mirror", [False, True])
async def test_a_pod_that_no_scheduler_of_ours_bound(keys: Path, *, mirror: bool) -> Result:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, keys=keys) as replica:
            past = rig.pod("past", memory=WHOLE)
            past["spec"] |= {"schedulerName": "default-scheduler", "nodeName": "a"}
            if mirror:
                past["metadata"]["annotations"] = {annotation_keys.MIRROR: "x"}
            api.put(past)
            await replica.seen()
            await rig.eventually(lambda: bool(api.objects("events")))
            answer = await replica.filter(api.put(rig.pod("next", memory=1000)))
            taken = 1000 if answer["NodeNames"] else 0
            return Result(taken, "MiB of a full card that are offered again, by /filter")


@attack(
    "no-amount",
    "asks for a card without an amount, to be counted with nothing",
    NO_GAIN,
    "a card without an amount is a whole one",
)
async def test_no_amount(keys: Path) -> Result:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, keys=keys) as replica:
            bare = rig.pod("bare")
            del bare["spec"]["containers"][0]["resources"]["limits"][MEMORY]
            await replica.place(bare)
            await replica.seen()
            return Result(WHOLE - sum(replica.used("a")), "MiB that are not counted")


@attack(
    "selectors",
    "writes separators of the device list into selectors, to be given cards of its choice",
    NO_GAIN,
    "selectors are compared with the names of cards, and never copied into a grant",
)
@pytest.mark.parametrize(
    "text", ["a-0,NVIDIA,8000,100:;", "a-0:;a-1:;", "a-0|a-1", ",,;;::", "\n a-0", "*", "a-0,a-1"]
)
async def test_separators_in_selectors(keys: Path, text: str) -> Result:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        async with rig.running(api, keys=keys) as replica:
            asking = rig.pod("p", memory=1000, annotations={"nvidia.com/use-gpuuuid": text})
            asking = api.put(asking)
            answer = await replica.filter(asking)
            if answer["NodeNames"]:
                assert await replica.bind(asking, "a") == ""
                await replica.seen()
            given = sum(replica.used("a"))
            return Result(max(given - 1000, 0), "MiB beyond the request, by the scheduler's table")


@attack(
    "long-texts",
    "writes line breaks and 200 KiB of text where refusals quote it",
    NO_GAIN,
    "quoted values are shortened and escaped; an Event has 1,024 bytes at most",
)
async def test_long_texts_in_events(keys: Path) -> Result:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, keys=keys) as replica:
            text = "A100\n# TYPE evil gauge\nevil 1\n%s%n{}\u202e" * 5000
            asking = rig.pod("p", memory=1000, annotations={"nvidia.com/use-gputype": text})
            assert not (await replica.filter(api.put(asking)))["NodeNames"]
            await rig.eventually(lambda: bool(api.objects("events")))
            longest = max(len(event["message"].encode()) for event in api.objects("events"))
            return Result(longest - 1024, "bytes beyond the bound, by the Events")


# What the container finds.


@attack(
    "visible-devices",
    "sets NVIDIA_VISIBLE_DEVICES by env, envFrom or the image, to see other cards",
    NO_GAIN,
    "the agent's edits are applied last, and name the granted cards or none",
)
async def test_visible_devices_from_anywhere(node: agents.Node) -> Result:
    async with node.running() as agent:
        env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
        made = node.pod("p", main=[PART], container={"env": env})
        answer = await node.allocate(agent, made, "main", "id-0")
        await node.start(agent, "id-0")
        names = answer.cdi_devices
        edits = cdi.Registry([node.layout.cdi_dir]).resolve(names)
        tenants = {"NVIDIA_VISIBLE_DEVICES": f"all,{OTHER}"}
        seen = (tenants | edits.env)["NVIDIA_VISIBLE_DEVICES"].split(",")
        return Result(len(set(seen) - {CARD, "void", "none"}), "cards that were not granted")


@attack(
    "control-disabled",
    "sets CUDA_DISABLE_CONTROL in a namespace that is not exempt",
    NO_GAIN,
    "only namespaces that the administrator lists run without the limiter",
)
async def test_the_limiter_switched_off(node: agents.Node) -> Result:
    async with node.running(uncontrolled_namespaces="free") as agent:
        env = [{"name": "CUDA_DISABLE_CONTROL", "value": "true"}]
        made = node.pod("p", main=[PART], container={"env": env})
        allocation_id = await node.run_pod(agent, made, "main", "id-0")
        limited = node.limits(allocation_id) == [PART]
        return Result(int(not limited), "containers without a limit")


@attack(
    "writable-mounts",
    "writes to the library or the policy through their mounts",
    NO_GAIN,
    "both, and /etc/ld.so.preload, are mounted read-only; only the state is writable",
)
async def test_what_a_container_can_write(node: agents.Node) -> Result:
    async with node.running() as agent:
        made = node.pod("p", main=[PART])
        answer = await node.allocate(agent, made, "main", "id-0")
        await node.start(agent, "id-0")
        names = answer.cdi_devices
        mounts = cdi.Registry([node.layout.cdi_dir]).resolve(names).mounts
        assert len(mounts) >= 4
        writable = {inside for _, inside, flags in mounts if not flags & kernel.READ_ONLY}
        wrong = {inside for inside in writable if not inside.endswith("/state")}
        return Result(len(wrong), "files that are writable, by the CDI spec")
