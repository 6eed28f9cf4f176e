"""Reads one node's folders and kubelet into evidence.

What is not there is not there: files come and go while one reads. What is there and cannot be read
is noted as unreadable. Token files are read before kubelet's checkpoint, and both before the API:
then whoever owns a file is in a later reading, unless it is gone or not written down yet, and
both of that is momentary.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Iterator, Mapping

from tests.e2e.auditor import node_root, peaks
from tests.e2e.auditor.evidence import (
    Held,
    LedgerFile,
    Listed,
    NodeFiles,
    TokenThing,
    Unreadable,
)
from tests.e2e.auditor.layouts import Layout
from tests.e2e.kubelet_api import checkpoint, pod_resources
from tests.e2e.kubelet_api.checkpoint import CheckpointError, Entry
from tests.e2e.kubelet_api.pod_resources import PodResourcesError

DRIVER_STATE = "/run/fakegpu"
"""Where the stand-in driver keeps its state, as the node sees it."""
_CDI_ANNOTATION = "cdi.k8s.io/"


@dataclasses.dataclass
class NodeReader:
    """Reads one node; `unreadable` gathers what could not be read."""

    root: pathlib.Path
    layouts: tuple[Layout, ...]
    driver_state: str = DRIVER_STATE
    ask_kubelet: bool = True
    unreadable: list[Unreadable] = dataclasses.field(default_factory=list)

    def read(self) -> NodeFiles:
        if not self.root.is_dir():
            return NodeFiles(unreadable=(Unreadable("/", f"its root {self.root} is not there"),))
        folders = tuple(thing for layout in self.layouts for thing in self._folders(layout))
        specs = tuple(thing for layout in self.layouts for thing in self._specs(layout))
        states = tuple(thing for layout in self.layouts for thing in self._states(layout))
        ledger = tuple(file for layout in self.layouts for file in self._ledger(layout))
        peaks_path = f"{self.driver_state}/{peaks.FILE}"
        record = self._content(peaks_path)
        held = tuple(self._checkpoint())
        listed = self._pod_resources() if self.ask_kubelet else None
        return NodeFiles(
            checkpoint=held,
            pod_resources=listed,
            folders=folders,
            specs=specs,
            states=states,
            ledger=ledger,
            peaks=(record or b"").decode(errors="replace"),
            peaks_path=peaks_path,
            unreadable=tuple(self.unreadable),
        )

    def _folders(self, layout: Layout) -> Iterator[TokenThing]:
        for token in self._names(layout.tokens):
            path = f"{layout.tokens}/{token}"
            content = self._content(f"{path}/{layout.policy_file}")
            yield TokenThing(layout, token, path, content)

    def _specs(self, layout: Layout) -> Iterator[TokenThing]:
        seen: set[pathlib.Path] = set()
        for folder in layout.cdi_folders:
            place = node_root.inside(self.root, folder)
            if place in seen:
                continue
            seen.add(place)
            for name in self._names(folder):
                if name.startswith(layout.spec_prefix):
                    token = name.removeprefix(layout.spec_prefix).removesuffix(".json")
                    path = f"{folder}/{name}"
                    content = self._content(path)
                    if content is not None:
                        yield TokenThing(layout, token, path, content)

    def _states(self, layout: Layout) -> Iterator[TokenThing]:
        if layout.states is not None:
            for token in self._names(layout.states):
                yield TokenThing(layout, token, f"{layout.states}/{token}")

    def _ledger(self, layout: Layout) -> Iterator[LedgerFile]:
        if layout.ledger is not None:
            for name in self._names(layout.ledger):
                path = f"{layout.ledger}/{name}"
                content = self._content(path)
                if content is not None:
                    yield LedgerFile(layout, path, content)

    def _checkpoint(self) -> Iterator[Held]:
        seen = str(checkpoint.PATH)
        content = self._content(seen)
        if content is None:
            return  # kubelet writes it with the first plugin
        try:
            entries = checkpoint.parse(content).entries
        except CheckpointError as error:
            self.unreadable.append(Unreadable(seen, str(error)))
            return
        for entry in entries:
            yield self.held(seen, entry)

    def held(self, seen: str, entry: Entry) -> Held:
        names: tuple[str, ...] = ()
        mounts: tuple[str, ...] = ()
        annotations: Mapping[str, str] = {}
        env: Mapping[str, str] = {}
        try:
            answer = entry.allocation()
        except CheckpointError as error:
            self.unreadable.append(Unreadable(seen, str(error)))
        else:
            noted = [
                name
                for key, value in answer.annotations.items()
                if key.startswith(_CDI_ANNOTATION)
                for name in value.split(",")
            ]
            names = (*answer.cdi_devices, *noted)
            mounts = tuple(mount.host_path for mount in answer.mounts)
            annotations, env = dict(answer.annotations), dict(answer.envs)
        return Held(
            pod_uid=entry.pod_uid,
            container=entry.container,
            resource=entry.resource,
            device_ids=entry.device_ids,
            cdi_devices=names,
            mounts=mounts,
            annotations=annotations,
            env=env,
        )

    def _pod_resources(self) -> tuple[Listed, ...] | None:
        socket = node_root.inside(self.root, str(pod_resources.SOCKET))
        if not socket.exists():
            return None
        try:
            rows = pod_resources.list_pod_resources(socket)
        except PodResourcesError as error:
            self.unreadable.append(Unreadable(str(pod_resources.SOCKET), str(error)))
            return None
        return tuple(
            Listed(
                namespace=row.namespace,
                pod=row.pod,
                container=row.container,
                resource=row.resource,
                device_ids=row.device_ids,
            )
            for row in rows
        )

    def _names(self, seen: str) -> Iterable[str]:
        try:
            return sorted(path.name for path in node_root.inside(self.root, seen).iterdir())
        except FileNotFoundError:
            return ()
        except OSError as error:
            self.unreadable.append(Unreadable(seen, str(error)))
            return ()

    def _content(self, seen: str) -> bytes | None:
        try:
            return node_root.inside(self.root, seen).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self.unreadable.append(Unreadable(seen, str(error)))
            return None
