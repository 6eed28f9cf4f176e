"""Grants that a user strips or rewrites, read by a scheduler that starts."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import pytest

from hami.serving.grant_signature import SigningKey
from hami.wire import grant, signature
from tests import builders
from tests.builders import NVIDIA
from tests.scripted_api.server import ScriptedApi
from tests.unit.scheduler import rig
from tests.unit.scheduler.test_metrics import scrape

ALLOCATED = NVIDIA.annotations.allocated
MAC = "hami.io/grant-mac"
METRIC = "hami_scheduler_pods_without_valid_grant"
KEY = b"k" * 32
CARD, OTHER = (card.id for card in builders.cards("a", 2))


@pytest.fixture
def keys(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "current").write_bytes(KEY)
    return tmp_path


def annotate(api: ScriptedApi, name: str, **changes: str | None) -> None:
    """Change annotations as a user would who may patch pods; None removes one."""
    pod = api.find("pods", name)
    assert pod is not None
    annotations = pod["metadata"]["annotations"]
    for key, value in changes.items():
        annotations.pop(key, None)
        if value is not None:
            annotations[key] = value
    api.put(pod)


def foreign(name: str, devices: str, *, memory: int = 1000) -> dict[str, Any]:
    """Make a pod as HAMi's scheduler leaves it: not signed."""
    pod = rig.pod(name, memory=memory)
    pod["spec"]["nodeName"] = "a"
    pod["metadata"]["annotations"] = {"hami.io/vgpu-node": "a", ALLOCATED: devices}
    return pod


def messages(api: ScriptedApi) -> list[str]:
    return [e["message"] for e in api.objects("events") if e["reason"] == "GrantInvalid"]


async def reported(replica: rig.Replica) -> float:
    return float((await scrape(replica)).value(METRIC))


STRIPPED = {ALLOCATED: None, MAC: None, "hami.io/vgpu-node": None}
REWRITTEN: dict[str, tuple[Mapping[str, str | None], list[int]]] = {
    # name: (changed annotations, MiB that count on the two cards of the node)
    "all of it is stripped": (STRIPPED, [3000, 0]),
    "the device list is stripped": ({ALLOCATED: None}, [3000, 0]),
    "the signature is stripped": ({MAC: None}, [0, 3000]),
    "it has less memory": ({ALLOCATED: f"{OTHER},NVIDIA,1,0:;"}, [0, 3000]),
    "it has another card": ({ALLOCATED: f"{CARD},NVIDIA,3000,0:;"}, [3000, 0]),
    "it has more memory": ({ALLOCATED: f"{OTHER},NVIDIA,5000,0:;"}, [0, 5000]),
    "it has a card more": (
        {ALLOCATED: f"{OTHER},NVIDIA,3000,0:{CARD},NVIDIA,1,0:;"},
        [3000, 3000],
    ),
    "its card does not exist": ({ALLOCATED: "GPU-none,NVIDIA,4000,0:;"}, [4000, 0]),
    "its amounts cannot be read": ({ALLOCATED: f"{OTHER},NVIDIA,much,0:;"}, [3000, 0]),
    "its signature is another's": ({MAC: "v1:00000000:" + "A" * 43}, [0, 3000]),
}


@pytest.mark.parametrize(("changes", "counted"), REWRITTEN.values(), ids=REWRITTEN)
async def test_after_a_restart_a_pod_counts_with_what_it_asks_for_if(
    keys: pathlib.Path, changes: dict[str, str | None], counted: list[int]
) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        async with rig.running(api, keys=keys) as replica:
            await replica.place(rig.pod("p", memory=3000))
            assert (replica.used("a"), await reported(replica)) == ([0, 3000], 0)
        annotate(api, "p", **changes)
        async with rig.running(api, keys=keys) as replica:
            assert replica.used("a") == counted
            assert await reported(replica) == 1
            await rig.eventually(lambda: bool(messages(api)))
            (message,) = messages(api)
            assert "It counts on a with what it asks for" in message
            assert (await scrape(replica)).value("hami_scheduler_bypassed_pods") == 0
            # Nothing else is closed: what is left of both cards is given out.
            free = 8000 - max(counted)
            assert await replica.place(rig.pod("next", memory=free, gpu=2)) == "a"


async def test_a_stripped_pod_leaves_no_room_for_a_second_one(keys: pathlib.Path) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, keys=keys) as replica:
            await replica.place(rig.pod("p", memory=8000))
        annotate(api, "p", **STRIPPED)
        async with rig.running(api, keys=keys) as replica:
            answer = await replica.filter(api.put(rig.pod("q", memory=8000)))
            assert answer["NodeNames"] in (None, [])


async def test_a_grant_that_was_known_stays_and_a_strip_is_reported_until_it_is_restored(
    keys: pathlib.Path,
) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        async with rig.running(api, keys=keys) as replica:
            await replica.place(rig.pod("p"))
            await replica.seen()
            pod = api.find("pods", "p")
            assert pod is not None
            before = dict(pod["metadata"]["annotations"])
            annotate(api, "p", **{ALLOCATED: f"{CARD},NVIDIA,1,0:;"})
            await replica.seen()
            assert (replica.used("a"), await reported(replica)) == ([0, 1000], 1)
            annotate(api, "p", **before)
            await replica.seen()
            assert (replica.used("a"), await reported(replica)) == ([0, 1000], 0)
            assert len(messages(api)) <= 1


