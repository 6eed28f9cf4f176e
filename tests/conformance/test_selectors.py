"""Selectors of labels and of fields, in lists."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance.objects import bind, lease, names, pod, refused
from tests.kubeapi.client import Client, Object
from tests.kubeapi.paths import core, leases, nodes, pods

LABELS: dict[str, dict[str, str]] = {
    "a": {"tier": "front", "gpu": "yes", "hami.io/size": "1"},
    "b": {"tier": "back", "gpu": "yes", "hami.io/size": "10"},
    "c": {"tier": "back", "hami.io/size": ""},
    "d": {},
}


@pytest.fixture
def labelled(api: Client, namespace: str) -> None:
    for name, labels in LABELS.items():
        api.create(leases(namespace), lease(name, labels=labels))


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ("", "abcd"),
        ("tier=back", "bc"),
        ("tier==back", "bc"),
        ("tier!=back", "ad"),
        ("tier", "abc"),
        ("!tier", "d"),
        ("gpu,tier=back", "b"),
        ("tier in (front, back)", "abc"),
        ("tier in (front),gpu in (yes)", "a"),
        ("tier notin (front)", "bcd"),
        ("gpu notin (yes),tier", "c"),
        ("hami.io/size=", "c"),
        ("hami.io/size in (,1)", "ac"),
        ("hami.io/size>5", "b"),
        ("hami.io/size<5", "a"),
        ("other", ""),
    ],
)
def test_labels_select(
    api: Client, namespace: str, labelled: None, selector: str, selected: str
) -> None:
    assert names(api.get(leases(namespace), labelSelector=selector)) == list(selected)


@pytest.mark.parametrize("selector", ["a in (b", "=b", "a=b=c", "a gt 1", "a/b/c=d", "a=b,,c"])
def test_a_label_selector_that_makes_no_sense_is_a_bad_request(
    api: Client, namespace: str, selector: str
) -> None:
    with refused(400, "BadRequest"):
        api.get(leases(namespace), labelSelector=selector)


@pytest.fixture
def placed(api: Client, namespace: str, node: str) -> str:
    """Give the node of pods `run` (Running) and `wait` (Pending); `free` has none."""
    for name in ("run", "wait", "free"):
        api.create(pods(namespace), pod(name, labels={"n": name}))
    for name in ("run", "wait"):
        bind(api, namespace, name, node)
    api.patch(pods(namespace, "run", "status"), {"status": {"phase": "Running"}})
    return node


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ("spec.nodeName={node}", ["run", "wait"]),
        ("spec.nodeName=", ["free"]),
        ("spec.nodeName!=", ["run", "wait"]),
        ("status.phase=Running", ["run"]),
        ("status.phase!=Running", ["free", "wait"]),
        ("status.phase!=Running,spec.nodeName={node}", ["wait"]),
        ("metadata.name=free", ["free"]),
        ("metadata.name==free", ["free"]),
        ("metadata.name!=free", ["run", "wait"]),
        ("spec.schedulerName=nobody.conformance", ["free", "run", "wait"]),
        ("spec.schedulerName=default-scheduler", []),
        ("spec.restartPolicy=Always,metadata.name=run", ["run"]),
    ],
)
def test_fields_of_pods_select(
    api: Client, namespace: str, placed: str, selector: str, selected: list[str]
) -> None:
    asked = selector.format(node=placed)
    assert names(api.get(pods(namespace), fieldSelector=asked)) == selected


def test_fields_and_labels_select_together(api: Client, namespace: str, placed: str) -> None:
    both = {"fieldSelector": f"spec.nodeName={placed}", "labelSelector": "n in (free,wait)"}
    assert names(api.get(pods(namespace), **both)) == ["wait"]
    assert names(api.get(pods(), **both)) == ["wait"]


@pytest.mark.parametrize(
    "selector", ["spec.nodeNames=x", "metadata.labels.n=run", "spec.nodeName", "spec.nodeName>1"]
)
def test_an_unsupported_field_is_a_bad_request(api: Client, namespace: str, selector: str) -> None:
    with refused(400, "BadRequest"):
        api.get(pods(namespace), fieldSelector=selector)


def test_every_kind_selects_by_name_and_namespace_and_few_by_more(
    api: Client, namespace: str, labelled: None
) -> None:
    assert names(api.get(leases(namespace), fieldSelector="metadata.name=b")) == ["b"]
    both = f"metadata.namespace={namespace},metadata.name=c"
    assert names(api.get(leases(), fieldSelector=both)) == ["c"]
    with refused(400, "BadRequest"):
        api.get(leases(namespace), fieldSelector="spec.holderIdentity=nobody")


def test_nodes_select_by_name_and_by_schedulability(
    api: Client, make_node: Callable[..., Object]
) -> None:
    open_, closed = (make_node()["metadata"]["name"] for _ in range(2))
    api.patch(nodes(closed), {"spec": {"unschedulable": True}})
    by_name = api.get(nodes(), fieldSelector=f"metadata.name={open_}")
    assert names(by_name) == [open_]
    shut = names(api.get(nodes(), fieldSelector="spec.unschedulable=true"))
    assert closed in shut
    assert open_ not in shut


def test_events_select_by_the_object_they_are_about(api: Client, namespace: str) -> None:
    for name, about in (("e1", "p"), ("e2", "q")):
        api.create(
            core("events", namespace),
            {
                "metadata": {"name": name},
                "involvedObject": {"kind": "Pod", "namespace": namespace, "name": about},
                "reason": "Placed",
                "type": "Normal",
            },
        )
    query = "involvedObject.kind=Pod,involvedObject.name=q,reason=Placed,type=Normal"
    assert names(api.get(core("events", namespace), fieldSelector=query)) == ["e2"]


def test_a_selector_applies_to_one_object_by_name_only_in_lists(
    api: Client, namespace: str, labelled: None
) -> None:
    answer = api.get(leases(namespace, "a"), labelSelector="tier=back")
    assert answer["metadata"]["name"] == "a"
