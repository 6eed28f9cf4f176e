"""Properties of every pod: a second pass and other fields change nothing."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami.admission import mig_fallback
from hami.wire import annotation_keys
from tests.builders import GPU
from tests.unit.admission import desk, pod_documents, pods
from tests.unit.admission.desk import Desk
from tests.unit.admission.pods import MIG, Answer, Document, Door

NODES = {
    "a": {GPU: "10", f"{MIG}1g.10gb": "3"},
    "b": {f"{MIG}3g.40gb": "1", f"{MIG}2g.20gb": "2", GPU: "0"},
}


def busy(door: Door) -> Door:
    """Have some pods take, or wait for, a part of what there is."""
    holding = {"u": ("a", pods.container(mig={"1g.10gb": 2}, gpu=8)), "v": ("b", pods.container())}
    waiting = {"w": (None, pods.container(mig={"2g.20gb": 1}))}
    for uid, (node, container) in (holding | waiting).items():
        door.mig_offer.set_pod(uid, pods.read(pods.pod(container, nodeName=node)))
    return door


ALL = frozenset("*")
EVERYTHING = {"overwrite_env": True, "gpu_core_policy": "force", "runtime_class_name": "nvidia"}
DOORS = {
    "as shipped": Door(nodes=NODES),
    "no MIG": Door(nodes={"a": {GPU: "10"}}, high_priority_namespaces=ALL),
    "no GPU": Door(nodes={}),
    "whole cards": Door(nodes={"a": {GPU: "10"}}, end="whole", high_priority_namespaces=ALL),
    "every setting": Door(nodes=NODES, nvidia=EVERYTHING, high_priority_namespaces=ALL),
    "available": busy(Door(nodes=NODES, mode="available", high_priority_namespaces=ALL)),
    "alone": Door.alone(nodes=NODES),
    "alone, available": busy(Door.alone(nodes=NODES, mode="available")),
    "no take-over": Door(nodes=NODES, force_overwrite_default_scheduler=False),
}
GENERATED = pod_documents.valid_pods() | pod_documents.written_pods()

_NAME = r"[^/]+"
_REMOVED = "|".join(key.replace("/", "~1") for key in pod_documents.REMOVED_ANNOTATIONS)
MAY_CHANGE = re.compile(
    rf"/metadata/annotations(/gpu-webhook\.k8s\.io~1fallback|/({_REMOVED}))?"
    rf"|/metadata/labels/hami\.io~1vgpu-node"
    rf"|/spec/(schedulerName|runtimeClassName|nodeName)"
    rf"|/spec/(containers|initContainers)/\d+/resources/(limits|requests)(/nvidia\.com~1{_NAME})?"
    rf"|/spec/(containers|initContainers)/\d+/env(/(\d+|-))?"
)
OUR_VARIABLES = {"CUDA_TASK_PRIORITY", "GPU_CORE_UTILIZATION_POLICY", "NVIDIA_VISIBLE_DEVICES"}
each_door = pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
few = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])


def without_ours(document: Document) -> Document:
    """Return what is left of a pod without anything that admission may write."""
    rest: Document = json.loads(json.dumps(document))
    for key in (annotation_keys.FALLBACK, *pod_documents.REMOVED_ANNOTATIONS):
        rest["metadata"].get("annotations", {}).pop(key, None)
    rest["metadata"].get("labels", {}).pop(annotation_keys.ASSIGNED_NODE, None)
    for key in ("schedulerName", "runtimeClassName", "nodeName"):
        rest["spec"].pop(key, None)
    for each in containers(rest):
        each["env"] = [var for var in each.get("env", []) if var["name"] not in OUR_VARIABLES]
        for part in ("limits", "requests"):
            amounts = each["resources"].pop(part, {})
            left = {name: n for name, n in amounts.items() if not name.startswith("nvidia.com/")}
            each["resources"] |= {part: left} if left else {}
    if not rest["metadata"].get("annotations"):
        rest["metadata"].pop("annotations", None)
    return rest


def containers(document: Document) -> list[Document]:
    spec = document["spec"]
    found: list[Document] = [*spec["containers"], *spec.get("initContainers", ())]
    return found


def devices(container: Document) -> int:
    """Return how many cards and instances a container asks for."""
    resources = container["resources"]
    amounts = {**resources.get("requests", {}), **resources.get("limits", {})}
    return sum(int(n) for name, n in amounts.items() if name == GPU or name.startswith(MIG))


def check_the_patch(document: Document, answer: Answer) -> None:
    paths = answer.paths
    assert [path for path in paths if not MAY_CHANGE.fullmatch(path)] == []
    places = [path for path in paths if not path.endswith("/-")]
    assert len(set(places)) == len(places)
    assert without_ours(answer.pod) == without_ours(document)


@each_door
@few
@given(document=GENERATED)
def test_a_patch_can_be_applied_touches_only_what_is_ours_and_is_the_last_one(
    door: Door, document: Document
) -> None:
    answer = door.send(document)  # applies it, and asks again
    if answer.allowed:
        check_the_patch(document, answer)
    else:
        assert answer.patch == []
        assert answer.message


@each_door
@few
@given(document=pod_documents.valid_pods())
def test_what_was_valid_stays_valid_for_the_api_server(door: Door, document: Document) -> None:
    """Extended resources must be limited and requested by the same whole number."""
    answer = door.send(document)
    for container in containers(pods.defaulted(answer.pod)):
        resources = container["resources"]
        limits, requests = resources.get("limits", {}), resources.get("requests", {})
        extended = {name for name in {*limits, *requests} if "/" in name}
        assert {n: limits.get(n) for n in extended} == {n: requests.get(n) for n in extended}


@each_door
@few
@given(document=GENERATED)
def test_pods_with_cards_are_placed_by_us_and_no_others(door: Door, document: Document) -> None:
    rules = door.context.rules
    answer = door.send(document)
    before = document["spec"].get("schedulerName", "default-scheduler")
    after = answer.pod["spec"].get("schedulerName", "default-scheduler")
    if not answer.allowed or not rules.scheduler_name or answer.message:
        assert after == before
        return
    asked = [container["resources"] for container in containers(answer.pod)]
    limits = [resources.get("limits", {}).get(GPU, "0") for resources in asked]
    assert (after == "hami-scheduler") is (before == "hami-scheduler" or set(limits) != {"0"})


@pytest.mark.parametrize("name", ["alone", "alone, available"])
@few
@given(document=GENERATED)
def test_the_fallback_gives_as_many_as_were_asked_for_and_only_what_exists(
    name: str, document: Document
) -> None:
    door, known = DOORS[name], mig_fallback.built_in().profiles
    answer = door.send(document)
    for before, after in zip(containers(document), containers(answer.pod), strict=True):
        assert devices(after) == devices(before)
        for part in after["resources"].values() if answer.allowed else ():
            for resource, number in part.items():
                if resource.removeprefix(MIG) in known and number != "0":
                    assert door.mig_offer.exists(resource)


@few
@given(document=GENERATED)
def test_a_pod_without_gpu_or_forged_grant_is_never_touched(document: Document) -> None:
    annotations = document["metadata"].get("annotations", {})
    for key in pod_documents.REMOVED_ANNOTATIONS:
        annotations.pop(key, None)
    document["metadata"].get("labels", {}).pop(annotation_keys.ASSIGNED_NODE, None)
    for container in containers(document):
        container["resources"] = {"limits": {"cpu": "1", "amd.com/gpu": "1"}}
    for name, door in DOORS.items():
        answer = door.send(document)
        assert answer.allowed
        assert name == "every setting" or answer.patch == []


def ask(question: Document) -> Document:
    return asyncio.run(DESK.ask(question))


DESK = Desk(DOORS["every setting"])


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(question=pod_documents.reviews(GENERATED))
def test_every_review_is_answered_in_its_version_with_a_patch_that_applies(
    question: Document,
) -> None:
    reply = ask(question)
    pod = question["request"]["object"]
    through = desk.patched(pod, reply)
    assert through["status"] == {}
    assert reply["status"]["code"] == (200 if reply["allowed"] else reply["status"]["code"])
    if not reply["allowed"]:
        assert through == pod
        assert reply["status"]["message"]
        assert reply["status"]["code"] in (403, 422)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(question=pod_documents.reviews(pod_documents.hostile_pods()))
def test_no_pod_is_so_broken_that_it_is_not_answered(question: Document) -> None:
    reply = ask(question)
    pod = question["request"]["object"]
    if reply["allowed"] and isinstance(pod.get("metadata"), dict):
        again = {**question["request"], "object": desk.patched(pod, reply)}
        assert "patch" not in ask({**question, "request": again})
    if not reply["allowed"]:
        assert len(reply["status"]["message"]) < 20_000


_SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
_KEYS = ("metadata", "spec", "containers", "initContainers", "resources", "limits", "env", GPU)
_ANYTHING = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=200)
@given(pod=_ANYTHING)
def test_whatever_is_called_a_pod_is_answered(pod: Any) -> None:
    reply = ask(desk.review(pod))
    assert reply["allowed"] is False or isinstance(pod, dict)
