"""The file of released cards: those that agent and monitor have let go.

An administrator who resets a card, or replaces the driver, needs it closed by every process. NVML
opens a card when it is first asked for by index or bus address, and closes cards only all at once.
So the agent writes down which cards nothing of hami may open, and which it may; both processes
connect again, and ask for the others by their bus addresses. The file outlives a restart: a card
whose UUID is not known could only be recognised by opening it.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from hami.node import files
from hami.node.nvml_cards import Card
from hami.wire import codec, errors

_log = logging.getLogger(__name__)


class ReleasedCards(msgspec.Struct, frozen=True):
    """The cards of a node, in two parts; without a released card both are empty."""

    #: Not to be opened, as they were when they were released.
    released: tuple[Card, ...] = ()
    #: All others.
    kept: tuple[Card, ...] = ()

    @property
    def uuids(self) -> frozenset[str]:
        return frozenset(card.uuid for card in self.released)

    @property
    def openable(self) -> tuple[Card, ...] | None:
        """The cards that may be opened, empty for none; None: all that the driver has."""
        return self.kept if self.released else None


NONE = ReleasedCards()


def read(path: Path) -> ReleasedCards:
    """Read the file; without one, or with one that is damaged, no card is released."""
    try:
        return codec.decode(path.read_bytes(), ReleasedCards, what=str(path))
    except FileNotFoundError:
        return NONE
    except (OSError, errors.WireError) as error:
        _log.warning("cannot read which cards are released", extra={"error": str(error)})
        return NONE


class ReleasedFile:
    """Reads the file again only after it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state: tuple[int, int] | None = None
        self._cards = NONE

    def __call__(self) -> ReleasedCards:
        """Return the cards that are released now."""
        try:
            found = self._path.stat()
            state = (found.st_ino, found.st_mtime_ns)
        except OSError:
            state = None
        if state != self._state:
            self._state, self._cards = state, read(self._path)
        return self._cards


def write(path: Path, cards: ReleasedCards) -> None:
    """Write the file, or remove it where no card is released; it is on disk afterwards."""
    if not cards.released:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomic(path, codec.encode(cards), durable=True)
