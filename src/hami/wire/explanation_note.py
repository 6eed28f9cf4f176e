"""Explanation of an unschedulable pod, kept on it (`hami.io/explanation`).

The scheduler writes it when its decision changes, so that the last explanation outlives a failover
and can be read with the pod; `hami explain` shows it. Every watch of the pod carries the
annotation, so it is bounded: what does not fit is left out, details first and the summary last.
Readers skip fields that they do not know and accept missing ones.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence

import msgspec

from hami.wire import codec, errors

VERSION = 1
LIMIT = 1024
"""Bytes of the annotation's value."""

_CUT = "…"
_WHAT = "explanation"


class ReasonCount(msgspec.Struct, frozen=True, gc=False):
    """How often one reason refused the pod."""

    nodes: int = 0
    #: Cards on all those nodes; 0 for reasons of whole nodes.
    cards: int = 0


class Near(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A node that almost held the pod, and what was missing there."""

    node: str
    #: The container that did not fit.
    container: str = ""
    #: MiB and percent that the best card was short of; None: it had enough.
    memory_short: int | None = None
    cores_short: int | None = None
    #: How many more cards would have had to be free.
    cards_missing: int = 0


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """One decision about one pod."""

    v: int = VERSION
    #: Time of the decision, RFC 3339.
    at: str = ""
    #: One sentence for people.
    summary: str = ""
    #: How many nodes could take the pod.
    fitting: int = 0
    reasons: dict[str, ReasonCount] = {}
    #: The nearest node first.
    near: tuple[Near, ...] = ()


def decode(text: str) -> Note:
    """Read the annotation's value; raises WireError for anything that is not a note."""
    return codec.decode(text, Note, what=_WHAT)


def encode(note: Note, limit: int = LIMIT) -> str:
    """Write the annotation's value in at most `limit` bytes of UTF-8.

    Left out, until it fits: near misses from the last on, then the reasons met on the fewest
    nodes, then the end of the summary.
    """

    def fits(candidate: Note) -> bool:
        return len(codec.encode_text(candidate).encode()) <= limit

    if not fits(note):
        note = _largest(fits, [_with_near(note, kept) for kept in range(len(note.near) + 1)])
    if not fits(note):
        note = _largest(fits, [_with_reasons(note, kept) for kept in range(len(note.reasons) + 1)])
    if not fits(note):
        # No character takes less than a byte, so what lies beyond the limit cannot fit.
        lengths = range(min(len(note.summary), limit))
        note = _largest(fits, [_with_summary(note, kept) for kept in lengths])
    if not fits(note):
        rule = f"does not fit into {limit} bytes, not even without a summary"
        raise errors.WireError(_WHAT, note.at, rule, f"allow more; {LIMIT} is usual")
    return codec.encode_text(note)


def _largest(fits: Callable[[Note], bool], growing: Sequence[Note]) -> Note:
    """Return the last that fits, the first if none does; each is longer than the one before."""
    # bisect wants values that ascend: False for what fits, True for what is too long.
    fitting = bisect.bisect_right(growing, 0, key=lambda note: not fits(note))
    return growing[max(fitting - 1, 0)]


def _with_near(note: Note, kept: int) -> Note:
    return msgspec.structs.replace(note, near=note.near[:kept])


def _with_reasons(note: Note, kept: int) -> Note:
    by_weight = sorted(note.reasons.items(), key=lambda entry: (-entry[1].nodes, entry[0]))
    return msgspec.structs.replace(note, reasons=dict(by_weight[:kept]))


def _with_summary(note: Note, kept: int) -> Note:
    cut = note.summary[:kept] + _CUT if kept else ""
    return msgspec.structs.replace(note, summary=cut)
