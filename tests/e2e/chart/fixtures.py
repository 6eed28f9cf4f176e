"""The audit of a test that has the chart installed: its grants are signed with the chart's keys.

A test module that imports `_audited` has this one in place of the one that all tests have. It must
have a fixture `release`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.auditor.gathering import Sources
from tests.e2e.auditor.recording import Recorder
from tests.e2e.chart.release import Release
from tests.e2e.install.fixtures import _remove_pods


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
