"""The checkpoint is as kubelet writes it, and a new kubelet resumes from it."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.agent.kubelet import checkpoint
from hami.agent.kubelet.checkpoint import Data, File, PodEntry
from hami.wire import codec
from hami_sandbox.kubelet.devices import allocations
from hami_sandbox.kubelet.devices.pods import AdmissionError
from sandbox.tests.unit.devices.desk import Desk, FakePlugin, pod, uid
from tests.e2e.kubelet_api import checkpoint as theirs
from tests.unit.agent.kubelet_rig import RESOURCE
from tests.unit.e2e_tools.test_bare_plugin_checkpoint import EMPTY, FULL
from tests.unit.kube.following import until

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ENTRIES = st.builds(
    PodEntry,
    pod_uid=TEXTS,
    container=TEXTS,
    resource=st.sampled_from(["nvidia.com/gpu", "a.com/<x>&"]),
    device_ids=st.dictionaries(st.integers(-1, 12), st.lists(TEXTS, max_size=3), max_size=2),
    answer=st.binary(max_size=40),
)


@pytest.mark.parametrize("written", [FULL, EMPTY])
def test_what_kubelets_code_wrote_is_written_just_so(written: str) -> None:
    data = codec.decode(written.encode(), File, what="checkpoint").data
    assert allocations.encode_checkpoint(data) == written.encode()


@given(st.lists(ENTRIES, max_size=4), st.dictionaries(TEXTS, st.lists(TEXTS, max_size=3)))
def test_the_agent_reads_all_that_is_written(
    entries: list[PodEntry], registered: dict[str, list[str] | None]
) -> None:
    content = allocations.encode_checkpoint(Data(entries=entries, registered=registered))
    read = checkpoint.parse(content)
    assert [(e.pod_uid, e.container, e.resource, e.answer) for e in read.entries] == [
        (e.pod_uid, e.container, e.resource, e.answer) for e in entries
    ]
    assert len(theirs.parse(content).entries) == len(entries)


async def test_there_is_none_before_a_plugin_has_listed_its_devices(desk: Desk) -> None:
    async with desk.manager() as manager:
        assert not desk.layout.checkpoint.exists()
        async with desk.plugin(FakePlugin("a", "b"), manager):
            assert checkpoint.read(desk.layout.checkpoint).registered == {RESOURCE: {"a", "b"}}


async def test_a_new_kubelet_leaves_everything_where_it_was(desk: Desk) -> None:
    plugin = FakePlugin("a", "b", "c", "d")
    first = pod("p", start=("init", 1), main=2)
    async with desk.plugin(plugin):
        async with desk.manager() as manager:
            await until(manager.allocatable)
            await desk.admit(manager, first)
            before = desk.entries()
            options = manager.run_options(uid(first), "main")
        allocated = len(plugin.calls)
        async with desk.manager() as manager:
            assert manager.capacity() == {RESOURCE: 0}
            assert manager.run_options(uid(first), "main") == options
            await until(lambda: manager.allocatable() == {RESOURCE: 4})
            await manager.admit(first)
            assert len(plugin.calls) == allocated
            await desk.admit(manager, pod("q", main=2))
            held = {key: entry.device_ids for key, entry in desk.entries().items()}
            assert {key: entry.device_ids for key, entry in before.items()}.items() <= held.items()
            assert not held["uid-q", "main"] & held["uid-p", "main"]


async def test_without_its_plugin_a_pod_that_does_not_run_fails_after_a_restart(
    desk: Desk,
) -> None:
    first = pod("p", main=1)
    async with desk.manager() as manager, desk.plugin(FakePlugin("a"), manager):
        await desk.admit(manager, first)
    async with desk.manager() as manager:
        with pytest.raises(AdmissionError) as refused:
            await manager.admit(first)
    assert refused.value.reason == "UnexpectedAdmissionError"
    assert refused.value.message == (
        "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices "
        f"{RESOURCE}, which is unexpected"
    )


async def test_what_runs_is_admitted_again_without_its_plugin(desk: Desk) -> None:
    first = pod("p", main=1)
    async with desk.manager() as manager, desk.plugin(FakePlugin("a"), manager):
        await desk.admit(manager, first)
    desk.ready = False
    async with desk.manager(running=[("uid-p", "main")]) as manager:
        await manager.admit(first)
        assert manager.run_options("uid-p", "main").envs == {"IDS": "a"}


async def test_a_kill_before_the_answer_is_written_allocates_anew(desk: Desk) -> None:
    plugin = FakePlugin("a", "b")
    first = pod("p", main=1)
    async with desk.plugin(plugin):
        async with desk.manager() as manager:
            await until(manager.allocatable)
            plugin.holding = asyncio.Event()
            admitting = asyncio.create_task(desk.admit(manager, first))
            await until(lambda: plugin.calls)
            admitting.cancel()
            await asyncio.wait([admitting])
        plugin.holding.set()
        assert desk.entries() == {}
        async with desk.manager() as manager:
            await until(lambda: manager.allocatable() == {RESOURCE: 2})
            await manager.admit(first)
            assert len(desk.entries()["uid-p", "main"].device_ids) == 1


async def test_a_damaged_file_is_said_and_begun_anew(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.layout.device_plugins.mkdir()
    desk.layout.checkpoint.write_text(FULL.replace("2760632938", "1"))
    with caplog.at_level(logging.WARNING):
        async with desk.manager() as manager:
            assert manager.capacity() == {}
            async with desk.plugin(FakePlugin("a"), manager):
                assert desk.entries() == {}
    assert "cannot read the checkpoint" in caplog.text


async def test_what_cannot_be_written_is_not_allocated(desk: Desk) -> None:
    async with desk.manager() as manager, desk.plugin(FakePlugin("a"), manager):
        desk.layout.checkpoint.unlink()
        desk.layout.checkpoint.mkdir()
        with pytest.raises(AdmissionError, match="failed to write checkpoint file"):
            await desk.admit(manager, pod("p", main=1))
        desk.layout.checkpoint.rmdir()
