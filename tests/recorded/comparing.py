"""Compare HAMi's answer to a case with ours: differences, and the meant ones.

The fit of each node, its reason, the pod after admission and the annotations must be the same, byte
for byte. At a tie any of HAMi's answers is right. `Meant` are the bugs of HAMi that are not
reproduced, and what is better here by design; each names what it lets pass, and nothing else does.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from typing import Any

from tests.recorded import harness
from tests.recorded.fleets import Document

#: Ours by the name of the case's vendor; Iluvatar's cases name theirs themselves.
NAMES = {
    "hygon": "DCU", "biren": "Biren", "gcu": "GCU", "drs": "Enflame", "vgcu": "Enflame-VGCU",
    "cambricon": "MLU", "amd": "AMD",
}  # fmt: skip
WORDS = {"Enflame-VGCU": "Enflame"}
UNITS = {"cambricon": 256, "iluvatar": 256}
"""MiB of one unit of memory in a quota."""

WHOLE = 100
ASSIGNED_ID = "enflame.com/gcu-assigned-id"
EXCEEDED = "exceeding resource quota"
QUOTA = "ResourceQuotaNotFit"
FITTING = "AllocatedCardsInsufficientRequest"
NO_SUCH_CARD = "Device type not found"
TOO_FEW = "NodeInsufficientDevice"
TOLERANCE = 0.001
"""Scores closer than this are equal: HAMi's have 24 bits."""


class Meant(enum.StrEnum):
    """Why an answer of ours may differ from HAMi's."""

    PLACES = "a list has a place for every container; HAMi leaves out empty ones by model"
    ORDER = "cards of one container are listed by index; HAMi lists them as it took them"
    SLICES = "a placed pod's slices count; HAMi counts one after a restart"
    SCORES = "scores count the new pod too, which matters where cards or nodes differ"
    SECOND_TRY = "containers are tried in a second order before a node is refused"
    TOO_FEW = "a container that wants more cards than the node has is named before other containers"
    NO_SUCH_CARD = "a node without any card of the vendor says so; HAMi says too few"
    UNREADABLE = "an amount that cannot be read is refused at admission; HAMi sees no cards"
    OVERDRAWN = "a quota that is overdrawn refuses only pods that add to it"
    ALL_AT_ONCE = (
        "a quota that a whole request exceeds refuses every card; HAMi counts card by card"
    )
    ABOVE_WHOLE = "percent above 100 count as 100 of each card in a quota"
    MODES = "ModeNotFit counts cards that nothing else refuses; HAMi counts it once for a node"
    COUNTED = "cards that fit are counted; HAMi 2.8 counts one whatever their number"
    FIRST_CARDS = (
        "a vgcu pod names the cards of the first container that has any; HAMi of the first"
    )
    EQUAL = (
        "requests grow with limits that admission raises; HAMi's pod is refused by the API server"
    )
    NO_CARDS = "a pod that asks for 0 cards stays with its own scheduler"


@dataclasses.dataclass(frozen=True)
class Difference:
    kind: str
    theirs: Any
    ours: Any


