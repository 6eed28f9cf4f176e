"""/healthz, /readyz and /debug.

/healthz checks nothing: an answer proves that the loop runs, and kubelet restarts a process that
does not answer. /readyz has named checks, each of which returns what is missing; a parameter of the
query selects some of them, as in `/readyz?webhook`.

/debug is for callers that may schedule, if `--profiling` is set. The profile samples the loop's
thread from another one, so it costs little and also shows what blocks the loop. Its text is folded
stacks, one per line with a count, which flame graph tools read.
"""

from __future__ import annotations

import asyncio
import collections
import gc
import io
import os
import pathlib
import re
import sys
import threading
import tracemalloc
from collections.abc import Callable, Collection, Mapping
from types import FrameType

from hami.serving.http_server import Request, Response, Route

_LONGEST = 60
_INTERVAL = 0.01
_SHOWN_ALLOCATIONS = 30

#: Returns what is missing; empty: nothing.
Check = Callable[[], str]
#: Returns each check of /readyz with what it misses.
Ready = Callable[[Request], Mapping[str, str]]


class Health:
    """The named checks of /readyz."""

    def __init__(
        self,
        checks: Mapping[str, Check],
        *,
        subsets: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self._checks = dict(checks)
        #: Parameter of the query -> the checks that count then.
        self._subsets = dict(subsets or {})
        unknown = {name for names in self._subsets.values() for name in names} - set(self._checks)
        assert not unknown, f"no such checks: {unknown}"

    def failing(self, among: Collection[str] | None = None) -> dict[str, str]:
        """Return what is missing, by check."""
        found = {n: check() for n, check in self._checks.items() if among is None or n in among}
        return {name: missing for name, missing in found.items() if missing}

    def ready(self, request: Request) -> dict[str, str]:
        """Return the checks that the query selects, with what each misses."""
        chosen = next(
            (self._subsets[name] for name in request.query if name in self._subsets), None
        )
        failing = self.failing(chosen)
        names = self._checks if chosen is None else chosen
        return {name: failing.get(name, "") for name in names}


def health_routes(ready: Ready) -> tuple[Route, Route]:
    async def answer_health(_: Request) -> Response:
        return Response.text(200, "ok")

    async def answer_ready(request: Request) -> Response:
        checks = ready(request)
        lines = [
            f"[-] {name}: {missing}" if missing else f"[+] {name}"
            for name, missing in checks.items()
        ]
        ok = not any(checks.values())
        return Response.text(200 if ok else 503, "\n".join([*lines, "ok" if ok else "not ready"]))

    return Route("GET", "/healthz", answer_health), Route("GET", "/readyz", answer_ready)


def debug_routes() -> tuple[Route, ...]:
    profile = _Profile()
    return (
        Route("GET", "/debug/tasks", _tasks, trusted=True),
        Route("GET", "/debug/profile", profile.answer, trusted=True),
        Route("GET", "/debug/memory", _memory, trusted=True),
    )


async def _tasks(_: Request) -> Response:
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    text = io.StringIO()
    text.write(f"{len(tasks)} tasks\n")
    for task in tasks:
        text.write(f"\n{task.get_name()}\n")
        task.print_stack(file=text)
    return Response.text(200, text.getvalue())


class _Profile:
    """Takes one profile at a time: two would measure each other."""

    def __init__(self) -> None:
        self._running = False

    async def answer(self, request: Request) -> Response:
        asked = request.query.get("seconds", "10")
        if not (re.fullmatch(r"[0-9]{1,2}", asked) and 1 <= int(asked) <= _LONGEST):
            return Response.error(
                400,
                f"seconds={asked[:20]!r} is no whole number from 1 to {_LONGEST}; "
                "write for example /debug/profile?seconds=10",
            )
        if self._running:
            return Response.error(429, "a profile is being taken; try again when it has ended")
        self._running = True
        ended = threading.Event()
        try:
            stacks = await asyncio.to_thread(
                _sample, threading.get_ident(), seconds=int(asked), ended=ended
            )
        finally:
            ended.set()  # also if the caller has disconnected
            self._running = False
        lines = [f"{stack} {count}" for stack, count in stacks.most_common()]
        return Response.text(200, "\n".join(lines))


def _sample(thread: int, *, seconds: float, ended: threading.Event) -> collections.Counter[str]:
    stacks: collections.Counter[str] = collections.Counter()
    for _ in range(round(seconds / _INTERVAL)):
        # The only way to see another thread's frames.
        frame = sys._current_frames().get(thread)  # noqa: SLF001 - documented in spite of its name
        if frame is not None:
            stacks[_folded(frame)] += 1
        del frame  # it would keep objects alive
        if ended.wait(_INTERVAL):
            break
    return stacks


def _folded(frame: FrameType | None) -> str:
    names = []
    while frame is not None:
        code = frame.f_code
        names.append(f"{frame.f_globals.get('__name__', '?')}.{code.co_qualname}")
        frame = frame.f_back
    return ";".join(reversed(names))


def _resident() -> int:
    pages = pathlib.Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


async def _memory(_: Request) -> Response:
    lines = [
        f"resident bytes: {_resident()}",
        f"objects awaiting collection by generation: {gc.get_count()}",
        *(f"generation {at}: {stats}" for at, stats in enumerate(gc.get_stats())),
    ]
    if tracemalloc.is_tracing():
        snapshot = await asyncio.to_thread(tracemalloc.take_snapshot)
        top = await asyncio.to_thread(snapshot.statistics, "lineno")
        lines += ["", "largest allocations:", *map(str, top[:_SHOWN_ALLOCATIONS])]
    else:
        lines.append("allocations are not traced; start with PYTHONTRACEMALLOC=1 to see them")
    return Response.text(200, "\n".join(lines))
