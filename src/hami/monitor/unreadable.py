"""What could not be read: counted each time, told once.

Files that a tenant can write may hold anything. One that cannot be read costs its container the
numbers that would have come from it, and nobody else anything.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import prometheus_client

from hami.node import files
from hami.wire import errors as wire_errors

_log = logging.getLogger(__name__)

#: Subjects and reasons that are remembered; a folder that a tenant fills must not fill us.
_MOST = 4096
#: Seconds without a failure after which the next one is news again.
_MENDED = 600.0


class UnreadableError(Exception):
    """A file cannot be used; `reason` is one word for the counter."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        super().__init__(detail)


class Unreadable:
    def __init__(
        self, counter: prometheus_client.Counter, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._counter = counter
        self._clock = clock
        #: By subject and reason, when it last happened; the latest at the end.
        self._told: OrderedDict[tuple[str, str], float] = OrderedDict()

    @contextmanager
    def concerning(self, subject: str) -> Iterator[None]:
        """Turn what cannot be read within into a number and, once, a line that names `subject`."""
        try:
            yield
        except UnreadableError as error:
            self.tell(subject, error.reason, str(error))
        except files.UntrustedFileError as error:
            self.tell(subject, "no_file", str(error))
        except wire_errors.WireError as error:
            self.tell(subject, "content", str(error))
        except OSError as error:
            self.tell(subject, "input_output", str(error))

    def tell(self, subject: str, reason: str, detail: str) -> None:
        self._counter.labels(reason).inc()
        now, key = self._clock(), (subject, reason)
        before = self._told.pop(key, None)
        self._told[key] = now
        if len(self._told) > _MOST:
            self._told.popitem(last=False)
        if before is None or now - before > _MENDED:
            _log.warning(
                "cannot be read; its numbers are left out",
                extra={"subject": subject, "reason": reason, "detail": detail},
            )