class Comparison:
    """The differences of one case, and which meant ones it shows."""

    def __init__(self, case: Document, theirs: Document, ours: Document) -> None:
        self.found: list[Difference] = []
        self.meant: set[Meant] = set()
        self._case = case
        if "mended" in theirs:
            self.meant.add(Meant.SLICES)
            theirs = theirs["mended"]
        self._theirs = theirs
        self._ours = ours
        if "panic" not in theirs:
            self._cards()
            if self._admission():
                self._nodes()

    def _differ(self, kind: str, theirs: Any, ours: Any) -> None:
        if theirs != ours:
            self.found.append(Difference(kind, theirs, ours))

    # Cards and admission.

    def _cards(self) -> None:
        name = NAMES.get(self._case["vendor"])
        theirs = {
            key if name is None else f"{key}/{name}": sorted(cards)
            for key, cards in self._theirs["cards"].items()
            if cards
        }
        # Cards that HAMi leaves out are refused by both: that is compared as fit.
        for key, cards in theirs.items():
            self._differ(f"cards of {key}", cards, sorted(self._ours["cards"].get(key, ())))

    def _admission(self) -> bool:
        """Compare admission; return whether both let the pod pass to the scheduler."""
        theirs, ours = self._theirs, self._ours
        if "denied" in theirs or "denied" in ours:
            if "denied" not in theirs and self._unread():
                self.meant.add(Meant.UNREADABLE)
            elif "denied" not in ours and self._asks_for_none():
                self.meant.add(Meant.NO_CARDS)
            elif "denied" not in ours and theirs["denied"] == EXCEEDED and (why := self._lenient()):
                self.meant.add(why)
            elif ("denied" in theirs) != ("denied" in ours):
                self._differ("admission", theirs.get("denied"), ours.get("denied"))
            return False
        wanted, got = theirs["pod"], ours["pod"]
        if theirs.get("passed") and wanted["scheduler"] and not got["scheduler"]:
            self.meant.add(Meant.NO_CARDS)
            wanted = wanted | {"scheduler": ""}
        self._differ("pod", self._with_equal_requests(wanted, got), got)
        for key in ("passed", "error"):
            self._differ(key, theirs.get(key), ours.get(key))
        if "nodes" not in theirs or "nodes" not in ours:
            return False
        asked = [
            {WORDS.get(vendor, vendor): count for vendor, count in container.items()}
            for container in ours["requests"]
        ]
        self._differ("requests", theirs["requests"], asked)
        return True

    def _with_equal_requests(self, wanted: Document, got: Document) -> Document:
        """Return HAMi's pod with requests as ours, where admission has raised their limits."""
        mended = dict(wanted)
        for name, container in wanted.items():
            ours = got.get(name)
            if not isinstance(container, dict) or not ours or "requests" not in container:
                continue
            before, after, limits = container["requests"], ours["requests"], ours["limits"]
            changed = {key for key in after if after[key] != before.get(key)}
            if (
                changed
                and before.keys() == after.keys()
                and all(after[key] == limits.get(key) for key in changed)
            ):
                self.meant.add(Meant.EQUAL)
                mended[name] = container | {"requests": after}
        return mended

    def _unread(self) -> bool:
        """Return whether HAMi sees no cards in a container that limits some."""
        spec = self._case["pod"]["spec"]
        every = [*spec.get("initContainers", ()), *spec["containers"]]
        return any(
            container.get("resources") and not request
            for container, request in zip(every, self._theirs["requests"], strict=True)
        )

    def _asks_for_none(self) -> bool:
        """Return whether a container has bad numbers beside a count of 0 cards."""
        spec = self._case["pod"]["spec"]
        every = [*spec.get("initContainers", ()), *spec["containers"]]
        limits = [container.get("resources", {}).get("limits", {}) for container in every]
        return self._theirs["denied"] != EXCEEDED and any("0" in each.values() for each in limits)

    def _lenient(self) -> Meant | None:
        """Return why a quota refuses a pod with HAMi that it allows here."""
        containers = [each for key, each in self._ours["pod"].items() if key != "scheduler"]
        requests = self._ours.get("requests", [{}] * len(containers))
        pairs = zip(containers, requests, strict=True)
        limits = [container["limits"] for container, request in pairs if request]
        for key, limit in self._case["quotas"][0]["spec"]["hard"].items():
            resource = key.removeprefix("limits.")
            memory = "mem" in resource.lower()
            default = 0 if memory or self._case["vendor"] == "iluvatar" else WHOLE
            asked = [int(each.get(resource, default)) for each in limits]
            if not memory and max(asked, default=0) > WHOLE:
                return Meant.ABOVE_WHOLE
            unit = UNITS.get(self._case["vendor"], 1) if memory else 1
            if not any(asked) and self._use(2 if memory else 3) > int(limit) * unit:
                return Meant.OVERDRAWN
        return None

    def _use(self, field: int) -> int:
        """Return what placed pods hold: field 2 of a list is MiB, 3 is compute."""
        return sum(
            int(entry.split(",")[field])
            for pod in self._case["pods"]
            for key, value in pod["metadata"]["annotations"].items()
            if key.endswith("-devices-allocated")
            for entry in value.replace(";", ":").split(":")
            if entry
        )

    # Nodes.

    def _nodes(self) -> None:
        for name, outcome in self._theirs["nodes"].items():
            self._node(name, outcome, self._ours["nodes"][name])
        self._chosen()

    def _node(self, name: str, theirs: Document, ours: Document) -> None:
        several = sum(map(bool, self._theirs["requests"])) > 1
        if self._overdrawn(theirs):
            self.meant.add(Meant.OVERDRAWN)
        elif "annotations" in ours:
            if "answers" in theirs:
                self._annotations(name, theirs, ours["annotations"])
            elif several:
                self.meant.add(Meant.SECOND_TRY)
            else:
                self._differ(f"fit of {name}", theirs["reasons"], ours["annotations"])
        elif ours["reason"] not in theirs.get("reasons", ()):
            if why := self._worded(name, theirs.get("reasons", []), ours["reason"]):
                self.meant.add(why)
            elif several and self._mixed(name):
                self.meant.add(Meant.SCORES)
            else:
                kind = "fit" if "answers" in theirs else "reason"
                self._differ(f"{kind} of {name}", theirs.get("reasons"), ours["reason"])

    def _overdrawn(self, theirs: Document) -> bool:
        """Return whether HAMi refuses cards for a quota that the pod does not add to."""
        refused = any(QUOTA in reason for reason in theirs.get("reasons", ()))
        return refused and self._lenient() is Meant.OVERDRAWN

    def _worded(self, name: str, theirs: list[str], ours: str) -> Meant | None:
        """Return why the same refusal has another text."""
        requests = self._theirs["requests"]
        cards = self._theirs["cards"]
        here = harness.cards_of(cards, name)
        if theirs and ours == TOO_FEW and sum(map(bool, requests)) > 1:
            most = max(max(request.values(), default=0) for request in requests)
            return Meant.TOO_FEW if most > len(here) else None
        if ours == NO_SUCH_CARD and theirs in ([TOO_FEW], ["node unregistered"]):
            words = {word for request in requests for word in request}
            return (
                None if any(cards.get(f"{name}/{word}") for word in words) else Meant.NO_SUCH_CARD
            )
        if theirs == [f"1/{len(here)} ModeNotFit"]:
            counts = [int(part.split("/")[0]) for part in ours.split(", ") if "/" in part]
            return Meant.MODES if sum(counts) == len(here) else None
        if QUOTA in ours and all(FITTING in reason for reason in theirs):
            return Meant.ALL_AT_ONCE if theirs else None
        if self._case["vendor"] == "vgcu":
            alike = {_uncounted(reason) for reason in theirs} == {_uncounted(ours)}
            return Meant.COUNTED if alike else None
        return None

    def _annotations(self, name: str, theirs: Document, ours: dict[str, str]) -> None:
        if ours in theirs["answers"]:
            return
        placed = [self._placed(each) for each in theirs["answers"]]
        if ours in placed:
            self.meant.add(Meant.PLACES)
            return
        if _by_index(ours) in map(_by_index, placed):
            self.meant.add(Meant.ORDER)
            return
        unnamed = {key: value for key, value in ours.items() if key != ASSIGNED_ID}
        if self._case["vendor"] == "vgcu" and _by_index(unnamed) in map(_by_index, placed):
            self.meant.add(Meant.FIRST_CARDS)
            return
        if self._mixed(name) and self._built_of(ours, theirs):
            self.meant.add(Meant.SCORES)
            return
        self._differ(f"annotations on {name}", placed, ours)

    def _placed(self, annotations: dict[str, str]) -> dict[str, str]:
        """Return annotations whose lists have a place for every container."""
        return {
            key: self._positional(value) if key.endswith(("-allocated", "-to-allocate")) else value
            for key, value in annotations.items()
        }

    def _positional(self, devices: str) -> str:
        requests = self._theirs["requests"]
        *parts, end = devices.split(";")
        full = [part for part in parts if part]
        if end or len(full) != sum(map(bool, requests)):
            return devices
        left = iter(full)
        return "".join(f"{next(left)};" if request else ";" for request in requests)

    def _built_of(self, ours: dict[str, str], theirs: Document) -> bool:
        """Return whether lists hold as many cards as HAMi's, each written as HAMi would."""
        sample = self._placed(theirs["answers"][0])
        if ours.keys() != sample.keys():
            return False
        for key, value in ours.items():
            mine, other = value.split(";"), sample[key].split(";")
            if [place.count(":") for place in mine] != [place.count(":") for place in other]:
                return False
            for place, entries in zip(mine, theirs["entries"], strict=False):
                written = [f"{entry}:" for entry in place.split(":") if entry]
                if len(set(written)) != len(written) or not set(written) <= set(entries.values()):
                    return False
        return True

    def _mixed(self, name: str) -> bool:
        return harness.mixed(self._theirs["cards"], name)

    def _chosen(self) -> None:
        fitting = {k: o["score"] for k, o in self._theirs["nodes"].items() if "answers" in o}
        chosen = self._ours["chosen"]
        if chosen is None or chosen not in fitting:
            return  # a difference in fit, which is reported there
        annotations = self._case["pod"]["metadata"].get("annotations", {})
        policy = annotations.get("hami.io/node-scheduler-policy", self._case["nodePolicy"])
        best = min(fitting.values()) if policy == "spread" else max(fitting.values())
        if abs(fitting[chosen] - best) < TOLERANCE:
            return
        if len({self._total(name) for name in fitting}) > 1 or any(map(self._mixed, fitting)):
            self.meant.add(Meant.SCORES)
            return
        self._differ("chosen node", {"scores": fitting, "policy": policy}, chosen)

    def _total(self, name: str) -> tuple[int, int, int]:
        cards = harness.cards_of(self._theirs["cards"], name)
        count, memory, cores = (sum(card[field] for card in cards) for field in (2, 3, 4))
        return count, memory, cores


def _uncounted(reason: str) -> str:
    """Return a reason without the number of cards that fit."""
    parts = [re.sub(r"^\d+(/\d+ Allocated)", r"n\1", part) for part in reason.split(", ")]
    return ", ".join(sorted(parts))


def _by_index(annotations: dict[str, str]) -> dict[str, str]:
    """Return annotations that do not depend on the order of the cards of one container."""
    found = {}
    lists = [value for key, value in annotations.items() if key.endswith("-allocated")]
    first = next((place for value in lists for place in value.split(";") if place), "")
    indices = sorted(entry.split(",")[0].rsplit("-", 1)[-1] for entry in first.split(":") if entry)
    for key, value in annotations.items():
        if key.endswith(("-allocated", "-to-allocate")):
            places = [sorted(place.split(":")) for place in value.split(";")]
            found[key] = ";".join(":".join(place) for place in places)
        elif key == "CAMBRICON_DSMLU_PROFILE" and value.split("_")[0] in indices:
            found[key] = "_".join((indices[0], *value.split("_")[1:]))
        elif key == ASSIGNED_ID:
            found[key] = ",".join(sorted(value.split(",")))
        else:
            found[key] = value
    return found
