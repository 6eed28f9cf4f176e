"""Run examples: apply, check until met or the time is over, clean up.

After each example no card may have more granted than it has, whatever the example itself expects.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from hami.kube import errors
from hami_sandbox.demo import cards, manifests
from hami_sandbox.demo.checks import Check, Finding, Refused
from hami_sandbox.demo.cluster_view import ClusterView
from hami_sandbox.demo.example import Example, Step
from hami_sandbox.demo.manifests import Manifest
from hami_sandbox.demo.results import Met, Result, Status
from hami_sandbox.plan import Plan

#: Seconds between checks of what cannot be watched: logs, monitors, explanations.
_LOOK_S = 0.5
_DELETED_WITHIN_S = 60.0


class Progress(msgspec.Struct, kw_only=True):
    """Progress of the examples, for the view."""

    total: int
    #: How many have ended.
    done: int = 0
    example: Example | None = None
    step: Step | None = None
    #: Checks of the example so far; the last one may still be open.
    met: list[Met] = msgspec.field(default_factory=list)
    waiting_for: str = ""
    results: list[Result] = msgspec.field(default_factory=list)


class _Ended(Exception):  # noqa: N818 - not an error of ours: the example went otherwise
    """The example cannot go on."""


class Runner:
    def __init__(
        self,
        view: ClusterView,
        *,
        progress: Progress,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._view = view
        self._progress = progress
        self._say = say
        self._clock = clock
        self._made: list[Manifest] = []

    async def run(self, examples: Sequence[Example], plan: Plan, *, insist: bool) -> list[Result]:
        """Run them in order; `insist`: one that the fleet cannot run counts as failed."""
        for example in examples:
            lacks = example.needs.unmet(plan)
            result = self._skipped(example, lacks, insist) if lacks else await self._run(example)
            self._progress.results.append(result)
            self._progress.done += 1
            if not lacks:
                self._say(f"    {_mark(result)} {result.status.value} ({result.seconds:.1f} s)")
        self._progress.example = self._progress.step = None
        return self._progress.results

    def _skipped(self, example: Example, lacks: str, insist: bool) -> Result:  # noqa: FBT001 - ours
        self._head(example)
        self._say(f"    {'✗' if insist else '-'} not run: {lacks}")
        return Result(
            name=example.name,
            title=example.title,
            promise=example.promise,
            status=Status.OTHERWISE if insist else Status.SKIPPED,
            note=f"not run: {lacks}",
        )

    def _head(self, example: Example) -> None:
        number = self._progress.done + 1
        self._say(f"[{number}/{self._progress.total}] {example.name}: {example.title}")

    async def _run(self, example: Example) -> Result:
        progress = self._progress
        progress.example, progress.met = example, []
        self._head(example)
        began = self._clock()
        before = {pod.uid for pod in self._view.pods}
        self._made = []
        note = ""
        try:
            for step in example.steps:
                await self._step(example, step)
            note = self._overgranted()
        except _Ended as ended:
            note = str(ended)
        except errors.KubeError as error:
            note = f"the API server: {error}"
        met = tuple(progress.met)
        good = not note and all(each.met for each in met)
        if note:
            self._say(f"    ✗ {note}")
        seconds = self._clock() - began
        if not example.keep:
            left = await self._clean_up(before)
            if left and good:
                good, note = False, left
        return Result(
            name=example.name,
            title=example.title,
            promise=example.promise,
            status=Status.AS_EXPECTED if good else Status.OTHERWISE,
            seconds=seconds,
            checks=met,
            note=note,
        )

    async def _step(self, example: Example, step: Step) -> None:
        self._progress.step = step
        self._view.refusals.clear()
        self._say(f"    {step.text}")
        client = self._view.cluster.client
        began = self._clock()
        for name in step.delete:
            await manifests.remove(client, self._find(name))
        for file in step.apply:
            for written in example.files[file]:
                # On a simulated node there is no container to ask.
                manifest = written.on_real_nodes() if example.asks_containers else written
                if refusal := await manifests.make(client, manifest):
                    self._view.refusals[manifest.short] = refusal
                else:
                    self._made.append(manifest)
        expected = {check.object for check in step.expect if isinstance(check, Refused)}
        for name, refusal in self._view.refusals.items():
            if name not in expected:
                raise _Ended(f"{name} was refused: {refusal}")
        for check in step.expect:
            await self._check(check, began)

    def _find(self, name: str) -> Manifest:
        for manifest in self._made:
            if manifest.short == name:
                return manifest
        raise _Ended(f"{name} cannot be deleted: it was refused")

    async def _check(self, check: Check, began: float) -> None:
        words = self._progress.waiting_for = check.words()
        finding = await self._until(check, began)
        self._progress.waiting_for = ""
        self._progress.met.append(Met(words, met=finding.met, seen=finding.seen))
        if not finding.met:
            raise _Ended(f"expected {words}; after {check.within:g} s: {finding.seen}")
        self._say(f"    ✓ {words}")

    async def _until(self, check: Check, began: float) -> Finding:
        """Check until it is met and has held as long as it must, or the time is over."""
        since: float | None = None
        while True:
            finding = await check.look(self._view)
            now = self._clock()
            if finding.met:
                since = now if since is None else since
                if now - since >= check.holds:
                    return finding
            else:
                since = None
                if now - began >= check.within:
                    return finding
            await self._view.change(_LOOK_S)

    def _overgranted(self) -> str:
        view = self._view
        texts = [
            card.overgranted()
            for found in cards.of_all(view.nodes, view.pods).values()
            for card in found
        ]
        return "; ".join(filter(None, texts))

    async def _clean_up(self, before: set[str]) -> str:
        """Delete the example's objects, last first, and wait until its pods are deleted."""
        self._progress.waiting_for = "what it made is deleted"
        until = self._clock() + _DELETED_WITHIN_S
        try:
            for manifest in reversed(self._made):
                await manifests.remove(self._view.cluster.client, manifest)
        except errors.KubeError as error:
            return f"what it made cannot be deleted: {error}"
        while left := [pod.name for pod in self._view.pods if pod.uid not in before]:
            if self._clock() > until:
                return (
                    f"deleted, but still there after {_DELETED_WITHIN_S:g} s: {', '.join(left[:5])}"
                )
            await self._view.change(_LOOK_S)
        self._progress.waiting_for = ""
        return ""


def _mark(result: Result) -> str:
    return {Status.AS_EXPECTED: "✓", Status.OTHERWISE: "✗", Status.SKIPPED: "-"}[result.status]
