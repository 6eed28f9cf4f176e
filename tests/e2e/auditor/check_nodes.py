"""Annotations of ours on nodes that do not decode, or do not fit each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.e2e.auditor import malformed, node_annotations, nodes
from tests.e2e.auditor.evidence import Evidence
from tests.e2e.auditor.findings import Finding, Kind
from tests.e2e.auditor.malformed import MalformedError
from tests.e2e.auditor.node_annotations import (
    BINDING_MARK,
    CLOSED,
    HANDSHAKE,
    LOCK_PREFIX,
    LOCK_REASON,
    NVIDIA_REGISTER,
    NVIDIA_SCORE,
)


def check(evidence: Evidence) -> Iterator[Finding]:
    for node in evidence.nodes:
        name, annotations = nodes.name_of(node), nodes.annotations_of(node)
        for key, value in annotations.items():
            try:
                _decode(key, value)
            except MalformedError as error:
                yield Finding(
                    Kind.NODE_ANNOTATION,
                    f"node {name} {key}",
                    f"its value {malformed.shown(value)!r}: {error}",
                )
        cards = nodes.cards_of(node)
        if cards is not None:
            yield from _scores(name, annotations, cards)
        yield from _mark(name, annotations)


def _decode(key: str, value: str) -> None:
    node_annotations.register(key, value)
    if key == NVIDIA_SCORE:
        node_annotations.pair_scores(value)
    elif key == BINDING_MARK:
        node_annotations.binding_mark(value)
    elif key == LOCK_REASON:
        node_annotations.lock_reason(value)
    elif key == CLOSED:
        node_annotations.closed(value)
    elif key.startswith(LOCK_PREFIX):
        node_annotations.lock(value)
    elif HANDSHAKE.fullmatch(key):
        node_annotations.handshake(value)


def _scores(name: str, annotations: Mapping[str, str], cards: nodes.Cards) -> Iterator[Finding]:
    try:
        named = node_annotations.pair_scores(annotations.get(NVIDIA_SCORE, "[]"))
    except MalformedError:
        return
    unknown = [card for card in named if card not in cards]
    if unknown:
        yield Finding(
            Kind.NODE_ANNOTATION,
            f"node {name} {NVIDIA_SCORE}",
            f"names {', '.join(unknown)}, which {NVIDIA_REGISTER} does not register",
        )


def _mark(name: str, annotations: Mapping[str, str]) -> Iterator[Finding]:
    if BINDING_MARK not in annotations:
        return
    if LOCK_REASON in annotations:
        yield Finding(
            Kind.BINDING_MARK,
            f"node {name} {BINDING_MARK}",
            f"it binds late, but {LOCK_REASON} says why it does not: {annotations[LOCK_REASON]!r}",
        )
    try:
        said = node_annotations.binding_mark(annotations[BINDING_MARK])
    except MalformedError:
        return
    register = annotations.get(NVIDIA_REGISTER)
    wanted = None if register is None else node_annotations.hash_of(register)
    if said != wanted:
        there = "there is none" if wanted is None else f"hashes to {wanted}"
        yield Finding(
            Kind.BINDING_MARK,
            f"node {name} {BINDING_MARK}",
            f"it was written with a register annotation of hash {said}, {NVIDIA_REGISTER} {there}",
        )
