"""Webhooks are asked over HTTPS, and what they say is done."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from hami_sandbox.apiserver import kinds
from hami_sandbox.apiserver.auth.admission import Admission, AdmissionRequest
from hami_sandbox.apiserver.auth.users import UserInfo
from hami_sandbox.apiserver.auth.webhook_calls import ADDRESS
from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.refusals import Refusal
from sandbox.tests.unit.auth.memory_view import MemoryView, Object
from tests.conformance.hooks import Hooks, allow, patching, rule

GROUP = "admissionregistration.k8s.io"
USER = UserInfo(username="jane", groups=("dev",))
LABELS = {"kubernetes.io/metadata.name": "n"}


def complete(kind: Kind, content: Object) -> None:
    """Give what every object has that a webhook did not take away."""
    content["data"] = {"default": "1"} | (content.get("data") or {})


class House:
    """A server's admission in front of config maps in the namespace `n`."""

    def __init__(self, hooks: Hooks) -> None:
        self.view = MemoryView()
        self.view.put("namespaces", {"metadata": {"name": "n", "labels": LABELS}})
        self.hooks = hooks
        self.admission = Admission(self.view, complete=complete)

    def install(self, *webhooks: Object, name: str = "c", validating: bool = False) -> None:
        resource = f"{'validating' if validating else 'mutating'}webhookconfigurations"
        content = {"metadata": {"name": name}, "webhooks": list(webhooks)}
        self.view.put(resource, content, group=GROUP)

    def webhook(self, path: str, **fields: Any) -> Object:
        return self.hooks.webhook(path, "n", **fields)

    def request(self, operation: str = "CREATE", **fields: Any) -> AdmissionRequest:
        kind = kinds.find("", "v1", "configmaps")
        assert kind is not None
        content: Object = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "m", "namespace": "n"},
        }
        given = {"object": content, "namespace": "n", "name": "m"} | fields
        return AdmissionRequest(kind=kind, operation=operation, user=USER, **given)


@pytest.fixture(scope="module")
def server() -> Iterator[Hooks]:
    hooks = Hooks("127.0.0.1")
    yield hooks
    hooks.close()


@pytest.fixture
async def house(server: Hooks) -> AsyncIterator[House]:
    server.answers.clear()
    server.reviews.clear()
    house = House(server)
    yield house
    await house.admission.close()


def add(key: str, value: str) -> Object:
    return patching({"op": "add", "path": f"/data/{key}", "value": value})


async def test_without_webhooks_an_object_stays_as_it_is(house: House) -> None:
    request = house.request()
    before = copy.deepcopy(request.object)
    assert await house.admission.mutate(request) == before
    await house.admission.validate(request)


async def test_patches_add_up_in_the_order_of_configurations(house: House) -> None:
    house.hooks.answers["/first"] = lambda _: patching(
        {"op": "add", "path": "/data", "value": {"x": "1"}}
    )
    house.hooks.answers["/second"] = lambda _: add("x", "2")
    house.install(house.webhook("/second"), name="b")
    house.install(house.webhook("/first"), name="a")
    request = house.request()
    given = request.object
    made = await house.admission.mutate(request)
    assert made is not None
    assert made["data"] == {"default": "1", "x": "2"}
    assert given is not None
    assert "data" not in given  # what the caller holds is not changed
    (seen,) = house.hooks.requests("/second")
    assert seen["object"]["data"] == {"default": "1", "x": "1"}
    assert seen["userInfo"] == {"username": "jane", "groups": ["dev"]}


async def test_who_changes_nothing_causes_no_second_round(house: House) -> None:
    house.hooks.answers["/later"] = lambda _: patching(
        {"op": "test", "path": "/metadata/name", "value": "m"}
    )
    house.install(house.webhook("/first", reinvocationPolicy="IfNeeded"), house.webhook("/later"))
    request = house.request(
        object={
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "m", "namespace": "n"},
            "data": {"default": "1"},
        }
    )
    await house.admission.mutate(request)
    assert len(house.hooks.requests("/first")) == 1


async def test_validating_webhooks_are_asked_at_once_and_may_not_change(house: House) -> None:
    house.hooks.answers["/a"] = lambda _: add("x", "1") | {"warnings": ["careful"]}
    house.install(house.webhook("/a"), house.webhook("/b"), validating=True)
    request = house.request()
    await house.admission.validate(request)
    assert request.warnings == ["careful"]
    assert request.object is not None
    assert "data" not in request.object
    assert {path for path, _ in house.hooks.reviews} == {"/a", "/b"}


@pytest.mark.parametrize(
    ("status", "code", "reason", "words"),
    [
        (None, 400, "", "denied the request without explanation"),
        ({"reason": "Expired"}, 400, "Expired", "denied the request: Expired"),
        ({"message": "no", "code": 200}, 400, "", "denied the request: no"),
        ({"message": "no", "code": 403, "reason": "Forbidden"}, 403, "Forbidden", "request: no"),
    ],
)
async def test_a_denial_is_worded_as_the_webhook_says(
    house: House, status: Object | None, code: int, reason: str, words: str
) -> None:
    house.hooks.answers["/a"] = lambda _: {"allowed": False, "status": status}
    for validating in (False, True):
        house.install(house.webhook("/a"), validating=validating)
    for ask in (house.admission.mutate, house.admission.validate):
        with pytest.raises(Refusal) as caught:
            await ask(house.request())
        assert (caught.value.status, caught.value.reason) == (code, reason)
        assert caught.value.message.endswith(words)
        assert caught.value.message.startswith('admission webhook "a.conformance.hami.io" denied')


