"""A desk with a short path: sockets must fit in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandbox.tests.unit.devices.desk import Desk
from tests.unit.agent.kubelet_rig import short_folder


@pytest.fixture
def desk() -> Iterator[Desk]:
    with short_folder() as folder:
        yield Desk(folder)
