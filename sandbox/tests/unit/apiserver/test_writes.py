"""Concurrent writes: none is lost, and conflicts are reported."""

from __future__ import annotations

import pytest

from hami_sandbox.apiserver.auth.webhook_matching import AdmissionRequest
from hami_sandbox.apiserver.refusals import Refusal
from sandbox.tests.unit.apiserver.rig import Rig

MAPS = "/api/v1/namespaces/default/configmaps"
MAP = f"{MAPS}/m"


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    await rig.account()
    await rig.ask("POST", MAPS, {"metadata": {"name": "m"}, "data": {"k": "v"}})
    return rig


def interfere(rig: Rig, **data: str) -> None:
    """Let somebody else write while the next write is under way."""

    async def say(_: AdmissionRequest) -> None:
        await rig.patch(MAP, {"data": data})

    rig.admission.say = say


async def test_a_patch_is_done_again_on_what_somebody_else_wrote(rig: Rig) -> None:
    interfere(rig, theirs="1")
    await rig.patch(MAP, {"data": {"mine": "1"}})
    assert (await rig.ask("GET", MAP))["data"] == {"k": "v", "theirs": "1", "mine": "1"}


async def test_a_patch_that_names_a_version_is_not_done_again(rig: Rig) -> None:
    version = (await rig.ask("GET", MAP))["metadata"]["resourceVersion"]
    interfere(rig, theirs="1")
    patch = {"metadata": {"resourceVersion": version}, "data": {"mine": "1"}}
    with pytest.raises(Refusal) as refused:
        await rig.patch(MAP, patch)
    assert (refused.value.status, refused.value.reason) == (409, "Conflict")
    assert (await rig.ask("GET", MAP))["data"] == {"k": "v", "theirs": "1"}


async def test_a_replacement_that_names_a_version_meets_the_other_as_a_conflict(rig: Rig) -> None:
    wish = {**await rig.ask("GET", MAP), "data": {"mine": "1"}}
    interfere(rig, theirs="1")
    with pytest.raises(Refusal) as refused:
        await rig.ask("PUT", MAP, wish)
    assert refused.value.status == 409
    assert (await rig.ask("GET", MAP))["data"] == {"k": "v", "theirs": "1"}


async def test_a_replacement_without_a_version_wins(rig: Rig) -> None:
    interfere(rig, theirs="1")
    await rig.ask("PUT", MAP, {"metadata": {"name": "m"}, "data": {"mine": "1"}})
    assert (await rig.ask("GET", MAP))["data"] == {"mine": "1"}


async def test_what_is_deleted_while_it_is_patched_is_not_found(rig: Rig) -> None:
    async def say(_: AdmissionRequest) -> None:
        await rig.ask("DELETE", MAP)

    rig.admission.say = say
    with pytest.raises(Refusal) as refused:
        await rig.patch(MAP, {"data": {"mine": "1"}})
    assert refused.value.status == 404


async def test_of_two_that_create_one_name_the_second_is_told(rig: Rig) -> None:
    async def say(_: AdmissionRequest) -> None:
        await rig.ask("POST", MAPS, {"metadata": {"name": "new"}, "data": {"first": "1"}})

    rig.admission.say = say
    with pytest.raises(Refusal) as refused:
        await rig.ask("POST", MAPS, {"metadata": {"name": "new"}})
    assert refused.value.reason == "AlreadyExists"
    assert (await rig.ask("GET", f"{MAPS}/new"))["data"] == {"first": "1"}


async def test_a_delete_that_names_a_version_does_not_delete_a_newer_one(rig: Rig) -> None:
    version = (await rig.ask("GET", MAP))["metadata"]["resourceVersion"]
    interfere(rig, theirs="1")
    with pytest.raises(Refusal) as refused:
        await rig.ask("DELETE", MAP, {"preconditions": {"resourceVersion": version}})
    assert refused.value.status == 409
    assert (await rig.ask("GET", MAP))["data"]["theirs"] == "1"


async def test_a_stored_object_is_never_changed_in_place(rig: Rig) -> None:
    """What watches and past lists show must stay what it was."""
    await rig.pod("p")
    path = "/api/v1/namespaces/default/pods/p"
    before = rig.store.find("", "pods", "default", "p")
    was = await rig.ask("GET", path)
    await rig.patch(path, {"metadata": {"labels": {"new": "1"}}})
    await rig.patch(f"{path}/status", {"status": {"phase": "Running", "podIP": "10.0.0.1"}})
    await rig.ask("POST", f"{path}/binding", {"metadata": {"name": "p"}, "target": {"name": "n"}})
    await rig.ask("DELETE", path)
    assert before == was


async def test_a_service_keeps_its_address_when_its_writer_does_not_name_it(rig: Rig) -> None:
    services = "/api/v1/namespaces/default/services"
    spec = {"ports": [{"port": 80}]}
    made = await rig.ask("POST", services, {"metadata": {"name": "s"}, "spec": spec})
    changed = await rig.ask(
        "PUT", f"{services}/s", {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 81}]}}
    )
    assert changed["spec"]["clusterIP"] == made["spec"]["clusterIP"]
    assert changed["spec"]["ports"][0]["port"] == 81


async def test_a_pod_gets_the_priority_of_its_class(rig: Rig) -> None:
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    await rig.ask("POST", classes, {"metadata": {"name": "high"}, "value": 1000})
    assert (await rig.pod("p", priorityClassName="high"))["spec"]["priority"] == 1000
    with pytest.raises(Refusal, match="no PriorityClass with name absent was found"):
        await rig.pod("q", priorityClassName="absent")


async def test_a_pod_needs_its_account(rig: Rig) -> None:
    await rig.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "empty"}})
    with pytest.raises(Refusal, match="error looking up service account empty/default") as refused:
        await rig.pod("p", "empty")
    assert refused.value.status == 403


@pytest.mark.parametrize("media", ["merge-patch", "strategic-merge-patch"])
async def test_fields_that_nobody_knows_make_a_strict_patch_invalid(rig: Rig, media: str) -> None:
    """Not the request is wrong, as that of a strict replacement is, but its patch."""
    body, strict = {"data": {"k": "w"}, "dada": {}}, {"fieldValidation": "Strict"}
    with pytest.raises(Refusal) as patched:
        await rig.ask("PATCH", MAP, body, content_type=f"application/{media}+json", **strict)
    status = patched.value.body()
    assert (status["code"], status["reason"]) == (422, "Invalid")
    (cause,) = status["details"]["causes"]
    assert cause["field"] == "patch"
    assert cause["message"].endswith('strict decoding error: unknown field "dada"')
    with pytest.raises(Refusal) as replaced:
        await rig.ask("PUT", MAP, {"metadata": {"name": "m"}, **body}, **strict)
    assert (replaced.value.status, replaced.value.reason) == (400, "BadRequest")
    assert (await rig.ask("GET", MAP))["data"] == {"k": "v"}


async def test_a_priority_class_stays_in_its_first_generation(rig: Rig) -> None:
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    made = await rig.ask("POST", classes, {"metadata": {"name": "high"}, "value": 1})
    assert made["metadata"]["generation"] == 1
    changed = await rig.patch(f"{classes}/high", {"description": "for few"})
    assert changed["metadata"]["generation"] == 1
