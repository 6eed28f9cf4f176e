"""The node's ledger on disk: which pod holds what of which card.

Whether a card can carry one more grant, whatever annotations say.
The scheduler decides; this is the node's own sum, from the ledger alone, so that a forged, doubled
or outdated grant never puts more on a card than it has. A pod counts as the scheduler counts it:
with the most that it holds at one time (`hami.wire.shares`).

The node's ledger: who holds what of the cards, on a disk that survives a reboot.
One file per pod UID, written whole or not at all and on disk when `put` returns, so a container
that was prepared once restarts from here without the API server. What memory has is what the disk
has. A record that cannot be read concerns its own pod: it is named in `damaged`, its file is left
as it is, and it is set aside, not lost, when a new record takes its place.

`put` and `remove` wait for the disk and may run in a thread, but only one of them at a time.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from hami.agent.errors import AgentError
from hami.node import files, layout, ledger_record
from hami.node.layout import NodeLayout
from hami.node.ledger_record import LedgerRecord
from hami.wire import errors, shares
from hami.wire.node_register import RegisteredCard
from hami.wire.objects import ContainerKind


class Use(NamedTuple):
    """What is held of one card."""

    #: MiB.
    memory: int
    #: Percent.
    cores: int
    #: Containers.
    slots: int


def check(
    records: Iterable[LedgerRecord],
    new: LedgerRecord,
    devices: Mapping[str, RegisteredCard],
    *,
    init_done: Collection[str] = (),
) -> str:
    """Return why `new` does not fit beside the records, or an empty text.

    An older record of the same pod does not count. `init_done` has the UIDs of pods whose init
    containers have ended: the scheduler gives to others what only those held.
    """
    wanted = held_by(new, init_done=new.uid in init_done)
    others = [record for record in records if record.uid != new.uid]
    used = total(others, init_done=init_done)
    for uuid, use in wanted.items():
        device = devices.get(uuid)
        if device is None:
            return f"card {uuid} is none of this node's"
        before = used.get(uuid, Use(0, 0, 0))
        for name, unit, asked, taken, there in (
            ("memory", " MiB", use.memory, before.memory, device.devmem),
            ("cores", "%", use.cores, before.cores, device.devcore),
            ("shares", "", use.slots, before.slots, device.count),
        ):
            if asked and taken + asked > there:
                return (
                    f"card {uuid} has {there}{unit} of {name}, {taken}{unit} are taken by other "
                    f"pods, {asked}{unit} more do not fit"
                )
    return ""


def total(records: Iterable[LedgerRecord], *, init_done: Collection[str] = ()) -> dict[str, Use]:
    """Return what all pods together hold of each card."""
    sums: dict[str, Use] = {}
    for record in records:
        for uuid, use in held_by(record, init_done=record.uid in init_done).items():
            before = sums.get(uuid, Use(0, 0, 0))
            sums[uuid] = Use(*map(sum, zip(before, use, strict=True)))
    return sums


def held_by(record: LedgerRecord, *, init_done: bool = False) -> dict[str, Use]:
    """Return the most that one pod holds of each of its cards at one time."""
    kinds = (container.kind for container in record.containers)
    #: Card -> its part in each container that has one.
    cards: dict[str, list[tuple[ContainerKind, Use]]] = {}
    # A slot behind the last container is no container's, but what it says is taken is taken.
    for kind, grants in itertools.zip_longest(kinds, record.slots, fillvalue=None):
        parts: dict[str, Use] = {}
        for grant in grants or ():
            memory, cores, _ = parts.get(grant.card, Use(0, 0, 0))
            parts[grant.card] = Use(memory + grant.memory_mib, cores + grant.cores, 1)
        for uuid, part in parts.items():
            step = ContainerKind.APP if kind is None else kind
            cards.setdefault(uuid, []).append((step, part))
    return {
        uuid: Use(
            *(
                shares.peak(((kind, part[field]) for kind, part in parts), init_done=init_done)
                for field in range(3)
            )
        )
        for uuid, parts in cards.items()
    }


_log = logging.getLogger(__name__)

_SUFFIX = ".json"


class LedgerError(AgentError):
    """The ledger cannot be read or written; says why and what to do."""


class Ledger:
    def __init__(self, layout: NodeLayout) -> None:
        self._layout = layout
        self._records: dict[str, LedgerRecord] = {}
        #: Token -> UID.
        self._owners: dict[str, str] = {}
        #: UID -> what is wrong with its file.
        self.damaged: dict[str, str] = {}

    def load(self) -> None:
        """Read what is there; drafts of writes that never ended go."""
        folder = self._layout.ledger
        self._records.clear()
        self._owners.clear()
        self.damaged.clear()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            paths = sorted(folder.iterdir())
        except OSError as error:
            raise LedgerError(
                f"ledger {folder}",
                f"cannot be read: {error.strerror or error}",
                "check --state-dir: it must be a folder on a disk that we may write",
            ) from error
        for path in paths:
            if path.name.startswith("."):
                with contextlib.suppress(OSError):
                    path.unlink()
            elif path.suffix == _SUFFIX:
                self._take_in(path.stem)
        for uid, why in self.damaged.items():
            _log.error("a record of the ledger cannot be read", extra={"uid": uid, "error": why})

    def get(self, uid: str) -> LedgerRecord | None:
        return self._records.get(uid)

    def records(self) -> list[LedgerRecord]:
        return list(self._records.values())

    def by_token(self, token: str) -> LedgerRecord | None:
        """Return the record of the pod that a token belongs to."""
        return self._records.get(self._owners.get(token, ""))

    def held(self) -> dict[str, frozenset[str]]:
        """Return the cards behind each of kubelet's device ids that somebody has.

        kubelet gives an init container's ids to another container of the pod: then it is the cards
        of both.
        """
        found: dict[str, frozenset[str]] = {}
        for each in self.records():
            slots = each.slots
            for token in each.tokens:
                grants = slots[token.slot] if token.slot < len(slots) else ()
                cards = frozenset(grant.card for grant in grants)
                for device_id in token.device_ids:
                    found[device_id] = found.get(device_id, frozenset()) | cards
        return found

    def used_slots(self, *, init_done: Collection[str] = ()) -> dict[str, int]:
        """Return how many shares of each card are taken, at most at one time."""
        taken = total(self.records(), init_done=init_done)
        return {uuid: use.slots for uuid, use in taken.items()}

    def put(self, new: LedgerRecord, *, durable: bool = True) -> None:
        """Write a record; LedgerError if it is not on disk for sure.

        Whatever happens on the way, the file has the old record or the new one. After a failure
        memory has what the file has: the next start of the agent would believe that as well.
        """
        if why := _unsafe(new):
            raise LedgerError(f"record of pod {new.uid!r}", why, "this is an error of the agent")
        path = self._layout.record(new.uid)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if new.uid in self.damaged:
                _set_aside(path)
            files.write_atomic(path, ledger_record.encode(new), durable=durable)
        except OSError as error:
            self._take_in(new.uid)
            raise LedgerError(
                f"record of pod {new.uid} in {path}",
                f"cannot be written: {error.strerror or error}",
                "make room on the disk of --state-dir, or see why it cannot be written",
            ) from error
        self.damaged.pop(new.uid, None)
        self._know(new)

    def look_again(self) -> None:
        """Take note of unreadable files that somebody has taken away."""
        for uid in list(self.damaged):
            if not os.path.lexists(self._layout.ledger / f"{uid}{_SUFFIX}"):
                self.damaged.pop(uid, None)

    def remove(self, uid: str) -> None:
        """Forget a pod; what cannot be read is not removed."""
        if uid not in self._records:
            return
        path = self._layout.record(uid)
        try:
            path.unlink(missing_ok=True)
            files.sync_folder(path.parent)
        except FileNotFoundError:
            pass  # the whole folder is gone: so is the record
        except OSError as error:
            raise LedgerError(
                f"record of pod {uid} in {path}",
                f"cannot be removed: {error.strerror or error}",
                "see why the disk of --state-dir cannot be written",
            ) from error
        self._drop(uid)

    def _take_in(self, uid: str) -> None:
        """Have in memory what the file of a pod has."""
        path = self._layout.ledger / f"{uid}{_SUFFIX}"
        try:
            found = ledger_record.decode(path.read_bytes(), what=str(path))
            why = f"is of pod {found.uid!r}, not of {uid!r}" if found.uid != uid else _unsafe(found)
            damage = f"{path} {why}" if why else ""
        except FileNotFoundError:
            found, damage = None, ""
        except OSError as error:
            found, damage = None, f"{path} cannot be read: {error.strerror or error}"
        except errors.WireError as error:
            found, damage = None, str(error)
        self.damaged.pop(uid, None)
        if damage:
            self.damaged[uid] = damage
        if damage or found is None:
            self._drop(uid)
        else:
            self._know(found)

    def _know(self, new: LedgerRecord) -> None:
        """Put a record in the place of the older one; others may look at any moment between."""
        old = self._records.get(new.uid)
        self._records[new.uid] = new
        self._owners.update((token.token, new.uid) for token in new.tokens)
        for token in old.tokens if old else ():
            if new.token(token.token) is None:
                self._owners.pop(token.token, None)

    def _drop(self, uid: str) -> None:
        known = self._records.pop(uid, None)
        for token in known.tokens if known else ():
            self._owners.pop(token.token, None)


def _unsafe(new: LedgerRecord) -> str:
    """Tell what of a record must not become part of a path."""
    if not layout.is_uid(new.uid):
        return f"has the UID {errors.shorten(new.uid)}, which is none"
    for token in new.tokens:
        if not layout.is_token(token.token):
            return f"has the token {errors.shorten(token.token)}, which is none of ours"
    return ""


def _set_aside(path: Path) -> None:
    """Keep an unreadable file under another name, before a good one takes its place."""
    for number in itertools.count(1):
        aside = path.with_name(f"{path.name}.damaged-{number}")
        if not os.path.lexists(aside):
            path.rename(aside)
            files.sync_folder(path.parent)
            _log.warning("an unreadable record was set aside", extra={"file": str(aside)})
            return
