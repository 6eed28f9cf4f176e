"""A node with simulated devices: a scripted API, the cards, Allocate's endings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hami.simulation import description, main
from hami.simulation.cards import VendorCards
from hami.vendors import table
from hami.wire import annotation_keys, shares
from hami.wire.shares import Share
from tests.scripted_api.server import ScriptedApi

Object = dict[str, Any]

NODE = "gpu-1"
VENDORS = table.built_in()
LOCK = annotation_keys.NODE_LOCK
LOCKED_AT = "2026-01-01T00:00:00Z"


def cards(
    *models: str, node: str = NODE, vendors: Sequence[table.Vendor] = VENDORS
) -> dict[str, VendorCards]:
    """Make two cards of each model, by vendor."""
    listed = ", ".join(f"{{model: {each}, cards: 2}}" for each in models)
    described = description.parse(f"nodes: [{{devices: [{listed}]}}]", vendors, source="test")
    found = main.cards_of(node, described.of_node(node), vendors)
    return {each.vendor.name: each for each in found}


class Node:
    """A node of a scripted API, with pods that the scheduler has bound to it."""

    def __init__(self, api: ScriptedApi) -> None:
        self.api = api
        self._bound = 0
        api.put({"kind": "Node", "metadata": {"name": NODE, "annotations": {}}})

    def pod(
        self,
        name: str,
        lists: Mapping[str, Sequence[Sequence[str]]],
        *,
        limits: Sequence[Mapping[str, object]] = (),
        phase: str = "Pending",
        marks: Mapping[str, str] | None = None,
    ) -> None:
        """Bind a pod; `lists` has the cards of each container by vendor, `marks` annotations."""
        self._bound += 1
        kept = {
            annotation_keys.ASSIGNED_NODE: NODE,
            annotation_keys.BIND_TIME: str(self._bound),
            annotation_keys.BIND_PHASE: "allocating",
            **(marks or {}),
        }
        for vendor in VENDORS:
            if vendor.name in lists:
                value = shares.encode(
                    [Share(card, vendor.type_word, 1000, 10) for card in part]
                    for part in lists[vendor.name]
                )
                keys = (vendor.annotations.to_allocate, vendor.annotations.allocated)
                kept |= {key: value for key in keys if key}
        number = max([len(limits), *(len(parts) for parts in lists.values())])
        containers = [
            {"name": f"c{index}", "resources": {"limits": dict(limits[index]) if limits else {}}}
            for index in range(number)
        ]
        self.api.put(
            {
                "kind": "Pod",
                "metadata": {
                    "name": name,
                    "namespace": "team",
                    "uid": f"uid-{name}",
                    "annotations": kept,
                },
                "spec": {"nodeName": NODE, "containers": containers},
                "status": {"phase": phase},
            }
        )

    def lock(self, name: str, key: str = LOCK) -> None:
        self.annotate({key: f"{LOCKED_AT},team,{name}" if name else LOCKED_AT})

    def annotate(self, annotations: Mapping[str, str]) -> None:
        found = self.api.find("nodes", NODE)
        assert found is not None
        found["metadata"].setdefault("annotations", {}).update(annotations)
        self.api.put(found)

    @property
    def annotations(self) -> dict[str, str]:
        found = self.api.find("nodes", NODE)
        assert found is not None
        return dict(found["metadata"].get("annotations") or {})

    def says(self, pod: str) -> dict[str, str]:
        found = self.api.find("pods", pod, "team")
        assert found is not None
        return dict(found["metadata"]["annotations"])
