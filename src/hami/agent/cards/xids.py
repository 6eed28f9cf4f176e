"""XIDs, the driver's critical errors: meaning, remedy, and which count.

A program can raise an XID by a bug of its own: its card is as good as before. The hardware has
repaired the cause of others already. The rest make the card unhealthy for a while, and the text
says what helps. A number that is not in the table counts.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping

from hami.wire import errors

DISABLE = "DP_DISABLE_HEALTHCHECKS"
ENABLE = "DP_ENABLE_HEALTHCHECKS"
_EVERYTHING = "all"
_XIDS = "xids"


class Kind(enum.Enum):
    #: A program's own bug; the card is healthy.
    APPLICATION = "application"
    #: Handled by the hardware already, or only a message; logged.
    NOTICE = "notice"
    #: Hit some work and is over: the card is healthy again after its quarantine.
    TRANSIENT = "transient"
    #: The card needs a reset.
    RESET = "reset"
    #: The card cannot be used until the node reboots.
    REBOOT = "reboot"
    #: Not in the table.
    UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True, slots=True)
class Meaning:
    """An XID's class, its cause and what to do."""

    kind: Kind
    text: str
    remedy: str

    @property
    def critical(self) -> bool:
        """Return whether it makes the card unhealthy, unless settings say otherwise."""
        return self.kind not in {Kind.APPLICATION, Kind.NOTICE}


_CHECK_PROGRAM = "find the bug in the program that ran"
#: Agents count too: a process that has the driver open prevents a reset.
_RESET = (
    "stop what runs on the card and the agents that watch it, then reset it (`nvidia-smi "
    "--gpu-reset`), or reboot the node"
)
_RESET_OR_REPLACE = f"{_RESET}; if it recurs have the card examined"
_REBOOT = "drain and reboot the node; if it recurs check seating, power and cooling, then the card"
_REST = "nothing, if it happens once; if it recurs have the card examined"
_LINK = "reset the cards at both ends of the link; if it recurs check bridge, cables, switch"
_WATCH = "nothing now; check whether it becomes more frequent"
_FIRMWARE = f"{_RESET}; a newer driver may help"

_Rows = Iterable[tuple[Iterable[int], Kind, str, str]]
_ROWS: _Rows = (
    ((13,), Kind.APPLICATION, "a kernel made an illegal access or instruction", _CHECK_PROGRAM),
    ((31,), Kind.APPLICATION, "a program used an address that it does not have", _CHECK_PROGRAM),
    ((43,), Kind.APPLICATION, "a program's channel was stopped after its error", _CHECK_PROGRAM),
    ((45,), Kind.APPLICATION, "a program's channels were cleared, as when it is killed", "nothing"),
    ((68,), Kind.APPLICATION, "a video decoder met something it cannot decode", _CHECK_PROGRAM),
    ((109,), Kind.APPLICATION, "work did not yield to other work in time", _CHECK_PROGRAM),
    ((63,), Kind.NOTICE, "a bad row of memory was recorded, to be replaced at a reset", _WATCH),
    ((92,), Kind.NOTICE, "many memory errors of one bit were corrected", _WATCH),
    ((93,), Kind.NOTICE, "the card's configuration memory was written often", _WATCH),
    ((106, 107), Kind.NOTICE, "a test message of the management bus", "nothing"),
    ((121,), Kind.NOTICE, "an error between the chips of a module was corrected", _WATCH),
    ((8,), Kind.TRANSIENT, "a channel did not become idle in time", _REST),
    ((11, 25, 32, 80), Kind.TRANSIENT, "a stream of commands arrived damaged", _REST),
    ((37, 38), Kind.TRANSIENT, "firmware that serves the driver failed", _REST),
    (
        (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)),
        Kind.TRANSIENT,
        "a copy engine failed",
        _REST,
    ),
    (
        (65, 82, 83, 84, 86, 88, 89, *range(96, 106), 139, 142),
        Kind.TRANSIENT,
        "a video, image or motion engine failed",
        _REST,
    ),
    ((60,), Kind.TRANSIENT, "the security processor refused something", _REST),
    ((66, 67), Kind.TRANSIENT, "a forbidden register was accessed", _REST),
    ((69,), Kind.TRANSIENT, "the graphics engine met a command it does not know", _REST),
    (
        (94,),
        Kind.TRANSIENT,
        "a memory error that cannot be corrected hit one program, which was stopped",
        _REST,
    ),
    ((108, 137), Kind.TRANSIENT, "a program of another card was refused over NVLink", _REST),
    ((46, 158), Kind.RESET, "the card stopped working on what it had", _RESET_OR_REPLACE),
    ((48,), Kind.RESET, "memory has an error that cannot be corrected", _RESET_OR_REPLACE),
    ((61, 62), Kind.RESET, "the card's power controller stopped", _RESET_OR_REPLACE),
    ((64,), Kind.RESET, "a bad row of memory could not be replaced", _RESET_OR_REPLACE),
    ((74,), Kind.RESET, "an NVLink failed", _LINK),
    ((95,), Kind.RESET, "a memory error hit more than one program", _RESET_OR_REPLACE),
    ((110,), Kind.RESET, "a protection of the card was violated", _FIRMWARE),
    ((119, 120), Kind.RESET, "the card's system processor does not answer", _FIRMWARE),
    ((136,), Kind.RESET, "an NVLink could not be brought up", _LINK),
    ((140,), Kind.RESET, "a memory error could not be contained", _RESET_OR_REPLACE),
    ((143,), Kind.RESET, "the card could not be initialised", _RESET_OR_REPLACE),
    (range(144, 151), Kind.RESET, "an NVLink failed", _LINK),
    (
        (154,),
        Kind.RESET,
        "the driver changed the recovery that the card needs after another error",
        "do as the kernel log says beside this XID: reset, drain or reboot",
    ),
    ((155,), Kind.RESET, "an NVLink was taken down", _LINK),
    ((156,), Kind.RESET, "a bad part of the chip is disabled from the next reset on", _RESET),
    ((157, 161), Kind.RESET, "a bad part of the chip could not be disabled", _RESET_OR_REPLACE),
    ((171, 172), Kind.RESET, "memory has an error that cannot be corrected", _RESET_OR_REPLACE),
    (
        (54,),
        Kind.REBOOT,
        "the card's external power is not plugged in",
        "power the node off and check the card's power cables",
    ),
    ((79,), Kind.REBOOT, "the card fell off the PCIe bus", _REBOOT),
    ((151,), Kind.REBOOT, "the card could not change its encryption keys", _REBOOT),
    ((167,), Kind.REBOOT, "the PCIe bus did not answer in time", _REBOOT),
)
TABLE: Mapping[int, Meaning] = {
    code: Meaning(kind, text, remedy) for codes, kind, text, remedy in _ROWS for code in codes
}
_UNKNOWN = Meaning(
    Kind.UNKNOWN,
    "an unknown error",
    f"look it up in NVIDIA's list of XIDs; if it is harmless name it in {DISABLE}",
)


