"""The stand-in driver's record of allocations, `peaks.jsonl`.

The driver is the only one who counts without asking hami, so its word decides whether a limit
held. The format, which the stand-in driver (native/fakegpu) writes:

One JSON object per line, at most 4096 bytes with its line feed, ASCII, written by one write(2) on
a file opened with O_APPEND, so that lines of several processes never mix. Six fields, all present:

    {"time": 1785320000.250000, "card": "GPU-5f2c...", "owner": "9d0e.../main", "pid": 7,
     "bytes": 1073741824, "total": 85899345920}

- `time`: unix seconds as a number, when the peak was reached;
- `card`: the card's UUID as NVML gives it;
- `owner`: `<pod UID>/<container name>` of the process, or empty if it is in no container. The
  driver takes the environment variable FAKEGPU_OWNER; without it, what /proc/self/mountinfo says
  of /dev/termination-log: kubelet's source of it always ends with
  `/pods/<pod UID>/containers/<container name>/<something>`;
- `pid`: the process as it sees itself (a container's first process is 1), or 0 for a sum;
- `bytes`: a whole number, the most that was allocated on this card at one moment so far, the
  driver's own cost for contexts included. With a pid: by this process. With pid 0 and an owner: by
  all processes of this container together. With pid 0 and no owner: by all processes on the card;
- `total`: a whole number above 0, the card's physical memory in bytes.

Whenever an allocation raises one of the three peaks, rounded up to whole MiB, the driver appends
the line of each that rose, with its exact bytes, before the allocating call returns. (Limits are
whole MiB, so one byte above a limit is such a rise; smaller ones may go unwritten.) The highest
line counts: the order means nothing, and neither does a pid that comes again, in a restarted
container. The sums are needed because peaks of single processes, reached at different moments, must
not be added.

A last line without its line feed is a write that was cut off, and is left out. Anything else that
is not as above is reported.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from tests.e2e.auditor import malformed
from tests.e2e.auditor.malformed import MalformedError

FILE = "peaks.jsonl"
LONGEST = 4096

_OWNER = re.compile(r"([^/]+/[^/]+)?")
_FIELDS = {"time", "card", "owner", "pid", "bytes", "total"}


@dataclasses.dataclass(frozen=True, slots=True)
class Peak:
    card: str
    owner: str
    pid: int
    bytes: int
    total: int

    @property
    def who(self) -> str:
        """How messages name it."""
        if self.pid:
            return f"process {self.pid} of {self.owner or 'no container'}"
        return f"container {self.owner}" if self.owner else "all processes together"


def read(text: str) -> tuple[list[Peak], list[tuple[int, str]]]:
    """Return the highest line of each process, container and card, and the lines that are bad."""
    highest: dict[tuple[str, str, int], Peak] = {}
    bad: list[tuple[int, str]] = []
    *lines, _torn = text.split("\n")
    for number, content in enumerate(lines, 1):
        try:
            peak = _peak(content)
        except MalformedError as error:
            bad.append((number, f"{malformed.shown(content)!r}: {error}"))
            continue
        key = (peak.card, peak.owner, peak.pid)
        if key not in highest or peak.bytes > highest[key].bytes:
            highest[key] = peak
    return list(highest.values()), bad


def _peak(content: str) -> Peak:
    if len(content.encode(errors="replace")) >= LONGEST:
        raise MalformedError(f"is longer than {LONGEST} bytes")
    item: Any = malformed.parse_json(content)
    if not isinstance(item, dict) or set(item) != _FIELDS:
        raise MalformedError(f"is no object with exactly {', '.join(sorted(_FIELDS))}")
    time, owner = item["time"], malformed.string(item, "owner")
    if isinstance(time, bool) or not isinstance(time, int | float) or not time > 0:
        raise MalformedError(f"time {malformed.shown(time)} is no number of unix seconds")
    if not _OWNER.fullmatch(owner):
        raise MalformedError(f"owner {owner!r} is neither empty nor <pod UID>/<container>")
    card = malformed.string(item, "card")
    if not card:
        raise MalformedError("card is empty")
    return Peak(
        card=card,
        owner=owner,
        pid=_whole(item, "pid"),
        bytes=_whole(item, "bytes"),
        total=_whole(item, "total", lowest=1),
    )


def _whole(item: dict[str, Any], name: str, lowest: int = 0) -> int:
    value = item[name]
    if type(value) is not int or value < lowest:
        raise MalformedError(
            f"{name} {malformed.shown(value)} is no whole number of at least {lowest}"
        )
    return value
