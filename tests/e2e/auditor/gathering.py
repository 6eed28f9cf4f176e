"""Gather the evidence: node folders first, then pods, then nodes of the API.

Pods are listed in one piece, so what they hold together is what they held at one moment. Nodes come
after them: a card is registered before anybody is given it.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, Protocol

from tests.e2e.auditor import layouts, reading, settling
from tests.e2e.auditor.evidence import NVIDIA, Evidence, ResourceNames
from tests.e2e.auditor.findings import Finding
from tests.e2e.auditor.layouts import Layout
from tests.e2e.auditor.recording import Recorder


class Api(Protocol):
    """What is needed of tests.kubeapi.client.Client."""

    def get(self, path: str, **query: str | float) -> dict[str, Any]: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sources:
    """A cluster to be judged."""

    client: Api
    roots: Mapping[str, pathlib.Path] = dataclasses.field(default_factory=dict)
    """By node name, for example /proc/<pid of its first process>/root."""
    recorder: Recorder | None = None
    timeline: pathlib.Path | None = None
    """A finished recording, where there is no recorder at work."""
    layouts: tuple[Layout, ...] = layouts.ALL
    resources: ResourceNames = NVIDIA
    driver_state: str = reading.DRIVER_STATE
    grant_keys: tuple[bytes, ...] = dataclasses.field(default=(), repr=False)
    ask_kubelet: bool = True
    quiet: bool = False

    def gather(self) -> Evidence:
        """Take one look."""
        files = {
            name: reading.NodeReader(
                root, self.layouts, self.driver_state, ask_kubelet=self.ask_kubelet
            ).read()
            for name, root in self.roots.items()
        }
        pods = self.client.get("/api/v1/pods")["items"]
        nodes = self.client.get("/api/v1/nodes")["items"]
        return Evidence(
            nodes=tuple(nodes),
            pods=tuple(pods),
            files=files,
            timeline=self._timeline(),
            layouts=self.layouts,
            resources=self.resources,
            grant_keys=self.grant_keys,
            quiet=self.quiet,
        )

    def settle(
        self, *, patience: float = settling.PATIENCE, pause: float = settling.PAUSE
    ) -> list[Finding]:
        """Return what is wrong, and not merely in progress."""
        return settling.settle(self.gather, patience=patience, pause=pause)

    def _timeline(self) -> str:
        if self.recorder is not None:
            self.recorder.catch_up()
            return self.recorder.path.read_text()
        return "" if self.timeline is None else self.timeline.read_text()
