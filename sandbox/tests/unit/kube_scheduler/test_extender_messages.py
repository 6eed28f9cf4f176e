"""Messages to extenders, and their answers."""

from __future__ import annotations

import json

import pytest

from hami.wire import errors, extender_api
from hami_sandbox.kube_scheduler import extender_messages
from hami_sandbox.kube_scheduler.extender_messages import AnswerError
from sandbox.tests.unit.kube_scheduler.makers import pod, row


def test_names_only() -> None:
    wanted = pod(metadata={"managedFields": [{"manager": "m"}], "labels": {"a": "b"}})
    body = extender_messages.ask_nodes(wanted, [row("a"), row("b")], names_only=True)
    args = json.loads(body)
    assert list(args) == ["Pod", "Nodes", "NodeNames"]
    assert args["Nodes"] is None
    assert args["NodeNames"] == ["a", "b"]
    assert list(args["Pod"]) == ["metadata", "spec", "status"]
    assert args["Pod"]["metadata"] == {
        "name": "p",
        "namespace": "default",
        "labels": {"a": "b"},
        "uid": "uid-p",
    }
    assert args["Pod"]["spec"]["containers"][0]["name"] == "main"
    read = extender_api.decode_args(body)
    assert read.node_names == ["a", "b"]
    assert read.pod is not None
    assert read.pod.uid == "uid-p"


def test_whole_nodes() -> None:
    body = extender_messages.ask_nodes(pod(), [row("a", cpu="3")], names_only=False)
    args = json.loads(body)
    assert args["NodeNames"] is None
    (node,) = args["Nodes"]["items"]
    assert node["metadata"]["name"] == "a"
    assert node["status"]["allocatable"]["cpu"] == "3"


def test_bind() -> None:
    read = extender_api.decode_binding_args(extender_messages.ask_bind(pod(), "a"))
    assert (read.pod_name, read.pod_namespace, read.pod_uid, read.node) == (
        "p",
        "default",
        "uid-p",
        "a",
    )


def test_the_products_answers() -> None:
    body = extender_api.encode_filter_result(node_names=["a"], failed={"b": "no"})
    found = extender_messages.filtered(body, names_only=True)
    assert found.names == ("a",)
    assert found.failed == {"b": "no"}
    found = extender_messages.filtered(
        extender_api.encode_refusal([(["a", "b"], "full")]), names_only=True
    )
    assert found.names == ()
    assert found.failed == {"a": "full", "b": "full"}
    extender_messages.check_bound(extender_api.encode_binding_result())
    with pytest.raises(AnswerError, match="no cards"):
        extender_messages.check_bound(extender_api.encode_binding_result("no cards"))
    with pytest.raises(AnswerError, match="not ready"):
        extender_messages.filtered(
            extender_api.encode_filter_result(error="not ready"), names_only=True
        )


def test_names_in_any_case_of_letters() -> None:
    found = extender_messages.filtered(
        b'{"nodenames":["a"],"failedNodes":{"b":"x"},"FailedAndUnresolvableNodes":{"b":"y"}}',
        names_only=True,
    )
    assert found.names == ("a",)
    assert found.failed == {"b": "y"}


def test_whole_nodes_come_back() -> None:
    body = b'{"Nodes":{"items":[{"metadata":{"name":"a"}}]},"NodeNames":null}'
    for names_only in (True, False):
        assert extender_messages.filtered(body, names_only=names_only).names == ("a",)


def test_points() -> None:
    assert extender_messages.points(b'[{"Host":"a","Score":7},{"Host":"b","Score":0}]') == {
        "a": 7,
        "b": 0,
    }
    assert extender_messages.points(b"null") == {}


@pytest.mark.parametrize("body", [b"", b"[]", b"<html>", b'{"NodeNames":{}}', b'{"Error":1}'])
def test_what_is_no_answer(body: bytes) -> None:
    with pytest.raises(errors.WireError):
        extender_messages.filtered(body, names_only=True)
