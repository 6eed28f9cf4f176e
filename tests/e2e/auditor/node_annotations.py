"""The auditor's own decoder of node annotations.

It is written from docs/designs/006-hami-protocol.md alone. Readers of the product are liberal where
the page says so. This one is strict: what no writer of ours or of HAMi would write is malformed.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import re

from tests.e2e.auditor import malformed
from tests.e2e.auditor.malformed import MalformedError

NVIDIA_REGISTER = "hami.io/node-nvidia-register"
NVIDIA_SCORE = "hami.io/node-nvidia-score"
BINDING_MARK = "hami.io/node-nvidia-binding"
LOCK_REASON = "hami.io/node-nvidia-lock-reason"
CLOSED = "hami.io/node-nvidia-closed"
LOCK_PREFIX = "hami.io/mutex.lock"
HANDSHAKE = re.compile(r"hami\.io/node-handshake(-.+)?")

_JSON_REGISTER = re.compile(r"hami\.io/(node-(nvidia|amd|va|biren)-register|node-register-.+)")
_COLON_REGISTER = re.compile(r"hami\.io/node-.+-register")
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_RFC3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})"
)
_MARK = re.compile(r"late,([0-9a-f]{16})")
_OLD_FIELDS, _FIELDS, _LOCK_PARTS = 7, 9, 3


@dataclasses.dataclass(frozen=True, slots=True)
class Card:
    """A card as its node registers it: memory in MiB, cores in percent."""

    id: str
    count: int
    memory: int
    cores: int
    mode: str = "hami-core"
    index: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Lock:
    """A node lock; one of the older form names no pod."""

    namespace: str = ""
    name: str = ""


def register(key: str, value: str) -> tuple[Card, ...] | None:
    """Read a register annotation in the format that its key has, None if the key is no such."""
    if _JSON_REGISTER.fullmatch(key):
        cards = tuple(_json_card(item) for item in malformed.objects(malformed.parse_json(value)))
    elif _COLON_REGISTER.fullmatch(key):
        cards = _colon_cards(value)
    else:
        return None
    ids = [card.id for card in cards]
    for name in ids:
        if ids.count(name) > 1:
            raise MalformedError(f"names card {name} twice")
    return cards


def _json_card(item: dict[str, object]) -> Card:
    for name in ("type", "mode"):
        malformed.string(item, name)
    if not isinstance(item.get("health", False), bool):
        raise MalformedError(f"health {malformed.shown(item['health'])} is neither true nor false")
    malformed.integer(item, "numa", lowest=-1)
    return _card(
        Card(
            id=malformed.string(item, "id"),
            count=malformed.integer(item, "count"),
            memory=malformed.integer(item, "devmem"),
            cores=malformed.integer(item, "devcore"),
            mode=malformed.string(item, "mode"),
            index=malformed.integer(item, "index"),
        )
    )


def _colon_cards(value: str) -> tuple[Card, ...]:
    if not value.endswith(":"):
        raise MalformedError("does not end with ':' as each card of the colon format does")
    return tuple(_colon_card(part) for part in value.split(":") if part)


def _colon_card(record: str) -> Card:
    fields = record.split(",")
    if len(fields) not in (_OLD_FIELDS, _FIELDS):
        raise MalformedError(
            f"card {record!r} has {len(fields)} fields, not {_OLD_FIELDS} or {_FIELDS}"
        )
    if fields[6] not in _TRUE | _FALSE:
        raise MalformedError(f"health {fields[6]!r} is no Go boolean")
    malformed.decimal(fields[5].removeprefix("-"), "numa")
    full = len(fields) == _FIELDS
    return _card(
        Card(
            id=fields[0],
            count=malformed.decimal(fields[1], "count"),
            memory=malformed.decimal(fields[2], "memory"),
            cores=malformed.decimal(fields[3], "cores"),
            mode=fields[8] if full else "hami-core",
            index=malformed.decimal(fields[7], "index") if full else 0,
        )
    )


def _card(card: Card) -> Card:
    if not card.id or re.search(r"[,:;\s]", card.id):
        raise MalformedError(
            f"card id {card.id!r} is empty or has a separator of the device list in it"
        )
    return card


def lock(value: str) -> Lock:
    """Read a node lock of either form."""
    parts = value.split(",")
    if len(parts) not in (1, _LOCK_PARTS):
        raise MalformedError("is neither <RFC 3339 time> nor <time>,<namespace>,<pod>")
    _rfc3339(parts[0])
    if len(parts) == 1:
        return Lock()
    return Lock(malformed.dns_name(parts[1], "namespace"), malformed.dns_name(parts[2], "pod name"))


def _rfc3339(text: str) -> None:
    try:
        real = _RFC3339.fullmatch(text) and dt.datetime.fromisoformat(text)
    except ValueError:
        real = None
    if real is None:
        raise MalformedError(f"its time {text!r} is no RFC 3339 time")


def handshake(value: str) -> None:
    """Judge a handshake: plugins write what they like, we write Requesting_ and a time."""
    if not value.startswith("Requesting"):
        return
    try:
        dt.datetime.strptime(value, "Requesting_%Y-%m-%d %H:%M:%S")  # noqa: DTZ007 - as HAMi's is
    except ValueError as error:
        raise MalformedError("is not Requesting_<YYYY-MM-DD HH:MM:SS>") from error


def pair_scores(value: str) -> tuple[str, ...]:
    """Read the links between cards; return the cards they name."""
    named: list[str] = []
    for item in malformed.objects(malformed.parse_json(value)):
        scores = item.get("score")
        if not isinstance(scores, dict) or any(type(score) is not int for score in scores.values()):
            raise MalformedError(f"score {malformed.shown(scores)} is no object of whole numbers")
        named += [malformed.string(item, "uuid"), *scores]
    return tuple(dict.fromkeys(named))


def binding_mark(value: str) -> str:
    """Read the mark of a late-binding node; return the hash it names."""
    found = _MARK.fullmatch(value)
    if found is None:
        raise MalformedError("is not late,<16 hex digits>")
    return found[1]


def lock_reason(value: str) -> None:
    """Judge why a node is not late-binding: one line for people."""
    if not value.strip() or "\n" in value:
        raise MalformedError("is no line of text")


def closed(value: str) -> None:
    """Judge which cards the agent has closed: an object of lines for people."""
    found = malformed.parse_json(value)
    if not isinstance(found, dict) or not found or not all(map(_is_line, found.values())):
        raise MalformedError("is no object of lines of text")


def _is_line(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and "\n" not in value


def hash_of(register_value: str) -> str:
    """Return what a mark must name: of SHA-256 over the register annotation, 16 digits."""
    return hashlib.sha256(register_value.encode(errors="surrogatepass")).hexdigest()[:16]
