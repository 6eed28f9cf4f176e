"""Checks of an example: what it expects, as data.

A check reads the cluster once and returns a finding; the runner repeats it until the finding is as
expected, or the time is over. The fields are those of `[[step.expect]]` in an example.toml.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, Protocol

import msgspec

from hami_sandbox.demo import cluster_view
from hami_sandbox.demo.cards import SeenPod
from hami_sandbox.demo.manifests import DEFAULT_NAMESPACE

Seconds = Annotated[float, msgspec.Meta(ge=0, le=600)]
Number = Annotated[int, msgspec.Meta(ge=0)]
Words = Annotated[str, msgspec.Meta(min_length=1)]
Texts = Annotated[tuple[Words, ...], msgspec.Meta(min_length=1)]

_MIB = 1 << 20
_SHOWN = 400


class View(Protocol):
    """What a check may read."""

    @property
    def refusals(self) -> Mapping[str, str]:
        """Messages about what the API server refused in this step, by `pod/name`."""

    def find_pods(self, namespace: str, name: str, labels: Mapping[str, str]) -> list[SeenPod]: ...

    async def log(self, namespace: str, pod: str, container: str) -> str: ...

    async def samples(self) -> list[cluster_view.Sample]: ...

    async def explanation(self, namespace: str, pod: str) -> str: ...


class Finding(msgspec.Struct, frozen=True):
    met: bool
    #: What was found, for people.
    seen: str


class _Check(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"
):
    #: Seconds since the step began in which it must be met.
    within: Seconds = 60
    #: Seconds that it must then hold.
    holds: Seconds = 0


class Refused(_Check, frozen=True, kw_only=True, tag="refused"):
    """The API server refused an object, with a message."""

    #: A refusal is known at once.
    within: Seconds = 0
    #: As kubectl names it: pod/name.
    object: Words
    says: Texts

    def words(self) -> str:
        return f"{self.object} is refused: {' … '.join(self.says)}"

    async def look(self, view: View) -> Finding:
        message = view.refusals.get(self.object)
        if message is None:
            return Finding(met=False, seen=f"{self.object} was not refused")
        return _spoken(f"{self.object} refused", message, self.says)


class Pods(_Check, frozen=True, kw_only=True, tag="pods"):
    """A number of pods have a phase, cards and shares."""

    namespace: str = DEFAULT_NAMESPACE
    #: Exactly one of name and labels.
    name: str = ""
    labels: Mapping[str, str] = {}
    number: Number = 1
    phase: Literal["Pending", "Running", "Succeeded", "Failed"] = "Running"
    #: Of each pod: cards, and of every card MiB and percent of compute.
    cards: Number | None = None
    memory: Number | None = None
    cores: Number | None = None
    #: How many different cards all of them hold together.
    distinct_cards: Number | None = None
    #: Texts that annotations must have, and values of variables.
    annotations: Mapping[str, str] = {}
    variables: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        if bool(self.name) == bool(self.labels):
            raise ValueError("name either one pod or labels")

    def words(self) -> str:
        whom = self.name or ",".join(f"{key}={value}" for key, value in self.labels.items())
        pods = f"pod {whom}" if self.name else f"{self.number} pods {whom}"
        return ", ".join((f"{pods} {self.phase}", *self._rules()))

    def _rules(self) -> Iterator[str]:
        if self.cards is not None:
            yield (
                f"{_number(self.cards, 'card')} each"
                if self.labels
                else _number(self.cards, "card")
            )
        if self.memory is not None:
            yield f"{self.memory} MiB"
        if self.cores is not None:
            yield f"{self.cores} % of compute"
        if self.distinct_cards is not None:
            yield f"on {_number(self.distinct_cards, 'card')} together"
        yield from (f"{key}: {text}" for key, text in self.annotations.items())
        yield from (f"{name}={value}" for name, value in self.variables.items())

    async def look(self, view: View) -> Finding:
        found = view.find_pods(self.namespace, self.name, self.labels)
        wrong = [problem for pod in found for problem in self._wrong(pod)]
        there = sum(pod.phase == self.phase for pod in found)
        if there != self.number or len(found) != self.number:
            wrong.insert(0, f"{there} of {self.number} {self.phase}{_others(found, self.phase)}")
        held = {grant.card for pod in found for grant in pod.grants}
        if self.distinct_cards is not None and len(held) != self.distinct_cards:
            wrong.append(f"they hold {_number(len(held), 'card')} together")
        return Finding(met=not wrong, seen=_cut("; ".join(wrong)) or _placed(found, self.phase))

    def _wrong(self, pod: SeenPod) -> Iterator[str]:
        if pod.phase != self.phase:
            if problem := pod.troubles():
                yield f"{pod.name}: {problem}"
            return
        for what, wanted, has in (
            ("cards", self.cards, [len(pod.grants)]),
            ("MiB", self.memory, [grant.memory_mib for grant in pod.grants]),
            ("% of compute", self.cores, [grant.cores for grant in pod.grants]),
        ):
            if wanted is not None and (not has or any(amount != wanted for amount in has)):
                yield f"{pod.name} has {', '.join(map(str, has)) or 'no'} {what}"
        for key, text in self.annotations.items():
            if text not in (value := pod.annotation(key)):
                yield f"{pod.name} has {key}: {value or 'nothing'}"
        variables = pod.variables()
        for name, value in self.variables.items():
            if variables.get(name) != value:
                yield f"{pod.name} has {name}={variables.get(name, '')}"


class Log(_Check, frozen=True, kw_only=True, tag="log"):
    """A container's log has some text."""

    namespace: str = DEFAULT_NAMESPACE
    pod: Words
    container: str = ""
    says: Texts

    def words(self) -> str:
        return f"log of {self.pod}: {' … '.join(self.says)}"

    async def look(self, view: View) -> Finding:
        text = await view.log(self.namespace, self.pod, self.container)
        return _spoken(f"log of {self.pod}", text, self.says)


