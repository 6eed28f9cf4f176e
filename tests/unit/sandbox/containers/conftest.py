"""A bench in each of the two worlds that a machine may give containers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hami.sandbox.containers import isolation
from hami.sandbox.containers.spec import Isolation
from tests.unit.agent.kubelet_rig import short_folder
from tests.unit.sandbox.containers import bench as benches
from tests.unit.sandbox.containers.bench import Bench


@pytest.fixture
def place() -> Iterator[Path]:
    with short_folder() as folder:
        yield folder


@pytest.fixture(params=list(Isolation))
async def bench(
    request: pytest.FixtureRequest, place: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    monkeypatch.setenv(isolation.VARIABLE, request.param)
    async with benches.opened(place) as made:
        if made.runtime.isolation is not request.param:
            pytest.skip(made.runtime.isolation_reason)
        yield made


@pytest.fixture
async def rooted(place: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    """Give a bench whose containers have a root of their own."""
    monkeypatch.delenv(isolation.VARIABLE, raising=False)
    async with benches.opened(place) as made:
        if made.runtime.isolation is not Isolation.NAMESPACES:
            pytest.skip(made.runtime.isolation_reason)
        yield made
