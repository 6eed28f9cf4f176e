"""In which order a pod is judged, and whose pods are none of our business."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hami.cluster.quota import Headroom
from hami.wire import annotation_keys
from tests.builders import MEMORY
from tests.unit.admission import pods
from tests.unit.admission.pods import Document, Door

OURS = "hami-scheduler"


def first(document: Document) -> Document:
    """Return the container that has all the faults."""
    found: Document = document["spec"]["initContainers"][0]
    return found


def set_limit(document: Document, resource: str, amount: str) -> None:
    first(document)["resources"]["limits"][resource] = amount


def mirror_pod(document: Document) -> None:
    document["metadata"].setdefault("annotations", {})[annotation_keys.MIRROR] = "hash"
    document["spec"]["nodeName"] = "a"


def no_containers(document: Document) -> None:
    document["spec"]["containers"] = []


def foreign(document: Document) -> None:
    document["spec"]["schedulerName"] = "volcano"


def missing_profile(document: Document) -> None:
    set_limit(document, f"{pods.MIG}3g.40gb", "1")


def unreadable(document: Document) -> None:
    set_limit(document, MEMORY, "1.5")


def privileged(document: Document) -> None:
    first(document)["securityContext"] = {"privileged": True}


def on_a_node(document: Document) -> None:
    document["spec"]["nodeName"] = "a"


def high_priority(document: Document) -> None:
    set_limit(document, pods.PRIORITY, "0")


def other_library(document: Document) -> None:
    first(document)["volumeMounts"] = [{"name": "v", "mountPath": "/etc/ld.so.preload"}]


# In this order.
FAULTS: dict[Callable[[Document], None], tuple[int, str]] = {
    mirror_pod: (200, "mirror pod"),
    no_containers: (403, "pod has no containers"),
    foreign: (200, "pod already has different scheduler assigned"),
    missing_profile: (403, "the cluster has no GPU"),
    unreadable: (422, "'1.5' is not a whole number"),
    privileged: (403, "is privileged"),
    on_a_node: (403, "pod has node assigned"),
    high_priority: (403, "the highest priority"),
    other_library: (403, "volumeMount /etc/ld.so.preload"),
}


@pytest.mark.parametrize("earliest", range(len(FAULTS) + 1))
def test_of_several_faults_the_first_in_the_order_is_reported(earliest: int) -> None:
    door = Door(nodes={}, headroom=lambda _, __: Headroom(memory=0))
    document = pods.pod(pods.container("app"), init=[pods.container(gpu=1, memory=1000)])
    for fault in list(FAULTS)[earliest:]:
        fault(document)
    reply = [*FAULTS.values(), (403, "exceeding resource quota")]
    answer = door.send(document)
    code, message = reply[earliest]
    assert answer.allowed is (code == 200)
    assert answer.code == code
    assert message in answer.message
    assert answer.patch == []


@pytest.mark.parametrize("scheduler", [OURS, "default-scheduler", "", None])
def test_a_pod_with_cards_is_given_to_our_scheduler(scheduler: str | None) -> None:
    document = pods.pod(pods.container(gpu=1, memory=1000), schedulerName=scheduler)
    assert Door().passes(document)["spec"]["schedulerName"] == OURS


def test_a_pod_that_is_ours_already_is_left_as_it_is() -> None:
    document = pods.pod(pods.container(gpu=1, memory=1000), schedulerName=OURS)
    assert Door().leaves(document)


def test_a_pod_of_another_scheduler_is_left_as_it_is() -> None:
    document = pods.pod(pods.container(gpu=1, mig={"9": 1}), schedulerName="volcano")
    answer = Door(nodes={}).send(document)
    assert (answer.allowed, answer.patch) == (True, [])
    assert answer.message == "pod already has different scheduler assigned"


def test_pods_that_name_the_default_scheduler_can_be_left_to_it() -> None:
    door = Door(force_overwrite_default_scheduler=False)
    assert door.leaves(pods.pod(pods.container(gpu=1)))
    unnamed = pods.pod(pods.container(gpu=1), schedulerName="")
    assert door.passes(unnamed)["spec"]["schedulerName"] == OURS


def test_the_schedulers_name_is_configuration() -> None:
    door = Door(scheduler_name="other")
    document = pods.pod(pods.container(gpu=1))
    assert door.passes(document)["spec"]["schedulerName"] == "other"
    document["spec"]["schedulerName"] = OURS
    assert door.leaves(document)


@pytest.mark.parametrize(
    "container",
    [
        pods.container(),
        pods.container(gpu=0),
        pods.container(gpu=0, memory=1000),
        pods.container(gpu=0, parts=["requests"]),
        pods.container(priority=0),
        {"name": "main"},
        {"name": "main", "resources": None},
        {"name": "main", "resources": {"limits": {"amd.com/gpu": "1", "cpu": "2"}}},
        pods.container(privileged=True, env={"NVIDIA_VISIBLE_DEVICES": "all"}),
        pods.container(mounts=["/etc/ld.so.preload"]),
    ],
    ids=str,
)
def test_a_pod_that_asks_for_no_card_is_left_as_it_is(container: Document) -> None:
    document = pods.pod(container, nodeName="a")
    answer = Door().send(document)
    assert (answer.allowed, answer.message, answer.patch) == (True, "", [])


def test_a_mirror_pod_is_left_as_it_is_whatever_it_asks_for() -> None:
    document = pods.pod(
        pods.container(gpu=1, privileged=True),
        annotations={annotation_keys.MIRROR: "hash"},
        nodeName="a",
    )
    answer = Door().send(document)
    assert (answer.allowed, answer.patch) == (True, [])
    assert "mirror pod" in answer.message


def test_a_grant_is_not_smuggled_in_as_a_mirror_pod() -> None:
    document = pods.pod(
        pods.container(gpu=1),
        annotations={annotation_keys.MIRROR: "hash", annotation_keys.ASSIGNED_NODE: "a"},
        nodeName="a",
    )
    answer = Door().send(document)
    assert answer.pod["metadata"]["annotations"] == {annotation_keys.MIRROR: "hash"}
    assert "mirror pod" in answer.message


def test_a_pod_without_a_node_is_no_mirror_pod() -> None:
    document = pods.pod(
        pods.container(gpu=1, privileged=True), annotations={annotation_keys.MIRROR: "hash"}
    )
    assert "is privileged" in Door().refuses(document)


@pytest.mark.parametrize("spec", [None, {}, {"containers": None}, {"containers": []}])
def test_a_pod_without_containers_is_refused(spec: Document | None) -> None:
    message = Door().refuses({"metadata": {"name": "p"}, "spec": spec})
    assert message == "pod has no containers: add at least one to spec.containers"


def test_cards_of_any_container_make_the_pod_ours() -> None:
    for init in (
        pods.container("first", gpu=1, cores=10),
        pods.container("first", gpu=1, cores=10, restart="Always"),
    ):
        document = pods.pod(pods.container(), init=[init])
        assert Door().passes(document)["spec"]["schedulerName"] == OURS


def test_resources_go_by_their_configured_names() -> None:
    door = Door(vendor=pods.renamed(count="acme.io/vgpu", cores="acme.io/cores"))
    document = pods.pod(pods.container(gpu=1))
    assert door.leaves(document)
    document["spec"]["containers"][0]["resources"] = {"limits": {"acme.io/vgpu": "1"}}
    assert pods.limits(door.passes(document)) == {"acme.io/vgpu": "1", "acme.io/cores": "100"}
