"""Marks of a node on its pods: overuse of a card, refused starts.

The monitor marks a pod that has more of a card than it was given (`hami.io/overuse`), writes the
mark again while that lasts, and removes it afterwards. The agent marks a pod that it refused to
start again and again (`hami.io/start-refused`). The scheduler's leader acts on both: a node may
write on its own pods, but not evict them.

A mark names the UID and the node of its pod, so that a copy of the annotation on another pod says
nothing. Times are the node's: readers see that they change, and compare them with no other clock.
Every account that may patch pods can write anything here, where no admission policy keeps it from
that, so values are bounded.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from hami.wire import annotation_keys, codec, errors
from hami.wire.objects import Pod

LIMIT = 1024
"""Bytes of a mark's value."""

#: Characters of a refusal, which alone can be long.
_REASON = 512
_CUT = "…"
#: Kubernetes' own bounds on names.
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
_Text = Annotated[str, msgspec.Meta(max_length=_REASON)]
_Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Overuse(codec.Object, frozen=True, kw_only=True):
    """A pod has more of a card than it was given, by the driver's account."""

    uid: _Name
    node: _Name
    #: Empty: not known.
    container: _Text = ""
    #: UUID of the card or MIG device.
    card: _Name
    #: Bytes.
    used: _Bytes
    #: Bytes; 0: it was not given this card.
    limit: _Bytes = 0
    #: When it was first found, and last; RFC 3339.
    since: _Name
    seen: _Name


class Refusal(codec.Object, frozen=True, kw_only=True):
    """A node's agent refused to start a pod, several times."""

    uid: _Name
    node: _Name
    reason: _Text = ""
    #: When it was last refused; RFC 3339.
    seen: _Name


M = TypeVar("M", Overuse, Refusal)

#: The keys, all on pods that are bound.
MARKS = (annotation_keys.OVERUSE, annotation_keys.START_REFUSED)


class PodMarks(msgspec.Struct, frozen=True, gc=False):
    """The marks of one pod."""

    overuse: Overuse | None = None
    refusal: Refusal | None = None
    #: What cannot be read, for the log; empty: nothing.
    problem: str = ""

    @classmethod
    def of(cls, pod: Pod) -> PodMarks | None:
        """Return the marks of a pod; None: it has none that was written for it.

        A mark that cannot be read is none, and named in `problem`.
        """
        annotations = pod.annotations
        if annotations.keys().isdisjoint(MARKS):
            return None
        problems: list[str] = []
        overuse = _read(pod, annotation_keys.OVERUSE, Overuse, problems)
        refusal = _read(pod, annotation_keys.START_REFUSED, Refusal, problems)
        if overuse is None and refusal is None and not problems:
            return None
        return cls(overuse, refusal, problems[0] if problems else "")


def decode_overuse(text: str) -> Overuse:
    """Read the value of `hami.io/overuse`; raises WireError for anything else."""
    return _decode(text, Overuse, annotation_keys.OVERUSE)


def encode(mark: Overuse | Refusal) -> str:
    """Write a mark as the annotation's value; a long reason is cut."""
    text = codec.encode_text(mark)
    if isinstance(mark, Refusal):
        # A character takes six bytes at most where it is escaped.
        for length in (_REASON, LIMIT // 4, LIMIT // 12):
            if len(mark.reason) <= length and len(text.encode()) <= LIMIT:
                break
            cut = msgspec.structs.replace(mark, reason=f"{mark.reason[: length - 1]}{_CUT}")
            text = codec.encode_text(cut)
    return text


def _read(pod: Pod, key: str, into: type[M], problems: list[str]) -> M | None:
    text = pod.annotations.get(key)
    if text is None:
        return None
    try:
        mark = _decode(text, into, key)
    except errors.WireError as error:
        problems.append(str(error))
        return None
    return mark if (mark.uid, mark.node) == (pod.uid, pod.node_name) else None


def _decode(text: str, into: type[M], key: str) -> M:
    what = f"pod annotation {key}"
    # Counted before it is encoded: an annotation may have 256 KiB.
    if len(text) > LIMIT or len(text.encode(errors="replace")) > LIMIT:
        rule = f"has more than {LIMIT} bytes, so hami has not written it"
        raise errors.WireError(what, text, rule, "remove it")
    return codec.decode(text, into, what=what)
