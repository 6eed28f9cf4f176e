"""A container's folder: the runtime's orders, the shim's reports.

    spec.json      kubelet's order                            written by the runtime, at creation
    bundle         the shim's orders                                       ''
    lock           locked as long as the shim lives
    started.json   the first process                          by the shim
    exited.json    its end, or why it could not start         by the shim, or for a dead one
    aside          folders that were made elsewhere, a line each           ''
    root           where the container's root is made
    shim.log       errors of the shim itself

Standard library only: every shim loads this.
"""

# ruff: noqa: PTH104, PTH106, PTH108, PTH123, PTH208 - pathlib costs 10 ms of every start

from __future__ import annotations

import marshal
import os

SPEC, BUNDLE, LOCK, STARTED, EXITED = "spec.json", "bundle", "lock", "started.json", "exited.json"
ASIDE, ROOT, SHIM_LOG = "aside", "root", "shim.log"

#: Names the container in the environment of all its processes.
MARK = "HAMI_SANDBOX_CONTAINER"
#: SIGKILL; the module signal is not loaded.
KILL = 9
#: Characters that need no escape in JSON.
_PLAIN = frozenset(range(0x20, 0x7F)) - {ord('"'), ord("\\")}
START_ERROR, START_EXIT_CODE = "StartError", 128


class Bundle:
    """The shim's orders."""

    __slots__ = (
        *("argv", "env", "hostname", "log", "mounts", "namespaces", "needed", "programs"),
        "working_dir",
    )

    def __init__(
        self,
        *,
        namespaces: bool,
        argv: list[str],
        env: dict[str, str],
        mounts: list[tuple[str, str, int]],
        working_dir: str,
        log: str,
        hostname: str,
        needed: list[str],
        programs: str,
    ) -> None:
        #: Whether the container gets namespaces, or a folder of links.
        self.namespaces = namespaces
        self.argv = argv
        self.env = env
        #: The machine's path, the container's, attributes of the mount; in their order.
        self.mounts = mounts
        self.working_dir = working_dir
        self.log = log
        self.hostname = hostname
        #: Paths of the machine that the container must see.
        self.needed = needed
        #: The folder of the sandbox's own programs.
        self.programs = programs

    def encode(self) -> bytes:
        return marshal.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def read(cls, folder: str) -> Bundle:
        with open(f"{folder}/{BUNDLE}", "rb") as file:
            return cls(**marshal.load(file))  # noqa: S302 - our own runtime wrote it


def write_record(path: str, **fields: str | float) -> None:
    """Write a JSON file atomically."""
    draft = f"{path}.part"
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.write(handle, record(**fields).encode())
    finally:
        os.close(handle)
    os.rename(draft, path)


def record(**fields: str | float) -> str:
    """Return fields as JSON. Without `json`, whose import costs 10 ms."""
    parts = [f'"{name}": {_json(value)}' for name, value in fields.items()]
    return f"{{{', '.join(parts)}}}\n"


def _json(value: str | float) -> str:
    if not isinstance(value, str):
        return repr(value)
    plain = value.encode("utf-16-be", "replace")
    units = (int.from_bytes(plain[at : at + 2], "big") for at in range(0, len(plain), 2))
    return f'"{"".join(_character(unit) for unit in units)}"'


def _character(unit: int) -> str:
    return chr(unit) if unit in _PLAIN else f"\\u{unit:04x}"


def remove_aside(folder: str) -> None:
    """Remove the folders that were made elsewhere; they have only links in them."""
    try:
        with open(f"{folder}/{ASIDE}") as file:
            paths = file.read().splitlines()
        os.unlink(f"{folder}/{ASIDE}")
    except FileNotFoundError:
        return
    for path in paths:
        try:
            for name in os.listdir(path):
                os.unlink(f"{path}/{name}")
            os.rmdir(path)
        except OSError:  # removed with its file system
            continue
