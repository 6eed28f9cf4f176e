"""One demo: start the cluster, run the examples, show, summarize, end.

On a terminal the cluster stays until Ctrl-C, and the view with it; otherwise it ends with the
summary. However it ends, every process and file of the sandbox is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.live import Live

from hami_sandbox.cluster import Sandbox
from hami_sandbox.demo import cards, example, results, snapshot, view
from hami_sandbox.demo.cluster_view import ClusterView
from hami_sandbox.demo.example import Example
from hami_sandbox.demo.results import NodeLine, Outcome
from hami_sandbox.demo.running import Progress, Runner
from hami_sandbox.demo.snapshot import Snapshot
from hami_sandbox.plan import Plan, cards_text

INTERRUPTED = 130

#: Seconds between two snapshots: often enough to see cards fill, and little work for two cores.
_REFRESH_S = 0.5
#: Seconds after which monitors have seen what the last pods use.
_SETTLE_S = 2.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    plan: Plan
    examples: Sequence[Example] = ()
    #: Whether the user has named the examples: then one that cannot run is a failure.
    insist: bool = False
    #: End after the examples even on a terminal.
    once: bool = False
    folder: Path | None = None
    #: Where the programs' logs are kept; None: they go with the sandbox.
    keep_logs: Path | None = None
    #: How this command is called, for the hints.
    command: str = "hami"
    #: Called with the last snapshot, where the examples were run: for a screenshot.
    at_end: Callable[[Snapshot, Progress, Outcome], None] | None = None


class Demo:
    """One demo; `run` is called once."""

    def __init__(
        self, settings: Settings, console: Console, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._console = console
        self._clock = clock
        self._live = console.is_terminal and not settings.once
        self._progress = Progress(total=len(settings.examples))
        self._began = clock()
        self._code = INTERRUPTED
        #: Whether it is ending: a further Ctrl-C must not stop the cleaning up.
        self._ends = False

    async def run(self) -> int:
        """Return the exit code: 0 if every example ended as its text says."""
        task = asyncio.current_task()
        assert task is not None
        interrupted = False

        def end() -> None:
            nonlocal interrupted
            if not self._ends:
                self._ends = interrupted = True
                self._say("ending: containers, programs, files")
                task.cancel()

        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, end)
        try:
            await self._run()
        except asyncio.CancelledError:
            if not interrupted:
                raise
            task.uncancel()
            self._say("ended; no process and no file is left behind")
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
        return self._code

    async def _run(self) -> None:
        settings = self._settings
        sandbox = Sandbox(
            settings.plan, folder=settings.folder, say=self._say, keep_logs=settings.keep_logs
        )
        async with sandbox:
            try:
                async with ClusterView(sandbox, clock=self._clock) as observed:
                    await self._show(sandbox, observed)
            finally:
                self._ends = True

    async def _show(self, sandbox: Sandbox, observed: ClusterView) -> None:
        ready = self._clock() - self._began
        self._say(f"the cluster is ready after {ready:.1f} s")
        async with self._viewed(observed):
            runner = Runner(
                observed,
                progress=self._progress,
                say=(lambda _: None) if self._live else self._say,
                clock=self._clock,
            )
            settings = self._settings
            await runner.run(settings.examples, settings.plan, insist=settings.insist)
            outcome = self._outcome(sandbox, observed, ready)
            self._code = 0 if outcome.good else 1
            self._console.print(results.render(outcome))
            if settings.at_end is not None:
                await asyncio.sleep(_SETTLE_S)
                settings.at_end(await self._take_snapshot(observed), self._progress, outcome)
            if self._live:
                hints = self._hints(sandbox.kubeconfig, observed)
                self._console.print(hints, markup=False, highlight=False, soft_wrap=True)
                await asyncio.Event().wait()

    @contextlib.asynccontextmanager
    async def _viewed(self, observed: ClusterView) -> AsyncIterator[None]:
        """Keep the view up to date on the side, where there is a terminal."""
        if not self._live:
            yield
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            task = asyncio.create_task(self._draw(live, observed))
            try:
                yield
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _draw(self, live: Live, observed: ClusterView) -> None:
        while True:
            taken = await self._take_snapshot(observed)
            footer = f"kubeconfig {observed.cluster.kubeconfig}   Ctrl-C ends it and leaves nothing"
            drawn = view.fitted(taken, self._progress, self._console, footer=footer)
            live.update(drawn, refresh=True)
            await asyncio.sleep(_REFRESH_S)

    async def _take_snapshot(self, observed: ClusterView) -> Snapshot:
        samples = await observed.samples()
        real = frozenset(observed.cluster.nodes)
        return snapshot.take(observed.nodes, list(observed.pods), samples, real=real)

    def _outcome(self, sandbox: Sandbox, observed: ClusterView, ready: float) -> Outcome:
        plans = self._settings.plan.nodes
        known = {node.name: node for node in observed.nodes}
        placed = observed.first_placed
        return Outcome(
            results=tuple(self._progress.results),
            nodes=tuple(
                NodeLine(
                    plan.name,
                    cards_text((*plan.cards, *plan.others)),
                    cards.binding(known[plan.name]),
                )
                for plan in plans
                if plan.name in known
            ),
            simulated=self._settings.plan.simulated,
            isolation=sandbox.isolation,
            ready_after=ready,
            first_placed_after=None if placed is None else placed - self._began,
            seconds=self._clock() - self._began,
        )

    def _hints(self, kubeconfig: Path, observed: ClusterView) -> str:
        """Return commands to try now, with an existing pod, preferably a pending one."""
        pods = sorted(observed.pods, key=lambda pod: (pod.phase != "Pending", pod.name))
        pod = next((pod.name for pod in pods if pod.namespace == "default"), "NAME")
        return "\n".join(
            (
                "",
                f"The cluster stays up; its kubeconfig is {kubeconfig}. In another terminal:",
                "",
                f"  export KUBECONFIG={kubeconfig}",
                "  kubectl get pods --all-namespaces --output wide --watch",
                f"  kubectl apply -f {_some_pods()}",
                f"  kubectl describe pod {pod}",
                f"  {self._settings.command} explain {pod}",
                "",
            )
        )

    def _say(self, line: str) -> None:
        # The files must be removed even if the terminal was closed.
        with contextlib.suppress(OSError):
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _some_pods() -> str:
    """Return a file to apply, as short as it can be written here."""
    file = example.default_folder() / "01-share-by-memory" / "pods.yaml"
    try:
        return str(file.relative_to(Path.cwd()))
    except ValueError:
        return str(file)
