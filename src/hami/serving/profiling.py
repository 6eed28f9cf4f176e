"""/debug: what the process does, asked from outside.

For those who may schedule, when `--profiling` is set. The profile samples the loop's thread from
another one, so it costs little and shows also what blocks the loop; its text is folded stacks, one
per line with a count, which flame graph tools read as it is.
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
from types import FrameType

from hami.serving.http_server import Request, Response, Route

_LONGEST = 60
_INTERVAL = 0.01
_SHOWN_ALLOCATIONS = 30


def routes() -> tuple[Route, ...]:
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
    """One at a time: two would measure each other."""

    def __init__(self) -> None:
        self._running = False

    async def answer(self, request: Request) -> Response:
        asked = request.query.get("seconds", "10")
        if not (re.fullmatch(r"[0-9]{1,2}", asked) and 1 <= int(asked) <= _LONGEST):
            return Response.error(
                400, f"seconds={asked[:20]!r} is no whole number from 1 to {_LONGEST}"
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
            ended.set()  # also when the caller has gone
            self._running = False
        lines = [f"{stack} {count}" for stack, count in stacks.most_common()]
        return Response.text(200, "\n".join(lines))


def _sample(thread: int, *, seconds: float, ended: threading.Event) -> collections.Counter[str]:
    stacks: collections.Counter[str] = collections.Counter()
    for _ in range(round(seconds / _INTERVAL)):
        # The only way to see another thread's frames.
        frame = sys._current_frames().get(thread)  # noqa: SLF001 - documented, for all its name
        if frame is not None:
            stacks[_folded(frame)] += 1
        del frame  # it would keep alive what it refers to
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
