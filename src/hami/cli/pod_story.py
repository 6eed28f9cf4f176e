"""The request of a pod, its cards or why it waits, read from the pod alone.

`gather` collects the data, `hami.cli.explain_text` writes the text. What a pod does not carry
itself is added by `hami.cli.explain`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from hami.placement import request
from hami.vendors.families import Families
from hami.vendors.family import CardRequest, Family
from hami.vendors.table import Vendor
from hami.wire import annotation_keys, codec, explanation_note, objects, pod_scheduling, shares
from hami.wire import errors as wire_errors


class State(enum.Enum):
    """Where a pod is on its way to its cards."""

    #: It asks for no resource that hami manages.
    NOT_OURS = "not ours"
    #: Its request breaks a rule.
    REFUSED = "refused"
    #: It names another scheduler, so hami is never asked.
    OTHER_SCHEDULER = "other scheduler"
    WAITING = "waiting"
    PLACED = "placed"
    FINISHED = "finished"


class Granted(msgspec.Struct, frozen=True):
    """One card of one container."""

    container: str
    vendor: str
    uuid: str
    #: MiB.
    memory: int
    #: Percent of its compute; 0: without limit.
    cores: int


class Story(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    # The key that scripts read from `-o json`.
    rename={"scheduler_message": "verdict"},
):
    """All that a pod says of its cards; `hami explain -o json` prints it."""

    namespace: str
    name: str
    uid: str
    state: State
    phase: str = ""
    node: str = ""
    scheduler: str = ""
    #: RFC 3339: since when it waits.
    since: str = ""
    #: By container; those that ask for no card are left out.
    asks: Mapping[str, tuple[CardRequest, ...]] = {}
    granted: tuple[Granted, ...] = ()
    bind_phase: str = ""
    explanation: explanation_note.Note | None = None
    #: kube-scheduler's message about it.
    scheduler_message: str = ""
    #: Its scheduling gates: no scheduler tries it while it has any.
    gates: tuple[str, ...] = ()
    #: The node where kube-scheduler makes room for it.
    nominated: str = ""
    #: What hami would decide now of a pod that it has not been asked about; None: not known.
    would: explanation_note.Note | None = None
    #: Why that is not known.
    would_error: str = ""
    #: What of its annotations or request cannot be read.
    problems: tuple[str, ...] = ()


def gather(data: bytes, vendors: Sequence[Vendor], *, scheduler_name: str) -> Story:
    """Read a pod as the API server sends it; raises WireError if `data` is no pod."""
    pod = codec.decode(data, objects.Pod, what="pod")
    problems: list[str] = []
    asked: request.PodRequest | None = None
    try:
        asked = request.parse(pod, vendors, request.Defaults())
    except wire_errors.WireError as error:
        problems.append(str(error))
    asks = {c.name: c.cards for c in (asked.containers if asked else ()) if c.cards}
    scheduling = pod_scheduling.decode(data)
    waiting = scheduling.waiting()
    created = (pod.metadata and pod.metadata.creation_timestamp) or ""
    scheduler = (pod.spec and pod.spec.scheduler_name) or ""
    return Story(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        state=_state(pod, asks=bool(asks), refused=bool(problems), ours=scheduler_name),
        phase=pod.phase,
        node=pod.node_name,
        scheduler=scheduler,
        since="" if pod.node_name else waiting.last_transition_time or created,
        asks=asks,
        granted=tuple(_granted(pod, vendors, problems)),
        bind_phase=pod.annotation(annotation_keys.BIND_PHASE),
        explanation=None if pod.node_name else _explanation(pod, problems),
        scheduler_message="" if pod.node_name else waiting.message or "",
        gates=() if pod.node_name else scheduling.gates(),
        nominated="" if pod.node_name else scheduling.nominated(),
        problems=tuple(problems),
    )


def _state(pod: objects.Pod, *, asks: bool, refused: bool, ours: str) -> State:
    if not asks and not refused:
        return State.NOT_OURS
    if pod.finished:
        return State.FINISHED
    if pod.node_name:
        return State.PLACED
    if refused:
        return State.REFUSED
    named = (pod.spec and pod.spec.scheduler_name) or ""
    return State.WAITING if named == ours else State.OTHER_SCHEDULER


def _granted(pod: objects.Pod, vendors: Sequence[Vendor], problems: list[str]) -> Iterator[Granted]:
    containers = [container for _, container in pod.containers()]
    for family in Families(vendors).of_pod(pod, containers):
        vendor = family.vendor
        key = vendor.annotations.allocated
        slots, damaged = shares.salvage(pod.annotation(key))
        problems += [
            f"{key}: the share of card {card} cannot be read; delete the pod to reschedule it"
            for card in damaged
        ]
        counts = [_count(container, family) for container in containers]
        listed = family.recorded(shares.align(slots, counts), pod)
        for container, slot in zip(containers, listed, strict=True):
            for grant in slot:
                yield Granted(
                    container=container.name or "",
                    vendor=vendor.name,
                    uuid=grant.card,
                    memory=grant.memory_mib,
                    cores=grant.cores,
                )


def _count(container: objects.Container, family: Family) -> int:
    try:
        return family.count(container)
    except wire_errors.WireError:
        return 0


def _explanation(pod: objects.Pod, problems: list[str]) -> explanation_note.Note | None:
    text = pod.annotation(annotation_keys.EXPLANATION)
    if not text:
        return None
    try:
        return explanation_note.decode(text)
    except wire_errors.WireError as error:
        problems.append(str(error))
        return None
