"""Kubernetes objects: known fields read, null is empty, unknown ones skipped."""

from __future__ import annotations

import pytest

from hami.wire import codec, errors, objects


def pod(text: str) -> objects.Pod:
    return codec.decode(text, objects.Pod, what="pod")


NULLS = {
    "nothing": "{}",
    "null parts": '{"metadata":null,"spec":null,"status":null}',
    "null fields": (
        '{"metadata":{"name":null,"namespace":null,"uid":null,"annotations":null,"labels":null},'
        '"spec":{"nodeName":null,"containers":null,"initContainers":null,"schedulingGroup":null},'
        '"status":{"phase":null,"initContainerStatuses":null}}'
    ),
}


@pytest.mark.parametrize("text", NULLS.values(), ids=NULLS)
def test_missing_and_null_parts_of_a_pod_are_empty(text: str) -> None:
    read = pod(text)
    assert (read.name, read.namespace, read.uid, read.node_name, read.phase) == ("",) * 5
    assert (dict(read.annotations), dict(read.labels), list(read.containers())) == ({}, {}, [])
    assert (read.pod_group, read.finished, read.init_done) == ("", False, False)


def test_an_annotation_that_is_missing_null_or_unnamed_is_empty() -> None:
    read = pod('{"metadata":{"annotations":{"a":"1","b":null}}}')
    assert [read.annotation(key) for key in ("a", "b", "c", "", None)] == ["1", "", "", "", ""]


def test_init_containers_come_first_and_sidecars_are_marked() -> None:
    read = pod(
        '{"spec":{"containers":[{"name":"app"},null],'
        '"initContainers":[{"name":"prepare"},{"name":"log","restartPolicy":"Always"}]}}'
    )
    assert [(kind.name, container.name) for kind, container in read.containers()] == [
        ("INIT", "prepare"),
        ("SIDECAR", "log"),
        ("APP", "app"),
        ("APP", None),
    ]


def test_an_amount_is_the_limit_else_the_request() -> None:
    (container,) = (
        container
        for _, container in pod(
            '{"spec":{"containers":[{"resources":{"limits":{"a":"1","b":null},'
            '"requests":{"a":2,"b":3.5,"c":4}}}]}}'
        ).containers()
    )
    assert [container.amount(key) for key in "abcd"] == ["1", 3.5, 4, None]
    assert objects.Container().amount("a") is None


@pytest.mark.parametrize(
    ("phase", "want"),
    [("Succeeded", True), ("Failed", True), ("Running", False), ("Pending", False)],
)
def test_a_pod_is_finished_when_its_phase_is_final(phase: str, *, want: bool) -> None:
    assert pod(f'{{"status":{{"phase":"{phase}"}}}}').finished is want


STATES = {
    "all ended well": ('{"terminated":{"exitCode":0}}', '{"terminated":{"exitCode":0}}', True),
    "one runs": ('{"terminated":{"exitCode":0}}', '{"running":{}}', False),
    "one failed": ('{"terminated":{"exitCode":0}}', '{"terminated":{"exitCode":1}}', False),
    "one unknown": ('{"terminated":{"exitCode":0}}', "null", False),
    "no exit code": ('{"terminated":{"exitCode":0}}', '{"terminated":{}}', False),
}


@pytest.mark.parametrize(("first", "second", "want"), STATES.values(), ids=STATES)
def test_init_is_done_when_every_init_container_ended_with_zero(
    first: str, second: str, *, want: bool
) -> None:
    read = pod(
        '{"spec":{"initContainers":[{"name":"a"},{"name":"b"},'
        '{"name":"side","restartPolicy":"Always"}]},"status":{"initContainerStatuses":'
        f'[{{"name":"a","state":{first}}},{{"name":"b","state":{second}}},null]}}}}'
    )
    assert read.init_done is want


def test_a_pod_group_is_named_by_field_or_label() -> None:
    assert pod('{"spec":{"schedulingGroup":{"podGroupName":"g"}}}').pod_group == "g"
    assert pod('{"metadata":{"labels":{"scheduling.x-k8s.io/pod-group":"h"}}}').pod_group == "h"


def test_a_node_shows_what_kubelet_offers() -> None:
    text = '{"metadata":{"name":"n"},"status":{"allocatable":{"nvidia.com/gpu":"80","x":null}}}'
    node = codec.decode(text, objects.Node, what="node")
    assert node.allocatable == {"nvidia.com/gpu": "80", "x": None}
    assert codec.decode("{}", objects.Node, what="node").allocatable == {}


def test_a_quota_shows_its_hard_limits() -> None:
    text = '{"spec":{"hard":{"limits.cambricon.com/mlu.smlu.vmemory":"60"}}}'
    quota = codec.decode(text, objects.ResourceQuota, what="quota")
    assert quota.hard == {"limits.cambricon.com/mlu.smlu.vmemory": "60"}
    assert codec.decode("{}", objects.ResourceQuota, what="quota").hard == {}


def test_a_lease_names_its_holder() -> None:
    text = '{"spec":{"holderIdentity":"a_1","leaseDurationSeconds":15,"renewTime":"t"}}'
    lease = codec.decode(text, objects.Lease, what="lease")
    assert lease.spec is not None
    assert (lease.spec.holder_identity, lease.spec.lease_duration_seconds) == ("a_1", 15)


def test_a_binding_carries_target_uid_and_annotations() -> None:
    binding = objects.binding(
        name="train",
        namespace="team-a",
        uid="0f3b",
        node="n1",
        annotations={"hami.io/bind-phase": "allocating", "hami.io/bind-time": "1705054796"},
    )
    assert codec.encode(binding) == (
        b'{"metadata":{"name":"train","namespace":"team-a","uid":"0f3b","annotations":'
        b'{"hami.io/bind-phase":"allocating","hami.io/bind-time":"1705054796"}},'
        b'"target":{"kind":"Node","name":"n1"},"apiVersion":"v1","kind":"Binding"}'
    )


@pytest.mark.parametrize(
    "text",
    ['{"metadata":5}', '{"spec":{"containers":{}}}', '{"metadata":{"annotations":{"a":1}}}', "[]"],
)
def test_a_field_of_another_type_is_an_error_that_names_it(text: str) -> None:
    with pytest.raises(errors.WireError, match=r"^pod: .* does not decode"):
        pod(text)
