"""The monitor's page, read as Prometheus reads it, once or repeatedly."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Self

from prometheus_client import parser
from prometheus_client.samples import Sample

from tests.e2e.agent.installation import Agents
from tests.kubeapi.client import wait_for

MORE_S = 30
PAUSE_S = 0.01


def samples(page: str, name: str, **labels: str) -> list[Sample]:
    """Give the samples of a metric that have these labels."""
    return [
        sample
        for family in parser.text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]


def values(page: str, **labels: str) -> dict[str, float]:
    """Give every metric that has these labels; there must be one sample of each."""
    found: dict[str, float] = {}
    for family in parser.text_string_to_metric_families(page):
        for sample in family.samples:
            if labels.items() <= sample.labels.items():
                assert sample.name not in found, f"{sample} is beside {found[sample.name]}"
                found[sample.name] = sample.value
    return found


class Scraper:
    """Reads a node's page again and again while the block runs, and keeps all of it."""

    def __init__(self, agents: Agents, node: str) -> None:
        self._read: Callable[[], str] = lambda: agents.metrics(node)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.pages: list[str] = []
        self.errors: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()  # in our network: a thread has that of who starts it
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def more(self, count: int) -> None:
        """Wait until that many pages were begun and read after now."""
        wanted = len(self.pages) + len(self.errors) + 1 + count
        wait_for(
            f"{count} more pages",
            lambda: len(self.pages) + len(self.errors) >= wanted,
            MORE_S,
            PAUSE_S,
        )

    def differing(self, expected: Mapping[str, float], **labels: str) -> Iterator[dict[str, float]]:
        """Yield what pages showed for these labels where it was not this."""
        for page in self.pages:
            shown = {
                name: value for name, value in values(page, **labels).items() if name in expected
            }
            if shown != expected:
                yield shown

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.pages.append(self._read())
            except Exception as error:  # noqa: BLE001 - whatever it was, the test tells it
                self.errors.append(f"{type(error).__name__}: {error}")
            time.sleep(PAUSE_S)