def of(code: int) -> Meaning:
    return TABLE.get(code, _UNKNOWN)


def describe(code: int) -> str:
    meaning = of(code)
    return f"XID {code}: {meaning.text}; {meaning.remedy}"


@dataclasses.dataclass(frozen=True, slots=True)
class Ignored:
    """The XIDs that do not count. A number overrides a setting for all XIDs."""

    disabled: frozenset[int] = frozenset()
    enabled: frozenset[int] = frozenset()
    all_disabled: bool = False
    all_enabled: bool = False
    #: Whether cards are probed.
    probing: bool = True

    def __contains__(self, code: object) -> bool:
        if code in self.enabled:
            return False
        if code in self.disabled:
            return True
        if self.all_enabled or self.all_disabled:
            return not self.all_enabled
        return not (isinstance(code, int) and of(code).critical)

    @property
    def everything(self) -> bool:
        """Return whether no XID counts at all, so that none is waited for."""
        return self.all_disabled and not self.all_enabled and not self.enabled


def ignored(disable: str, enable: str = "") -> Ignored:
    """Read the two settings: comma lists of XIDs, or `xids` for all of them.

    `all` disables more than `xids`: cards are not probed either.
    """
    off, no_xid = _read(disable, DISABLE)
    on, every_xid = _read(enable, ENABLE)
    return Ignored(
        disabled=off,
        enabled=on,
        all_disabled=bool(no_xid),
        all_enabled=bool(every_xid),
        probing=_EVERYTHING not in no_xid or _EVERYTHING in every_xid,
    )


def _read(text: str, what: str) -> tuple[frozenset[int], frozenset[str]]:
    numbers: set[int] = set()
    words: set[str] = set()
    for entry in filter(None, (part.strip() for part in text.split(","))):
        if entry.lower() in {_EVERYTHING, _XIDS}:
            words.add(entry.lower())
        elif entry.isascii() and entry.isdigit() and int(entry):
            numbers.add(int(entry))
        else:
            raise errors.WireError(
                what,
                entry,
                f"is neither the number of an XID nor {_XIDS} nor {_EVERYTHING}",
                f"write a comma list such as 48,79, or {_XIDS}",
            )
    return frozenset(numbers), frozenset(words)
