"""A bench in each of the two worlds that a machine may give containers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hami_sandbox.runtime import isolation
from hami_sandbox.runtime.spec import Isolation
from sandbox.tests.unit.runtime import bench as benches
from sandbox.tests.unit.runtime.bench import Bench
from tests.unit.agent.kubelet_rig import short_folder


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
