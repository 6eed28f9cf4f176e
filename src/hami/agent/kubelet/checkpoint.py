"""kubelet's device checkpoint: which container of which pod holds which device ids, by what answer.

kubelet writes it after every Allocate and every list of devices: another file, renamed into place,
so what is read is whole. It is the only thing on a node that joins device ids, a pod's UID, a
container's name and our own answer, and it knows init containers too. Entries of pods that are gone
stay in it until the next write. It is no API: what is not exactly the shape that we know, checksum
included, is refused (kind `shape`), and the node then binds under the lock.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from pathlib import Path

from hami.agent.errors import AgentError
from hami.agent.kubelet import checkpoint_sum
from hami.agent.kubelet.kubelet_api import Allocation
from hami.agent.kubelet.messages import MessageError
from hami.node import layout
from hami.wire import codec, errors

_REMEDY = "restart kubelet if the file is damaged; if this stays, report kubelet's version"


class Kind(enum.Enum):
    #: There is none: kubelet writes the first when a plugin has listed its devices.
    MISSING = "missing"
    UNREADABLE = "unreadable"
    #: It is not what we know kubelet to write, or it is damaged.
    SHAPE = "shape"
    #: One entry's answer is none.
    ANSWER = "answer"


class CheckpointError(AgentError):
    """The checkpoint, or an entry of it, cannot be used."""

    def __init__(self, kind: Kind, what: str, rule: str, remedy: str = "") -> None:
        super().__init__(what, rule, remedy)
        self.kind = kind


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    pod_uid: str
    container: str
    resource: str
    device_ids: frozenset[str]
    #: Our answer's bytes, as kubelet keeps them.
    answer: bytes

    def allocation(self) -> Allocation:
        """Read the answer; a CheckpointError names the container if it is none."""
        try:
            return Allocation.decode(self.answer)
        except MessageError as error:
            raise CheckpointError(
                Kind.ANSWER,
                f"kubelet's checkpoint, container {self.container!r} of pod {self.pod_uid}",
                f"the answer for its {self.resource} ({len(self.answer)} bytes) does not decode: "
                f"{error}",
                "delete the pod to have it started anew",
            ) from error


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    entries: tuple[Entry, ...]
    #: The healthy device ids of every resource that a plugin has registered.
    registered: Mapping[str, frozenset[str]]


#: What was read last, by path. A burst of starts reads the same file again and again, and judging
#: it takes a hundred times as long as reading. Bytes are compared because times of files are too
#: coarse for a kubelet that writes several within a tick.
_last: dict[Path, tuple[bytes, Checkpoint]] = {}


def read(path: Path) -> Checkpoint:
    """Read and judge kubelet's file; CheckpointError says what is wrong."""
    what = f"kubelet's checkpoint {path}"
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise CheckpointError(
            Kind.MISSING,
            what,
            "does not exist, and kubelet writes it when a device plugin has registered",
            "check --kubelet-dir if one has",
        ) from error
    except OSError as error:
        raise CheckpointError(
            Kind.UNREADABLE, what, f"cannot be read: {error.strerror}", "run the agent as root"
        ) from error
    last = _last.get(path)
    if last is not None and last[0] == content:
        return last[1]
    checkpoint = parse(content, what=what)
    _last[path] = content, checkpoint
    return checkpoint


def parse(content: bytes, *, what: str = "kubelet's checkpoint") -> Checkpoint:
    try:
        file = codec.decode(content, checkpoint_sum.File, what=what)
    except errors.WireError as error:
        raise CheckpointError(
            Kind.SHAPE, what, f"is not what kubelet is known to write: {error}", _REMEDY
        ) from error
    expected = checkpoint_sum.of(file.data)
    if file.checksum != expected:
        raise CheckpointError(
            Kind.SHAPE,
            f"{what} ({len(content)} bytes)",
            f"has checksum {file.checksum}, but its content makes {expected}: it is damaged, or "
            "this kubelet has other types than we know",
            _REMEDY,
        )
    return Checkpoint(
        entries=tuple(
            Entry(
                entry.pod_uid,
                entry.container,
                entry.resource,
                frozenset(id_ for ids in (entry.device_ids or {}).values() for id_ in ids or ()),
                entry.answer or b"",
            )
            for entry in file.data.entries or ()
        ),
        registered={
            resource: frozenset(ids or ()) for resource, ids in (file.data.registered or {}).items()
        },
    )


def token_of(allocation: Allocation) -> str | None:
    """Return the token that an answer of ours names; None: it names none, or two."""
    named = {allocation.annotations.get(layout.TOKEN_ANNOTATION)}
    for device in allocation.cdi_devices:
        kind, _, name = device.partition("=")
        if kind == layout.CDI_KIND:
            named.add(name)
    named.discard(None)
    token = named.pop() if len(named) == 1 else None
    return token if token is not None and layout.is_token(token) else None
