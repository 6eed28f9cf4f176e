"""HAMi's handshake: only plugins that answer get a request."""

from __future__ import annotations

import datetime as dt
import json
import re
from typing import Any

from tests.builders import NVIDIA
from tests.scripted_api.server import ScriptedApi
from tests.unit.scheduler import rig
from tests.unit.scheduler.conftest import Times

KEY = NVIDIA.annotations.handshake


def node(name: str, written: str | None, *, late: bool = False) -> rig.Object:
    annotations = {} if written is None else {KEY: written}
    return rig.node(name, cards=1, late=late, **annotations)


def requests(api: ScriptedApi) -> dict[str, list[Any]]:
    """Return what was written onto each node."""
    written: dict[str, list[Any]] = {}
    for request in api.sent("PATCH", "/api/v1/nodes/"):
        body = json.loads(request.body)
        written.setdefault(request.path.rsplit("/", 1)[1], []).append(body)
    return written


async def test_only_plugins_that_have_spoken_are_asked(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(node("spoken", "Reported 2026-01-01 00:00:00"))
        api.put(node("deleted", "Deleted_2026-01-01 00:00:00"))
        api.put(node("silent", None))
        api.put(node("asked", "Requesting_2027-01-15 08:00:00"))
        api.put(node("asked long ago", "Requesting_2020-01-15 08:00:00"))
        api.put(node("ours", "Reported 2026-01-01 00:00:00", late=True))
        api.put({"kind": "Node", "metadata": {"name": "cpu", "annotations": {KEY: "Reported"}}})
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            await replica.scheduler.handshakes.run_round()
            assert set(requests(api)) == {"spoken", "deleted"}


async def test_a_request_has_hamis_form_and_changes_nothing_else(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(node("a", "Reported"))
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            await replica.scheduler.handshakes.run_round()
            ((body,),) = requests(api).values()
    (value,) = body["metadata"]["annotations"].values()
    assert body == {"metadata": {"annotations": {KEY: value}}}
    assert re.fullmatch(r"Requesting_\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", value)
    local = dt.datetime.fromtimestamp(times.wall)  # noqa: DTZ006  as HAMi writes it
    assert value == f"Requesting_{local:%Y-%m-%d %H:%M:%S}"


async def test_a_plugin_is_asked_again_when_it_has_answered(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(node("a", "Reported 1"))
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            for answer in range(3):
                for _ in range(2):
                    await replica.seen()
                    await replica.scheduler.handshakes.run_round()
                assert len(requests(api)["a"]) == answer + 1
                api.put(node("a", f"Reported {answer + 2}"))


async def test_a_request_that_could_not_be_written_is_written_later(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(node("a", "Reported"))
        api.put(node("gone", "Reported"))
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            api.fault(method="PATCH", path="/nodes/a", status=500)
            api.fault(method="PATCH", path="/nodes/gone", status=404)
            await replica.scheduler.handshakes.run_round()
            api.remove("nodes", "gone")
            await replica.seen()
            await replica.scheduler.handshakes.run_round()
            await replica.scheduler.handshakes.run_round()
            assert {name: len(sent) for name, sent in requests(api).items()} == {"a": 2, "gone": 1}


async def test_a_replica_that_is_not_ready_writes_no_request_and_makes_up_for_it(
    times: Times,
) -> None:
    async with ScriptedApi() as api:
        api.put(node("a", "Reported"))
        blocked = api.fault(path="/api/v1/resourcequotas", hang=True, times=None)
        async with rig.running(api, clock=times.clock, now=times.now, ready=False) as replica:
            await replica.scheduler.informers["nodes"].wait_synced()
            await replica.scheduler.handshakes.run_round()
            assert requests(api) == {}
        blocked.times = 0
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            await replica.scheduler.handshakes.run_round()
            assert set(requests(api)) == {"a"}


async def test_each_vendors_plugin_is_asked_by_its_own_key(times: Times) -> None:
    made = rig.node("a", cards=1, late=True)
    made["metadata"]["annotations"] |= {
        "hami.io/node-dcu-register": "d,1,1,100,DCU,0,true:",
        "hami.io/node-handshake-dcu": "Reported",
        "hami.io/node-handshake-biren": "Reported",
    }
    async with ScriptedApi() as api:
        api.put(made)
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            await replica.scheduler.handshakes.run_round()
            ((body,),) = requests(api).values()
    assert list(body["metadata"]["annotations"]) == ["hami.io/node-handshake-dcu"]
