"""Device lists of other vendors that a user strips or rewrites, after a restart."""

from __future__ import annotations

import pathlib

import pytest

from tests.scripted_api.server import ScriptedApi
from tests.unit.scheduler import rig
from tests.unit.scheduler.test_grants import annotate
from tests.unit.scheduler.test_vendor_locks import HYGON, SHARED, node, unlock

LIST, MAC = "hami.io/dcu-devices-allocated", "hami.io/grant-mac"
TO_ALLOCATE = "hami.io/dcu-devices-to-allocate"


@pytest.fixture(params=["signing-current", "current"])
def keys(tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> pathlib.Path:
    (tmp_path / request.param).write_bytes(b"k" * 32)
    return tmp_path


def most_of_it(name: str) -> rig.Object:
    """Make a pod that fits onto the node's card once."""
    made = rig.pod(name)
    limits = {HYGON: 1, "hygon.com/dcumem": 20000, "hygon.com/dcucores": 60}
    made["spec"]["containers"] = [{"name": "main", "resources": {"limits": limits}}]
    return made


def placed(api: ScriptedApi, name: str) -> None:
    """Do what the plugin does."""
    annotate(api, name, **{"hami.io/bind-phase": "success", TO_ALLOCATE: None})
    unlock(api, SHARED)


async def fits(replica: rig.Replica, api: ScriptedApi) -> bool:
    return bool((await replica.filter(api.put(most_of_it("second")))).get("NodeNames"))


@pytest.mark.parametrize(
    "changes",
    [{LIST: "a-d,DCU,1,1:;"}, {LIST: "other,DCU,1,1:;"}, {LIST: "a-d,DCU,1,1:;", MAC: None}],
    ids=["less", "another card", "less, and no signature"],
)
async def test_a_rewritten_list_frees_no_card(
    tmp_path: pathlib.Path, changes: dict[str, str | None]
) -> None:
    (tmp_path / "signing-current").write_bytes(b"k" * 32)
    async with ScriptedApi() as api:
        api.put(node())
        async with rig.running(api, keys=tmp_path) as replica:
            await replica.place(most_of_it("first"))
            placed(api, "first")
        annotate(api, "first", **changes)
        async with rig.running(api, keys=tmp_path) as replica:
            assert not await fits(replica, api)


@pytest.mark.parametrize("devices", ["a-d,DCU,32768,100:;", "a-d,DCU,much,0:;"])
async def test_a_pod_without_cards_takes_none_by_writing_a_list(
    tmp_path: pathlib.Path, devices: str
) -> None:
    (tmp_path / "signing-current").write_bytes(b"k" * 32)
    async with ScriptedApi() as api:
        api.put(node())
        thief = rig.pod("thief", annotations={LIST: devices})
        thief["spec"] |= {"nodeName": "a", "containers": [{"name": "main"}]}
        api.put(thief)
        async with rig.running(api, keys=tmp_path) as replica:
            assert await fits(replica, api)


async def test_a_list_counts_as_it_was_granted_with_keys_of_either_form(
    keys: pathlib.Path,
) -> None:
    async with ScriptedApi() as api:
        api.put(node())
        async with rig.running(api, keys=keys) as replica:
            await replica.place(most_of_it("first"))
            placed(api, "first")
        async with rig.running(api, keys=keys) as replica:
            assert not await fits(replica, api)
            assert not [e for e in api.objects("events") if e["reason"] == "GrantInvalid"]
