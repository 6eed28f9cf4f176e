"""Wait with a bound, and a message with the condition and the last state."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(
    what: str,
    check: Callable[[], T | None],
    timeout: float,
    interval: float = 0.1,
) -> T:
    """Ask until the answer is not None, False or empty; TimeoutError says what was last seen.

    An exception of `check` counts as "not yet" only if it is a LookupError or an OSError (a server
    that does not answer yet); anything else is a mistake and is raised at once.
    """
    deadline = time.monotonic() + timeout
    seen: object = "nothing"
    while True:
        try:
            answer = check()
        except (LookupError, OSError) as error:
            seen = f"{type(error).__name__}: {error}"
        else:
            if answer is not None and answer is not False and not _is_empty(answer):
                return answer
            seen = answer
        if time.monotonic() >= deadline:
            raise TimeoutError(f"waited {timeout:g} s for {what}; last seen: {seen}")
        time.sleep(interval)


def _is_empty(answer: object) -> bool:
    return isinstance(answer, list | tuple | dict | set) and not answer
