"""A sandbox that cannot start: it names the reason, cleans up, keeps its logs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from hami_sandbox import readiness
from hami_sandbox.cluster import Sandbox
from hami_sandbox.errors import SandboxError
from hami_sandbox.plan import Plan, parse_node

PLAN = Plan(nodes=(parse_node("a=1xT4"),))


@pytest.fixture
def place() -> Iterator[Path]:
    """Give a folder with a short name."""
    with tempfile.TemporaryDirectory(prefix="hami-") as name:
        yield Path(name)


async def test_a_program_that_does_not_come_up_is_named_with_what_it_says(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = place / "snapshot.json"
    snapshot.write_text("no snapshot")
    folder = place / "cluster"
    log = folder / "logs" / "apiserver.log"

    def clock() -> float:
        """Return a time after the deadline once the program has complained."""
        return 1e9 if log.exists() and "snapshot.json" in log.read_text() else 0.0

    monkeypatch.setattr(readiness, "time", SimpleNamespace(monotonic=clock))
    with pytest.raises(SandboxError, match=r"apiserver to serve.*\n.*snapshot\.json"):
        async with Sandbox(PLAN, folder=folder, snapshot=snapshot, keep_logs=place / "logs"):
            raise AssertionError("it started")
    assert not folder.exists()
    assert "snapshot.json" in (place / "logs" / "apiserver.log").read_text()
    assert snapshot.read_text() == "no snapshot"


async def test_a_folder_with_something_in_it_is_left_alone(place: Path) -> None:
    (place / "mine").touch()
    with pytest.raises(SandboxError, match="not empty"):
        async with Sandbox(PLAN, folder=place):
            raise AssertionError("it started")
    assert (place / "mine").exists()


async def test_a_folder_whose_sockets_would_have_no_name_is_refused(place: Path) -> None:
    folder = place / ("long" * 12)
    with pytest.raises(SandboxError, match="sockets"):
        async with Sandbox(PLAN, folder=folder):
            raise AssertionError("it started")
    assert not folder.exists()