class Metric(_Check, frozen=True, kw_only=True, tag="metric"):
    """A monitor shows a number within bounds, in every series that has these labels."""

    name: Words
    labels: Mapping[str, str] = {}
    #: MiB where the metric's name ends in _bytes.
    at_least: float = 0
    at_most: float | None = None

    def words(self) -> str:
        most = "" if self.at_most is None else f", at most {self.at_most:g}"
        unit = " MiB" if self._unit > 1 else ""
        whose = f" of {', '.join(self.labels.values())}" if self.labels else ""
        return f"{self.name}{whose}: at least {self.at_least:g}{most}{unit}"

    @property
    def _unit(self) -> int:
        return _MIB if self.name.endswith("_bytes") else 1

    async def look(self, view: View) -> Finding:
        found = cluster_view.select(await view.samples(), self.name, self.labels)
        values = [sample.value / self._unit for sample in found]
        most = float("inf") if self.at_most is None else self.at_most
        shown = ", ".join(f"{value:g}" for value in values) or "nothing"
        unit = " MiB" if self._unit > 1 else ""
        met = bool(values) and all(self.at_least <= value <= most for value in values)
        return Finding(met=met, seen=f"{self.name} shows {shown}{unit}")


class Explained(_Check, frozen=True, kw_only=True, tag="explained"):
    """`hami explain` has some text about a pod."""

    namespace: str = DEFAULT_NAMESPACE
    pod: Words
    says: Texts

    def words(self) -> str:
        return f"hami explain {self.pod}: {' … '.join(self.says)}"

    async def look(self, view: View) -> Finding:
        text = await view.explanation(self.namespace, self.pod)
        return _spoken(f"hami explain {self.pod}", text, self.says)


Check = Refused | Pods | Log | Metric | Explained


def _spoken(who: str, text: str, wanted: tuple[str, ...]) -> Finding:
    """Check that a text has all wanted parts; of a long one show the lines that matter."""
    lines = [line for line in text.splitlines() if any(part in line for part in wanted)]
    missing = [part for part in wanted if part not in text]
    if not missing:
        return Finding(met=True, seen=_cut(f"{who}: {' | '.join(lines) or text}"))
    shown = text.strip() or "nothing"
    return Finding(met=False, seen=_cut(f"{who} lacks {', '.join(missing)!r}; it says: {shown}"))


def _placed(found: list[SeenPod], phase: str) -> str:
    nodes = ", ".join(sorted({pod.node_name for pod in found if pod.node_name}))
    names = found[0].name if len(found) == 1 else f"{len(found)} pods"
    return f"{names} {phase}{f' on {nodes}' if nodes else ''}"


def _others(found: list[SeenPod], phase: str) -> str:
    other = [pod.phase or "without phase" for pod in found if pod.phase != phase]
    return "".join(f", {other.count(each)} {each}" for each in sorted(set(other)))


def _number(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _cut(text: str) -> str:
    line = " | ".join(part.strip() for part in text.splitlines() if part.strip())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
