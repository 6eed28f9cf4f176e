"""Fixtures of tests with the chart: an audit with its keys, logs on failure.

A test module imports these; it must have a fixture `release`. `_audited` takes the place of the one
that all tests have, since the grants are signed with the chart's keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.auditor.gathering import Sources
from tests.e2e.auditor.recording import Recorder
from tests.e2e.chart import release as releases
from tests.e2e.chart.release import Release
from tests.e2e.install.fixtures import _remove_pods


@pytest.fixture(autouse=True)
def _told(request: pytest.FixtureRequest, release: Release) -> Iterator[None]:
    """Print all that is known of the release's pods after a test that failed."""
    before = request.session.testsfailed
    yield
    if request.session.testsfailed > before:
        print(releases.diagnosis(release))  # noqa: T201 (pytest shows it with the failure)


@pytest.fixture(autouse=True)
def _audited(release: Release, _in_the_clusters_network: None, tmp_path: Path) -> Iterator[None]:
    cluster = release.cluster
    with cluster.client as client, Recorder(client, tmp_path / "timeline.jsonl") as recorder:
        yield
        _remove_pods(client)
        findings = Sources(
            client=client,
            roots={each.name: cluster.machine(each).root for each in cluster.layout.nodes},
            recorder=recorder,
            grant_keys=release.grant_keys(),
            quiet=True,
        ).settle()
    assert not findings, "\n".join(map(str, findings))
