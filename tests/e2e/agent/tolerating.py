"""The audit of tests that plant faults themselves.

A test adds the kinds of what it planted to `tolerated`; everything else is still a failure. A
module imports `_audited` from here in place of the one in fixtures.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.agent.fixtures import sources
from tests.e2e.agent.installation import Agents
from tests.e2e.auditor.findings import Kind
from tests.e2e.auditor.recording import Recorder
from tests.e2e.install.fixtures import _remove_pods


@pytest.fixture
def tolerated() -> set[Kind]:
    return set()


@pytest.fixture(autouse=True)
def _audited(
    agents: Agents, _in_the_clusters_network: None, tmp_path: Path, tolerated: set[Kind]
) -> Iterator[None]:
    with agents.cluster.client as client, Recorder(client, tmp_path / "timeline.jsonl") as recorder:
        yield
        _remove_pods(client)
        found = sources(agents, recorder).settle()
    findings = [finding for finding in found if finding.kind not in tolerated]
    assert not findings, "\n".join(map(str, findings))
