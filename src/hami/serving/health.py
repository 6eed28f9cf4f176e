"""/healthz and /readyz.

Health is that the loop turns: an answer is the proof, so /healthz checks nothing. Whoever is stuck
does not answer, and kubelet restarts it. Readiness is named checks, each of which says what is
missing; a parameter of the query chooses some of them, as `/readyz?webhook` does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from hami.serving.http_server import Request, Response, Route

#: Says what is missing; an empty text is fine.
Check = Callable[[], str]
#: Answers /readyz: each check with what it misses.
Ready = Callable[[Request], Mapping[str, str]]


class Health:
    """Named checks."""

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
        told = {n: check() for n, check in self._checks.items() if among is None or n in among}
        return {name: missing for name, missing in told.items() if missing}

    def ready(self, request: Request) -> dict[str, str]:
        """Return all checks that the query asks for, with what each misses."""
        chosen = next(
            (self._subsets[name] for name in request.query if name in self._subsets), None
        )
        failing = self.failing(chosen)
        names = self._checks if chosen is None else chosen
        return {name: failing.get(name, "") for name in names}


def routes(ready: Ready) -> tuple[Route, Route]:
    async def answer_health(_: Request) -> Response:
        return Response.text(200, "ok")

    async def answer_ready(request: Request) -> Response:
        told = ready(request)
        lines = [
            f"[-] {name}: {missing}" if missing else f"[+] {name}" for name, missing in told.items()
        ]
        ok = not any(told.values())
        return Response.text(200 if ok else 503, "\n".join([*lines, "ok" if ok else "not ready"]))

    return Route("GET", "/healthz", answer_health), Route("GET", "/readyz", answer_ready)
