"""AdmissionReview: requests of the API server, and the answers."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from hami.wire import admission_review, errors

POD = '{"metadata":{"name":"train","namespace":null},"spec":{"new":[1, 2],"containers":[]}}'


def review(version: str = "v1", **request: Any) -> bytes:
    fields = {"uid": "705ab4f5", "kind": {"group": "", "version": "v1", "kind": "Pod"}, **request}
    document = {
        "apiVersion": f"admission.k8s.io/{version}",
        "kind": "AdmissionReview",
        "request": fields,
    }
    return json.dumps(document).encode()


def with_object(text: str) -> bytes:
    return review(object="HERE").replace(b'"HERE"', text.encode())


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_both_versions_are_read_and_echoed(version: str) -> None:
    read = admission_review.decode(review(version))
    answer = json.loads(admission_review.answer(read, allowed=True))
    assert answer["apiVersion"] == f"admission.k8s.io/{version}"
    assert answer["kind"] == "AdmissionReview"
    assert answer["response"]["uid"] == "705ab4f5"


def test_everything_the_webhook_needs_is_read() -> None:
    read = admission_review.decode(
        review(
            operation="CREATE",
            namespace="team-a",
            dryRun=True,
            userInfo={"username": "alice", "groups": ["x"]},
            options={"kind": "CreateOptions"},
        )
    )
    assert (read.kind, read.operation, read.namespace) == ("Pod", "CREATE", "team-a")
    assert (read.dry_run, read.username) == (True, "alice")


@pytest.mark.parametrize("null", [{}, dict.fromkeys(["dryRun", "userInfo", "namespace", "object"])])
def test_missing_and_null_fields_are_empty(null: dict[str, Any]) -> None:
    read = admission_review.decode(review(**null))
    assert (read.namespace, read.username, read.dry_run, read.raw) == ("", "", False, b"")


def test_the_pod_is_kept_exactly_as_it_came() -> None:
    read = admission_review.decode(with_object(POD))
    assert read.raw == POD.encode()
    assert read.pod().name == "train"
    assert read.pod().namespace == ""


def test_an_unreadable_pod_still_has_a_review_to_answer() -> None:
    read = admission_review.decode(with_object('{"spec":{"containers":"many"}}'))
    with pytest.raises(errors.WireError, match=r"'705ab4f5', pod: .*containers"):
        read.pod()
    assert b"705ab4f5" in admission_review.answer(read, allowed=False, code=400)


@pytest.mark.parametrize(
    "data",
    [review(), review(object=None), review(kind={"kind": "Node"}, object={}), review(kind=None)],
    ids=["no object", "null object", "another kind", "no kind"],
)
def test_a_review_without_a_pod_is_an_error_when_the_pod_is_asked_for(data: bytes) -> None:
    with pytest.raises(errors.WireError):
        admission_review.decode(data).pod()


REJECTED = {
    "empty": b"",
    "no JSON": b"hello",
    "list": b"[]",
    "null": b"null",
    "unknown version": review("v2"),
    "no version": b'{"kind":"AdmissionReview","request":{"uid":"1"}}',
    "another kind": review().replace(b"AdmissionReview", b"Pod"),
    "another group": review().replace(b"admission.k8s.io", b"example.com"),
    "no request": b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}',
    "null uid": review(uid=None),
    "empty uid": review(uid=""),
    "uid is a number": review(uid=5),
    "cut": review()[:-1],
}


@pytest.mark.parametrize("data", REJECTED.values(), ids=REJECTED)
def test_what_cannot_be_answered_is_an_error(data: bytes) -> None:
    with pytest.raises(errors.WireError, match=r"^admission review"):
        admission_review.decode(data)


def test_an_answer_with_a_patch_is_written_byte_for_byte() -> None:
    read = admission_review.decode(review("v1beta1"))
    operation = {"op": "replace", "path": "/spec/schedulerName", "value": "hami-scheduler"}
    patch = b'[{"op":"replace","path":"/spec/schedulerName","value":"hami-scheduler"}]'
    assert admission_review.answer(read, allowed=True, patch=[operation]) == (
        b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1","response":'
        b'{"uid":"705ab4f5","allowed":true,"patch":"' + base64.b64encode(patch) + b'",'
        b'"patchType":"JSONPatch","status":{"metadata":{},"code":200}}}'
    )


def test_an_answer_without_a_patch_names_no_patch_type() -> None:
    read = admission_review.decode(review())
    assert admission_review.answer(read, allowed=True, message="not ours") == (
        b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":'
        b'{"uid":"705ab4f5","allowed":true,'
        b'"status":{"metadata":{},"code":200,"message":"not ours"}}}'
    )


def test_a_refusal_carries_code_reason_and_message() -> None:
    read = admission_review.decode(review())
    answer = admission_review.answer(
        read, allowed=False, code=403, reason="Forbidden", message="pod has no containers"
    )
    assert json.loads(answer)["response"] == {
        "uid": "705ab4f5",
        "allowed": False,
        "status": {
            "metadata": {},
            "code": 403,
            "reason": "Forbidden",
            "message": "pod has no containers",
        },
    }
