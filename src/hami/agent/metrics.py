"""The agent's own metrics. Containers and cards are the monitor's to show."""

from __future__ import annotations

import importlib.metadata

from hami.agent.kubelet.registration import Registration
from hami.agent.ledger import Ledger
from hami.serving import metrics


class Metrics:
    """Counts kubelet's calls and shows the agent's state."""

    def __init__(self) -> None:
        self.registry = metrics.Registry()
        self.registry.build_info(version=importlib.metadata.version("hami"))
        make = self.registry
        self._allocate = make.histogram(
            "hami_agent_allocate_duration_seconds",
            "Time to answer kubelet's Allocate, by mode (late, lock) and result (ok, refused).",
            ("mode", "result"),
        )
        self._pre_start = make.histogram(
            "hami_agent_prestart_duration_seconds",
            "Time to prepare a container before its start, by result (ok, refused).",
            ("result",),
        )
        self._late = make.gauge(
            "hami_agent_late_binding", "1 where the node needs no lock, 0 where it does."
        )
        self._cards = make.gauge(
            "hami_agent_cards", "Cards that the node offers, by health.", ("health",)
        )
        self._restored = make.counter(
            "hami_agent_restored_grants_total",
            "Times that a pod's grant was written back: its annotations had been changed.",
        )
        self._pods = make.gauge("hami_agent_pods", "Pods in the node's ledger.")
        self._damaged = make.gauge(
            "hami_agent_damaged_records", "Records of the ledger that cannot be read; must be 0."
        )
        self._registered = make.gauge(
            "hami_agent_registered", "1 while kubelet knows us, by resource.", ("resource",)
        )

    def read_at_scrape(self, ledger: Ledger, registration: Registration) -> None:
        """Show what changes without an event: damaged records and the registration."""
        self._damaged.set_function(lambda: len(ledger.damaged))
        self._registered.labels(registration.resource).set_function(
            lambda: float(registration.registered)
        )

    def advertised(self, *, late: bool, healthy: int, unhealthy: int, pods: int) -> None:
        """Show the node's state after a change of it."""
        self._late.set(late)
        self._cards.labels("healthy").set(healthy)
        self._cards.labels("unhealthy").set(unhealthy)
        self._pods.set(pods)

    def grant_restored(self) -> None:
        self._restored.inc()

    def allocated(self, mode: str, result: str, seconds: float) -> None:
        self._allocate.labels(mode, result).observe(seconds)

    def pre_started(self, result: str, seconds: float) -> None:
        self._pre_start.labels(result).observe(seconds)
