"""Kinds of findings, a closed set, each with the rule that was broken.

A finding states facts: whose thing it is, the value, the rule, and where it was read. It proposes
no remedy, since its reader has to find out which code did it.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class Kind(enum.StrEnum):
    """Every fault the auditor knows; the text is what the command line prints."""

    # What live pods hold now, by their grants.
    CARD_COUNT = "card-count"
    CARD_MEMORY = "card-memory"
    CARD_CORES = "card-cores"
    CARD_EXCLUSIVE = "card-exclusive"
    # The same at any moment of the recorded time.
    PEAK_COUNT = "peak-count"
    PEAK_MEMORY = "peak-memory"
    PEAK_CORES = "peak-cores"
    PEAK_EXCLUSIVE = "peak-exclusive"
    # What the driver counted.
    DRIVER_CARD = "driver-card"
    DRIVER_LIMIT = "driver-limit"
    DRIVER_NO_GRANT = "driver-no-grant"
    DRIVER_RECORD = "driver-record"
    # Annotations that do not decode.
    NODE_ANNOTATION = "node-annotation"
    POD_ANNOTATION = "pod-annotation"
    # Annotations that say what cannot be.
    BINDING_MARK = "binding-mark"
    GRANT_CARD = "grant-card"
    GRANT_AMOUNT = "grant-amount"
    GRANT_SLOTS = "grant-slots"
    GRANT_ASK = "grant-ask"
    GRANT_NODE = "grant-node"
    GRANT_REST = "grant-rest"
    GRANT_MAC = "grant-mac"
    GRANT_UNBOUND = "grant-unbound"
    GRANT_REWRITTEN = "grant-rewritten"
    # Left behind.
    LOCK_LEFT = "lock-left"
    PHASE_STUCK = "phase-stuck"
    SPEC_LEFT = "spec-left"
    FOLDER_LEFT = "folder-left"
    STATE_LEFT = "state-left"
    LEDGER_LEFT = "ledger-left"
    # Whose limits a container has.
    SPEC_MALFORMED = "spec-malformed"
    SPEC_OWNER = "spec-owner"
    SPEC_LIMITS = "spec-limits"
    POLICY_MALFORMED = "policy-malformed"
    POLICY_OWNER = "policy-owner"
    POLICY_LIMITS = "policy-limits"
    ANSWER_LIMITS = "answer-limits"
    TOKEN_MISSING = "token-missing"  # noqa: S105 - names a fault, not a secret
    TOKEN_TWICE = "token-twice"  # noqa: S105 - names a fault, not a secret
    # kubelet's own books.
    DEVICE_TWICE = "device-twice"
    RESOURCES_DIFFER = "resources-differ"
    # The evidence itself.
    UNREADABLE = "unreadable"


MOMENTARY = frozenset(
    {
        Kind.GRANT_CARD,
        Kind.LOCK_LEFT,
        Kind.PHASE_STUCK,
        Kind.SPEC_LEFT,
        Kind.FOLDER_LEFT,
        Kind.STATE_LEFT,
        Kind.LEDGER_LEFT,
        Kind.POLICY_MALFORMED,
        Kind.TOKEN_MISSING,
        Kind.RESOURCES_DIFFER,
        Kind.UNREADABLE,
    }
)
"""Kinds that are legal for a moment, while something is made or taken away; see settling.py."""


class Finding(NamedTuple):
    """One fault: `subject` names the thing, so that a later look can recognise it."""

    kind: Kind
    subject: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind} {self.subject}: {self.what}"
