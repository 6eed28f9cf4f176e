"""The node's ledger on disk: which pod holds what of which card.

One file per pod UID, written whole or not at all and on disk when `put` returns. So a container
that was prepared once restarts without the API server, also after a reboot. Memory always equals
the disk. A record that cannot be read affects its own pod only: `damaged` names it, and its file is
kept, under another name as soon as a new record replaces it.

`check` is the node's own sum over the ledger, whatever annotations say: a forged, repeated or
outdated grant never puts more on a card than the card has. A pod counts as in the scheduler: by the
most that it holds at one time (`hami.wire.shares`).

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

import msgspec

from hami.agent.errors import AgentError
from hami.node import files, layout, ledger_record
from hami.node.layout import NodeLayout
from hami.node.ledger_record import LedgerRecord
from hami.wire import errors, shares
from hami.wire.node_register import RegisteredCard
from hami.wire.objects import ContainerKind
from hami.wire.shares import Share

_log = logging.getLogger(__name__)

_SUFFIX = ".json"


class LedgerError(AgentError):
    """The ledger cannot be read or written; says why and what to do."""


class Ledger:
    """All records, in memory and on disk."""

    def __init__(self, layout: NodeLayout) -> None:
        self._layout = layout
        self._records: dict[str, LedgerRecord] = {}
        #: Allocation id -> pod UID.
        self._owners: dict[str, str] = {}
        #: Pod UID -> what is wrong with its file.
        self.damaged: dict[str, str] = {}

    def load(self) -> None:
        """Read all records; remove drafts of writes that did not finish."""
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
                "check --state-dir: it must be a folder on a disk that the agent may write",
            ) from error
        for path in paths:
            if path.name.startswith("."):
                with contextlib.suppress(OSError):
                    path.unlink()
            elif path.suffix == _SUFFIX:
                self._read(path.stem)
        for uid, why in self.damaged.items():
            _log.error("cannot read a ledger record", extra={"uid": uid, "error": why})

    def get(self, uid: str) -> LedgerRecord | None:
        return self._records.get(uid)

    def records(self) -> list[LedgerRecord]:
        return list(self._records.values())

    def by_allocation_id(self, allocation_id: str) -> LedgerRecord | None:
        """Return the record of the pod that an allocation id was made for; None: unknown."""
        return self._records.get(self._owners.get(allocation_id, ""))

    def held(self) -> dict[str, frozenset[str]]:
        """Return the cards behind each of kubelet's device ids that a container holds.

        kubelet gives an init container's ids to another container of the pod as well: then the
        cards of both are behind the id.
        """
        found: dict[str, frozenset[str]] = {}
        for record in self.records():
            for allocation in record.allocations:
                granted = record.shares_of(allocation.container_index)
                cards = frozenset(share.card for share in granted)
                for device_id in allocation.device_ids:
                    found[device_id] = found.get(device_id, frozenset()) | cards
        return found

    def used_shares(self, *, init_done: Collection[str] = ()) -> dict[str, int]:
        """Return how many shares of each card are taken at one time, at most."""
        totals = total(self.records(), init_done=init_done)
        return {card: used.share_count for card, used in totals.items()}

    def put(self, new: LedgerRecord, *, durable: bool = True) -> None:
        """Write a record; LedgerError if it is not certain to be on disk.

        Whatever fails on the way, the file has either the old record or the new one. After a
        failure memory is read from the file again, as the next start of the agent would.
        """
        if why := _unsafe(new):
            raise LedgerError(
                f"record of pod {new.uid!r}", why, "this is a bug in the agent: please report it"
            )
        path = self._layout.record(new.uid)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if new.uid in self.damaged:
                _set_aside(path)
            files.write_atomic(path, ledger_record.encode(new), durable=durable)
        except OSError as error:
            self._read(new.uid)
            raise LedgerError(
                f"record of pod {new.uid} in {path}",
                f"cannot be written: {error.strerror or error}",
                "free space on the disk of --state-dir, or find out why it cannot be written",
            ) from error
        self.damaged.pop(new.uid, None)
        self._remember(new)

    def recheck_damaged(self) -> None:
        """Forget damaged records whose files an administrator has removed."""
        for uid in list(self.damaged):
            if not os.path.lexists(self._layout.ledger / f"{uid}{_SUFFIX}"):
                self.damaged.pop(uid, None)

    def remove(self, uid: str) -> None:
        """Remove a pod's record; one that cannot be read stays."""
        if uid not in self._records:
            return
        path = self._layout.record(uid)
        try:
            path.unlink(missing_ok=True)
            files.sync_folder(path.parent)
        except FileNotFoundError:
            pass  # the whole folder was removed, and the record with it
        except OSError as error:
            raise LedgerError(
                f"record of pod {uid} in {path}",
                f"cannot be removed: {error.strerror or error}",
                "find out why the disk of --state-dir cannot be written",
            ) from error
        self._forget(uid)

    def _read(self, uid: str) -> None:
        """Make memory equal to the file of a pod."""
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
            self._forget(uid)
        else:
            self._remember(found)

    def _remember(self, new: LedgerRecord) -> None:
        """Replace a pod's older record; readers in other threads may read at any moment between."""
        old = self._records.get(new.uid)
        self._records[new.uid] = new
        self._owners.update((allocation.allocation_id, new.uid) for allocation in new.allocations)
        for allocation in old.allocations if old else ():
            if new.allocation(allocation.allocation_id) is None:
                self._owners.pop(allocation.allocation_id, None)

    def _forget(self, uid: str) -> None:
        known = self._records.pop(uid, None)
        for allocation in known.allocations if known else ():
            self._owners.pop(allocation.allocation_id, None)