async def test_a_grant_that_becomes_valid_counts_instead_of_the_guess(keys: pathlib.Path) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        async with rig.running(api, keys=keys) as replica:
            await replica.place(rig.pod("p"))
        pod = api.find("pods", "p")
        assert pod is not None
        before = dict(pod["metadata"]["annotations"])
        annotate(api, "p", **STRIPPED)
        async with rig.running(api, keys=keys) as replica:
            assert replica.used("a") == [1000, 0]
            annotate(api, "p", **before)
            await replica.seen()
            assert (replica.used("a"), await reported(replica)) == ([0, 1000], 0)


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_grant_of_hamis_scheduler_counts_and_is_reported_where_it_is_not_allowed(
    keys: pathlib.Path, allowed: bool
) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        api.put(foreign("hamis", f"{OTHER},NVIDIA,1000,0:;"))
        async with rig.running(api, keys=keys, allow_unsigned_grants=allowed) as replica:
            assert replica.used("a") == [0, 1000]
            assert await reported(replica) == (not allowed)


async def test_a_wrong_signature_is_reported_where_unsigned_grants_are_allowed(
    keys: pathlib.Path,
) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        pod = foreign("forged", f"{OTHER},NVIDIA,1,0:;")
        pod["metadata"]["annotations"][MAC] = "v1:wrong"
        api.put(pod)
        async with rig.running(api, keys=keys, allow_unsigned_grants=True) as replica:
            assert (replica.used("a"), await reported(replica)) == ([0, 1000], 1)


async def test_without_keys_no_grant_is_verified() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        api.put(foreign("any", f"{OTHER},NVIDIA,1,0:;"))
        async with rig.running(api) as replica:
            assert (replica.used("a"), await reported(replica)) == ([0, 1], 0)


async def test_a_grant_of_the_previous_key_is_valid_and_new_keys_are_read(
    keys: pathlib.Path,
) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        (keys / "previous").write_bytes(b"p" * 32)
        async with rig.running(api, keys=keys) as replica:
            for name, key in (("old", b"p" * 32), ("now", KEY), ("new", b"n" * 32)):
                if name == "new":
                    (keys / "previous").write_bytes(KEY)
                    (keys / "current").write_bytes(key)
                pod = api.put(rig.pod(name))
                signing = signature.GrantKeys(key)
                devices = f"{OTHER},NVIDIA,1000,0:;"
                uid = pod["metadata"]["uid"]
                mac = signature.sign(signing, uid=uid, node="a", devices=devices)
                pod["spec"]["nodeName"] = "a"
                pod["metadata"]["annotations"] = {ALLOCATED: devices, MAC: mac}
                api.put(pod)
                await replica.seen()
            assert (replica.used("a"), await reported(replica)) == ([0, 3000], 0)


async def test_a_pod_that_asks_for_no_card_takes_none_by_an_annotation(
    keys: pathlib.Path,
) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        pod = foreign("greedy", f"{OTHER},NVIDIA,8000,100:;")
        pod["spec"]["containers"] = [builders.container()]
        api.put(pod)
        async with rig.running(api, keys=keys) as replica:
            assert replica.used("a") == [0, 0]


async def test_a_resized_pod_counts_with_less_only_by_a_signed_order_that_is_settled(
    keys: pathlib.Path,
) -> None:
    signing = SigningKey(b"s" * 32)
    (keys / "signing-current").write_bytes(b"s" * 32)
    small = f"{CARD},NVIDIA,1000,0:;"
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, keys=keys) as replica:
            await replica.place(rig.pod("p", memory=8000))
            uid = (api.find("pods", "p") or {})["metadata"]["uid"]
            order = grant.Resize(uid=uid, node="a", seq=1, devices=small)
            ordered = {"hami.io/vgpu-resize": f"2;1;{small}"}
            settled = {"hami.io/vgpu-resized": f"2;1;settled;{small}"}
            signature_of = {"hami.io/vgpu-resize-mac": signing.sign(order.text())}
            for changes in (ordered, settled, {"hami.io/vgpu-resize-mac": "v3:forged"}):
                annotate(api, "p", **changes)
                await replica.seen()
                assert replica.used("a") == [8000]
            annotate(api, "p", **signature_of, **{"hami.io/vgpu-resized": None})
            await replica.seen()
            assert replica.used("a") == [8000]
            waiting = api.put(rig.pod("q", memory=7000))
            assert (await replica.filter(waiting))["NodeNames"] in (None, [])
            annotate(api, "p", **settled)
            await replica.seen()
            assert replica.used("a") == [1000]
            assert (await replica.filter(waiting))["NodeNames"] == ["a"]
        async with rig.running(api, keys=keys) as replica:
            assert replica.used("a") == [1000]
            assert await reported(replica) == 0