async def test_a_webhook_behind_a_service_is_found_by_annotation_or_endpoints(
    house: House,
) -> None:
    port = int(house.hooks.url("/").rsplit(":", 1)[1].rstrip("/"))
    service = {"namespace": "hami-system", "name": "hami", "path": "/webhook"}
    config = {"service": service, "caBundle": house.hooks.ca}
    house.install(house.webhook("/a", clientConfig=config))
    with pytest.raises(Refusal, match='service "hami" not found'):
        await house.admission.mutate(house.request())
    metadata = {"namespace": "hami-system", "name": "hami"}
    ports = [{"name": "https", "port": 443}]
    house.view.put("services", {"metadata": dict(metadata), "spec": {"ports": ports}})
    with pytest.raises(Refusal, match=f"no endpoints available.*{ADDRESS}"):
        await house.admission.mutate(house.request())
    subset = {
        "addresses": [{"ip": "127.0.0.1"}],
        "ports": [{"name": "metrics", "port": 1}, {"name": "https", "port": port}],
    }
    house.view.put("endpoints", {"metadata": dict(metadata), "subsets": [subset]})
    # The certificate must be that of the Service, and this one names an address.
    with pytest.raises(Refusal, match=r"hami\.hami-system\.svc:443/webhook.*certificate"):
        await house.admission.mutate(house.request())
    annotated = {**metadata, "annotations": {ADDRESS: "127.0.0.1:9"}}
    house.view.put("services", {"metadata": annotated, "spec": {"ports": ports}})
    with pytest.raises(Refusal, match=r"dial tcp 127\.0\.0\.1:9: connect: connection refused"):
        await house.admission.mutate(house.request())


async def test_a_webhook_that_fails_refuses_or_is_ignored(house: House) -> None:
    config = {"url": "https://127.0.0.1:9/", "caBundle": house.hooks.ca}
    house.install(house.webhook("/a", clientConfig=config, failurePolicy="Fail"))
    with pytest.raises(Refusal) as caught:
        await house.admission.mutate(house.request())
    assert caught.value.status == 500
    assert caught.value.message == (
        'Internal error occurred: failed calling webhook "a.conformance.hami.io": failed to call '
        'webhook: Post "https://127.0.0.1:9/?timeout=10s": dial tcp 127.0.0.1:9: connect: '
        "connection refused"
    )
    house.install(house.webhook("/a", clientConfig=config, failurePolicy="Ignore"))
    await house.admission.mutate(house.request())


async def test_a_condition_that_fails_refuses_or_leaves_the_webhook_out(house: House) -> None:
    conditions = [{"name": "c", "expression": "object.spec.x == 1"}]
    house.install(house.webhook("/a", matchConditions=conditions, failurePolicy="Fail"))
    with pytest.raises(Refusal, match=r'403 Forbidden: configmaps "m" is forbidden.*no such key'):
        await house.admission.mutate(house.request())
    house.install(house.webhook("/a", matchConditions=conditions, failurePolicy="Ignore"))
    await house.admission.mutate(house.request())
    assert house.hooks.reviews == []


async def test_a_deletion_is_reviewed_and_cannot_be_changed(house: House) -> None:
    rules = [rule("configmaps", "DELETE")]
    house.install(house.webhook("/a", rules=rules))
    old = house.request().object
    request = house.request("DELETE", object=None, old_object=old)
    assert await house.admission.mutate(request) is None
    (seen,) = house.hooks.requests("/a")
    assert (seen["object"], seen["oldObject"]) == (None, old)
    assert seen["kind"]["kind"] == "ConfigMap"
    house.hooks.answers["/a"] = lambda _: add("x", "1")
    with pytest.raises(Refusal, match=r"500 InternalError.*attempted to modify"):
        await house.admission.mutate(request)


async def test_a_dry_run_needs_a_webhook_without_side_effects(house: House) -> None:
    house.install(house.webhook("/a", sideEffects="Some"))
    with pytest.raises(Refusal, match=r"400 BadRequest.*does not support dry run"):
        await house.admission.mutate(house.request(dry_run=True))
    assert house.hooks.reviews == []


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"uid": "another", "allowed": True}, "expected response.uid="),
        (allow(patch="W10="), "expected response.patchType"),
        (allow(patchType="JSONPatch"), "patchType but not response.patch"),
        (allow(patch="!", patchType="JSONPatch"), "is not base64"),
    ],
)
async def test_an_answer_that_makes_no_sense_is_a_failure(
    house: House, answer: Object, why: str
) -> None:
    house.hooks.answers["/a"] = lambda _: answer
    house.install(house.webhook("/a", failurePolicy="Fail"))
    with pytest.raises(Refusal, match="received invalid webhook response") as caught:
        await house.admission.mutate(house.request())
    assert why in caught.value.message


async def test_many_writes_are_reviewed_side_by_side(house: House) -> None:
    house.install(house.webhook("/a"))
    await asyncio.gather(*(house.admission.mutate(house.request()) for _ in range(20)))
    assert len({each["uid"] for each in house.hooks.requests("/a")}) == 20
