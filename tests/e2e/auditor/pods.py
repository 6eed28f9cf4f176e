"""The auditor's own reading of a pod: docs/placement.md section 7.

A pod holds cards from its binding until its phase is Succeeded or Failed or it is gone; one that is
being deleted still holds them. On each card it holds the peak of slots, of memory and of cores.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterable, Mapping
from typing import Any, Self

from tests.e2e.auditor import pod_annotations
from tests.e2e.auditor.evidence import Json
from tests.e2e.auditor.malformed import MalformedError
from tests.e2e.auditor.pod_annotations import Grant, Slot, Slots

_QUANTITY = re.compile(r"([0-9]+)([kMGTPE]i?|Ki)?", re.ASCII)
_POWERS = "kMGTPE"
_WHOLE = 100


class ContainerKind(enum.StrEnum):
    """How long a container lives within its pod."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


@dataclasses.dataclass(frozen=True, slots=True)
class Container:
    name: str
    kind: ContainerKind
    asks: Mapping[str, Any]
    """By resource: its limit, else its request."""
    running: bool
    ended_well: bool

    def ask(self, resource: str) -> int:
        """Return a whole number that it asks for; 0 if it does not, or not a whole one."""
        found = _QUANTITY.fullmatch(str(self.asks.get(resource, "0")))
        if found is None:
            return 0
        suffix = found[2] or ""
        power = _POWERS.index(suffix[0].replace("K", "k")) + 1 if suffix else 0
        scale: int = (1024 if suffix.endswith("i") else 1000) ** power
        return int(found[1]) * scale


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    uid: str
    namespace: str
    name: str
    node: str
    """Empty while it is not bound."""
    phase: str
    deleting: bool
    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    containers: tuple[Container, ...]

    @classmethod
    def of(cls, document: Json) -> Self:
        metadata, spec = document.get("metadata", {}), document.get("spec", {})
        status = document.get("status", {})
        return cls(
            uid=metadata.get("uid", ""),
            namespace=metadata.get("namespace", ""),
            name=metadata.get("name", ""),
            node=spec.get("nodeName") or "",
            phase=status.get("phase", ""),
            deleting="deletionTimestamp" in metadata,
            annotations=metadata.get("annotations") or {},
            labels=metadata.get("labels") or {},
            containers=tuple(_containers(spec, status)),
        )

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def subject(self) -> str:
        """How findings name it; the UID tells it from another of the same name."""
        return f"pod {self.full_name} ({self.uid})"

    @property
    def ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    @property
    def live(self) -> bool:
        """Whether it holds what it was granted."""
        return bool(self.node) and not self.ended

    def container(self, name: str) -> Container | None:
        return next((one for one in self.containers if one.name == name), None)

    def slots(self) -> Slots:
        """Return what it was granted; nothing if that does not decode, which is reported."""
        try:
            return pod_annotations.device_list(
                pod_annotations.ALLOCATED, self.annotations.get(pod_annotations.ALLOCATED, "")
            )
        except MalformedError:
            return ()


def _containers(spec: Json, status: Json) -> Iterable[Container]:
    for field, statuses, apps in (
        ("initContainers", "initContainerStatuses", False),
        ("containers", "containerStatuses", True),
    ):
        states = {one.get("name"): one.get("state") or {} for one in status.get(statuses) or ()}
        for one in spec.get(field) or ():
            state = states.get(one["name"], {})
            resources = one.get("resources") or {}
            kind = ContainerKind.APP
            if not apps:
                always = one.get("restartPolicy") == "Always"
                kind = ContainerKind.SIDECAR if always else ContainerKind.INIT
            yield Container(
                name=one["name"],
                kind=kind,
                asks={**(resources.get("requests") or {}), **(resources.get("limits") or {})},
                running="running" in state,
                ended_well=(state.get("terminated") or {}).get("exitCode") == 0,
            )


# What it holds.


def by_container(
    pod: Pod, slots: Slots, count_resource: str
) -> list[tuple[Container | None, Slot]]:
    """Give each slot its container; what cannot be given to one belongs to None."""
    if len(slots) == len(pod.containers):
        return list(zip(pod.containers, slots, strict=True))
    asking = [one for one in pod.containers if one.ask(count_resource)]
    filled = [slot for slot in slots if slot]
    if len(asking) == len(filled):
        return list(zip(asking, filled, strict=True))
    return [(None, tuple(grant for slot in slots for grant in slot))]


@dataclasses.dataclass(frozen=True, slots=True)
class Holding:
    """What one pod holds of one card; `whole` if a container of it has all its cores."""

    slots: int
    memory: int
    cores: int
    whole: bool


def holdings(pod: Pod, slots: Slots, count_resource: str) -> dict[str, Holding]:
    """Return the peaks of a pod by card; init containers that all ended well hold nothing."""
    inits = [one for one in pod.containers if one.kind is ContainerKind.INIT]
    done = bool(inits) and all(one.ended_well for one in inits)
    alive = [
        (container.kind if container else ContainerKind.APP, slot)
        for container, slot in by_container(pod, slots, count_resource)
        if not (done and container and container.kind is ContainerKind.INIT)
    ]
    cards = dict.fromkeys(grant.card for _, slot in alive for grant in slot)
    return {
        card: _holding([(kind, _of_card(slot, card)) for kind, slot in alive]) for card in cards
    }


def _of_card(slot: Slot, card: str) -> tuple[Grant, ...]:
    return tuple(grant for grant in slot if grant.card == card)


def _holding(series: list[tuple[ContainerKind, Slot]]) -> Holding:
    return Holding(
        slots=peak((kind, int(bool(grants))) for kind, grants in series),
        memory=peak((kind, sum(grant.memory for grant in grants)) for kind, grants in series),
        cores=peak((kind, sum(grant.cores for grant in grants)) for kind, grants in series),
        whole=any(grant.cores == _WHOLE for _, grants in series for grant in grants),
    )


def peak(series: Iterable[tuple[ContainerKind, int]]) -> int:
    """Return the most that is alive at one time: inits alone, sidecars and apps together."""
    running = highest = 0
    for kind, amount in series:
        if kind is ContainerKind.INIT:
            highest = max(highest, running + amount)
        else:
            running += amount
    return max(highest, running)
