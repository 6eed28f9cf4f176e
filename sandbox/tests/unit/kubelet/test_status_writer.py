"""Writes of a pod's status, and cases without one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hami.kube.client import Client
from hami_sandbox.kubelet.status_writer import StatusWriter
from sandbox.tests.unit.kubelet.pods import pod
from tests.scripted_api.server import ScriptedApi
from tests.unit.kube.following import until

RUNNING = {"phase": "Running", "reason": None, "conditions": [{"type": "Ready", "status": "True"}]}


@pytest.fixture
async def api() -> AsyncIterator[ScriptedApi]:
    async with ScriptedApi() as api:
        yield api


@pytest.fixture
async def writer(api: ScriptedApi) -> AsyncIterator[StatusWriter]:
    async with Client(api.access(), user_agent="test") as client:
        writer = StatusWriter(client)
        yield writer
        await writer.stop()


def written(api: ScriptedApi) -> list[Any]:
    return [json.loads(each.body) for each in api.sent("PATCH")]


async def test_what_was_overtaken_is_never_sent(api: ScriptedApi, writer: StatusWriter) -> None:
    made = api.put(pod())
    gate = asyncio.Event()
    api.fault(method="PATCH", gate=gate)
    for number in range(5):
        writer.put(made, {"phase": "Pending", "message": str(number)})
        await asyncio.sleep(0)
    await until(lambda: api.sent("PATCH"))
    writer.put(made, RUNNING)
    gate.set()
    await until(lambda: len(api.sent("PATCH")) == 2)
    assert written(api)[1] == {"metadata": {"uid": "uid-p"}, "status": RUNNING}
    writer.put(made, RUNNING)
    writer.put(made, {**RUNNING, "phase": "Succeeded"})
    await until(lambda: len(api.sent("PATCH")) == 3)
    assert written(api)[2]["status"]["phase"] == "Succeeded"


async def test_what_the_server_has_is_not_sent_again(
    api: ScriptedApi, writer: StatusWriter
) -> None:
    ready = {"type": "Ready", "status": "True", "observedGeneration": 1}
    other = {"type": "PodScheduled", "status": "True"}
    status = {"phase": "Running", "qosClass": "Burstable", "conditions": [other, ready]}
    made = api.put(pod(status=status))
    writer.put(made, RUNNING)
    writer.put(made, {**RUNNING, "reason": "Evicted"})
    await until(lambda: api.sent("PATCH"))
    assert [each["status"]["reason"] for each in written(api)] == ["Evicted"]


async def test_a_refused_status_does_not_keep_a_pod(api: ScriptedApi, writer: StatusWriter) -> None:
    made = api.put(pod())
    api.fault(method="PATCH", status=422, reason="Invalid", times=None)
    writer.finish(made, RUNNING)
    await until(lambda: not api.objects("pods"))
    assert len(api.sent("PATCH")) == 1


async def test_a_pod_of_the_same_name_is_left_alone(api: ScriptedApi, writer: StatusWriter) -> None:
    made = api.put(pod())
    api.remove("pods", "p")
    api.put(pod(meta={"uid": "another"}))
    writer.finish(made, RUNNING)
    await until(lambda: api.sent("PATCH"))
    await until(lambda: not writer._tasks)
    (left,) = api.objects("pods")
    assert "status" not in left
