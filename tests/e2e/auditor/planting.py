"""A planted fault: put in, expected, taken out; and the files it changes.

`plant.py` has the list of all.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import pathlib
import shutil
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from tests.e2e.auditor import layouts, node_root, reading, tokens
from tests.e2e.auditor.findings import Kind
from tests.e2e.auditor.layouts import Layout
from tests.e2e.auditor.stage import Api, Stage
from tests.e2e.kubelet_api import checkpoint, checksum

Undo = Callable[[], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Context:
    """A real cluster on which nothing is in progress."""

    client: Api
    roots: Mapping[str, pathlib.Path]
    """Of the nodes, by name, as the auditor gets them."""
    namespace: str
    """Where pods may be made; its service account `default` is there."""
    pod: Mapping[str, Any]
    """A pod that runs on one of the nodes with a token of `layout`'s plugin, as the API has it."""
    layout: Layout = layouts.BARE
    hami: Layout = layouts.HAMI
    """As the auditor gets it; a node whose /usr is read-only needs another hook path."""
    driver_state: str = reading.DRIVER_STATE

    @property
    def node(self) -> str:
        return str(self.pod["spec"]["nodeName"])

    def stage(self) -> Stage:
        return Stage(self.client, self.namespace)

    def path(self, seen: str) -> pathlib.Path:
        """Return a path of the pod's node."""
        return node_root.inside(self.roots[self.node], seen)

    @property
    def entry(self) -> checkpoint.Entry:
        """The pod's first entry with a token in kubelet's checkpoint."""
        return self._first()[0]

    @property
    def token(self) -> str:
        return self._first()[1]

    @property
    def spec_file(self) -> pathlib.Path:
        name = f"{self.layout.spec_prefix}{self.token}.json"
        places = [self.path(f"{folder}/{name}") for folder in self.layout.cdi_folders]
        return next(place for place in places if place.exists())

    @property
    def policy_file(self) -> pathlib.Path:
        return self.path(f"{self.layout.tokens}/{self.token}/{self.layout.policy_file}")

    def _first(self) -> tuple[checkpoint.Entry, str]:
        uid = self.pod["metadata"]["uid"]
        for entry in checkpoint.read(self.path(str(checkpoint.PATH))).entries:
            reader = reading.NodeReader(self.roots[self.node], (self.layout,))
            found = tokens.of_entry(reader.held("", entry), self.layout)
            if entry.pod_uid == uid and found:
                return entry, min(found)
        raise LookupError(f"kubelet's checkpoint on {self.node} has no token for pod {uid}")


@dataclasses.dataclass(frozen=True)
class Plant:
    """`plant` puts the fault in and returns what takes it out."""

    name: str
    plant: Callable[[Context], Undo]
    expected: frozenset[Kind]
    """What one look then finds, nothing else."""
    recorded: frozenset[Kind] = frozenset()
    """What the timeline shows besides, from then on: record each plant by itself."""


Build = Callable[[Context, contextlib.ExitStack], None]
"""Puts a fault in, and onto the stack whatever takes it out."""


def plant(name: str, build: Build, *expected: Kind, recorded: tuple[Kind, ...] = ()) -> Plant:
    """Make a plant of a function; if it fails half-way, what it did is taken back."""

    def put(context: Context) -> Undo:
        with contextlib.ExitStack() as undo:
            build(context, undo)
            return undo.pop_all().close

    return Plant(name, put, frozenset(expected), frozenset(recorded))


def new_token() -> str:
    """Return a token that no plugin would make, and so none sweeps."""
    return f"plant-{uuid.uuid4().hex}"


def write(path: pathlib.Path, content: bytes) -> Undo:
    """Write a file, whole or not at all; to undo it puts back what was there."""
    before = path.read_bytes() if path.exists() else None
    made = make_folders(path.parent)
    replace(path, content)

    def undo() -> None:
        if before is None:
            path.unlink(missing_ok=True)
        elif path.exists() and path.read_bytes() == content:
            replace(path, before)  # else its owner has written it since, and knows better
        made()

    return undo


def replace(path: pathlib.Path, content: bytes) -> None:
    # A hidden name on the same file system: neither CDI nor the auditor takes it for a spec.
    draft = path.with_name(f".plant-{uuid.uuid4().hex}")
    draft.write_bytes(content)
    if path.exists():
        shutil.copymode(path, draft)
    draft.replace(path)


def take_away(path: pathlib.Path) -> Undo:
    """Remove a file; to undo it puts it back."""
    content, mode = path.read_bytes(), path.stat().st_mode
    path.unlink()

    def undo() -> None:
        if not path.exists():
            replace(path, content)
            path.chmod(mode)

    return undo


def make_folders(path: pathlib.Path) -> Undo:
    """Make a folder with its parents; to undo it removes those that it made."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(parents=True, exist_ok=True)

    def undo() -> None:
        for one in missing:
            one.rmdir()

    return undo


def edit_json(path: pathlib.Path, change: Callable[[dict[str, Any]], None]) -> Undo:
    content = json.loads(path.read_bytes())
    change(content)
    return write(path, json.dumps(content).encode())


def add_to_checkpoint(context: Context, *, uid: str, **fields: Any) -> Undo:
    """Add a copy of the pod's entry, changed, to kubelet's file, which kubelet reads at starts."""
    entry = context.entry
    added = {
        "PodUID": uid,
        "ContainerName": entry.container,
        "ResourceName": entry.resource,
        "DeviceIDs": {"-1": sorted(entry.device_ids)},
        "AllocResp": base64.b64encode(entry.answer).decode(),
        **fields,
    }

    def change(whole: dict[str, Any]) -> None:
        whole["Data"]["PodDeviceEntries"].append(added)
        whole["Checksum"] = checksum.of(whole)

    return edit_json(context.path(str(checkpoint.PATH)), change)
