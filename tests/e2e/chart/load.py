"""A steady stream of pods that ask for a GPU, while something happens.

Most are dry runs, which cost the cluster least. Every tenth is created, since dry runs stand in no
metric; it has a gate, so that nobody places it. Every admission is written down with what came of
it and when. One that nobody answered is sent again at once, as a user or a controller would.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from typing import Self

from tests.e2e.chart import asking
from tests.kubeapi.client import ApiError, Client, Object, wait_for

CLIENTS = 8
TRIES = 20
ANSWERED_S = 60
CREATED_EVERY = 10
GATE: Object = {"schedulingGates": [{"name": "hami.test/never"}]}


@dataclasses.dataclass(frozen=True)
class Admission:
    begin: float
    """Seconds since 1970, as all clocks here."""
    end: float
    ours: bool | None
    """Whether the pod was changed as it must be; None: it was never admitted."""
    unanswered: tuple[tuple[float, ApiError], ...]
    """When it was refused because nobody answered, and the API server's words."""


class Load:
    """Sends so many pods a second, by several clients at once, while its block runs."""

    def __init__(self, client: Client, namespace: str, *, per_second: float) -> None:
        self._client = client
        self._namespace = namespace
        self._pause = 1 / per_second
        self._numbers = itertools.count()
        self._ended = threading.Event()
        self._begin = time.monotonic()
        self._threads = [threading.Thread(target=self._run) for _ in range(CLIENTS)]
        self._broken: list[BaseException] = []
        self.answered: list[Admission] = []

    @property
    def held_up(self) -> list[Admission]:
        """Give those that were not answered at first."""
        return [each for each in self.answered if each.unanswered]

    @property
    def not_ours(self) -> list[Admission]:
        """Give those that passed as if there were no webhook, or never passed."""
        return [each for each in self.answered if not each.ours]

    @property
    def per_second(self) -> float:
        times = [each.end for each in self.answered]
        return len(times) / (max(times) - min(times))

    def await_more(self, number: int) -> None:
        """Wait until so many more have been answered."""
        wanted = len(self.answered) + number

        def answered() -> bool:
            return len(self.answered) >= wanted or bool(self._broken)

        wait_for(f"{number} more admissions", answered, ANSWERED_S, self._pause)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        if self._broken:
            raise self._broken[0]

    def _run(self) -> None:
        try:
            while True:
                number = next(self._numbers)
                due = self._begin + number * self._pause
                if self._ended.wait(max(due - time.monotonic(), 0)):
                    return
                self.answered.append(self._admit(number))
        except BaseException as error:  # noqa: BLE001 (the root of a thread: raised at the end)
            self._broken.append(error)

    def _admit(self, number: int) -> Admission:
        begin = time.time()
        unanswered: list[tuple[float, ApiError]] = []
        body = asking.gpu_pod(f"pod-{number}", **GATE)
        create = asking.tried if number % CREATED_EVERY else asking.created
        while len(unanswered) < TRIES:
            try:
                made = create(self._client, self._namespace, body)
            except ApiError as error:
                if not asking.could_not_ask(error):
                    raise
                unanswered.append((time.time(), error))
            else:
                return Admission(begin, time.time(), asking.is_ours(made), tuple(unanswered))
        return Admission(begin, time.time(), None, tuple(unanswered))