def _unsafe(new: LedgerRecord) -> str:
    """Return what in a record must not become part of a path; empty: nothing."""
    if not layout.is_uid(new.uid):
        return f"has the UID {errors.shorten(new.uid)}, which is not a UID"
    for allocation in new.allocations:
        if not layout.is_allocation_id(allocation.allocation_id):
            shown = errors.shorten(allocation.allocation_id)
            return f"has the allocation id {shown}, which is not 32 hexadecimal digits"
    return ""


def _set_aside(path: Path) -> None:
    """Keep an unreadable file under another name, before a good one replaces it."""
    for number in itertools.count(1):
        aside = path.with_name(f"{path.name}.damaged-{number}")
        if not os.path.lexists(aside):
            path.rename(aside)
            files.sync_folder(path.parent)
            _log.warning("set an unreadable ledger record aside", extra={"file": str(aside)})
            return


class CardTotal(NamedTuple):
    """The amounts that pods hold of one card."""

    memory_mib: int
    #: Percent.
    cores: int
    #: Containers that have a share of the card.
    share_count: int


_NOTHING = CardTotal(0, 0, 0)


def check(
    records: Iterable[LedgerRecord],
    new: LedgerRecord,
    cards: Mapping[str, RegisteredCard],
    *,
    init_done: Collection[str] = (),
) -> str:
    """Return why `new` does not fit beside the records; empty: it fits.

    An older record of the same pod does not count. `init_done` has the UIDs of pods whose init
    containers have ended: the scheduler gives what only those held to other pods.
    """
    wanted = held_by(new, init_done=new.uid in init_done)
    others = [record for record in records if record.uid != new.uid]
    used = total(others, init_done=init_done)
    for uuid, asked in wanted.items():
        card = cards.get(uuid)
        if card is None:
            return f"card {uuid} is none of this node's cards"
        taken = used.get(uuid, _NOTHING)
        for name, unit, more, before, limit in (
            ("memory", " MiB", asked.memory_mib, taken.memory_mib, card.devmem),
            ("cores", "%", asked.cores, taken.cores, card.devcore),
            ("shares", "", asked.share_count, taken.share_count, card.count),
        ):
            if more and before + more > limit:
                return (
                    f"card {uuid} has {limit}{unit} of {name}, {before}{unit} are taken by other "
                    f"pods, {more}{unit} more do not fit"
                )
    return ""


def total(
    records: Iterable[LedgerRecord], *, init_done: Collection[str] = ()
) -> dict[str, CardTotal]:
    """Return what all pods together hold of each card."""
    sums: dict[str, CardTotal] = {}
    for record in records:
        for uuid, held in held_by(record, init_done=record.uid in init_done).items():
            before = sums.get(uuid, _NOTHING)
            sums[uuid] = CardTotal(*map(sum, zip(before, held, strict=True)))
    return sums


def held_by(record: LedgerRecord, *, init_done: bool = False) -> dict[str, CardTotal]:
    """Return the most that one pod holds of each of its cards at one time."""
    kinds = (container.kind for container in record.containers)
    #: Card -> what each container with a share of it holds.
    by_card: dict[str, list[tuple[ContainerKind, CardTotal]]] = {}
    # Shares behind those of the last container belong to none, but the cards are taken.
    for kind, granted in itertools.zip_longest(kinds, record.held, fillvalue=None):
        for share in _one_per_card(granted or ()):
            step = ContainerKind.APP if kind is None else kind
            held = CardTotal(share.memory_mib, share.cores, 1)
            by_card.setdefault(share.card, []).append((step, held))
    return {
        card: CardTotal(
            *(
                shares.peak(
                    ((kind, held[field]) for kind, held in held_over_time), init_done=init_done
                )
                for field in range(len(CardTotal._fields))
            )
        )
        for card, held_over_time in by_card.items()
    }


def _one_per_card(granted: Iterable[Share]) -> Iterable[Share]:
    """Add up one container's shares of the same card."""
    sums: dict[str, Share] = {}
    for share in granted:
        known = sums.get(share.card)
        sums[share.card] = (
            share
            if known is None
            else msgspec.structs.replace(
                known,
                memory_mib=known.memory_mib + share.memory_mib,
                cores=known.cores + share.cores,
            )
        )
    return sums.values()
