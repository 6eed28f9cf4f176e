"""A node configuration that changes while the agent runs: whose entry it is decides."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

from hami.agent.cards.node_config import NodeConfigFile
from hami.agent.settings import Settings
from hami.vendors.device_config import NvidiaSettings
from tests.unit.kube.following import until

OURS, THEIRS = "ours", "theirs"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hami.agent.cards.node_config._READ_EVERY", 0.001)


def write(path: Path, *entries: object) -> None:
    path.write_text(json.dumps({"nodeconfig": list(entries)}))


def entry(name: str, **keys: object) -> dict[str, object]:
    return {"name": name, **keys}


async def ended(path: Path, caplog: pytest.LogCaptureFixture, *entries: object) -> bool:
    """Tell whether another content ends the process."""
    caplog.set_level("INFO")
    file = NodeConfigFile(Settings(node_name=OURS, node_config_file=str(path)), NvidiaSettings())
    stop = asyncio.Event()
    watching = asyncio.create_task(file.watch(stop))
    write(path, *entries)
    await until(lambda: "the node configuration changed" in caplog.text)
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    return stop.is_set()


async def test_what_is_said_of_another_node_ends_nobody_here(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "config.json"
    write(path, entry(OURS, devicesplitcount=3))
    assert not await ended(
        path, caplog, entry(THEIRS, nonsense=1), {"nameless": 1}, entry(OURS, devicesplitcount=3)
    )


@pytest.mark.parametrize("ours", [{"devicesplitcount": 4}, {"devicespltcount": 3}, {}])
async def test_what_is_said_of_this_node_ends_the_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ours: dict[str, object]
) -> None:
    path = tmp_path / "config.json"
    write(path, entry(OURS, devicesplitcount=3))
    assert await ended(path, caplog, entry(OURS, **ours))


async def test_a_mistake_that_is_mended_ends_the_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "config.json"
    write(path, entry(OURS, devicespltcount=3))
    assert await ended(path, caplog)
