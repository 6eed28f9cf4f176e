"""A pod's story: its request, its cards or why it waits; as data and text.

What can be said of one pod: what it asks for, where it went, or why it waits.
Made from the pod alone, so that whoever may read a pod can ask. `tell` gathers the facts as data;
`hami.cli.pod_story` puts them into words.

A pod's story in words: first the answer, then the reasons, then what to do.
Everything in it may have been written by strangers to the reader (annotations are), so whatever a
terminal would not print as it stands is replaced.
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from hami.placement import request
from hami.vendors.family import WHOLE_CARD, CardRequest
from hami.vendors.table import Vendor
from hami.wire import annotation_keys, codec, explanation_note, objects, shares
from hami.wire import errors as wire_errors
from hami.wire.explanation_note import Near, Note


class State(enum.Enum):
    """What the pod's story is about."""

    #: It asks for nothing that we manage.
    NOT_OURS = "not ours"
    #: Its request breaks a rule.
    REFUSED = "refused"
    #: It names another scheduler, so we are never asked.
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


class Story(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    #: What kube-scheduler says of it.
    verdict: str = ""
    #: What of its annotations or request cannot be read.
    problems: tuple[str, ...] = ()


class _Condition(codec.Object, frozen=True):
    type: str | None = None
    status: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


class _Status(codec.Object, frozen=True):
    conditions: list[_Condition | None] | None = None


class _Conditions(codec.Object, frozen=True):
    """The part of a pod that nobody else here reads."""

    status: _Status | None = None

    def waiting(self) -> _Condition:
        """Return what kube-scheduler wrote when it found no place."""
        for condition in (self.status and self.status.conditions) or ():
            if condition and condition.type == "PodScheduled" and condition.status == "False":
                return condition
        return _Condition()


def tell(data: bytes, vendors: Sequence[Vendor], *, scheduler_name: str) -> Story:
    """Gather what a pod (as the API server gives it) says; raises WireError for what is no pod."""
    pod = codec.decode(data, objects.Pod, what="pod")
    problems: list[str] = []
    asked: request.PodRequest | None = None
    try:
        asked = request.parse(pod, vendors, request.Defaults())
    except wire_errors.WireError as error:
        problems.append(str(error))
    asks = {c.name: c.cards for c in (asked.containers if asked else ()) if c.cards}
    waiting = codec.decode(data, _Conditions, what="pod").waiting()
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
        verdict="" if pod.node_name else waiting.message or "",
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
    for vendor in vendors:
        key = vendor.annotations.allocated
        slots, damaged = shares.salvage(pod.annotation(key))
        problems += [f"{key}: what was granted of card {card} cannot be read" for card in damaged]
        counts = [_count(container, vendor) for container in containers]
        for container, slot in zip(containers, shares.align(slots, counts), strict=True):
            for grant in slot:
                yield Granted(
                    container=container.name or "",
                    vendor=vendor.name,
                    uuid=grant.card,
                    memory=grant.memory_mib,
                    cores=grant.cores,
                )


def _count(container: objects.Container, vendor: Vendor) -> int:
    amount = str(container.amount(vendor.resources.count) or 0)
    return int(amount) if amount.isascii() and amount.isdigit() else 0


def _explanation(pod: objects.Pod, problems: list[str]) -> explanation_note.Note | None:
    text = pod.annotation(annotation_keys.EXPLANATION)
    if not text:
        return None
    try:
        return explanation_note.decode(text)
    except wire_errors.WireError as error:
        problems.append(str(error))
        return None


_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def text(story: Story, *, managed: tuple[str, ...], scheduler_name: str, now: dt.datetime) -> str:
    """Return the story as lines; `managed` are the resources that make a pod ours."""
    lines: list[str] = []
    match story.state:
        case State.NOT_OURS:
            lines += _not_ours(story, managed)
        case State.REFUSED:
            lines += [_headline(story, "cannot be placed: its request breaks a rule")]
        case State.OTHER_SCHEDULER:
            lines += [_headline(story, f"waits{_since(story, now)}"), *_asks(story)]
            lines += _other_scheduler(story, scheduler_name)
        case State.WAITING:
            lines += [_headline(story, f"waits{_since(story, now)}"), *_asks(story)]
            lines += _why(story, now)
        case State.PLACED | State.FINISHED:
            lines += _placed(story)
    lines += [f"problem: {problem}" for problem in story.problems]
    return "".join(f"{_printable(line)}\n" for line in lines)


def _headline(story: Story, what: str) -> str:
    return f"{story.namespace}/{story.name} {what}"


def _not_ours(story: Story, managed: tuple[str, ...]) -> Iterator[str]:
    yield _headline(story, "asks for no card, so hami has no part in where it goes")
    yield f"hami manages {', '.join(managed)}; a container asks for them in resources.limits"
    if story.verdict:
        yield f"kube-scheduler says: {story.verdict}"


def _other_scheduler(story: Story, scheduler_name: str) -> Iterator[str]:
    named = story.scheduler or "none"
    yield f"its schedulerName is {named}, not {scheduler_name}: hami is never asked about it"
    yield f"create it again with spec.schedulerName: {scheduler_name} (a pod's cannot be changed)"
    yield "if hami runs under another name, add --scheduler-name here"
    if story.verdict:
        yield f"{named} says: {story.verdict}"


def _placed(story: Story) -> Iterator[str]:
    phase = f" ({story.phase})" if story.phase else ""
    verb = "was" if story.state is State.FINISHED else "is"
    yield _headline(story, f"{verb} on {story.node or 'no node'}{phase}")
    if not story.granted:
        yield "no card is granted to it: another scheduler placed it, so nobody counts its share"
    for granted in story.granted:
        share = f"{granted.memory} MiB, {_compute(granted.cores)}"
        yield f"  {granted.container}: {granted.vendor} {granted.uuid}, {share}"
    if story.bind_phase:
        yield f"bind phase: {story.bind_phase}"


def _asks(story: Story) -> Iterator[str]:
    yield "it asks for:"
    for container, cards in story.asks.items():
        for asked in cards:
            yield f"  {container}: {_request(asked)}"


def _request(asked: CardRequest) -> str:
    cards = "1 card" if asked.count == 1 else f"{asked.count} cards"
    if asked.memory:
        memory = f"{asked.memory} MiB"
    elif asked.percentage == WHOLE_CARD:
        memory = "all its memory"
    else:
        memory = f"{asked.percentage} % of its memory"
    each = "" if asked.count == 1 else "each "
    return f"{cards} of {asked.vendor}, {each}with {memory} and {_compute(asked.cores)}"


def _compute(percent: int) -> str:
    return f"{percent} % of its compute" if percent else "no limit on compute"


def _why(story: Story, now: dt.datetime) -> Iterator[str]:
    note = story.explanation
    if note is not None:
        yield from _note(note, now)
    elif not story.verdict:
        yield "nobody has tried to place it yet; is the scheduler running?"
    else:
        yield "hami has written no reasons on it yet; it does some seconds after the first try"
    if story.verdict:
        yield f"kube-scheduler says: {story.verdict}"


def _note(note: Note, now: dt.datetime) -> Iterator[str]:
    yield f"why{_ago(note.at, now)}: {note.summary or 'no summary'}"
    ordered = sorted(note.reasons.items(), key=lambda entry: (-entry[1].nodes, entry[0]))
    for reason, met in ordered:
        cards = f", {met.cards} {_plural(met.cards, 'card')}" if met.cards else ""
        yield f"  {reason}: {met.nodes} {_plural(met.nodes, 'node')}{cards}"
    if note.near:
        yield "nearest:"
        yield from (f"  {_near(near)}" for near in note.near)


def _near(near: Near) -> str:
    short = []
    if near.memory_short is not None:
        short.append(f"{near.memory_short} MiB short")
    if near.cores_short is not None:
        short.append(f"{near.cores_short} % of compute short")
    if near.cards_missing:
        short.append(f"{near.cards_missing} {_plural(near.cards_missing, 'card')} missing")
    place = f"{near.node}, container {near.container}" if near.container else near.node
    return f"{place}: {', '.join(short) or 'almost fits'}"


def _plural(number: int, noun: str) -> str:
    return noun if number == 1 else f"{noun}s"


def _since(story: Story, now: dt.datetime) -> str:
    age = _age(story.since, now)
    return f" since {story.since} ({age})" if age else ""


def _ago(moment: str, now: dt.datetime) -> str:
    age = _age(moment, now)
    return f" ({age} ago)" if age else ""


def _age(moment: str, now: dt.datetime) -> str:
    try:
        seconds = int((now - dt.datetime.fromisoformat(moment)).total_seconds())
    except (ValueError, TypeError):  # no time, or one without a zone
        return ""
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return "0 s"


def _printable(line: str) -> str:
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line
    )
