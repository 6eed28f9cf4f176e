"""What the agent counts about itself. Containers and cards are the monitor's to show."""

from __future__ import annotations

import importlib.metadata

from hami.serving import metrics


class Metrics:
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
        self.late = make.gauge(
            "hami_agent_late_binding", "1 where the node needs no lock, 0 where it does."
        )
        self.cards = make.gauge(
            "hami_agent_cards", "Cards that the node offers, by health.", ("health",)
        )
        self.pods = make.gauge("hami_agent_pods", "Pods in the node's ledger.")
        self.damaged = make.gauge(
            "hami_agent_damaged_records", "Records of the ledger that cannot be read; must be 0."
        )
        self.registered = make.gauge(
            "hami_agent_registered", "1 while kubelet knows us, by resource.", ("resource",)
        )

    def allocated(self, mode: str, result: str, seconds: float) -> None:
        self._allocate.labels(mode, result).observe(seconds)

    def pre_started(self, result: str, seconds: float) -> None:
        self._pre_start.labels(result).observe(seconds)
