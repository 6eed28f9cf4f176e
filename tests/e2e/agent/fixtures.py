"""Fixtures of every agent test: an audit with the release's keys, diagnosis.

A test module imports these beside `agents`, the installation that all of them share (conftest.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.agent.installation import AGENT, MONITOR, Agents
from tests.e2e.auditor.gathering import Sources
from tests.e2e.auditor.recording import Recorder
from tests.e2e.chart import release as releases
from tests.e2e.install.fixtures import _remove_pods

LINES = 40


@pytest.fixture(autouse=True)
def _diagnosed(request: pytest.FixtureRequest, agents: Agents) -> Iterator[None]:
    """Print all that is known of the release's pods after a test that failed."""
    before = request.session.testsfailed
    yield
    if request.session.testsfailed > before:
        print(releases.diagnosis(agents.release))  # noqa: T201 (pytest shows it with the failure)
        for node in agents.nodes:
            for container in (AGENT, MONITOR):
                lines = agents.log(node, container)[-LINES:]
                print(f"--- {container} of {node}", *lines, sep="\n")  # noqa: T201 - pytest shows it with the failure


@pytest.fixture(autouse=True)
def _audited(agents: Agents, _in_the_clusters_network: None, tmp_path: Path) -> Iterator[None]:
    with agents.cluster.client as client, Recorder(client, tmp_path / "timeline.jsonl") as recorder:
        yield
        _remove_pods(client)
        findings = sources(agents, recorder).settle()
    assert not findings, "\n".join(map(str, findings))


def sources(agents: Agents, recorder: Recorder | None = None, *, quiet: bool = True) -> Sources:
    """Give what the auditor judges; `quiet`: nothing is being placed."""
    return Sources(
        client=agents.client,
        roots={name: node.machine.root for name, node in agents.nodes.items()},
        recorder=recorder,
        grant_keys=agents.release.grant_keys(),
        quiet=quiet,
    )
