"""The text of `hami explain`: first the answer, then the reasons, then what to do.

Any user may have written parts of it (annotations, names), so characters that a terminal would
interpret are replaced.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from hami.cli.pod_story import State, Story
from hami.vendors.family import WHOLE_CARD, CardRequest
from hami.wire.explanation_note import Near, Note

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def text(story: Story, *, managed: tuple[str, ...], scheduler_name: str, now: dt.datetime) -> str:
    """Return the text for a person; `managed` are the resources of which hami manages pods."""
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
    if story.scheduler_message:
        yield f"kube-scheduler says: {story.scheduler_message}"


def _other_scheduler(story: Story, scheduler_name: str) -> Iterator[str]:
    named = story.scheduler or "none"
    yield f"its schedulerName is {named}, not {scheduler_name}: hami is never asked about it"
    yield f"create it again with spec.schedulerName: {scheduler_name} (a pod's cannot be changed)"
    yield "if hami runs under another name, add --scheduler-name here"
    if story.scheduler_message:
        yield f"{named} says: {story.scheduler_message}"


def _placed(story: Story) -> Iterator[str]:
    phase = f" ({story.phase})" if story.phase else ""
    verb = "was" if story.state is State.FINISHED else "is"
    yield _headline(story, f"{verb} on {story.node or 'no node'}{phase}")
    if not story.granted:
        yield "no card is granted to it: another scheduler placed it, so its share is not counted"
        yield "delete it and create it again with hami's schedulerName"
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
        yield f"why{_ago(note.at, now)}: {note.summary or 'no summary'}"
        yield from _note(note)
        if story.scheduler_message:
            yield f"kube-scheduler says: {story.scheduler_message}"
        return
    yield from _scheduling(story)
    yield from _would(story)


def _scheduling(story: Story) -> Iterator[str]:
    """Say why kube-scheduler has not asked hami about a pod, as far as the pod shows it."""
    if story.gates:
        yield f"it has scheduling gates: {', '.join(story.gates)}"
        yield "no scheduler tries it until their controllers have removed them all"
    elif story.scheduler_message:
        yield f"kube-scheduler says: {story.scheduler_message}"
    else:
        yield "no scheduler has tried to place it yet; check that hami's scheduler runs:"
        yield "  kubectl get pods -A -l app.kubernetes.io/component=hami-scheduler"
    if story.nominated:
        yield f"kube-scheduler makes room for it on {story.nominated}, where other pods must end"


def _would(story: Story) -> Iterator[str]:
    """Say what hami would decide of a pod that it has given no reasons for."""
    note = story.would
    if note is None:
        yield "hami has given no reasons: it is asked only about nodes that pass kube-scheduler's"
        yield f"own filters{story.would_error and f'; {story.would_error}'}"
    elif note.fitting:
        yield f"hami has given no reasons; by its cards alone it would be {note.summary}"
    else:
        yield f"hami has given no reasons yet; by its cards alone, {note.summary or 'no node fits'}"
        yield from _note(note)


def _note(note: Note) -> Iterator[str]:
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
