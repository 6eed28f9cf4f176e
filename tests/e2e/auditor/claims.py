"""The files of a token: the container they are for, and its limits.

Each plugin writes its own files, so each has readers of its own, and a layout names them. A claim
holds only what a reader found; checks compare that and skip the rest. A reader raises
MalformedError, nothing else, whatever the bytes. The policy file of hami's agent is binary and has
a module of its own (policy.py).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping

from tests.e2e.auditor import malformed
from tests.e2e.auditor.malformed import MalformedError

_MEGABYTES = re.compile(r"([0-9]{1,10})m", re.ASCII)
_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_MEMORY_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT_"
_CORE_LIMIT = "CUDA_DEVICE_SM_LIMIT"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What is None was not said."""

    uid: str | None = None
    pod: str | None = None
    """`namespace/name`."""
    container: str | None = None
    device_ids: frozenset[str] | None = None
    """Ids of kubelet, not of cards."""
    cards: tuple[str, ...] | None = None
    memory: tuple[int, ...] | None = None
    """In MiB, one for each card."""
    cores: int | None = None
    """Percent of every card: HAMi's env has one number for all."""
    card_cores: tuple[int, ...] | None = None
    """Percent, one for each card; 0 for no limit."""


PolicyReader = Callable[[bytes], Claim]
EnvReader = Callable[[Mapping[str, str]], Claim]
LedgerReader = Callable[[bytes], frozenset[str]]
"""Returns the UIDs of the pods that a file of the ledger is about."""


def json_policy(content: bytes) -> Claim:
    """Read the bare plugin's policy: uid, pod, container, devices."""
    policy = malformed.parse_json(content)
    if not isinstance(policy, dict):
        raise MalformedError(f"{malformed.shown(policy)} is no object")
    uid, pod, container = (malformed.string(policy, name) for name in ("uid", "pod", "container"))
    if not (uid and pod and container):
        raise MalformedError(f"{malformed.shown(policy)} lacks uid, pod or container")
    devices = policy.get("devices")
    if not isinstance(devices, list) or not all(isinstance(one, str) for one in devices):
        raise MalformedError(f"devices {malformed.shown(devices)} is no list of ids")
    return Claim(uid=uid, pod=pod, container=container, device_ids=frozenset(devices))


def bare_env(env: Mapping[str, str]) -> Claim:
    """Read the env that the bare plugin puts into a container."""
    visible = env.get(_VISIBLE)
    ids = None
    if visible is not None:
        ids = frozenset(one.removeprefix("GPU-") for one in visible.split(","))
    return Claim(uid=env.get("BARE_POD_UID"), container=env.get("BARE_CONTAINER"), device_ids=ids)


def hami_env(env: Mapping[str, str]) -> Claim:
    """Read HAMi's names (docs/designs/006-hami-protocol.md). MIG slices are not judged yet."""
    visible = env.get(_VISIBLE)
    if visible is None:
        raise MalformedError(f"sets no {_VISIBLE}, so the container keeps void")
    cards = tuple(visible.split(","))
    if any(card.startswith("MIG-") for card in cards):
        return Claim()
    limits = {name: value for name, value in env.items() if name.startswith(_MEMORY_LIMIT)}
    memory = None
    if limits:
        wanted = [f"{_MEMORY_LIMIT}{index}" for index in range(len(cards))]
        if sorted(limits) != sorted(wanted):
            raise MalformedError(f"has {sorted(limits)} for {len(cards)} cards, not {wanted}")
        memory = tuple(_megabytes(name, limits[name]) for name in wanted)
    cores = env.get(_CORE_LIMIT)
    return Claim(
        cards=cards,
        memory=memory,
        cores=None if cores is None else malformed.decimal(cores, _CORE_LIMIT),
    )


def json_ledger(content: bytes) -> frozenset[str]:
    """Read a ledger file that is an object with the pod's `uid`."""
    entry = malformed.parse_json(content)
    uid = entry.get("uid") if isinstance(entry, dict) else None
    if not isinstance(uid, str) or not uid:
        raise MalformedError(f"{malformed.shown(entry)} is no object with a uid")
    return frozenset({uid})


def spec_env(content: bytes, kind: str, token: str) -> dict[str, str]:
    """Read a CDI spec that describes exactly one device, the token; return the env it sets."""
    spec = malformed.parse_json(content)
    if not isinstance(spec, dict) or not isinstance(spec.get("cdiVersion"), str):
        raise MalformedError("is no CDI spec: it has no cdiVersion")
    if spec.get("kind") != kind:
        raise MalformedError(f"its kind is {malformed.shown(spec.get('kind'))}, not {kind}")
    devices = malformed.objects(spec.get("devices"))
    names = [device.get("name") for device in devices]
    if names != [token]:
        raise MalformedError(f"it describes {malformed.shown(names)}, not just {token}")
    env: dict[str, str] = {}
    for holder in (spec, devices[0]):
        edits = holder.get("containerEdits", {})
        listed = edits.get("env", []) if isinstance(edits, dict) else None
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            raise MalformedError(f"containerEdits {malformed.shown(edits)} has no list of env")
        env.update(one.split("=", 1) if "=" in one else (one, "") for one in listed)
    return env


def _megabytes(name: str, text: str) -> int:
    found = _MEGABYTES.fullmatch(text)
    if found is None:
        raise MalformedError(f"{name} is {text!r}, not <MiB>m")
    return int(found[1])
