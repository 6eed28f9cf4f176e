"""The container runtime's status: name, version, and its CDI folders.

Only the verbose status has the CDI folders, as a copy of the runtime's configuration. containerd
reports them (1.7: at the top; the place is not promised, so the keys are searched at any depth).
CRI-O reports nothing about CDI.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hami.agent.errors import AgentError
from hami.agent.kubelet import grpc, kubelet_api
from hami.agent.kubelet.grpc import Message
from hami.wire import codec, errors

#: Where runtimes have their sockets: containerd, CRI-O, Docker, k3s and RKE2, k0s, MicroK8s.
CANDIDATES = (
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/cri-dockerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/k0s/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
)
#: Seconds for each of the two calls.
TIMEOUT = 5.0

_FLAG = "--runtime-endpoint"
_REMEDY = f"name kubelet's CRI socket with {_FLAG}, and mount it into the agent"
_SCHEME = "unix://"
#: Of a runtime on the Node object: containerd://2.1.4.
_NAME_END = "://"
_CONFIG = "config"
_DIRS, _ENABLED = "cdiSpecDirs", "enableCDI"


class RuntimeStatusError(AgentError):
    """The runtime does not answer."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeStatus:
    """Name, version and CDI configuration of a runtime."""

    name: str
    version: str
    #: Folders that it reads CDI specs from; empty: not reported.
    cdi_dirs: tuple[str, ...] = ()
    #: None: not reported.
    cdi_disabled: bool | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def is_kubelets(self, reported: str) -> bool:
        """Return whether its name is that of kubelet's runtime; True if kubelet reports none.

        The version may differ for a while: kubelet reads it when it starts.
        """
        return not reported or reported.partition(_NAME_END)[0] == self.name

    def has_version(self, reported: str) -> bool:
        """Return whether its version is that of kubelet's runtime."""
        return reported.partition(_NAME_END)[2] == self.version.removeprefix("v")


async def runtime_status(endpoint: str) -> RuntimeStatus:
    """Ask a runtime at a path or unix:// address."""
    path = _path(endpoint)
    if not path.exists():
        raise RuntimeStatusError(
            f"the container runtime's socket {path}", "does not exist", _REMEDY
        )
    try:
        async with grpc.channel(path) as channel:
            version = await _ask(channel, kubelet_api.RUNTIME_VERSION)
            status = await _ask(channel, kubelet_api.RUNTIME_STATUS, verbose=True)
    except grpc.RpcError as error:
        raise RuntimeStatusError(
            f"the container runtime at {path}",
            f"does not answer: {grpc.why(error)}",
            _REMEDY,
        ) from error
    return _read(version["runtime_name"], version["runtime_version"], status["info"])


async def detect(
    candidates: Sequence[str | os.PathLike[str]] = CANDIDATES, *, reported: str = ""
) -> RuntimeStatus:
    """Ask the runtimes at these sockets, and return kubelet's.

    `reported` is what kubelet says of its runtime on the Node object. Another runtime that answers
    is beside the point: on a node with cri-dockerd, Docker's own containerd has a socket, too.
    """
    answers: dict[str, RuntimeStatus] = {}
    failures: list[RuntimeStatusError] = []
    for socket in _sockets(candidates):
        try:
            answers[socket] = await runtime_status(socket)
        except RuntimeStatusError as error:
            failures.append(error)
    found = [status for status in answers.values() if status.is_kubelets(reported)]
    if len(found) > 1:
        found = [status for status in found if status.has_version(reported)] or found
    if len(found) == 1:
        return found[0]
    if answers:
        rule = "answer, and it is not known which of them is kubelet's"
        if not found:
            rule = f"answer, but kubelet's is {reported}"
        raise RuntimeStatusError(f"container runtimes at {' and '.join(answers)}", rule, _REMEDY)
    if failures:
        raise failures[0]
    tried = ", ".join(os.fspath(candidate) for candidate in candidates)
    raise RuntimeStatusError(f"container runtime at {tried}", "there is no such socket", _REMEDY)


def _sockets(candidates: Iterable[str | os.PathLike[str]]) -> Iterator[str]:
    """Yield those that exist, each once: /var/run is /run."""
    seen = set()
    for candidate in candidates:
        try:
            found = Path(candidate).stat()
        except OSError:
            continue
        if (key := (found.st_dev, found.st_ino)) not in seen:
            seen.add(key)
            yield os.fspath(candidate)


def _path(endpoint: str) -> Path:
    path = Path(endpoint.removeprefix(_SCHEME))
    if not path.is_absolute():
        raise RuntimeStatusError(
            f"{_FLAG} {endpoint!r}",
            f"is neither an absolute path nor {_SCHEME} before one",
            f"write {_SCHEME}{CANDIDATES[0]}, for example",
        )
    return path


async def _ask(channel: Any, call: grpc.Call, **fields: Any) -> Message:
    answer: Message = await call.on(channel)(fields, timeout=TIMEOUT)
    return answer


def _read(name: str, version: str, info: Mapping[str, str]) -> RuntimeStatus:
    config: Any = None
    with contextlib.suppress(errors.WireError):  # another runtime may have no JSON there
        config = codec.decode(info.get(_CONFIG, "null"), Any, what="the runtime's configuration")
    folders: dict[str, None] = {}  # in their order, each once
    disabled: bool | None = None
    for key, value in _members(config):
        if key == _DIRS and isinstance(value, list):
            folders.update(dict.fromkeys(one for one in value if isinstance(one, str)))
        elif key == _ENABLED and isinstance(value, bool):
            disabled = disabled or not value  # one `false` is enough
    return RuntimeStatus(name=name, version=version, cdi_dirs=tuple(folders), cdi_disabled=disabled)


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key and value at any depth."""
    rest = [value]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            yield from value.items()
            rest.extend(value.values())
        elif isinstance(value, list):
            rest.extend(value)
