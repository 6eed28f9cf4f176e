"""POST /webhook: what is answered to reviews, and to what is none."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from tests.builders import GPU
from tests.unit.admission import desk, pods
from tests.unit.admission.desk import Desk, review
from tests.unit.admission.pods import MIG, Document, Door
from tests.unit.serving import servers

SHARE = pods.pod(pods.container(gpu=1, memory=1000))
MEBIBYTE = 2**20


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_a_changed_pod_is_answered_with_its_patch(version: str) -> None:
    reply = await Desk().ask(review(SHARE, version=version))
    assert reply["allowed"] is True
    assert desk.patched(SHARE, reply)["spec"]["schedulerName"] == "hami-scheduler"
    assert reply["status"] == {"metadata": {}, "code": 200}
    assert "warnings" not in reply


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_an_unchanged_pod_is_answered_without_a_patch(version: str) -> None:
    reply = await Desk().ask(review(pods.pod(pods.container()), version=version))
    assert reply == {
        "uid": "705ab4f5",
        "allowed": True,
        "status": {"metadata": {}, "code": 200},
    }


async def test_the_reason_for_leaving_a_pod_alone_is_reported() -> None:
    reply = await Desk().ask(review(pods.pod(pods.container(gpu=1), schedulerName="volcano")))
    assert reply["status"]["message"] == "pod already has different scheduler assigned"


@pytest.mark.parametrize(
    ("document", "code", "reason"),
    [
        (pods.pod(pods.container(gpu=1, privileged=True)), 403, "Forbidden"),
        (pods.pod(pods.container(gpu="1.5")), 422, "Invalid"),
    ],
)
async def test_a_refused_pod_is_answered_with_status_and_message(
    document: Document, code: int, reason: str
) -> None:
    reply = await Desk().ask(review(document))
    assert reply["allowed"] is False
    assert (reply["status"]["code"], reply["status"]["reason"]) == (code, reason)
    assert "container main" in reply["status"]["message"]
    assert "patch" not in reply


async def test_a_replaced_profile_is_reported_as_a_warning() -> None:
    door = Door(nodes={"a": {f"{MIG}1g.10gb": "1"}})
    reply = await Desk(door).ask(review(pods.pod(pods.container(mig={"3g.40gb": 1}))))
    (warning,) = reply["warnings"]
    assert warning.startswith("container main: no node of this cluster can give it")
    assert len(warning) <= 256


async def test_the_namespace_of_the_review_counts_where_the_pod_names_none() -> None:
    document = pods.pod(pods.container(gpu=1, priority=0))
    del document["metadata"]["namespace"]
    allowing = Desk(Door(high_priority_namespaces=frozenset({"team-a"})))
    assert (await allowing.ask(review(document, namespace="team-a")))["allowed"]
    reply = await allowing.ask(review(document, namespace="team-b"))
    assert "namespace team-b may not have" in reply["status"]["message"]


@pytest.mark.parametrize("operation", ["UPDATE", "DELETE", "CONNECT", ""])
async def test_what_creates_no_pod_passes(operation: str) -> None:
    refused = pods.pod(pods.container(gpu=1, privileged=True))
    for pod in (refused, None):
        reply = await Desk().ask(review(pod, operation=operation, oldObject=refused))
        assert reply["allowed"] is True
        assert "patch" not in reply
        shown = operation or "this"
        assert reply["status"]["message"] == f"{shown} is not CREATE: nothing to do"


@pytest.mark.parametrize(
    ("question", "reply"),
    [
        (review(None), "carries no pod"),
        (review(SHARE, kind=None), "'' is not the kind Pod"),
        (review(SHARE, kind={"kind": "Binding"}), "'Binding' is not the kind Pod"),
        (review({}, kind={"kind": "Node"}, operation="DELETE"), "'Node' is not the kind Pod"),
        (review([]), "does not decode"),
        (review({"spec": {"containers": {}}}), "does not decode"),
        (review({"metadata": {"annotations": {"a": 1}}}), "does not decode"),
    ],
    ids=["no pod", "no kind", "binding", "node", "list", "containers", "annotation"],
)
async def test_a_review_without_a_readable_pod_is_refused_with_its_uid(
    question: Document, reply: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await Desk().ask(question)
    assert answer["allowed"] is False
    assert answer["status"]["code"] == 400
    message = answer["status"]["message"]
    assert message.startswith("admission review '705ab4f5'")
    assert reply in message
    assert "let the rules of the webhook configuration name pods, and CREATE, only" in message
    (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert record.getMessage() == "review without a pod"
    assert vars(record)["uid"] == "705ab4f5"


BROKEN: dict[str, bytes] = {
    "empty": b"",
    "no JSON": b"hello",
    "cut": json.dumps(review(SHARE)).encode()[:-1],
    "list": b"[]",
    "null": b"null",
    "no text": b"\xff\xfe",
    "another kind": b'{"kind":"Pod","apiVersion":"v1"}',
    "another version": json.dumps(review(SHARE, version="v2")).encode(),
    "no request": b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}',
    "null request": b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":null}',
    "no uid": json.dumps(review(SHARE, uid="")).encode(),
    "uid of another type": json.dumps(review(SHARE, uid=7)).encode(),
    "deep": b'{"kind":' * 50_000,
    "deep pod": json.dumps(review(SHARE)).encode()[:-2] + b',"x":' + b"[" * 50_000 + b"]" * 50_000,
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
async def test_a_body_that_is_no_review_is_a_bad_request(
    body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    response = await Desk().send(body)
    assert response.status == 400
    assert isinstance(response.body, bytes)
    error = json.loads(response.body)["error"]
    assert error.startswith("admission review: ")
    assert error.endswith("send an AdmissionReview of admission.k8s.io/v1 or v1beta1 as JSON")
    assert len(error) < 1000
    (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert record.getMessage() == "not a review"


async def test_a_body_over_the_limit_is_too_large() -> None:
    big = pods.pod(pods.container(gpu=1, memory=10), annotations={"a": "x" * 7 * MEBIBYTE})
    async with servers.serving(Desk().reviewer.route()) as server:
        body = json.dumps(review(big)).encode()
        status, _, answer = await servers.ask(server.port, "POST", "/webhook", body=body)
        assert (status, json.loads(answer)["response"]["allowed"]) == (200, True)
        status, _, answer = await servers.ask(
            server.port, "POST", "/webhook", body=b" " * (8 * MEBIBYTE + 1)
        )
        assert status == 413
        assert f"larger than the {8 * MEBIBYTE} bytes" in json.loads(answer)["error"]


async def test_only_post_is_answered() -> None:
    async with servers.serving(Desk().reviewer.route()) as server:
        assert (await servers.ask(server.port, "GET", "/webhook"))[0] == 405


async def test_a_deeply_nested_unknown_field_is_skipped() -> None:
    nested: Any = None
    for _ in range(200):
        nested = [nested]
    document = {**SHARE, "spec": {**SHARE["spec"], "affinity": nested}}
    reply = await Desk().ask(review(document))
    assert desk.patched(document, reply)["spec"]["schedulerName"] == "hami-scheduler"


async def test_refusals_and_replaced_profiles_are_logged_with_pod_and_user(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    who = {"username": "alice"}
    await Desk().ask(review(pods.pod(pods.container(gpu=1, privileged=True)), userInfo=who))
    moved = pods.pod(pods.container(mig={"3g.40gb": 1}))
    del moved["metadata"]["name"]
    await Desk().ask(review(moved, userInfo=who, dryRun=True))
    await Desk().ask(review(SHARE))
    refused, replaced = (vars(record) for record in caplog.records)
    assert (refused["msg"], refused["pod"], refused["user"]) == (
        *("pod refused", "default/p", "alice"),
    )
    assert "is privileged" in refused["why"]
    assert "dry_run" not in refused
    assert (replaced["msg"], replaced["dry_run"]) == ("MIG profile replaced", True)
    assert replaced["pod"] == "default/(to be named, review 705ab4f5)"
    assert replaced["containers"] == ["main: 3g.40gb->gpu"]


async def test_warnings_are_logged_because_controllers_drop_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    copied = pods.pod(pods.container(), annotations={"hami.io/grant-mac": "v1:x"})
    reply = await Desk().ask(review(copied, userInfo={"username": "alice"}))
    [record] = (vars(record) for record in caplog.records)
    assert (record["msg"], record["pod"], record["user"]) == (
        *("pod admitted with warnings", "default/p", "alice"),
    )
    assert record["warnings"] == reply["warnings"]
    assert "hami.io/grant-mac" in record["warnings"][0]


class TestAReplicaThatDoesNotKnowTheCluster:
    async def test_is_not_available(self) -> None:
        unready = Desk(why_not_ready=lambda: "nodes not read yet", patience=0)
        response = await unready.send(json.dumps(review(SHARE)).encode())
        assert response.status == 503
        assert response.body == b'{"error":"not ready: nodes not read yet"}'

    async def test_answers_as_soon_as_it_does(self) -> None:
        missing = ["nodes"]
        door = Door(nodes={})

        def learn() -> None:
            door.mig_offer.set_node("a", {GPU: "1"})
            missing[0] = ""

        # Others must get their turn meanwhile, or it would wait for ever.
        asyncio.get_running_loop().call_soon(learn)
        waiting = Desk(door, why_not_ready=lambda: missing[0], patience=1e9)
        moved = pods.pod(pods.container(mig={"1g.10gb": 1}))
        assert (await waiting.ask(review(moved)))["allowed"]

    async def test_waits_no_longer_than_it_may(self) -> None:
        times = iter([0.0, 0.0, 0.4, 0.9, 1.1, 1.2])
        looks: list[float] = []

        def clock() -> float:
            looks.append(next(times))
            return looks[-1]

        unready = Desk(why_not_ready=lambda: "pods", patience=1.0, clock=clock)
        response = await unready.send(b"")
        assert response.status == 503
        assert looks == [0.0, 0.0, 0.4, 0.9, 1.1, 1.2]

    async def test_recovers(self) -> None:
        missing = ["nodes"]
        recovering = Desk(why_not_ready=lambda: missing[0], patience=0)
        body = json.dumps(review(SHARE)).encode()
        assert (await recovering.send(body)).status == 503
        missing[0] = ""
        assert (await recovering.send(body)).status == 200
