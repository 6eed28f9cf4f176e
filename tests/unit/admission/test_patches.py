"""Patches are minimal: only what changes, whatever the document leaves out."""

from __future__ import annotations

from typing import Any

import pytest

from hami.wire import annotation_keys
from tests.builders import CORES, GPU
from tests.unit.admission import pods
from tests.unit.admission.pods import Document, Door

SCHEDULER = {"op": "add", "path": "/spec/schedulerName", "value": "hami-scheduler"}
LIMITS = "/spec/containers/0/resources/limits"


def test_a_whole_card_costs_two_operations() -> None:
    assert Door().send(pods.pod(pods.container(gpu=1))).patch == [
        SCHEDULER,
        {"op": "add", "path": f"{LIMITS}/nvidia.com~1gpucores", "value": "100"},
    ]


def test_a_share_costs_one_operation() -> None:
    assert Door().send(pods.pod(pods.container(gpu=1, memory=10))).patch == [SCHEDULER]


def test_only_the_container_that_changes_is_touched() -> None:
    document = pods.pod(pods.container("a", gpu=1, memory=10), pods.container("b", gpu=1))
    assert Door().send(document).paths[1:] == [
        "/spec/containers/1/resources/limits/nvidia.com~1gpucores"
    ]


@pytest.mark.parametrize(
    ("env", "path"),
    [(..., ""), (None, ""), ([], "/-"), ([{"name": "A"}], "/-")],
    ids=["missing", "null", "empty", "one"],
)
def test_a_variable_is_added_whatever_there_is(env: Any, path: str) -> None:
    container = pods.container(gpu=1, memory=10, priority=1)
    if env is not ...:
        container["env"] = env
    answer = Door().send(pods.pod(container))
    assert answer.paths == ["/spec/schedulerName", f"/spec/containers/0/env{path}"]
    assert pods.env(answer.pod)[-1] == {"name": "CUDA_TASK_PRIORITY", "value": "1"}
    assert pods.env(answer.pod)[:-1] == (env if isinstance(env, list) else [])


def test_a_variable_is_replaced_as_a_whole_in_its_place() -> None:
    container = pods.container(gpu=1, memory=10, priority=1, env={"A": "a", "B": "b"})
    container["env"].insert(1, pods.variable("CUDA_TASK_PRIORITY", None))
    answer = Door().send(pods.pod(container))
    assert answer.patch[1:] == [
        {
            "op": "replace",
            "path": "/spec/containers/0/env/1",
            "value": {"name": "CUDA_TASK_PRIORITY", "value": "1"},
        }
    ]


@pytest.mark.parametrize(
    ("annotations", "path"),
    [(..., ""), (None, ""), ({}, "/gpu-webhook.k8s.io~1fallback")],
    ids=["missing", "null", "empty"],
)
def test_an_annotation_is_added_whatever_there_is(annotations: Any, path: str) -> None:
    document = pods.pod(pods.container(mig={"1g.10gb": 1}))
    if annotations is not ...:
        document["metadata"]["annotations"] = annotations
    answer = Door.alone().send(document)
    assert answer.paths[0] == f"/metadata/annotations{path}"
    assert answer.pod["metadata"]["annotations"] == {annotation_keys.FALLBACK: "1g.10gb->gpu"}


def test_keys_with_a_slash_or_a_tilde_are_escaped() -> None:
    odd = "a~1/b~0"
    document = pods.pod(pods.container(mig={"1g.10gb": 1}), annotations={odd: "x"})
    document["spec"]["containers"][0]["resources"]["limits"][odd] = "1"
    through = Door.alone().passes(document)
    assert through["metadata"]["annotations"][odd] == "x"
    assert pods.limits(through) == {odd: "1", GPU: "1"}


@pytest.mark.parametrize(
    "resources",
    [{}, {"limits": None}, {"limits": {}}, {"limits": {"cpu": "1"}, "claims": [{"name": "c"}]}],
    ids=str,
)
def test_limits_are_added_whatever_there_is(resources: Document) -> None:
    container = {"name": "main", "resources": {**resources, "requests": {GPU: "1"}}}
    through = Door().passes(pods.pod(container))
    wanted = {**(resources.get("limits") or {}), GPU: "1", CORES: "100"}
    assert through["spec"]["containers"][0]["resources"] == {
        **resources,
        "requests": {GPU: "1"},
        "limits": wanted,
    }


def test_a_null_scheduler_is_replaced() -> None:
    document = pods.pod(pods.container(gpu=1, memory=10), schedulerName=None)
    assert Door().send(document).patch == [SCHEDULER]


def test_a_null_container_is_left_to_the_api_server() -> None:
    document = pods.pod(pods.container())
    document["spec"]["containers"].insert(0, None)
    answer = Door(nvidia={"overwrite_env": True}).send(document)
    assert (answer.allowed, answer.paths) == (True, ["/spec/containers/1/env"])


@pytest.mark.parametrize("metadata", [{}, {"metadata": None}, {"metadata": {}}], ids=str)
def test_a_pod_without_metadata_is_patched_too(metadata: Document) -> None:
    document = {**metadata, "spec": {"containers": [pods.container(gpu=1, memory=10)]}}
    assert Door().send(document).patch == [SCHEDULER]
